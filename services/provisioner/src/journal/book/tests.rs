mod resting;

use proptest::prelude::*;

use super::*;
use crate::fixture;
use crate::intent::tests::any_intent;
use crate::intent::{ClaimId, ClassPart, Request, SecretRefs};

fn page(book: &Book) -> Value {
    book.new_page("default", "driver-intents-0", json!({ "a": "b" }))
}

fn intent_of(uid: &str, parameter_bytes: usize) -> Arc<Intent> {
    let claim = ClaimId { namespace: "shop".into(), name: "db".into(), uid: uid.into() };
    let parameters = BTreeMap::from([("p".to_owned(), "x".repeat(parameter_bytes))]);
    let request = Request { parameters, ..Request::default() };
    Arc::new(Intent::new(claim, format!("pvc-{uid}"), request, SecretRefs::default(), ClassPart::default()))
}

/// Writes every page there is into stored Leases, as the writer would.
fn write_all(book: &mut Book, stored: &mut BTreeMap<usize, Value>) {
    let pages: BTreeSet<usize> = book.entries.values().map(|entry| entry.page).collect();
    for number in pages {
        let mut lease = stored.get(&number).cloned().unwrap_or_else(|| page(book));
        let edit = book.edit(number, &mut lease, false);
        assert_eq!(edit.deposed_by, None);
        stored.insert(number, lease);
        book.confirm(&edit);
    }
}

fn annotation_bytes(lease: &Value) -> usize {
    let annotations = lease["metadata"]["annotations"].as_object().unwrap();
    annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
}

#[test]
fn a_record_is_durable_only_after_its_write_is_confirmed() {
    let mut book = Book::new("run-1");
    book.enter(fixture::intent()).unwrap();
    assert_eq!(book.get(fixture::UID).unwrap().stage, Stage::Wanted);
    let mut lease = page(&book);
    let edit = book.edit(0, &mut lease, false);
    assert_eq!(book.get(fixture::UID).unwrap().stage, Stage::Wanted);
    assert_eq!(book.confirm(&edit).0, [fixture::UID]);
    assert_eq!(book.get(fixture::UID).unwrap().stage, Stage::Stored);
    let key = format!("{RECORD}{}", fixture::UID);
    assert_eq!(lease["metadata"]["annotations"][key], fixture::intent().encode());
}

#[test]
fn many_records_go_into_one_write_and_removals_ride_on_it() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    book.enter(intent_of("a", 1)).unwrap();
    write_all(&mut book, &mut stored);
    book.leave("a");
    (0..20).for_each(|n| book.enter(intent_of(&format!("b{n}"), 1)).unwrap());
    let mut lease = stored[&0].clone();
    let edit = book.edit(0, &mut lease, false);
    let (durable, gone) = book.confirm(&edit);
    assert_eq!((durable.len(), gone.len()), (20, 1));
    assert!(book.get("a").is_none());
    assert_eq!(lease["metadata"]["annotations"].as_object().unwrap().len(), 21);
}

#[test]
fn fields_and_annotations_that_are_not_ours_survive_every_edit() {
    let mut book = Book::new("run-1");
    book.enter(fixture::intent()).unwrap();
    let mut lease = json!({
        "metadata": { "name": "x", "resourceVersion": "5", "annotations": { "team": "blue" }, "madeUp": { "n": 1 } },
        "spec": { "holderIdentity": "me", "strategyOfTheFuture": [1, 2] },
        "status": { "future": true },
    });
    let before = lease.clone();
    book.edit(0, &mut lease, true);
    let annotations = lease["metadata"]["annotations"].as_object_mut().unwrap();
    assert!(annotations.remove(WRITER).is_some());
    assert!(annotations.remove(&format!("{RECORD}{}", fixture::UID)).is_some());
    assert_eq!(lease, before);
}

#[test]
fn a_record_with_fields_of_the_future_is_adopted_and_kept_as_it_is() {
    let mut record: Value = serde_json::from_str(&fixture::intent().encode()).unwrap();
    record["future"] = json!({ "n": 1 });
    let key = format!("{RECORD}{}", fixture::UID);
    let mut book = Book::new("run-2");
    let mut lease = page(&Book::new("run-1"));
    lease["metadata"]["annotations"][&key] = record.to_string().into();
    let edit = book.edit(0, &mut lease, true);
    assert_eq!(edit.adopted, [fixture::UID]);
    assert_eq!(book.get(fixture::UID).unwrap().intent, fixture::intent());
    assert!(book.get(fixture::UID).unwrap().maybe_made);
    assert_eq!(lease["metadata"]["annotations"][&key], record.to_string());
}

/// A backup that was put back, in a second cluster too, had its old records replayed, and what they found deleted.
#[test]
fn the_records_on_a_copy_of_a_page_are_not_settled() {
    let mut first = Book::new("run-1");
    let mut lease = page(&first);
    first.edit(0, &mut lease, true);
    assert_eq!(lease["metadata"]["annotations"][STAMP], Value::Null, "it has no uid yet");
    lease["metadata"]["uid"] = "lease-1".into();
    first.enter(fixture::intent()).unwrap();
    first.edit(0, &mut lease, false);
    assert_eq!(lease["metadata"]["annotations"][STAMP], "lease-1");

    let mut same = lease.clone();
    assert_eq!(Book::new("run-2").edit(0, &mut same, true).adopted, [fixture::UID]);
    lease["metadata"]["uid"] = "lease-2".into();
    let mut book = Book::new("run-2");
    assert!(book.edit(0, &mut lease, true).adopted.is_empty() && book.uids().is_empty());
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(annotations[STAMP], "lease-2");
    assert_eq!(annotations[format!("{COPY}{}", fixture::UID)], fixture::intent().encode(), "nothing is lost");
    assert_eq!(annotations[format!("{RECORD}{}", fixture::UID)], Value::Null);
    // The page is ours from here on.
    assert!(Book::new("run-3").edit(0, &mut lease, true).adopted.is_empty());
}

#[test]
fn what_stayed_in_memory_is_stored_beside_the_records_of_earlier_runs() {
    let mut earlier = Book::new("run-1");
    earlier.enter(intent_of("a", 1)).unwrap();
    let mut stored = BTreeMap::new();
    write_all(&mut earlier, &mut stored);

    let mut book = Book::new("run-2");
    for intent in [intent_of("a", 2), intent_of("b", 1)] {
        book.enter(intent).unwrap();
        book.give_up_storing();
    }
    assert_eq!(book.store_from(1), ["a", "b"]);
    let mut lease = stored[&0].clone();
    book.edit(0, &mut lease, true);
    let key = format!("{RECORD}a");
    assert_eq!(lease["metadata"]["annotations"][&key], intent_of("a", 1).encode(), "only it finds what run-1 made");
    book.settle();
    write_all(&mut book, &mut stored);
    assert_eq!(stored[&1]["metadata"]["annotations"][&key], intent_of("a", 2).encode());
    assert!(["a", "b"].iter().all(|uid| book.get(uid).unwrap().stage == Stage::Stored));
    // Once the claim needs ours no more, theirs is taken in.
    book.leave("a");
    write_all(&mut book, &mut stored);
    assert_eq!(book.edit(0, &mut lease, true).adopted, ["a"]);
    assert!(book.get("a").unwrap().inherited);
}

#[test]
fn a_record_that_cannot_be_read_is_left_alone() {
    let mut book = Book::new("run-1");
    let mut lease = page(&book);
    for (uid, text) in [("a", "not json"), ("b", r#"{"v":9}"#), ("c", &intent_of("other", 1).encode())] {
        lease["metadata"]["annotations"][format!("{RECORD}{uid}")] = text.into();
    }
    let before = lease.clone();
    assert_eq!(book.edit(0, &mut lease, false), Edit::default());
    assert_eq!(lease, before);
    assert!(book.uids().is_empty());
}

/// The good one was not replayed, and its volume had no owner.
#[test]
fn a_record_is_replayed_whatever_stands_on_another_page_for_its_claim() {
    let good = intent_of("a", 1);
    let (unreadable, readable) = ("not json".to_owned(), good.encode());
    for texts in [[&unreadable, &readable], [&readable, &unreadable]] {
        let mut leases = texts.map(|text| {
            let mut lease = page(&Book::new("run-1"));
            lease["metadata"]["annotations"][format!("{RECORD}a")] = text.as_str().into();
            lease
        });
        let mut book = Book::new("run-2");
        for (number, lease) in leases.iter_mut().enumerate() {
            let edit = book.edit(number, lease, true);
            book.confirm(&edit);
        }
        book.settle();
        assert_eq!(book.get("a").unwrap().intent, good);
        assert!(matches!(book.enter(intent_of("a", 2)), Err(Refused::Unreadable { .. })));
        book.leave("a");
        for (number, lease) in leases.iter_mut().enumerate() {
            let edit = book.edit(number, lease, false);
            book.confirm(&edit);
        }
        assert!(book.get("a").is_none());
        let left = leases.iter().filter_map(|lease| lease["metadata"]["annotations"].get(format!("{RECORD}a")));
        assert_eq!(left.collect::<Vec<_>>(), [&Value::from(unreadable.as_str())]);
    }
}

#[test]
fn a_run_whose_page_was_taken_over_writes_nothing() {
    let mut old = Book::new("run-1");
    let mut lease = page(&old);
    Book::new("run-2").edit(0, &mut lease, true);
    let before = lease.clone();
    old.enter(fixture::intent()).unwrap();
    let edit = old.edit(0, &mut lease, false);
    assert_eq!(edit.deposed_by.as_deref(), Some("run-2"));
    assert_eq!(lease, before);
    old.confirm(&edit);
    assert_eq!(old.get(fixture::UID).unwrap().stage, Stage::Wanted);
}

#[test]
fn a_record_somebody_tore_out_is_put_back() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    book.enter(fixture::intent()).unwrap();
    write_all(&mut book, &mut stored);
    let mut torn = page(&book);
    book.edit(0, &mut torn, false);
    assert_eq!(torn["metadata"]["annotations"], stored[&0]["metadata"]["annotations"]);
}

#[test]
fn a_record_that_left_while_its_write_was_in_flight_goes_with_the_next() {
    let mut book = Book::new("run-1");
    book.enter(fixture::intent()).unwrap();
    let mut lease = page(&book);
    let edit = book.edit(0, &mut lease, false);
    book.leave(fixture::UID);
    book.confirm(&edit);
    assert_eq!(book.get(fixture::UID).unwrap().stage, Stage::Leaving);
    let edit = book.edit(0, &mut lease, false);
    assert_eq!(book.confirm(&edit).1.len(), 1);
}

#[test]
fn a_record_that_came_back_while_its_removal_was_in_flight_stays() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    book.enter(fixture::intent()).unwrap();
    write_all(&mut book, &mut stored);
    book.leave(fixture::UID);
    let mut lease = stored[&0].clone();
    let edit = book.edit(0, &mut lease, false);
    book.enter(fixture::intent()).unwrap();
    assert!(book.confirm(&edit).1.is_empty());
    assert_eq!(book.get(fixture::UID).unwrap().stage, Stage::Wanted);
}

#[test]
fn no_page_outgrows_what_is_written_quickly() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    for n in 0..60 {
        book.enter(intent_of(&format!("u{n}"), 9 * 1024)).unwrap();
        write_all(&mut book, &mut stored);
    }
    assert_eq!(stored.len(), 20);
    assert!(stored.values().all(|lease| annotation_bytes(lease) <= 33 * 1024));
    let records: usize =
        stored.values().map(|lease| lease["metadata"]["annotations"].as_object().unwrap().len() - 1).sum();
    assert_eq!(records, 60);
}

#[test]
fn a_record_that_outgrows_its_page_leaves_it_before_it_stands_on_another() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    ["a", "b", "c"].into_iter().for_each(|uid| book.enter(intent_of(uid, 9_000)).unwrap());
    write_all(&mut book, &mut stored);
    assert_eq!((stored.len(), book.page_of("a")), (1, Some(0)));
    book.enter(intent_of("a", 245_000)).unwrap();
    assert_eq!(book.page_of("a"), Some(0), "what it said before goes first");
    // Whatever is written meanwhile, it does not stand on two pages.
    let mut other = page(&book);
    let edit = book.edit(1, &mut other, false);
    assert_eq!(book.confirm(&edit).0, [""; 0]);
    let edit = book.edit(0, stored.get_mut(&0).unwrap(), false);
    assert_eq!(book.confirm(&edit).0, ["b", "c"]);
    assert_eq!(book.page_of("a"), Some(1));
    assert_eq!(book.get("a").unwrap().stage, Stage::Wanted);
    let edit = book.edit(1, &mut other, false);
    assert_eq!(book.confirm(&edit).0, ["a"]);
    stored.insert(1, other);
    assert!(stored.values().all(|lease| annotation_bytes(lease) <= 256 * 1024));
    let mut next = Book::new("run-2");
    stored.iter_mut().for_each(|(number, lease)| drop(next.edit(*number, lease, true)));
    assert_eq!(next.get("a").unwrap().intent, intent_of("a", 245_000));
    assert!(book.pages_to_clean().is_empty());
}

#[test]
fn one_that_outgrew_its_page_and_is_not_needed_any_more_is_gone_only_when_no_page_has_it() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    ["a", "b"].into_iter().for_each(|uid| book.enter(intent_of(uid, 9_000)).unwrap());
    write_all(&mut book, &mut stored);
    book.enter(intent_of("a", 250_000)).unwrap();
    book.leave("a");
    let mut other = page(&book);
    let edit = book.edit(1, &mut other, false);
    assert!(book.confirm(&edit).1.is_empty());
    let edit = book.edit(0, stored.get_mut(&0).unwrap(), false);
    book.confirm(&edit);
    let edit = book.edit(1, &mut other, false);
    assert_eq!(book.confirm(&edit).1, [intent_of("a", 250_000)]);
    assert!(!stored[&0].to_string().contains(&format!("{RECORD}a")));
}

#[test]
fn what_others_put_on_a_page_counts() {
    let mut book = Book::new("run-1");
    let mut lease = page(&book);
    lease["metadata"]["annotations"]["a.example/notes"] = "x".repeat(150_000).into();
    lease["metadata"]["annotations"][format!("{RECORD}unreadable")] = "{".repeat(40_000).into();
    book.edit(0, &mut lease, true);
    book.enter(intent_of("large", 100_000)).unwrap();
    assert_eq!(book.page_of("large"), Some(1));
    // A page without records takes one as long as a Lease holds it, and no second one.
    book.enter(intent_of("small", 1_000)).unwrap();
    book.enter(intent_of("other", 1_000)).unwrap();
    assert_eq!((book.page_of("small"), book.page_of("other")), (Some(0), Some(2)));
}

#[test]
fn a_record_too_large_for_any_lease_is_refused_with_the_way_out() {
    let error = Book::new("run-1").enter(intent_of("a", 256 * 1024)).unwrap_err();
    assert!(error.to_string().contains("shorten the parameters of the StorageClass"), "{error}");
}

#[test]
fn a_new_record_goes_where_most_is_to_be_removed() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    for n in 0..3 {
        book.enter(intent_of(&format!("u{n}"), 150 * 1024)).unwrap();
    }
    write_all(&mut book, &mut stored);
    assert_eq!(book.page_of("u2"), Some(2));
    book.leave("u2");
    book.enter(intent_of("v", 1)).unwrap();
    assert_eq!(book.page_of("v"), Some(2));
}

#[test]
fn records_that_come_together_are_one_write_whatever_leaves_meanwhile() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    for n in 0..3 {
        book.enter(intent_of(&format!("u{n}"), 20 * 1024)).unwrap();
    }
    write_all(&mut book, &mut stored);
    book.leave("u2");
    book.enter(intent_of("v", 1)).unwrap();
    book.leave("u1");
    book.leave("u0");
    book.enter(intent_of("w", 1)).unwrap();
    assert_eq!((book.page_of("v"), book.page_of("w")), (Some(2), Some(2)));
    write_all(&mut book, &mut stored);
    book.enter(intent_of("x", 1)).unwrap();
    assert_eq!(book.page_of("x"), Some(2), "it is the only one that is left");
    book.remove("x");
    let waiting = book.pages.values().map(|fill| fill.wanted).sum::<usize>();
    assert_eq!(waiting, 0);
}

proptest! {
    #[test]
    fn what_is_stored_is_what_the_next_run_reads(
        intents in proptest::collection::vec(any_intent(), 0..8),
        leaving in proptest::collection::vec(any::<bool>(), 8),
    ) {
        let mut book = Book::new("run-1");
        let mut stored = BTreeMap::new();
        let mut expected = BTreeMap::new();
        for intent in intents {
            book.enter(Arc::new(intent.clone())).unwrap();
            expected.insert(intent.claim.uid.clone(), intent);
        }
        write_all(&mut book, &mut stored);
        let uids = book.uids();
        for uid in uids.iter().zip(&leaving).filter(|(_, leaves)| **leaves).map(|(uid, _)| uid) {
            book.leave(uid);
            expected.remove(uid);
        }
        write_all(&mut book, &mut stored);
        let mut next = Book::new("run-2");
        for (number, lease) in &mut stored {
            next.edit(*number, lease, true);
        }
        let read: BTreeMap<String, Intent> =
            next.uids().into_iter().map(|uid| (uid.clone(), (*next.get(&uid).unwrap().intent).clone())).collect();
        prop_assert_eq!(read, expected);
    }
}
