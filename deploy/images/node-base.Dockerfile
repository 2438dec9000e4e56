# What the images of a node share: a slim Debian and the programs that make, check, grow and mount file systems.
# `cargo xtask images` makes debian:12-slim with debootstrap, these programs included, where it cannot be pulled.
ARG DEBIAN=debian:12-slim
FROM ${DEBIAN}
# `command -v` of this shell looks at its first name only, so each is asked for.
RUN all() { command -v mkfs.ext4 && command -v mkfs.xfs && command -v mkfs.btrfs && command -v mount.nfs; }; \
    if ! all > /dev/null; then \
        apt-get update -qq \
        && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            e2fsprogs xfsprogs btrfs-progs nfs-common \
        && rm -rf /var/lib/apt/lists/*; \
    fi; \
    all
