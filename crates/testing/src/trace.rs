//! What every service did to the outside, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::rights::Right;

/// The way a service reached the outside at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// A write to the Kubernetes API.
    Api,
    /// A call to a driver or plugin.
    Csi,
    /// A change to files or mounts of the node.
    Node,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Api => "api",
            Self::Csi => "csi",
            Self::Node => "node",
        })
    }
}

/// One act of a service on the outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Who acted.
    pub service: String,
    /// The how manieth act of this service it is, from 1.
    pub number: usize,
    /// Through which port.
    pub port: Port,
    /// Method, path and a digest of the body.
    pub what: String,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, number, port, what } = self;
        write!(f, "{service} #{number} {port} {what}")
    }
}

/// The acts of all services of a world in the order in which they happened; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    points: Vec<Point>,
    counts: BTreeMap<String, usize>,
    rights: BTreeSet<(String, Right)>,
}

impl Trace {
    /// Notes an act and says the how manieth of its service it is.
    pub fn record(&self, service: &str, port: Port, what: String) -> usize {
        let mut inner = self.lock();
        let count = inner.counts.entry(service.to_owned()).or_insert(0);
        *count += 1;
        let number = *count;
        inner.points.push(Point { service: service.to_owned(), number, port, what });
        number
    }

    /// Notes a right a service makes use of.
    pub(crate) fn asked(&self, service: &str, right: Right) {
        self.lock().rights.insert((service.to_owned(), right));
    }

    /// The rights each service has made use of, reads included.
    pub fn rights(&self) -> BTreeSet<(String, Right)> {
        self.lock().rights.clone()
    }

    /// Everything so far.
    pub fn points(&self) -> Vec<Point> {
        self.lock().points.clone()
    }

    /// How many acts there were so far.
    pub fn len(&self) -> usize {
        self.lock().points.len()
    }

    /// Whether nobody has acted yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole trace as text, one point per line.
    pub fn text(&self) -> String {
        self.lock().points.iter().map(|point| format!("{point}\n")).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no code panics while holding the trace")
    }
}

/// A few characters that tell two bodies apart.
pub(crate) fn digest(body: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_numbered_per_service_and_kept_in_the_order_of_all() {
        let trace = Trace::default();
        assert_eq!(trace.record("a", Port::Api, "POST /x".into()), 1);
        assert_eq!(trace.record("b", Port::Csi, "/csi.v1.Node/Stage".into()), 1);
        assert_eq!(trace.record("a", Port::Node, "bind /y".into()), 2);
        assert_eq!(trace.text(), "a #1 api POST /x\nb #1 csi /csi.v1.Node/Stage\na #2 node bind /y\n");
    }
}
