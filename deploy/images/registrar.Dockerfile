# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage registrar" \
      org.opencontainers.image.description="Registers a CSI driver with the kubelet; stands in for node-driver-registrar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY registrar /registrar
# As the original: the sockets of drivers it is swapped in beside belong to root. Our own manifests set another user.
USER 0:0
ENTRYPOINT ["/registrar"]
