# Built by `cargo xtask images` from a directory with nothing in it but the static binary and an empty folder.
FROM scratch
LABEL org.opencontainers.image.title="stowage scheduler" \
      org.opencontainers.image.description="Places pods where their volumes can be, for stacks without kube-scheduler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY scheduler /scheduler
USER 65532:65532
ENTRYPOINT ["/scheduler"]
