# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
ARG BASE=stowage/node-base:0.1.0
FROM ${BASE}
LABEL org.opencontainers.image.title="stowage node-plugin" \
      org.opencontainers.image.description="A CSI driver for volumes in local and shared pools and on NFS servers" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY node-plugin /node-plugin
# Volumes mounted here get this owner, so that the controller need not be root; a node must be, for it mounts.
COPY --chown=65532:65532 empty/ /csi/
COPY --chown=65532:65532 empty/ /pool/
ENTRYPOINT ["/node-plugin"]
