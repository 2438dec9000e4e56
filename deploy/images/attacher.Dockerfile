# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage attacher" \
      org.opencontainers.image.description="Attaches volumes of one CSI driver; stands in for external-attacher" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY attacher /attacher
USER 65532:65532
ENTRYPOINT ["/attacher"]
