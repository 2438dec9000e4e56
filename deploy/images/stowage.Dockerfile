# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage stowage" \
      org.opencontainers.image.description="The command people type: drain, check, clean, up, demo" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY stowage /stowage
USER 65532:65532
ENTRYPOINT ["/stowage"]
