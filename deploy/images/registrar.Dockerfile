# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage registrar" \
      org.opencontainers.image.description="Registers a CSI driver with the kubelet; stands in for node-driver-registrar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY registrar /registrar
USER 65532:65532
ENTRYPOINT ["/registrar"]
