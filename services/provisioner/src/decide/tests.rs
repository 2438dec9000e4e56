//! What the tests of claims and of volumes share.

mod after_a_restart;
mod attributes;
mod claim;
mod rest;
mod source;
mod volume;

use std::sync::Arc;

use serde_json::Value;

use stowage_runtime::cache::View;
use stowage_runtime::operation::Failure;

use super::*;
use crate::facts::Facts;
use crate::fixture::{HANDLE, VOLUME, claim_with, class_with, intent};
use crate::journal::Recorded;
use crate::requirement::Cluster;
use crate::snapshot::ClaimSnapshot;

type Spoil = fn(&mut Value);

const NOW: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn later(seconds: i64) -> Timestamp {
    now().checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

fn failure(code: &str) -> Failure {
    Failure { code: code.into(), message: "no".into() }
}

fn ended<R>(state: State<R>, retry_in: i64) -> Option<Record<R>> {
    Some(Record { state, since: now(), failures: 1, retry_at: later(retry_in) })
}

/// A claim that needs a volume, and nothing done for it yet.
fn fresh(facts: &Facts) -> ClaimSnapshot {
    ClaimSnapshot {
        facts: Arc::new(facts.clone()),
        claim: Some(Arc::new(claim_with(|_| {}))),
        class: Some(Arc::new(class_with(|_| {}))),
        volume: View::Absent,
        recorded: None,
        creation: None,
        cleanup: None,
        owner: None,
        cluster: Cluster::default(),
        source: None,
        is_unprotected: false,
        is_source_going: false,
        is_source_gone: false,
        attributes: None,
        are_attributes_unserved: false,
        bid: None,
        room: None,
        told: Known::default(),
    }
}

fn decide(s: &ClaimSnapshot, now: Timestamp) -> Decision {
    super::decide(&Snapshot::Claim(Box::new(s.clone())), now)
}

fn recorded(maybe_made: bool) -> Option<Recorded> {
    Some(Recorded { intent: intent(), durable: true, maybe_made, inherited: false })
}

fn set_claim(s: &mut ClaimSnapshot, spoil: impl FnOnce(&mut Value)) {
    s.claim = Some(Arc::new(claim_with(spoil)));
}

fn bind(claim: &mut Value) {
    claim["spec"]["volumeName"] = VOLUME.into();
}

fn mark_deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = NOW.into();
}

fn create(wanted: bool) -> Vec<Action> {
    vec![Action::Create { intent: intent(), wanted }]
}

fn clean_up() -> Vec<Action> {
    vec![Action::CleanUp { intent: intent(), handle: HANDLE.into() }]
}
