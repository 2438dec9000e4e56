use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are no connections: the data file, the log, the runtime's own, a caller's.
const OTHERS: usize = 64;

/// Asks for as many as the system allows: many systems begin with 1024, for programs that use select(2).
pub fn raise() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files; fewer connections are accepted");
    }
}

/// How many of `wanted` connections there are descriptors for.
pub fn connections(wanted: usize) -> usize {
    let Ok((allowed, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    fitting(wanted, usize::try_from(allowed).unwrap_or(usize::MAX))
}

fn fitting(wanted: usize, descriptors: usize) -> usize {
    // With hardly any there are still a few, and accept waits for the next that is free.
    wanted.min(descriptors.saturating_sub(OTHERS).max(descriptors / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_connections_than_descriptors() {
        for (wanted, descriptors, fits) in
            [(4096, 1 << 20, 4096), (4096, 1024, 960), (100, 1024, 100), (4096, 64, 32), (4096, usize::MAX, 4096)]
        {
            assert_eq!(fitting(wanted, descriptors), fits, "{wanted} of {descriptors}");
        }
    }
}
