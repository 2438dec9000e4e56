# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage apiserver" \
      org.opencontainers.image.description="The Kubernetes API for one machine" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY apiserver /apiserver
# Volumes mounted here get this owner, so that the server need not be root.
COPY --chown=65532:65532 empty/ /var/lib/stowage/
COPY --chown=65532:65532 empty/ /access/
USER 65532:65532
ENTRYPOINT ["/apiserver"]
