# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage provisioner" \
      org.opencontainers.image.description="Makes and deletes volumes of one CSI driver; stands in for external-provisioner" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY provisioner /provisioner
# As the original: the sockets of drivers it is swapped in beside belong to root. Our own manifests set another user.
USER 0:0
ENTRYPOINT ["/provisioner"]
