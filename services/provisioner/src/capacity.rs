//! The lane that publishes how much room there is: CSIStorageCapacity objects, one for each class in each place.
//!
//! It has a queue, workers and, where the user limits it, a client of its own, so that no claim waits for it. It shares
//! the views of classes and nodes with the claims, which tell it by [`Signals`] where room was taken or given back.
//! Nodes in one place share their objects, so work grows with places and not with nodes; a place is asked about once per
//! poll interval, sooner if something happened there, and never more often than once per second.

mod apply;
mod book;
mod decide;
mod item;
mod lane;
mod metrics;
mod owner;
mod signals;
#[cfg(test)]
mod tests;

pub use lane::{Parts, serve};
pub use signals::Signals;
