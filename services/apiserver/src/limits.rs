use std::time::Duration;

use clap::Args;

use stowage_apiserver::Limits;

use crate::args::duration;

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Most requests that only read, at a time; more are answered with 429. Administrators, the system, leases and all
    /// others have so many each.
    #[arg(long, default_value_t = Limits::default().reading)]
    pub max_requests_inflight: usize,
    /// Most requests that change something, at a time; more are answered with 429. Administrators, the system, leases
    /// and all others have so many each.
    #[arg(long, default_value_t = Limits::default().mutating)]
    pub max_mutating_requests_inflight: usize,
    /// How long the body of a request, the work for it and the taking of the answer by the client may take each, such
    /// as 1m0s.
    #[arg(long, default_value = "1m0s", value_name = "DURATION", value_parser = duration)]
    pub request_timeout: Duration,
    /// Most HTTP/2 streams of one connection: requests and watches.
    #[arg(long, default_value_t = Limits::default().streams_per_connection)]
    pub http2_max_streams_per_connection: u32,
    /// Most connections in all; never more than the process has descriptors for.
    #[arg(long, default_value_t = Limits::default().connections)]
    pub max_connections: usize,
    /// Most connections from one address.
    #[arg(long, default_value_t = Limits::default().connections_per_address)]
    pub max_connections_per_address: usize,
    /// Most bytes of request bodies held at a time. Administrators, the system, leases and all others have a quarter
    /// each.
    #[arg(long, default_value_t = Limits::default().body_bytes)]
    pub max_body_bytes: usize,
    /// Most bytes of answers and events held that clients have not yet taken. Administrators, the system, leases and all
    /// others have a quarter each, and one connection a quarter of that.
    #[arg(long, default_value_t = Limits::default().unsent_bytes)]
    pub max_unsent_bytes: usize,
    /// Most watches at a time; more are answered with 429. Administrators, the system and all others have so many each.
    #[arg(long, default_value_t = Limits::default().watches)]
    pub max_watches: usize,
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        Self {
            reading: args.max_requests_inflight,
            mutating: args.max_mutating_requests_inflight,
            request_timeout: args.request_timeout,
            streams_per_connection: args.http2_max_streams_per_connection,
            connections: args.max_connections,
            connections_per_address: args.max_connections_per_address,
            body_bytes: args.max_body_bytes,
            unsent_bytes: args.max_unsent_bytes,
            watches: args.max_watches,
            ..Self::default()
        }
    }
}
