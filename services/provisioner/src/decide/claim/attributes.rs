//! A claim that names a VolumeAttributesClass: what it says goes into the request.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use stowage_model::attributes_class::AttributesClass;
use stowage_model::claim::Claim;
use stowage_runtime::operation::{Record, State};

use super::refuse;
use crate::decide::{Action, Decision, Why};
use crate::intent::{Attributes, Intent};
use crate::options::AttributesClasses;
use crate::request::Problem;
use crate::snapshot::{ClaimSnapshot, FORBIDDEN, LookedUp};

/// A class that does not exist is looked for again so much later: the shipped role does not let the kind be watched.
pub const AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// The intent with what the claim's VolumeAttributesClass says, or what to do instead.
pub fn add(s: &ClaimSnapshot, claim: &Arc<Claim>, intent: Intent, now: Timestamp) -> Result<Intent, Box<Decision>> {
    let name = claim.attributes_class();
    let is_on = match s.facts.options.attributes_class {
        AttributesClasses::Off => false,
        AttributesClasses::WhereServed => !s.are_attributes_unserved,
        AttributesClasses::On => true,
    };
    if name.is_empty() || !is_on {
        return Ok(intent);
    }
    let refuse = |problem| Box::new(refuse(s, claim, problem, now));
    // Not before it is known that the kind is served: where it is not, no driver need know it.
    let unable = || refuse(Problem::ModifyVolume { name: name.to_owned(), driver: s.facts.driver.clone() });
    let recorded = s.recorded.as_ref().and_then(|recorded| recorded.intent.request.attributes.as_ref());
    let look = || Box::new(Decision::act([Action::LookUp(name.to_owned())], Why::Looking));
    let looked_up = match &s.attributes {
        Some(record) if is_about(record, name) && !is_outdated(s, record) => record,
        // What was recorded stands until the driver has refused it.
        _ => match recorded.filter(|recorded| recorded.class == name && failed_at(s).is_none()) {
            Some(recorded) => return Ok(intent.with(recorded.clone())),
            None => return Err(look()),
        },
    };
    match &looked_up.state {
        State::Running => Err(Box::new(Decision::rest(Why::Looking))),
        State::Done(_) if !s.facts.modifies => Err(unable()),
        State::Done(LookedUp { class: Some(class), .. }) => match driver_is(class, &s.facts.driver) {
            true => Ok(intent.with(Attributes { class: name.to_owned(), parameters: class.parameters.clone() })),
            false => {
                let (name, driver) = (name.to_owned(), s.facts.driver.clone());
                Err(refuse(Problem::MatchAttributesDriver { name, of: class.driver_name.clone(), driver }))
            }
        },
        State::Done(LookedUp { class: None, .. }) => {
            let at = looked_up.since.checked_add(AGAIN).unwrap_or(Timestamp::MAX);
            if at <= now {
                return Err(look());
            }
            Err(wake_by(at, refuse(Problem::FindAttributesClass { name: name.to_owned() })))
        }
        State::Failed(_) | State::Uncertain(_) if looked_up.retry_at <= now => Err(look()),
        State::Failed(failure) if failure.code == FORBIDDEN && !s.facts.modifies => {
            Err(wake_by(looked_up.retry_at, unable()))
        }
        State::Failed(failure) if failure.code == FORBIDDEN => {
            let problem = Problem::ReadAttributesClass { name: name.to_owned(), reason: failure.message.clone() };
            Err(wake_by(looked_up.retry_at, refuse(problem)))
        }
        State::Failed(failure) | State::Uncertain(failure) => {
            let problem = Problem::ReachAttributesClass { name: name.to_owned(), reason: failure.message.clone() };
            Err(wake_by(looked_up.retry_at, refuse(problem)))
        }
    }
}

fn wake_by(at: Timestamp, mut decision: Box<Decision>) -> Box<Decision> {
    decision.wake_at = Some(decision.wake_at.map_or(at, |again_at| again_at.min(at)));
    decision
}

fn driver_is(class: &AttributesClass, driver: &str) -> bool {
    class.driver_name == driver
}

/// The claim may name another one by now.
fn is_about(record: &Record<LookedUp>, name: &str) -> bool {
    match &record.state {
        State::Done(looked_up) => looked_up.name == name,
        State::Running | State::Failed(_) | State::Uncertain(_) => true,
    }
}

/// The driver has refused what it said: it may have been made anew since.
fn is_outdated(s: &ClaimSnapshot, record: &Record<LookedUp>) -> bool {
    !record.is_running() && failed_at(s).is_some_and(|at| at > record.since)
}

fn failed_at(s: &ClaimSnapshot) -> Option<Timestamp> {
    let failed = s.creation.as_ref().filter(|record| matches!(record.state, State::Failed(_)));
    failed.map(|record| record.since)
}
