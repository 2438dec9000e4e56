use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use serde::Deserialize;
use serde_json::json;

use stowage_model::object::{Kind, kinds};

use super::*;

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Thing {
    #[serde(rename = "metadata")]
    meta: Meta,
    #[serde(default)]
    color: String,
}

impl Projection for Thing {
    const KIND: Kind = kinds::CONFIG_MAP;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

fn thing(name: &str, uid: &str, revision: u64, color: &str) -> Thing {
    let metadata = json!({ "namespace": "n", "name": name, "uid": uid, "resourceVersion": revision.to_string() });
    serde_json::from_value(json!({ "metadata": metadata, "color": color })).unwrap()
}

fn key(name: &str) -> Key {
    Key::namespaced("n", name)
}

fn color(cache: &Cache<Thing>, name: &str) -> Option<String> {
    cache.get(&key(name)).map(|thing| thing.color.clone())
}

#[test]
fn an_answer_is_seen_at_once_and_a_late_watch_event_does_not_take_it_back() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.observe(thing("a", "1", 9, "blue"));
    cache.watched(thing("a", "1", 7, "green"));
    assert_eq!(color(&cache, "a").as_deref(), Some("blue"));
    cache.watched(thing("a", "1", 11, "black"));
    assert_eq!(color(&cache, "a").as_deref(), Some("black"));
}

#[test]
fn a_write_without_an_answer_makes_the_object_unknown_until_one_fresh_read() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.mark_unknown(&key("a"));
    assert_eq!(cache.view(&key("a")), View::Unknown);
    assert!(cache.list().is_empty(), "nobody may decide on it");
    // The write never happened: the fresh read shows the version we had.
    cache.observe(thing("a", "1", 5, "red"));
    assert!(matches!(cache.view(&key("a")), View::Known(_)));
}

#[test]
fn a_watch_event_does_not_end_the_unknown_state() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.mark_unknown(&key("a"));
    // Somebody else's write: ours may still be on its way.
    cache.watched(thing("a", "1", 6, "green"));
    assert_eq!(cache.view(&key("a")), View::Unknown);
    // A fresh read older than the newest event is a fresh read all the same.
    cache.observe(thing("a", "1", 5, "red"));
    assert_eq!(color(&cache, "a").as_deref(), Some("green"));
    assert!(matches!(cache.view(&key("a")), View::Known(_)));
}

#[test]
fn whoever_rested_on_an_unknown_object_is_woken_when_it_is_known_again() {
    let cache: Cache<Thing> = Cache::new();
    let changes = Arc::new(AtomicUsize::new(0));
    cache.on_change({
        let changes = Arc::clone(&changes);
        move |_| {
            changes.fetch_add(1, Ordering::Relaxed);
        }
    });
    cache.mark_unknown(&key("a"));
    cache.observe_absent(&key("a"), None);
    assert_eq!(changes.load(Ordering::Relaxed), 1);
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.mark_unknown(&key("a"));
    cache.observe(thing("a", "1", 5, "red"));
    assert_eq!(changes.load(Ordering::Relaxed), 3);
}

/// Each failed write was told as a change, and its key wrote again without a pause.
#[test]
fn that_an_object_is_known_again_is_a_reminder_unless_who_wrote_could_not_read_it() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    let reminders: Arc<Mutex<Vec<bool>>> = Arc::default();
    cache.on_change({
        let reminders = Arc::clone(&reminders);
        move |change| reminders.lock().unwrap().push(change.is_reminder)
    });
    cache.mark_unknown(&key("a"));
    cache.observe(thing("a", "1", 5, "red"));
    cache.mark_unknown(&key("absent"));
    cache.observe_absent(&key("absent"), None);
    assert_eq!(*reminders.lock().unwrap(), [true, true]);
    reminders.lock().unwrap().clear();
    cache.leave_unread(&key("a"));
    cache.mark_unknown(&key("a"));
    cache.observe(thing("a", "1", 5, "red"));
    assert_eq!(*reminders.lock().unwrap(), [false]);
    cache.observe(thing("a", "1", 6, "green"));
    assert_eq!(*reminders.lock().unwrap(), [false, false]);
}

#[test]
fn a_fresh_read_that_brings_a_newer_version_also_says_that_the_object_is_known_again() {
    let cache = Cache::new();
    cache.watched(thing("a", "1", 1, "red"));
    let confirmed = Arc::new(AtomicUsize::new(0));
    cache.on_change({
        let confirmed = Arc::clone(&confirmed);
        move |change: &Change<'_, Thing>| {
            if change.before.map(|thing| thing.meta.revision) == change.after.map(|thing| thing.meta.revision) {
                confirmed.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    cache.observe(thing("a", "1", 2, "green"));
    assert_eq!(confirmed.load(Ordering::Relaxed), 0);
    cache.mark_unknown(&key("a"));
    cache.observe(thing("a", "1", 3, "green"));
    assert_eq!(confirmed.load(Ordering::Relaxed), 1, "those who rested are not woken by what changed");
}

#[test]
fn an_object_that_cannot_be_read_is_unknown_not_absent() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.relist_with(vec![], BTreeSet::from([key("a")]), 7);
    assert_eq!(cache.view(&key("a")), View::Unknown);
    cache.watched(thing("a", "1", 8, "green"));
    assert!(matches!(cache.view(&key("a")), View::Known(_)));
}

#[test]
fn a_fresh_read_that_finds_nothing_ends_the_unknown_state() {
    let cache: Cache<Thing> = Cache::new();
    cache.mark_unknown(&key("a"));
    cache.observe_absent(&key("a"), None);
    assert_eq!(cache.view(&key("a")), View::Absent);
}

#[test]
fn a_late_answer_that_there_is_nothing_does_not_hide_what_came_meanwhile() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    // Read while "1" was known, answered when "2" has the name.
    cache.watched_deletion(&thing("a", "1", 6, "red").meta);
    cache.watched(thing("a", "2", 7, "red"));
    cache.observe_absent(&key("a"), Some("1"));
    cache.observe_absent(&key("a"), None);
    assert!(matches!(cache.view(&key("a")), View::Known(found) if found.meta.uid == "2"));
    cache.watched(thing("a", "2", 8, "green"));
    assert_eq!(cache.get(&key("a")).unwrap().meta.revision, 8);
}

#[tokio::test]
async fn unknown_objects_are_read_in_turn() {
    let cache: Cache<Thing> = Cache::new();
    ["a", "b"].into_iter().for_each(|name| cache.leave_unread(&key(name)));
    let mut last = None;
    for expected in ["a", "b", "a", "b"] {
        let next = cache.next_unread(last.as_ref()).await;
        assert_eq!(next, key(expected));
        cache.leave_unread(&next);
        last = Some(next);
    }
}

#[test]
fn an_object_we_deleted_is_not_brought_back_by_a_late_event() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    cache.observe_gone(&key("a"), "1");
    cache.watched(thing("a", "1", 7, "green"));
    assert_eq!(color(&cache, "a"), None);
    cache.watched_deletion(&thing("a", "1", 8, "green").meta);
    cache.watched(thing("a", "2", 9, "new"));
    assert_eq!(color(&cache, "a").as_deref(), Some("new"));
}

#[test]
fn the_late_answer_of_a_write_that_ended_an_object_does_not_bring_it_back() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    // Removing the last finalizer ends the object; its watch event overtakes the answer.
    cache.watched_deletion(&thing("a", "1", 8, "red").meta);
    cache.observe(thing("a", "1", 8, "red"));
    assert_eq!(color(&cache, "a"), None);
    cache.observe(thing("b", "2", 9, "ours"));
    assert_eq!(color(&cache, "b").as_deref(), Some("ours"), "an answer ahead of the watch is believed");
}

#[test]
fn the_late_end_of_a_namesake_does_not_remove_its_successor() {
    let cache = Cache::new();
    cache.observe(thing("a", "2", 9, "new"));
    cache.watched_deletion(&thing("a", "1", 8, "old").meta);
    assert_eq!(color(&cache, "a").as_deref(), Some("new"));
}

#[test]
fn a_relist_removes_what_is_missing_but_not_what_was_created_after_it() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 5, "red"), thing("b", "2", 4, "red")], 5);
    cache.observe(thing("c", "3", 9, "ours"));
    cache.relist(vec![thing("a", "1", 5, "red")], 7);
    assert_eq!(color(&cache, "a").as_deref(), Some("red"));
    assert_eq!(color(&cache, "b"), None);
    assert_eq!(color(&cache, "c").as_deref(), Some("ours"));
}

#[test]
fn a_restored_server_is_believed_although_its_revisions_are_lower() {
    let cache = Cache::new();
    cache.relist(vec![thing("a", "1", 50, "new"), thing("b", "2", 60, "new")], 60);
    cache.relist(vec![thing("a", "1", 20, "old")], 30);
    assert_eq!(color(&cache, "a").as_deref(), Some("old"));
    assert_eq!(color(&cache, "b"), None);
    cache.watched(thing("a", "1", 31, "after"));
    assert_eq!(color(&cache, "a").as_deref(), Some("after"));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_own_write_ends_with_a_change_a_deletion_a_bookmark_or_a_relist() {
    let endings: [fn(&Cache<Thing>); 4] = [
        |cache| cache.watched(thing("a", "1", 9, "green")),
        |cache| cache.watched_deletion(&thing("a", "1", 9, "red").meta),
        |cache| cache.advance(9),
        |cache| cache.relist(vec![], 9),
    ];
    for ending in endings {
        let cache = Cache::new();
        cache.relist(vec![thing("a", "1", 5, "red")], 5);
        assert!(cache.reached(8).now_or_never().is_none());
        ending(&cache);
        assert!(cache.reached(8).now_or_never().is_some());
    }
}

#[test]
fn a_patch_that_changes_nothing_tells_nobody() {
    let cache = Cache::new();
    let changes = Arc::new(AtomicUsize::new(0));
    cache.on_change({
        let changes = Arc::clone(&changes);
        move |_| {
            changes.fetch_add(1, Ordering::Relaxed);
        }
    });
    cache.relist(vec![thing("a", "1", 5, "red")], 5);
    // The server answers a patch without effect with the version it has.
    assert!(!cache.observe(thing("a", "1", 5, "red")));
    assert_eq!(changes.load(Ordering::Relaxed), 1);
}

#[test]
fn an_index_follows_its_objects() {
    let cache = Cache::indexed(&[("color", |thing: &Thing| vec![thing.color.clone()])]);
    cache.observe(thing("a", "1", 1, "red"));
    cache.observe(thing("b", "2", 2, "red"));
    cache.observe(thing("a", "1", 3, "blue"));
    let names = |color: &str| -> Vec<String> {
        cache.by_index("color", color).iter().map(|thing| thing.meta.name.clone()).collect()
    };
    assert_eq!(names("red"), ["b"]);
    assert_eq!(names("blue"), ["a"]);
    cache.observe_gone(&key("b"), "2");
    assert!(names("red").is_empty());
}

#[test]
fn an_object_that_could_never_be_read_is_told_of_when_it_goes() {
    let cache = Cache::<Thing>::new();
    cache.relist(vec![], 5);
    let gone = Arc::new(AtomicUsize::new(0));
    cache.on_change({
        let gone = Arc::clone(&gone);
        move |change| {
            _ = gone.fetch_add(usize::from(change.before.is_none() && change.after.is_none()), Ordering::Relaxed)
        }
    });
    cache.mark_unreadable(key("watched"));
    cache.mark_unreadable(key("listed"));
    assert!(cache.is_unreadable(&key("listed")) && cache.view(&key("listed")) == View::Unknown);
    cache.watched_deletion(&thing("watched", "1", 6, "").meta);
    assert_eq!(gone.load(Ordering::Relaxed), 1);
    cache.relist_with(vec![], [key("listed")].into(), 7);
    assert_eq!(gone.load(Ordering::Relaxed), 1, "it is still there");
    cache.relist(vec![], 8);
    assert_eq!(gone.load(Ordering::Relaxed), 2);
}

#[test]
fn a_first_list_is_told_object_by_object_and_found_by_index() {
    for known_before in [false, true] {
        let cache = Cache::<Thing>::indexed(&[("color", |thing| vec![thing.color.clone()])]);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        cache.on_change({
            let told = Arc::clone(&told);
            move |change| told.lock().unwrap().extend(change.both().map(|thing| thing.meta.name.clone()))
        });
        if known_before {
            cache.observe(thing("b", "2", 9, "blue"));
            told.lock().unwrap().clear();
        }
        cache.relist(vec![thing("b", "2", 4, "red"), thing("a", "1", 5, "red")], 5);
        // An answer that is newer than the list stays.
        let (heard, red) = if known_before { (vec!["a"], vec!["a"]) } else { (vec!["a", "b"], vec!["a", "b"]) };
        assert_eq!(*told.lock().unwrap(), heard);
        let found = cache.by_index("color", "red");
        assert_eq!(found.iter().map(|thing| thing.meta.name.as_str()).collect::<Vec<_>>(), red);
        assert_eq!(cache.len(), 2);
    }
}
