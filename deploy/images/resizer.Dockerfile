# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage resizer" \
      org.opencontainers.image.description="Expands and modifies volumes of one CSI driver; stands in for csi-resizer" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY resizer /resizer
# As the original: the sockets of drivers it is swapped in beside belong to root. Our own manifests set another user.
USER 0:0
ENTRYPOINT ["/resizer"]
