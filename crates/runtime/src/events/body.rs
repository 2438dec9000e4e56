//! An event as the API keeps it.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::object::{ObjectRef, kinds};

use super::{Note, seconds};

/// Where events of an object live: those of cluster-scoped ones in `default`.
pub(crate) fn namespace(about: &ObjectRef) -> &str {
    if about.key.namespace.is_empty() { "default" } else { &about.key.namespace }
}

/// The event itself, told so many times from the first moment to the last.
pub(crate) fn body(
    about: &ObjectRef,
    note: &Note,
    source: &Value,
    name: &str,
    (first, last): (Timestamp, Timestamp),
    times: u64,
) -> Value {
    let mut involved = json!({
        "apiVersion": about.kind.api_version(), "kind": about.kind.kind, "name": about.key.name, "uid": about.uid,
    });
    if !about.key.namespace.is_empty() {
        involved["namespace"] = about.key.namespace.as_str().into();
    }
    json!({
        "apiVersion": kinds::EVENT.api_version(),
        "kind": kinds::EVENT.kind,
        "metadata": { "name": name, "namespace": namespace(about) },
        "involvedObject": involved,
        "reason": note.reason,
        "message": note.message,
        "type": note.severity.as_str(),
        "source": source,
        "reportingComponent": source["component"],
        "reportingInstance": "",
        "firstTimestamp": seconds(first),
        "lastTimestamp": seconds(last),
        "count": times,
    })
}

/// The nanoseconds of its moment, and more than the last one: who lists events sees those of one second in their order.
pub(crate) fn number(at: Timestamp, last: u64) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or_default().max(last + 1)
}

/// A name like `claim.17f2a`, cut to what a name may have.
pub(crate) fn event_name(about: &str, number: u64) -> String {
    const LONGEST: usize = 253 - ".0123456789abcdef".len();
    // Names of objects are ASCII; of anything else nothing is kept rather than half a character.
    let start = about.get(..about.len().min(LONGEST)).unwrap_or_default();
    format!("{}.{number:016x}", start.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_are_named_in_their_order() {
        let at = Timestamp::from_nanosecond(0x18d3_0000_0000_0000).unwrap();
        let first = number(at, 0);
        let second = number(at, first);
        let back = number(at - jiff::SignedDuration::from_secs(5), second);
        assert_eq!(event_name("c", first), "c.18d3000000000000");
        assert!(first < second && second < back, "also when the clock was set back");
    }

    #[test]
    fn a_name_that_is_as_long_as_names_may_be_is_cut() {
        assert_eq!(event_name("claim", 0x17), "claim.0000000000000017");
        let long = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        assert_eq!(event_name(&long, 0), format!("{}.0000000000000000", "a".repeat(235)));
        assert_eq!(event_name(&"a".repeat(253), 0).len(), 253);
    }
}
