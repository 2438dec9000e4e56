//! The pure part of Stowage: identities, quantities, access modes, topology, matching, phases.
//! No kube client, no tokio, no tonic.
#![forbid(unsafe_code)]

pub mod object;
