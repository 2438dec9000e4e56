//! The driver for NFS servers.

mod copies;
mod crash;
mod helper;
mod hostile;
mod node;
mod volumes;
