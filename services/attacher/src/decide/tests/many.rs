//! Several attachments of one handle, of mixed modes and nodes, in lanes with little room.

use super::*;

const NODES: [&str; 2] = ["id-0", "id-1"];

/// Everything was tried before this second at the latest.
const NOW: i64 = 3;

/// An attachment to one of the nodes, whose driver calls stand somewhere.
fn attachment(number: usize, node: usize, mode: &str, spoil: impl FnOnce(&mut Value)) -> Case {
    let name = format!("va-{number}");
    let attachment = case(|object| {
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(name);
        object["metadata"]["annotations"][annotations::ATTACHMENT_NODE_ID] = json!(NODES[node]);
        spoil(object);
    });
    Case { node_id: Some(NODES[node].into()), source: Source::Volume(of_mode(mode)), ..attachment }
}

fn any_state() -> impl Strategy<Value = Option<Record<PublishContext>>> {
    (0..6, 0_i64..6).prop_map(|(kind, retry_at)| match kind {
        0 => record(State::Running, retry_at),
        1 => record(State::Failed(failure("Internal")), retry_at),
        2 => record(State::Uncertain(failure("Aborted")), retry_at),
        3 => record(State::Done(PublishContext::new()), retry_at),
        _ => None,
    })
}

fn any_kind() -> impl Strategy<Value = Option<Kind>> {
    prop_oneof![3 => Just(None), 1 => Just(Some(Kind::Publish)), 1 => Just(Some(Kind::Unpublish))]
}

prop_compose! {
    fn any_attachment(number: usize)(
        node in 0..NODES.len(), is_shared in prop::bool::weighted(0.7), going: bool, marked in prop::bool::weighted(0.8),
        protected in prop::bool::weighted(0.8), attached: bool, doubted: bool, state in any_state(), called in any_kind()
    ) -> Case {
        let mode = if is_shared { "ReadWriteMany" } else { "ReadWriteOnce" };
        let mut case = attachment(number, node, mode, |object| {
            if going { deleting(object) }
            if !marked { object["metadata"]["finalizers"] = json!(["somebody/else"]) }
            object["status"] = json!({ "attached": attached });
        });
        if !protected {
            case.source = Source::Volume(unprotected(mode));
        }
        let (publish, unpublish) = if going { (None, state) } else { (state, None) };
        Case { doubted, called, publish, unpublish, ..case }
    }
}

fn unprotected(mode: &str) -> Arc<Volume> {
    volume(|object| {
        object["metadata"]["finalizers"] = json!([]);
        object["spec"]["accessModes"] = json!([mode]);
    })
}

prop_compose! {
    fn any_snapshot()(
        first in any_attachment(0), second in any_attachment(1), third in any_attachment(2), count in 2..=3_usize,
        of_gone in prop::option::weighted(0.2, 0..NODES.len()), publish in 0..=1_usize, unpublish in 0..=1_usize,
        called in any_kind(), workers in 1..=3_usize
    ) -> Snapshot {
        let attachments = [first, second, third].into_iter().take(count).collect();
        let mut snapshot = snapshot(attachments);
        snapshot.calling.extend(of_gone.map(|node| NODES[node].to_owned()));
        let facts = Arc::new(Facts { workers, ..facts() });
        Snapshot { facts, room: Room { publish, unpublish }, called, ..snapshot }
    }
}

/// What an attachment needs to have called, whatever the others need.
struct Need<'a> {
    case: &'a Case,
    due: Due,
}

impl Need<'_> {
    fn kind(&self) -> Kind {
        self.due.request.kind()
    }

    fn node_id(&self) -> &str {
        self.due.request.node_id()
    }

    /// The detach that it must not overtake.
    fn is_behind(&self, other: &Need<'_>) -> bool {
        let is_next_to = other.node_id() == self.node_id();
        let is_for_one = !self.case.is_for_many_nodes(&facts());
        (self.kind(), other.kind()) == (Kind::Publish, Kind::Unpublish)
            && (is_next_to || is_for_one && other.due.at <= at(NOW))
    }
}

fn needs(snapshot: &Snapshot) -> Vec<Need<'_>> {
    let need = |case| Some(Need { case, due: decide_attachment(case, &snapshot.facts, at(NOW)).call? });
    snapshot.attachments.iter().filter_map(need).collect()
}

/// Why a call that is due does not begin, or that it does.
fn is_accounted_for(need: &Need<'_>, snapshot: &Snapshot, decision: &Decision) -> bool {
    let is_shared = snapshot.attachments.iter().all(|case| case.is_for_many_nodes(&snapshot.facts));
    let uid = &need.case.attachment.meta.uid;
    let mut begun = decision.actions.iter().filter_map(|action| match action {
        Action::Call { request, .. } => Some(request.node_id()),
        _ => None,
    });
    let is_held = match is_shared {
        true => snapshot.calling.contains(need.node_id()) || begun.any(|node_id| node_id == need.node_id()),
        false => !snapshot.calling.is_empty() || begun.next().is_some(),
    };
    let seat = (need.kind(), if is_shared { uid.clone() } else { String::new() });
    is_held || decision.why.turns.contains(&seat)
}

proptest! {
    #[test]
    fn every_call_that_is_due_begins_stands_in_line_or_waits_for_a_call_or_a_detach(snapshot in any_snapshot()) {
        let decision = decide(&snapshot, at(NOW));
        let needs = needs(&snapshot);
        let (due, later): (Vec<_>, Vec<_>) = needs.iter().partition(|need| need.due.at <= at(NOW));
        for need in &due {
            let before = needs.iter().find(|other| need.is_behind(other));
            let is_woken = |need: &Need<'_>| decision.wake_at.is_some_and(|at| at <= need.due.at);
            let is_accounted = match before {
                Some(detach) => is_woken(detach) || is_accounted_for(detach, &snapshot, &decision),
                None => is_accounted_for(need, &snapshot, &decision),
            };
            prop_assert!(is_accounted, "{} hangs: {decision:?}", need.case.attachment.meta.name);
        }
        for need in &later {
            let is_woken = decision.wake_at.is_some_and(|at| at <= need.due.at);
            let is_behind = needs.iter().any(|other| need.is_behind(other));
            prop_assert!(
                is_woken || is_behind || is_accounted_for(need, &snapshot, &decision),
                "{} is forgotten: {decision:?}",
                need.case.attachment.meta.name
            );
        }
    }

    #[test]
    fn no_more_calls_begin_than_there_is_room_for_and_none_against_another(snapshot in any_snapshot()) {
        let decision = decide(&snapshot, at(NOW));
        let is_shared = snapshot.attachments.iter().all(|case| case.is_for_many_nodes(&snapshot.facts));
        let (needs, mut begun) = (needs(&snapshot), Vec::new());
        let mut room = snapshot.room;
        for action in &decision.actions {
            let Action::Call { attachment, request, .. } = action else { continue };
            let case = snapshot.attachments.iter().find(|case| case.attachment.meta.uid == attachment.uid).unwrap();
            let called = if is_shared { case.called } else { snapshot.called };
            prop_assert!(called == Some(request.kind()) || room.take(request.kind()), "no room: {decision:?}");
            prop_assert!(!snapshot.calling.contains(request.node_id()), "beside another: {decision:?}");
            prop_assert!(!begun.contains(&request.node_id()), "twice: {decision:?}");
            let need = needs.iter().find(|need| need.case.attachment.meta.uid == attachment.uid).unwrap();
            prop_assert!(!needs.iter().any(|other| need.is_behind(other)), "overtakes a detach: {decision:?}");
            begun.push(request.node_id());
        }
        if !is_shared {
            prop_assert!(begun.len() <= 1 && (begun.is_empty() || snapshot.calling.is_empty()), "{decision:?}");
        }
        let writes = decision.actions.iter().filter(|action| action.calls().is_none()).count();
        // Of each attachment a write and what is told beside it; of those whose calls have ended apart.
        prop_assert!(writes <= 4 * snapshot.facts.workers, "{decision:?}");
    }

    #[test]
    fn several_attachments_all_come_to_rest_attached_or_released_however_little_room_there_is(
        mut snapshot in any_snapshot()
    ) {
        snapshot.calling.clear();
        for case in &mut snapshot.attachments {
            case.calling = false;
            for call in [&mut case.publish, &mut case.unpublish] {
                *call = call.take().filter(|record| !record.is_running());
            }
        }
        for _ in 0..80 {
            let decision = decide(&snapshot, at(10));
            snapshot.written_up_to = decision.why.written_up_to.clone();
            snapshot.called = None;
            snapshot.attachments.iter_mut().for_each(|case| case.called = None);
            if decision.actions.is_empty() {
                let Some((kind, uid)) = decision.why.turns.first() else { break };
                // Its turn has come.
                match snapshot.attachments.iter_mut().find(|case| case.attachment.meta.uid == *uid) {
                    Some(case) => case.called = Some(*kind),
                    None => snapshot.called = Some(*kind),
                }
            }
            for action in decision.actions {
                carry_out(&mut snapshot, action);
            }
        }
        prop_assert_eq!(words(&decide(&snapshot, at(10)).actions), NOTHING, "no fixpoint");
        for case in &snapshot.attachments {
            let Case { attachment, doubted, .. } = case;
            let is_kept = attachment.meta.has_finalizer(&facts().finalizer);
            let is_over = match attachment.meta.is_deleting() {
                true => !is_kept,
                false => attachment.status.attached && !doubted,
            };
            prop_assert!(is_over, "{case:?}");
        }
    }
}

fn carry_out(snapshot: &mut Snapshot, action: Action) {
    if let Action::ProtectVolume { attachments, .. } = &action {
        let is_of = |case: &&mut Case| attachments.iter().any(|waiting| waiting.uid == case.attachment.meta.uid);
        for case in snapshot.attachments.iter_mut().filter(is_of) {
            let mode = if case.is_for_many_nodes(&facts()) { "ReadWriteMany" } else { "ReadWriteOnce" };
            case.source = Source::Volume(of_mode(mode));
        }
        return;
    }
    let (Action::Call { attachment, .. }
    | Action::MarkAttachment { attachment, .. }
    | Action::ReleaseAttachment(attachment)
    | Action::SaveAttached { attachment, .. }
    | Action::SaveDetached(attachment)
    | Action::SaveTrouble { attachment, .. }) = &action
    else {
        panic!("{action:?} is of no attachment")
    };
    let case = snapshot.attachments.iter_mut().find(|case| case.attachment.meta.uid == attachment.uid);
    take(case.unwrap(), action);
}
