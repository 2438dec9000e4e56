//! What this machine is and how it fares: a port, so that a simulated node is the same on every machine.

mod linux;

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::future::BoxFuture;

pub use linux::LinuxMachine;

/// A machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u64,
    pub memory_bytes: u64,
    /// The file system that holds pods and plugins.
    pub storage_bytes: u64,
    /// Bytes set aside as huge pages, by the size of a page.
    pub huge_pages: BTreeMap<u64, u64>,
    pub addresses: Vec<IpAddr>,
    pub kernel_version: String,
    pub os_image: String,
    pub machine_id: String,
    pub boot_id: String,
    pub system_uuid: String,
    pub pressure: Pressure,
}

/// What it has too little of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl Default for Machine {
    /// A plain machine that is the same everywhere.
    fn default() -> Self {
        Self {
            cpus: 4,
            memory_bytes: 16 << 30,
            storage_bytes: 100 << 30,
            huge_pages: [(2 << 20, 0), (1 << 30, 0)].into(),
            addresses: Vec::new(),
            kernel_version: String::new(),
            os_image: String::new(),
            machine_id: String::new(),
            boot_id: String::new(),
            system_uuid: String::new(),
            pressure: Pressure::default(),
        }
    }
}

/// Looks at the machine.
pub trait LookAtMachine: Send + Sync {
    fn look(&self) -> BoxFuture<'_, Machine>;
}

/// A machine that never changes.
impl LookAtMachine for Machine {
    fn look(&self) -> BoxFuture<'_, Machine> {
        Box::pin(async { self.clone() })
    }
}
