# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage attach-detach-controller" \
      org.opencontainers.image.description="Attaches the volumes of placed pods; stands in for kube-controller-manager's attach-detach controller" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY attach-detach-controller /attach-detach-controller
USER 65532:65532
ENTRYPOINT ["/attach-detach-controller"]
