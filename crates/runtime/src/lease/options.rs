//! Which Lease to contend for, and the three durations that must fit each other.

use std::collections::BTreeMap;
use std::time::Duration;

/// client-go's spread of retries, as a factor of the retry period.
pub(super) const JITTER: f64 = 1.2;

/// Why three durations make no election.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// Followers would take over from a leader that has not given up.
    #[error("lease duration {lease:?} must be longer than the renew deadline {renew:?}")]
    OutliveRenewal {
        /// The lease duration.
        lease: Duration,
        /// The renew deadline.
        renew: Duration,
    },
    /// One slow renewal would lose the lease.
    #[error("renew deadline {renew:?} must be longer than {JITTER} times the retry period {retry:?}")]
    RenewInTime {
        /// The renew deadline.
        renew: Duration,
        /// The retry period.
        retry: Duration,
    },
    /// The API counts whole seconds.
    #[error("lease duration {lease:?} must be at least 1s and the retry period {retry:?} above zero")]
    CountSeconds {
        /// The lease duration.
        lease: Duration,
        /// The retry period.
        retry: Duration,
    },
}

/// The three durations of an election, which fit each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Timing {
    /// Checks the durations as client-go does.
    pub fn new(lease: Duration, renew: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease <= renew {
            return Err(TimingError::OutliveRenewal { lease, renew });
        }
        if renew <= retry.mul_f64(JITTER) {
            return Err(TimingError::RenewInTime { renew, retry });
        }
        if lease < Duration::from_secs(1) || retry.is_zero() {
            return Err(TimingError::CountSeconds { lease, retry });
        }
        Ok(Self { lease_duration: lease, renew_deadline: renew, retry_period: retry })
    }

    /// How long others wait after the last renewal they saw.
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// How long a leader goes on without a renewal.
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Time between renewals.
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }
}

/// Which Lease to contend for, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, sanitised.
    pub name: String,
    /// Name of this candidate; must differ between processes that run at the same time.
    pub identity: String,
    /// The durations.
    pub timing: Timing,
    /// Labels the leader puts on the Lease.
    pub labels: BTreeMap<String, String>,
    /// Whether [`Leadership::end`] gives the lease back.
    pub release_on_exit: bool,
}

/// Makes a lock name or identity the way the originals do: dots and slashes become dashes.
pub fn sanitize(name: &str) -> String {
    let mut name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}
