//! The shipped manifests name what exists, ask for no more than they need, and apply.
#![allow(clippy::unwrap_used, clippy::panic)]

mod apply;
mod compose;
mod flags;
mod images;
mod rights;
mod security;
