//! The randomness port: seeded in simulation, from the operating system otherwise.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// A cheap, clonable source of randomness.
#[derive(Debug, Clone)]
pub struct Random(Arc<Mutex<StdRng>>);

impl Random {
    /// Seeded by the operating system.
    pub fn from_os() -> Self {
        Self(Arc::new(Mutex::new(StdRng::from_os_rng())))
    }

    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// A random number.
    pub fn number(&self) -> u64 {
        self.with(|rng| rng.next_u64())
    }

    /// A fraction in `[0, 1)`.
    pub fn fraction(&self) -> f64 {
        self.with(|rng| rng.random::<f64>())
    }

    /// `base` lengthened by up to `factor` of itself, so that clients do not beat in step.
    pub fn jitter(&self, base: Duration, factor: f64) -> Duration {
        base.mul_f64(1.0 + factor * self.fraction())
    }

    /// A version-4 UUID.
    pub fn uuid(&self) -> String {
        let mut bytes = [0_u8; 16];
        self.with(|rng| rng.fill_bytes(&mut bytes));
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    fn with<T>(&self, f: impl FnOnce(&mut StdRng) -> T) -> T {
        f(&mut self.0.lock().expect("no code panics while holding the generator"))
    }
}
