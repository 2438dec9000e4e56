//! Whether a node is heard of, and the taints that follow from its Ready condition.

use jiff::Timestamp;

use stowage_model::condition::ConditionStatus;
use stowage_model::node::TaintEffect;
use stowage_model::{Node, taints};
use stowage_runtime::cache::View;

use super::{Decision, NodeAction, Why};
use crate::snapshot::NodeSnapshot;

/// What the Ready condition says, which the taints must say too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Ready,
    NotReady,
    Unreachable,
}

/// The taints that say how a node is, with the effects they come with.
pub const EFFECTS: [TaintEffect; 2] = [TaintEffect::NoSchedule, TaintEffect::NoExecute];

/// The condition's reason when a node fell silent: the mark that we, not the node, wrote it.
pub const SILENT: &str = "NodeStatusUnknown";
/// The condition's reason when a node never reported.
pub const NEVER_HEARD: &str = "NodeStatusNeverUpdated";

impl Health {
    /// The taint key that says so, if any.
    pub fn taint(self) -> Option<&'static str> {
        match self {
            Self::Ready => None,
            Self::NotReady => Some(taints::NOT_READY),
            Self::Unreachable => Some(taints::UNREACHABLE),
        }
    }

    fn of(node: &Node) -> Option<Self> {
        Some(match node.ready()?.status {
            ConditionStatus::True => Self::Ready,
            ConditionStatus::False => Self::NotReady,
            ConditionStatus::Unknown => Self::Unreachable,
        })
    }

    /// Whether the node has exactly the taints that say so.
    pub fn is_told_by(self, node: &Node) -> bool {
        [taints::NOT_READY, taints::UNREACHABLE].into_iter().all(|key| {
            EFFECTS.into_iter().all(|effect| {
                let present = node.spec.taints.iter().any(|taint| taint.key == key && taint.effect == effect);
                present == (self.taint() == Some(key))
            })
        })
    }
}

/// What must happen to this node next, and why: first its condition, then the taints that follow from it.
pub fn decide(s: &NodeSnapshot, now: Timestamp) -> Decision<NodeAction> {
    let node = match &s.node {
        View::Absent => return Decision::rest(Why::Gone),
        View::Unknown => return Decision::act([NodeAction::Look], Why::Unknown),
        View::Known(node) => node,
    };
    let ready = node.ready();
    let grace = if ready.is_some() { s.silence } else { s.startup };
    let deadline = s.heard_at.checked_add(grace).unwrap_or(Timestamp::MAX);
    let silent = now >= deadline;
    let unknown = ready.is_some_and(|ready| ready.status == ConditionStatus::Unknown);
    if silent && !unknown {
        return Decision::act([NodeAction::MarkUnknown], Why::Silent);
    }
    // After a restart the first look at an old Lease is no sign of life; only a renewal is.
    let ours = ready.is_some_and(|ready| ready.reason == SILENT || ready.reason == NEVER_HEARD);
    if unknown && ours && !silent && s.renewed {
        return Decision::act([NodeAction::MarkBack], Why::Back);
    }
    match Health::of(node) {
        Some(health) if !health.is_told_by(node) => Decision::act([NodeAction::Taint(health)], Why::Health(health)),
        // The next renewal is an event; only the end of the grace period needs a timer.
        _ if !silent && !unknown => Decision::wait_until(deadline, Why::Marked),
        _ => Decision::rest(Why::Marked),
    }
}
