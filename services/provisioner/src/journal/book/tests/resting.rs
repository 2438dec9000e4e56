//! Records of which certainly nothing was made.

use super::*;
use crate::places::{Places, Requirement};

/// A record that is stored, and whose call certainly made nothing.
fn resting() -> (Book, Value) {
    let mut book = Book::new("run-1");
    book.enter(fixture::intent()).unwrap();
    let mut lease = page(&book);
    let edit = book.edit(0, &mut lease, false);
    book.confirm(&edit);
    book.set_maybe_made(fixture::UID, true);
    assert!(!book.rest(fixture::UID), "a call is under way");
    book.set_maybe_made(fixture::UID, false);
    assert!(book.rest(fixture::UID));
    (book, lease)
}

fn stage(book: &Book) -> Option<Stage> {
    book.get(fixture::UID).map(|entry| entry.stage)
}

/// Found after a restart, it was asked for as it was for ever, whatever the class said by then.
#[test]
fn a_record_of_a_call_that_made_nothing_is_taken_off_its_page_and_kept_for_who_tries_again() {
    let (mut book, mut lease) = resting();
    assert_eq!(book.pages_to_clean(), [0].into());
    let edit = book.edit(0, &mut lease, false);
    assert_eq!((stage(&book), book.confirm(&edit).1), (Some(Stage::Fading), Vec::new()));
    assert_eq!(stage(&book), Some(Stage::Kept));
    assert!(book.pages_to_clean().is_empty());
    let mut next = Book::new("run-2");
    assert!(next.edit(0, &mut lease.clone(), true).adopted.is_empty());
    book.enter(fixture::intent()).unwrap();
    assert_eq!(stage(&book), Some(Stage::Wanted));
    let edit = book.edit(0, &mut lease, false);
    assert_eq!(book.confirm(&edit).0, [fixture::UID]);
    assert_eq!(Book::new("run-2").edit(0, &mut lease, true).adopted, [fixture::UID]);
}

#[test]
fn a_record_that_rests_is_taken_up_without_a_write_unless_it_says_something_else() {
    let (mut book, _) = resting();
    book.enter(fixture::intent()).unwrap();
    assert_eq!((stage(&book), book.pages_to_clean().len()), (Some(Stage::Stored), 0));
    let (mut book, _) = resting();
    let mut other = (*fixture::intent()).clone();
    other.request.bytes += 1;
    book.enter(Arc::new(other)).unwrap();
    assert_eq!(stage(&book), Some(Stage::Wanted));
}

#[test]
fn a_record_that_is_taken_up_while_it_is_taken_off_its_page_is_written_again() {
    let (mut book, mut lease) = resting();
    let edit = book.edit(0, &mut lease, false);
    book.enter(fixture::intent()).unwrap();
    book.confirm(&edit);
    assert_eq!(stage(&book), Some(Stage::Wanted));
    let edit = book.edit(0, &mut lease, false);
    assert_eq!(book.confirm(&edit).0, [fixture::UID]);
    assert!(lease.to_string().contains(&format!("{RECORD}{}", fixture::UID)));
}

#[test]
fn a_record_whose_end_on_its_page_was_not_answered_is_still_to_be_taken_off() {
    let (mut book, mut lease) = resting();
    drop(book.edit(0, &mut lease.clone(), false));
    assert_eq!((stage(&book), book.pages_to_clean()), (Some(Stage::Fading), [0].into()));
    let edit = book.edit(0, &mut lease, false);
    book.confirm(&edit);
    assert!(!lease.to_string().contains(&format!("{RECORD}{}", fixture::UID)));
}

#[test]
fn a_record_that_rests_and_is_not_needed_any_more_is_gone_after_one_write_or_none() {
    let (mut book, mut lease) = resting();
    book.leave(fixture::UID);
    let edit = book.edit(0, &mut lease, false);
    assert_eq!(book.confirm(&edit).1, [fixture::intent()]);
    let (mut book, mut lease) = resting();
    let edit = book.edit(0, &mut lease, false);
    book.confirm(&edit);
    book.leave(fixture::UID);
    assert_eq!((stage(&book), book.pages.len()), (None, 0));
}

#[test]
fn a_record_that_rests_and_was_put_back_by_hand_goes_with_the_next_write() {
    let (mut book, mut lease) = resting();
    let before = lease.clone();
    let edit = book.edit(0, &mut lease, false);
    book.confirm(&edit);
    let mut lease = before;
    let edit = book.edit(0, &mut lease, false);
    book.confirm(&edit);
    assert!(!lease.to_string().contains(&format!("{RECORD}{}", fixture::UID)));
    assert_eq!(stage(&book), Some(Stage::Kept));
}

#[test]
fn a_record_that_is_taken_up_after_its_room_was_promised_to_others_moves() {
    let mut book = Book::new("run-1");
    let mut stored = BTreeMap::new();
    book.enter(intent_of("a", 240_000)).unwrap();
    write_all(&mut book, &mut stored);
    assert!(book.rest("a"));
    book.enter(intent_of("b", 30_000)).unwrap();
    assert_eq!(book.page_of("b"), Some(0));
    book.enter(intent_of("a", 240_000)).unwrap();
    assert_eq!((book.get("a").unwrap().stage, book.get("a").unwrap().page), (Stage::Wanted, 1));
    write_all(&mut book, &mut stored);
    assert!(stored.values().all(|lease| annotation_bytes(lease) <= 256 * 1024));
    let (next, _) = next_run(&stored);
    assert_eq!(next.uids(), ["a", "b"]);
}

/// One record in several versions: short, long and with places that stand apart, on some pages.
fn version(uid: &str, version: usize) -> Arc<Intent> {
    let place = |number: usize| [("topology.example/node".to_owned(), format!("node-{number:045}"))].into();
    let list = |numbers: std::ops::Range<usize>| {
        Some(Requirement { requisite: Places::of(numbers.map(place).collect()), first: 3 })
    };
    let (bytes, places) = [
        (10, None),
        (20_000, list(0..30)),
        (240_000, None),
        (10, list(0..40)),
        (9_000, list(20..90)),
        (10, list(0..200)),
    ]
    .into_iter()
    .cycle()
    .nth(version)
    .unwrap();
    let mut intent = (*intent_of(uid, bytes)).clone();
    intent.request.places = places;
    Arc::new(Intent::new(intent.claim, intent.volume, intent.request, intent.secrets, intent.class))
}

fn next_run(stored: &BTreeMap<usize, Value>) -> (Book, BTreeMap<usize, Value>) {
    let (mut next, mut stored) = (Book::new("run-2"), stored.clone());
    for (page, lease) in &mut stored {
        let edit = next.edit(*page, lease, true);
        next.confirm(&edit);
    }
    next.settle();
    (next, stored)
}

#[derive(Debug, Clone)]
enum Step {
    Enter(usize, usize),
    /// A call is sent, if it may be.
    Call(usize),
    /// Certainly nothing was made.
    Fail(usize),
    Leave(usize),
    /// A write of one of the pages that are to be written begins; whether it is carried out.
    Write(usize, bool),
    /// It ends; whether it is answered.
    Answer(bool),
    EndOfRun,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..6_usize).prop_map(|(uid, version)| Step::Enter(uid, version)),
        3 => (0..3_usize).prop_map(Step::Call),
        4 => (0..3_usize).prop_map(Step::Fail),
        1 => (0..3_usize).prop_map(Step::Leave),
        8 => (0..3_usize, proptest::bool::weighted(0.8)).prop_map(|(page, done)| Step::Write(page, done)),
        8 => proptest::bool::weighted(0.8).prop_map(Step::Answer),
        1 => Just(Step::EndOfRun),
    ]
}

/// The book beside what the server has, with at most one write under way.
struct Played {
    book: Book,
    stored: BTreeMap<usize, Value>,
    under_way: Option<(Edit, bool)>,
}

impl Played {
    fn pages(&self) -> Vec<usize> {
        let wanted = self.book.entries.iter().filter(|(_, entry)| entry.stage == Stage::Wanted);
        let pages: BTreeSet<usize> = wanted.filter_map(|(uid, _)| self.book.page_of(uid)).collect();
        (&pages | &self.book.pages_to_clean()).into_iter().collect()
    }

    fn play(&mut self, step: Step) {
        let is_write = matches!(step, Step::Write(_, true));
        self.step(step);
        self.check();
        if is_write {
            self.check_end();
        }
    }

    fn step(&mut self, step: Step) {
        let uid = |number: usize| format!("u{number}");
        match step {
            Step::Enter(number, changed) => self.book.enter(version(&uid(number), changed)).unwrap(),
            Step::Call(number) => {
                if self.book.get(&uid(number)).is_some_and(|entry| entry.stage == Stage::Stored) {
                    self.book.set_maybe_made(&uid(number), true);
                }
            }
            Step::Fail(number) => {
                self.book.set_maybe_made(&uid(number), false);
                self.book.rest(&uid(number));
            }
            Step::Leave(number) => self.book.leave(&uid(number)),
            Step::Write(nth, is_done) => {
                let pages = self.pages();
                if self.under_way.is_none() && !pages.is_empty() {
                    let number = pages[nth % pages.len()];
                    let mut lease = self.stored.get(&number).cloned().unwrap_or_else(|| page(&self.book));
                    let edit = self.book.edit(number, &mut lease, false);
                    if is_done {
                        self.stored.insert(number, lease);
                    }
                    self.under_way = Some((edit, is_done));
                }
            }
            Step::Answer(is_answered) => {
                if let Some((edit, true)) = self.under_way.take().filter(|_| is_answered) {
                    self.book.confirm(&edit);
                }
            }
            Step::EndOfRun => self.book.unmade().iter().for_each(|uid| self.book.leave(uid)),
        }
    }

    /// What may be called for is stored, what is kept is not, and the book knows how full its pages are.
    fn check(&self) {
        let mut found: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
        for (page, lease) in &self.stored {
            for (key, value) in lease["metadata"]["annotations"].as_object().unwrap() {
                let Some(uid) = key.strip_prefix(RECORD) else { continue };
                assert!(found.insert(uid, (*page, value.as_str().unwrap())).is_none(), "{uid} stands on two pages");
            }
            assert!(annotation_bytes(lease) <= 256 * 1024);
        }
        for (uid, entry) in &self.book.entries {
            match entry.stage {
                Stage::Stored | Stage::Resting => assert_eq!(found[uid.as_str()], (entry.page, entry.text.as_str())),
                Stage::Kept => assert!(!found.contains_key(uid.as_str())),
                Stage::Wanted | Stage::Fading | Stage::Leaving => {}
            }
            assert!(!entry.maybe_made || entry.stage != Stage::Kept);
        }
        assert!(found.keys().all(|uid| self.book.entries.contains_key(*uid)), "nobody will take it off");
        for (page, fill) in &self.book.pages {
            let on_page = self.book.entries.iter().filter(|(_, entry)| entry.page == *page);
            let bytes = |is_live: bool| -> usize {
                let counted = on_page.clone().filter(|(_, entry)| entry.stage != Stage::Kept);
                let counted = counted.filter(|(_, entry)| entry.stage.is_live() == is_live);
                counted.map(|(uid, entry)| bytes_of(uid, &entry.text)).sum()
            };
            assert!(!fill.is_empty());
            if fill.parts == 0 {
                let kept = on_page.clone().filter(|(_, entry)| entry.stage == Stage::Kept).count();
                assert_eq!((fill.live, fill.leaving), (bytes(true), bytes(false)));
                assert_eq!(fill.records, on_page.clone().count() - kept);
            }
        }
    }

    /// Were this the end: all that is there is replayed, with its places, and nothing stays for ever.
    fn check_end(&self) {
        let (mut next, mut stored) = next_run(&self.stored);
        assert!(next.unreadable.is_empty());
        let annotations =
            stored.values().flat_map(|lease| lease["metadata"]["annotations"].as_object().unwrap().keys());
        let found: BTreeSet<String> =
            annotations.filter_map(|key| key.strip_prefix(RECORD)).map(str::to_owned).collect();
        assert_eq!(next.uids(), found.into_iter().collect::<Vec<_>>());
        next.uids().iter().for_each(|uid| next.leave(uid));
        let pages: Vec<usize> = stored.keys().copied().collect();
        for number in pages.iter().chain(&pages) {
            let edit = next.edit(*number, stored.get_mut(number).unwrap(), false);
            next.confirm(&edit);
        }
        assert!(stored.values().all(|lease| lease["metadata"]["annotations"].as_object().unwrap().len() == 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_fails_and_comes_back_between_writes_what_is_called_for_is_stored_and_what_is_stored_can_be_replayed(
        steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        let mut played = Played { book: Book::new("run-1"), stored: BTreeMap::new(), under_way: None };
        steps.into_iter().for_each(|step| played.play(step));
        // In the end nothing is left of what is not needed.
        played.play(Step::Answer(true));
        played.book.uids().iter().for_each(|uid| played.book.leave(uid));
        for nth in 0..30 {
            played.play(Step::Write(nth, true));
            played.play(Step::Answer(true));
        }
        prop_assert!(played.book.entries.is_empty() && played.book.pages.is_empty(), "{:?}", played.book.pages);
    }
}
