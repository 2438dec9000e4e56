//! The embedded Kubernetes API server: a store that is a pure state machine, and HTTP around it.
//!
//! [`Store`] takes one write at a time and answers with the events it made. [`Server`] puts HTTP, watches and, with a data
//! directory, durability around it; [`Server::service`] is the whole API as a tower service without sockets, and
//! [`Server::serve`] offers the same over TLS.

#![forbid(unsafe_code)]

mod access;
mod auth;
mod bounds;
mod cel;
mod changed;
mod crd;
mod durable;
mod http;
mod identity;
mod kind;
mod metrics;
mod object;
mod patch;
mod place;
mod quantity;
mod rbac;
mod review;
mod rules;
mod selector;
mod serve;
mod server;
mod share;
mod status;
mod store;
mod table;
mod tls;
mod tokens;
mod view;
mod watch;
mod wire;

pub use auth::{Credentials, ReadTokens, User};
pub use durable::OpenStore;
pub use http::{Body, Limits, Service};
pub use identity::{Identity, LoadIdentity};
pub use kind::{KINDS, Kind, Kinds};
pub use object::{Key, Object};
pub use patch::Patch;
pub use selector::Selector;
pub use serve::Front;
pub use server::{Options, Server};
pub use status::{Cause, Details, Status};
pub use store::{
    Action, Answer, Applied, DeleteOptions, Event, EventType, Page, Propagation, Query, Store, Subresource, Unreadable,
    Write,
};
pub use tls::{MakeCertificates, Tls};
pub use tokens::TokenKey;
