//! Status conditions, which claims, pods and nodes share.

use jiff::Timestamp;

/// On a bound claim: no pod that may still run uses it; set by the pv-controller.
pub const UNUSED: &str = "Unused";
/// On a claim: why it is not bound, as a kind of reason; set by the pv-controller, gone once it is bound.
pub const UNBOUND: &str = "Unbound";

text_enum! {
    /// A condition's truth.
    pub enum ConditionStatus {
        /// It holds.
        True = "True",
        /// It does not hold.
        #[default]
        False = "False",
    }
}

projection! {
    /// One observed condition of an object.
    pub struct Condition {
        /// Its name, unique in the list.
        #[serde(rename = "type")]
        pub kind: String,
        /// Whether it holds; `Unknown` is a value of its own for nodes.
        pub status: ConditionStatus,
        /// The machine-readable cause.
        pub reason: String,
        /// The cause for people.
        pub message: String,
        /// When the status last changed.
        pub last_transition_time: Option<Timestamp>,
        /// When the writer last looked (nodes only).
        pub last_heartbeat_time: Option<Timestamp>,
    }
}

impl Condition {
    /// Whether the condition holds.
    pub fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }
}

/// The condition of that name.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}
