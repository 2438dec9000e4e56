//! How many requests are worked on at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{KindOfRequest, Metrics};
use crate::status::Status;

/// Most requests at a time; watches are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that read.
    pub reading: usize,
    /// Requests that change something.
    pub mutating: usize,
}

impl Default for Limits {
    /// Upstream's defaults.
    fn default() -> Self {
        Self { reading: 400, mutating: 200 }
    }
}

/// The places that requests take.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    reading: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
}

/// One taken place; free again when dropped.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl Places {
    pub fn new(limits: Limits) -> Self {
        Self { reading: Arc::new(Semaphore::new(limits.reading)), mutating: Arc::new(Semaphore::new(limits.mutating)) }
    }

    /// Takes a place, or says when to come back.
    pub fn take(&self, mutating: bool, metrics: &Metrics) -> Result<Place, Status> {
        let (places, request_kind) = if mutating { (&self.mutating, "mutating") } else { (&self.reading, "readOnly") };
        let labels = KindOfRequest { request_kind };
        match places.clone().try_acquire_owned() {
            Ok(permit) => {
                let gauge = metrics.in_flight.get_or_create(&labels).clone();
                gauge.inc();
                Ok(Place { _permit: permit, gauge })
            }
            Err(_) => {
                metrics.rejected.get_or_create(&labels).inc();
                let message = "Too many requests, please try again later.";
                let mut status = Status::new(429, "TooManyRequests", message);
                status.details.retry_after_seconds = Some(1);
                Err(status)
            }
        }
    }
}
