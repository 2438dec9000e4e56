# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage snapshot-controller" \
      org.opencontainers.image.description="Binds snapshots to their contents; stands in for snapshot-controller" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY snapshot-controller /snapshot-controller
USER 65532:65532
ENTRYPOINT ["/snapshot-controller"]
