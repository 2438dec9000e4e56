//! A claim is kept while snapshots of it are made; external-snapshotter#1305 and its family must not come back.

use super::*;

fn facts(protected: bool, deleting: bool, snapshots: Vec<Option<Single>>) -> ClaimFacts {
    let list = if protected { vec!["x", finalizers::CLAIM_AS_SNAPSHOT_SOURCE] } else { vec!["x"] };
    let mut change = json!({ "metadata": { "finalizers": list } });
    if deleting {
        change["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:01:00Z");
    }
    let claim = claim(change);
    let of_claim = |single: Option<Single>| single.map(|single| Single { claim: View::Known(claim.clone()), ..single });
    ClaimFacts {
        snapshots: snapshots.into_iter().map(of_claim).collect(),
        claim: claim.clone(),
        told: Known::default(),
    }
}

fn keeps(facts: &ClaimFacts) -> Option<bool> {
    let decision = decide(&Snapshot::Claim(Box::new(facts.clone())), at(100));
    decision.actions.iter().find_map(|action| match action {
        Action::ProtectClaim { keep, .. } => Some(*keep),
        _ => None,
    })
}

#[test]
fn many_snapshots_of_one_claim_share_one_finalizer() {
    assert_eq!(keeps(&facts(false, false, vec![Some(single()), Some(single()), None])), Some(true));
    assert_eq!(keeps(&facts(true, false, vec![Some(single()), Some(bound())])), None);
    assert_eq!(keeps(&facts(true, false, vec![])), Some(false));
}

#[test]
fn a_snapshot_that_goes_asks_for_no_protection_though_its_content_says_nothing_any_more() {
    let mut going = deleted();
    Arc::make_mut(&mut going.snapshot).status = None;
    assert_eq!(keeps(&facts(false, false, vec![Some(going)])), None);
}

#[test]
fn a_claim_on_its_way_out_is_not_held_back_for_a_snapshot_that_has_not_begun() {
    assert_eq!(keeps(&facts(false, true, vec![Some(single())])), None);
}

#[test]
fn snapshots_that_cannot_be_made_keep_no_claim() {
    let error = json!({ "message": "no", "time": "1970-01-01T00:01:00Z" });
    let refused = content(json!({ "status": { "readyToUse": false, "error": error } }));
    let misbound = content(json!({ "spec": { "volumeSnapshotRef": { "uid": "older" } } }));
    for (row, broken, deleting) in [
        ("#1305 class gone", Single { class: None, ..single() }, false),
        ("volume gone", Single { volume: Some(Look { volume: None, until: at(160) }), ..single() }, false),
        ("misbound", Single { content: View::Known(misbound), ..bound() }, false),
        ("deleted before it began", Single { content: View::Absent, claim: View::Absent, ..deleted() }, false),
        ("refused by the driver, claim deleted", Single { content: View::Known(refused), ..bound() }, true),
    ] {
        let mut broken = broken;
        if row.starts_with("deleted") {
            Arc::make_mut(&mut broken.snapshot).status = None;
        }
        assert_eq!(keeps(&facts(true, deleting, vec![Some(broken.clone())])), Some(false), "{row}");
        assert_eq!(keeps(&facts(false, deleting, vec![Some(broken)])), None, "{row}");
    }
}

#[test]
fn a_claim_stays_while_the_driver_may_read_its_volume() {
    let error = json!({ "message": "slow", "time": "1970-01-01T00:01:00Z" });
    let asked = content(json!({
        "metadata": { "annotations": { annotations::SNAPSHOT_BEING_CREATED: "yes" } },
        "status": { "readyToUse": false, "error": error },
    }));
    let copying = content(json!({ "status": { "snapshotHandle": "s", "readyToUse": false, "creationTime": 1 } }));
    let mut going = deleted();
    Arc::make_mut(&mut going.snapshot).status = None;
    for (row, single, deleting) in [
        ("asked", Single { content: View::Known(asked), ..bound() }, true),
        ("copying", Single { content: View::Known(copying), ..bound() }, true),
        ("silent", bound(), true),
        ("deleted in the middle", going, false),
        ("volume not read yet", Single { volume: None, ..single() }, false),
    ] {
        assert_eq!(keeps(&facts(true, deleting, vec![Some(single)])), None, "{row}");
    }
}

#[test]
fn who_deletes_a_claim_is_told_which_snapshots_keep_it() {
    let facts = facts(true, true, vec![Some(bound())]);
    let early = decide(&Snapshot::Claim(Box::new(facts.clone())), at(80));
    assert_eq!((early.actions.len(), early.wake_at), (0, Some(at(90))));
    let decision = decide(&Snapshot::Claim(Box::new(facts)), at(90));
    let (reason, message) = told(&decision);
    assert!(reason == "SnapshotInProgress" && message.contains("\"nightly\""), "{message}");
}
