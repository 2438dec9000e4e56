//! The size that a volume is to have next.

use stowage_model::quantity::Quantity;
use stowage_model::resize::{FILE_SYSTEM_RESIZE_PENDING, ResizeStatus};

use crate::projections::Claim;

/// What the choice depends on besides the claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Given {
    /// The volume's size.
    pub volume: Quantity,
    /// Whether the driver expands in the controller, and not only on nodes.
    pub in_controller: bool,
    /// Whether the last call is known to have ended without effect, so that nothing may still be growing.
    pub is_final: bool,
}

/// The size to expand to; none while it is the node's turn.
///
/// An expansion that may be under way is followed up to its end before another size is tried: its size counts against
/// the quota of the claim's namespace, and may not be given back while the driver may still take it.
pub fn choose(claim: &Claim, given: Given) -> Option<Quantity> {
    let requested = claim.requested();
    // What the claim has already is left over from an earlier expansion.
    let begun = claim.allocated().filter(|begun| *begun > claim.capacity()).unwrap_or(requested);
    use ResizeStatus::*;
    if given.volume < requested {
        return match claim.resize() {
            NodeResizeInfeasible => Some(begun),
            NodeResizePending | NodeResizeInProgress => Some(begun).filter(|begun| given.volume < *begun),
            ControllerResizeInProgress if !given.is_final => Some(begun),
            ControllerResizeInProgress | ControllerResizeInfeasible | Nothing | Unknown => Some(requested),
        };
    }
    match claim.resize() {
        NodeResizePending | NodeResizeInProgress => None,
        NodeResizeInfeasible if !given.in_controller => Some(requested),
        NodeResizeInfeasible | ControllerResizeInProgress | ControllerResizeInfeasible => Some(begun),
        Nothing if claim.allocated().is_some() => Some(begun),
        // An API server that knows no statuses: only the condition tells.
        Nothing | Unknown => Some(requested).filter(|_| !claim.status.conditions.hold(FILE_SYSTEM_RESIZE_PENDING)),
    }
}

/// The same where claims do not tell how far their expansion is.
pub fn choose_without_recovery(claim: &Claim, volume: Quantity) -> Option<Quantity> {
    let is_for_node = volume >= claim.requested() && claim.status.conditions.hold(FILE_SYSTEM_RESIZE_PENDING);
    (!is_for_node).then(|| claim.requested())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(requested: &str, allocated: Option<&str>, resize: &str, conditions: &[&str]) -> Claim {
        let conditions: Vec<_> = conditions.iter().map(|kind| json!({ "type": kind, "status": "True" })).collect();
        serde_json::from_value(json!({
            "spec": { "resources": { "requests": { "storage": requested } } },
            "status": {
                "capacity": { "storage": "1Gi" },
                "allocatedResources": { "storage": allocated },
                "allocatedResourceStatuses": { "storage": resize },
                "conditions": conditions,
            },
        }))
        .unwrap()
    }

    fn target(claim: &Claim, volume: &str, in_controller: bool, is_final: bool) -> Option<String> {
        let given = Given { volume: volume.parse().unwrap(), in_controller, is_final };
        choose(claim, given).map(|size| size.to_string())
    }

    /// Rows of reference 4.3, step 5: the volume is smaller than what is asked for (5Gi), 3Gi was begun.
    #[test]
    fn a_volume_that_is_too_small_grows_to_what_was_begun_or_is_asked_for() {
        for (resize, allocated, volume, is_final, expected) in [
            ("NodeResizeInfeasible", Some("3Gi"), "3Gi", false, Some("3Gi")),
            ("NodeResizeInfeasible", None, "3Gi", false, Some("5Gi")),
            ("NodeResizePending", Some("3Gi"), "1Gi", false, Some("3Gi")),
            ("NodeResizePending", Some("3Gi"), "3Gi", false, None),
            ("NodeResizeInProgress", Some("3Gi"), "4Gi", false, None),
            ("NodeResizeInProgress", None, "1Gi", false, Some("5Gi")),
            ("ControllerResizeInProgress", Some("3Gi"), "1Gi", false, Some("3Gi")),
            ("ControllerResizeInProgress", Some("3Gi"), "1Gi", true, Some("5Gi")),
            ("ControllerResizeInProgress", None, "1Gi", false, Some("5Gi")),
            ("ControllerResizeInfeasible", Some("3Gi"), "1Gi", false, Some("5Gi")),
            ("", Some("3Gi"), "1Gi", false, Some("5Gi")),
            ("", None, "1Gi", false, Some("5Gi")),
            ("NewerThanUs", Some("3Gi"), "1Gi", false, Some("5Gi")),
        ] {
            let claim = claim("5Gi", allocated, resize, &[]);
            let found = target(&claim, volume, true, is_final);
            assert_eq!(found.as_deref(), expected, "{resize} {allocated:?} {volume} {is_final}");
        }
    }

    /// The same step: the volume is large enough.
    #[test]
    fn a_volume_that_is_large_enough_is_followed_up_or_left_to_the_node() {
        for (resize, allocated, in_controller, expected) in [
            ("NodeResizePending", Some("5Gi"), true, None),
            ("NodeResizeInProgress", Some("5Gi"), true, None),
            ("NodeResizeInfeasible", Some("5Gi"), true, Some("5Gi")),
            ("NodeResizeInfeasible", Some("5Gi"), false, Some("3Gi")),
            ("NodeResizeInfeasible", None, true, Some("3Gi")),
            ("ControllerResizeInProgress", Some("5Gi"), true, Some("5Gi")),
            ("ControllerResizeInfeasible", Some("5Gi"), true, Some("5Gi")),
            ("", Some("5Gi"), true, Some("5Gi")),
            // Left over from an earlier expansion to what the claim has; the original would ask for it for ever.
            ("", Some("1Gi"), true, Some("3Gi")),
            ("", None, true, Some("3Gi")),
        ] {
            let claim = claim("3Gi", allocated, resize, &[]);
            let found = target(&claim, "5Gi", in_controller, false);
            assert_eq!(found.as_deref(), expected, "{resize} {allocated:?} {in_controller}");
        }
    }

    #[test]
    fn without_statuses_the_condition_says_that_it_is_the_nodes_turn() {
        let claim = claim("3Gi", None, "", &[FILE_SYSTEM_RESIZE_PENDING]);
        assert_eq!(target(&claim, "3Gi", true, false), None);
        let choose = |volume: &str| choose_without_recovery(&claim, volume.parse().unwrap()).map(|q| q.to_string());
        assert_eq!((choose("3Gi"), choose("2Gi").as_deref()), (None, Some("3Gi")));
    }
}
