# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
ARG BASE=stowage/node-base:0.1.0
FROM ${BASE}
LABEL org.opencontainers.image.title="stowage volume-manager" \
      org.opencontainers.image.description="The volume half of the kubelet, where there is none" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY volume-manager /volume-manager
ENTRYPOINT ["/volume-manager"]
