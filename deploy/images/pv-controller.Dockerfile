# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage pv-controller" \
      org.opencontainers.image.description="Binds claims to volumes; stands in for kube-controller-manager's persistentvolume-binder and protection controllers" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY pv-controller /pv-controller
USER 65532:65532
ENTRYPOINT ["/pv-controller"]
