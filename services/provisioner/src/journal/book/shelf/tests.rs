use serde_json::json;
use stowage_model::topology::Segments;

use super::super::RECORD;
use super::*;
use crate::intent::{ClaimId, ClassPart, Intent, Request, SecretRefs};
use crate::places::Requirement;

type Stored = BTreeMap<usize, Value>;

/// The places of these nodes.
fn nodes(numbers: impl Iterator<Item = u32>) -> Places {
    let place = |number| Segments::from([("topology.example/node".to_owned(), format!("node-{number:045}"))]);
    Places::of(numbers.map(place).collect())
}

fn intent(uid: &str, requisite: &Places, first: usize) -> Arc<Intent> {
    let claim = ClaimId { namespace: "shop".into(), name: "db".into(), uid: uid.into() };
    let places = Some(Requirement { requisite: requisite.clone(), first });
    let request = Request { places, ..Request::default() };
    Arc::new(Intent::new(claim, format!("pvc-{uid}"), request, SecretRefs::default(), ClassPart::default()))
}

fn write(book: &mut Book, stored: &mut Stored, page: usize) {
    let mut lease = stored.get(&page).cloned().unwrap_or_else(|| book.new_page("default", "intents", json!({})));
    let edit = book.edit(page, &mut lease, false);
    assert_eq!(edit.deposed_by, None);
    stored.insert(page, lease);
    book.confirm(&edit);
}

/// Writes, as the writer would, until there is nothing to write; shows what is stored after each write.
fn write_all(book: &mut Book, stored: &mut Stored, mut look: impl FnMut(&Stored)) {
    loop {
        let wanted = book.entries.iter().filter(|(_, entry)| entry.stage == Stage::Wanted);
        let mut pages: BTreeSet<usize> = wanted.filter_map(|(uid, _)| book.page_of(uid)).collect();
        pages.extend(book.pages_to_clean());
        let Some(page) = pages.first() else { return };
        write(book, stored, *page);
        look(stored);
    }
}

/// The next run, which has read all pages: in this order, or the other way round.
fn taken_over(stored: &Stored, reversed: bool) -> (Book, Stored) {
    let (mut book, mut stored) = (Book::new("run-2"), stored.clone());
    let mut pages: Vec<usize> = stored.keys().copied().collect();
    if reversed {
        pages.reverse();
    }
    for page in pages {
        let edit = book.edit(page, stored.get_mut(&page).unwrap(), true);
        book.confirm(&edit);
    }
    book.settle();
    (book, stored)
}

fn keys(stored: &Stored, prefix: &str) -> Vec<String> {
    let annotations = stored.values().flat_map(|lease| lease["metadata"]["annotations"].as_object().unwrap().keys());
    annotations.filter_map(|key| key.strip_prefix(prefix)).map(str::to_owned).collect()
}

fn bytes_on(lease: &Value) -> usize {
    let annotations = lease["metadata"]["annotations"].as_object().unwrap();
    annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
}

/// With all places in each record every claim of a cluster of more than 1,650 nodes failed, and from 210 nodes on each
/// record had a Lease of its own.
#[test]
fn records_of_five_thousand_places_share_a_page_and_name_what_stands_once() {
    let (mut book, mut stored, list) = (Book::new("run-1"), Stored::new(), nodes(0..5_000));
    for n in 0..40 {
        book.enter(intent(&format!("uid-{n:032}"), &list, n * 100)).unwrap();
    }
    let mut writes = 0;
    write_all(&mut book, &mut stored, |_| writes += 1);
    assert_eq!(keys(&stored, RECORD).len(), 40);
    assert_eq!(keys(&stored, PLACES).len(), list.parts().len());
    assert!(stored.values().all(|lease| bytes_on(lease) < 256 * 1024));
    assert!(bytes_on(&stored[&0]) <= 33 * 1024, "{}", bytes_on(&stored[&0]));
    let pages_of_records = stored.values().filter(|lease| lease.to_string().contains(RECORD)).count();
    assert!(pages_of_records <= 2 && writes <= 8, "{pages_of_records} pages of records, {writes} writes");
    // The next claim costs one write, of its page.
    book.enter(intent("one-more", &list, 7)).unwrap();
    let before = stored.clone();
    write_all(&mut book, &mut stored, |_| writes += 1);
    assert_eq!(stored.iter().filter(|(page, lease)| before.get(page) != Some(lease)).count(), 1);
}

/// Claims come and go, are asked for anew, and the nodes change: whatever was written when the run ended, the next one knows
/// every record with its very places, and in the end nothing is left.
#[test]
fn a_crash_after_any_write_leaves_no_record_without_its_places_and_no_places_for_ever() {
    let (old, new, other) = (nodes(0..2_000), nodes(1..2_000), nodes(5_000..5_600));
    let expected: BTreeMap<String, Vec<Arc<Intent>>> = [
        ("a", vec![intent("a", &old, 3)]),
        ("b", vec![intent("b", &old, 5), intent("b", &new, 4)]),
        ("c", vec![intent("c", &other, 0)]),
        ("d", vec![intent("d", &new, 1_998)]),
    ]
    .map(|(uid, intents)| (uid.to_owned(), intents))
    .into();
    let mut crashes = 0;
    let mut check = |stored: &Stored| {
        for reversed in [false, true] {
            let (mut next, mut stored) = taken_over(stored, reversed);
            assert!(next.unreadable.is_empty());
            for uid in keys(&stored, RECORD) {
                let replayed = next.get(&uid).unwrap().intent.create_volume(BTreeMap::new());
                let asked = expected[&uid].iter().any(|intent| intent.create_volume(BTreeMap::new()) == replayed);
                assert!(asked, "{uid} is replayed otherwise");
                next.leave(&uid);
            }
            write_all(&mut next, &mut stored, |_| {});
            assert_eq!((keys(&stored, RECORD), keys(&stored, PLACES)), (vec![], vec![]));
            assert!(next.pages.is_empty() && next.shelf.parts.is_empty());
            crashes += 1;
        }
    };
    let (mut book, mut stored) = (Book::new("run-1"), Stored::new());
    for uid in ["a", "b", "c"] {
        book.enter(Arc::clone(&expected[uid][0])).unwrap();
    }
    write_all(&mut book, &mut stored, &mut check);
    book.enter(Arc::clone(&expected["b"][1])).unwrap();
    book.leave("c");
    write_all(&mut book, &mut stored, &mut check);
    book.enter(Arc::clone(&expected["d"][0])).unwrap();
    book.leave("a");
    write_all(&mut book, &mut stored, &mut check);
    // The first part of the old list is gone, and what both have stands once.
    let parts: BTreeSet<_> = new.parts().iter().map(|part| part.name.clone()).collect();
    assert_eq!(keys(&stored, PLACES).into_iter().collect::<BTreeSet<_>>(), parts);
    book.leave("b");
    book.leave("d");
    write_all(&mut book, &mut stored, &mut check);
    assert_eq!(keys(&stored, PLACES), [""; 0]);
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn a_record_is_not_written_before_its_places() {
    let (mut book, mut stored, list) = (Book::new("run-1"), Stored::new(), nodes(0..600));
    book.enter(intent("a", &list, 0)).unwrap();
    let page = book.entries["a"].page;
    write(&mut book, &mut stored, page);
    assert_eq!((keys(&stored, RECORD), book.get("a").unwrap().stage), (vec![], Stage::Wanted));
    assert_ne!(book.page_of("a"), Some(page));
    write_all(&mut book, &mut stored, |_| {});
    assert_eq!(book.get("a").unwrap().stage, Stage::Stored);
}

#[test]
fn places_that_are_needed_again_while_their_removal_is_in_flight_are_written_again() {
    let (mut book, mut stored, list) = (Book::new("run-1"), Stored::new(), nodes(0..600));
    book.enter(intent("a", &list, 0)).unwrap();
    write_all(&mut book, &mut stored, |_| {});
    let (own, of_parts) = (book.entries["a"].page, book.shelf.parts[&list.parts()[0].name].page);
    book.leave("a");
    write(&mut book, &mut stored, own);
    let edit = book.edit(of_parts, stored.get_mut(&of_parts).unwrap(), false);
    book.enter(intent("b", &list, 1)).unwrap();
    book.confirm(&edit);
    assert_eq!(keys(&stored, PLACES), [""; 0]);
    write_all(&mut book, &mut stored, |_| {});
    assert_eq!((keys(&stored, RECORD), keys(&stored, PLACES).len()), (vec!["b".to_owned()], list.parts().len()));
}

#[test]
fn a_record_whose_places_are_gone_is_left_alone_and_so_are_places_that_it_may_name() {
    let (mut book, mut stored, list) = (Book::new("run-1"), Stored::new(), nodes(0..2_000));
    book.enter(intent("a", &list, 0)).unwrap();
    write_all(&mut book, &mut stored, |_| {});
    let torn = format!("{PLACES}{}", list.parts()[0].name);
    for lease in stored.values_mut() {
        lease["metadata"]["annotations"].as_object_mut().unwrap().remove(&torn);
    }
    let left = keys(&stored, PLACES);
    let (mut next, mut stored) = taken_over(&stored, false);
    assert!(next.get("a").is_none() && !left.is_empty());
    next.enter(intent("b", &nodes(0..10), 0)).unwrap();
    write_all(&mut next, &mut stored, |_| {});
    next.leave("b");
    write_all(&mut next, &mut stored, |_| {});
    assert_eq!((keys(&stored, RECORD), keys(&stored, PLACES)), (vec!["a".to_owned()], left));
}

/// The page took what came meanwhile in their place, and with all of it the server refused the Lease for ever.
#[test]
fn places_that_are_needed_again_before_they_are_gone_find_their_page_not_given_away() {
    let (mut book, mut stored) = (Book::new("run-1"), Stored::new());
    let lists = [0, 1, 2].map(|n| nodes(n * 10_000..n * 10_000 + 1_400));
    for (n, list) in lists.iter().enumerate() {
        book.enter(intent(&format!("first-{n}"), list, 0)).unwrap();
        book.leave(&format!("first-{n}"));
        // The record is gone, and its places are yet to go.
        let own = book.entries[&format!("first-{n}")].page;
        write(&mut book, &mut stored, own);
    }
    assert!(book.entries.is_empty() && book.shelf.parts.values().all(|kept| kept.stage == Stage::Leaving));
    for (n, list) in lists.iter().enumerate() {
        book.enter(intent(&format!("again-{n}"), list, 0)).unwrap();
    }
    write_all(&mut book, &mut stored, |stored| {
        stored.values().for_each(|lease| assert!(bytes_on(lease) < 256 * 1024, "{}", bytes_on(lease)));
    });
    assert_eq!(keys(&stored, RECORD).len(), 3);
}

/// It was written over by the record of its claim, which still waited: only the request that it names finds the volume.
#[test]
fn a_claim_whose_record_cannot_be_read_gets_no_other_one() {
    let (mut book, mut stored, list) = (Book::new("run-1"), Stored::new(), nodes(0..600));
    book.enter(intent("a", &list, 0)).unwrap();
    write_all(&mut book, &mut stored, |_| {});
    let own = book.entries["a"].page;
    let of_parts = book.shelf.parts[&list.parts()[0].name].page;
    stored.get_mut(&of_parts).unwrap()["metadata"]["annotations"] = json!({});
    let (mut next, mut stored) = taken_over(&stored, false);
    let key = format!("{RECORD}a");
    let before = stored[&own]["metadata"]["annotations"][&key].clone();
    let again = intent("a", &nodes(0..2), 0);
    let refused = next.enter(Arc::clone(&again)).unwrap_err();
    assert_eq!(refused, Refused::Unreadable { uid: "a".into(), page: own });
    assert!(refused.to_string().contains(&key), "{refused}");
    next.enter(intent("b", &nodes(0..2), 0)).unwrap();
    write_all(&mut next, &mut stored, |_| {});
    assert_eq!(stored[&own]["metadata"]["annotations"][&key], before);
    // Whoever takes it away by hand lets the claim go on.
    stored.get_mut(&own).unwrap()["metadata"]["annotations"].as_object_mut().unwrap().remove(&key);
    write(&mut next, &mut stored, own);
    next.enter(again).unwrap();
    write_all(&mut next, &mut stored, |_| {});
    assert_eq!(keys(&stored, RECORD), ["a", "b"]);
}

/// As written by provisioners that knew no parts.
#[test]
fn older_records_are_replayed_as_they_were_written_and_need_no_parts() {
    let list = nodes(0..300);
    let (all, mut preferred) = (list.all().to_vec(), list.all().to_vec());
    preferred.rotate_left(123);
    let record = |version: u32, places: Value| {
        json!({
            "v": version, "claim": { "namespace": "shop", "name": "db", "uid": "a" }, "volume": "pvc-a",
            "request": { "bytes": 1, "modes": [1], "places": places }, "class": { "name": "fast", "reclaimPolicy": "Delete" },
        })
    };
    for version in 1..=4 {
        let places = if version == 1 { Value::Null } else { json!({ "requisite": all, "preferred": preferred }) };
        let text = record(version, places).to_string();
        let mut lease = Book::new("run-1").new_page("default", "intents", json!({}));
        lease["metadata"]["annotations"][format!("{RECORD}a")] = text.as_str().into();
        let (mut book, mut stored) = taken_over(&Stored::from([(0, lease)]), false);
        let asked = book.get("a").unwrap().intent.create_volume(BTreeMap::new()).accessibility_requirements;
        if version > 1 {
            let asked = asked.unwrap();
            let texts =
                |places: &[stowage_csi::v1::Topology]| places.iter().map(|p| p.segments.clone()).collect::<Vec<_>>();
            assert_eq!((texts(&asked.requisite), texts(&asked.preferred)), (all.clone(), preferred.clone()));
        } else {
            assert_eq!(asked, None);
        }
        write_all(&mut book, &mut stored, |_| {});
        assert_eq!(stored[&0]["metadata"]["annotations"][format!("{RECORD}a")], text.as_str());
        assert_eq!(keys(&stored, PLACES), [""; 0]);
    }
}

#[test]
fn two_lists_of_one_hash_are_not_taken_for_each_other() {
    let mut book = Book::new("run-1");
    let part = |text: &str| vec![Arc::new(Part { name: "same".into(), text: text.into() })];
    book.hold(&part(r#"[{"a":"1"}]"#));
    assert_eq!(book.check_parts(&part(r#"[{"a":"1"}]"#)), Ok(()));
    assert_eq!(book.check_parts(&part(r#"[{"a":"2"}]"#)), Err(Refused::SameHash { name: "same".into() }));
}

#[test]
fn what_cannot_be_stored_is_not_kept_either() {
    let mut book = Book::new("run-1");
    for n in 0..100 {
        book.enter(intent(&format!("u{n}"), &nodes(n..n + 600), 0)).unwrap();
        book.give_up_storing();
        book.remove(&format!("u{n}"));
    }
    assert!(book.shelf.parts.is_empty() && book.pages.len() <= 1, "{:?}", book.pages);
}
