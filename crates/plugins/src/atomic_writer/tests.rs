mod disk;
mod kernel;

use std::collections::BTreeMap;

use disk::{Disk, Node, State};

use super::*;

fn file(data: &[u8]) -> FileProjection {
    FileProjection { data: data.into(), mode: 0o644, uid: None }
}

fn payload(files: &[(&str, &str)]) -> Payload {
    files.iter().map(|(path, data)| ((*path).to_owned(), file(data.as_bytes()))).collect()
}

fn update(payload: &Payload, number: u32) -> Update {
    Update { payload: payload.clone(), directory: format!("..2026_11_18_02_00_00.{number}"), group: None }
}

/// From what a volume holds to what it is to hold; each of row 139.
fn changes() -> Vec<(&'static str, Payload, Payload)> {
    let one = payload(&[("a", "1"), ("b", "1"), ("c", "1")]);
    vec![
        ("first", Payload::new(), one.clone()),
        ("update", one.clone(), payload(&[("a", "2"), ("b", "2"), ("c", "2")])),
        ("add", one.clone(), payload(&[("a", "2"), ("b", "2"), ("c", "2"), ("d", "2")])),
        ("delete", one.clone(), payload(&[("a", "2"), ("b", "2")])),
        ("delete all", one.clone(), Payload::new()),
        ("subdirectories", one.clone(), payload(&[("a/x", "2"), ("b", "2"), ("s/t/u", "2")])),
        ("and back", payload(&[("a/x", "1"), ("s/t/u", "1")]), payload(&[("a", "2"), ("s", "2")])),
        ("dotfiles", payload(&[(".a", "1"), (".b/.c", "1")]), payload(&[(".a", "2"), (".d", "2")])),
    ]
}

/// A volume that holds a payload.
fn disk_with(payload: &Payload) -> Disk {
    let disk = Disk::default();
    write_in(&disk, &update(payload, 1)).unwrap();
    disk.forget()
}

/// What is shown at one moment, through `..data`.
fn shown(state: &State) -> BTreeMap<String, Vec<u8>> {
    let Some(Node::Link { to, .. }) = state.get(DATA) else { return BTreeMap::new() };
    let inside = state.iter().filter_map(|(path, node)| Some((path.strip_prefix(&format!("{to}/"))?, node)));
    inside.filter_map(|(path, node)| Some((path.to_owned(), node.contents()?))).collect()
}

fn contents(payload: &Payload) -> BTreeMap<String, Vec<u8>> {
    payload.iter().map(|(path, file)| (path.clone(), file.data.clone())).collect()
}

/// A state without the name of its directory.
fn nameless(state: &State) -> State {
    let Some(Node::Link { to, .. }) = state.get(DATA).cloned() else { return state.clone() };
    let rename = |text: &str| text.replace(&to, "..here");
    let nodes = state.iter().map(|(path, node)| {
        let node = match node {
            Node::Link { to, uid } => Node::Link { to: rename(to), uid: *uid },
            other => other.clone(),
        };
        (rename(path), node)
    });
    nodes.collect()
}

#[test]
fn row_139_every_change_ends_in_exactly_the_new_files_and_links() {
    for (name, old, new) in changes() {
        let disk = disk_with(&old);
        assert_eq!(write_in(&disk, &update(&new, 2)).unwrap(), Written::Switched, "{name}");
        let state = disk.state();
        assert_eq!(shown(&state), contents(&new), "{name}");
        assert_eq!(nameless(&state), nameless(&disk_with(&new).state()), "{name}");
    }
}

#[test]
fn row_138_nothing_is_written_when_nothing_changed_not_even_for_modes_and_owners() {
    for (name, _, new) in changes() {
        let disk = disk_with(&new);
        let mut again = update(&new, 2);
        again.payload.values_mut().for_each(|file| (file.mode, file.uid) = (0o600, Some(7)));
        assert_eq!(write_in(&disk, &again).unwrap(), Written::Unchanged, "{name}");
        assert_eq!(disk.states().len(), 1, "{name}");
    }
}

#[test]
fn row_139_links_that_are_missing_or_wrong_are_made_anew_without_writing_the_files() {
    let all = payload(&[("a", "1"), ("b", "1"), ("c/d", "1")]);
    let disk = disk_with(&all);
    let whole = disk.state();
    disk.change(|state| {
        state.remove("a");
        state.insert("b".into(), Node::Link { to: "/etc/passwd".into(), uid: 0 });
        state.insert("stale".into(), Node::Link { to: "..data/stale".into(), uid: 0 });
        state.insert("foreign".into(), Node::Link { to: "elsewhere".into(), uid: 0 });
    });
    assert_eq!(write_in(&disk, &update(&all, 2)).unwrap(), Written::Unchanged);
    let mut mended = disk.state();
    assert!(mended.remove("foreign").is_some());
    assert_eq!(mended, whole);
    disk.change(|state| {
        state.insert("a".into(), Node::Directory { mode: 0o755 });
    });
    assert!(matches!(write_in(&disk, &update(&all, 3)), Err(Error::InTheWay { name }) if name == "a"));
}

#[test]
fn row_139_modes_owners_and_the_group_are_set_before_the_files_are_seen() {
    let disk = Disk::default();
    let mut secret = update(&payload(&[("token", "t"), ("dir/key", "k")]), 1);
    secret.payload.values_mut().for_each(|file| (file.mode, file.uid) = (0o400, Some(1000)));
    secret.group = Some(FsGroup { gid: 4711, read_only: true });
    write_in(&disk, &secret).unwrap();
    let seen: Vec<_> = disk.states().into_iter().filter(|state| state.contains_key(DATA)).collect();
    assert!(!seen.is_empty());
    for state in seen {
        for (path, node) in &state {
            if let Node::File { mode, uid, gid, .. } = node {
                assert_eq!((*mode, *uid, *gid), (0o440, 1000, 4711), "{path}");
            }
        }
    }
    let state = disk.state();
    assert!(
        matches!(&state["token"], Node::Link { uid: 1000, .. }) && matches!(&state["dir"], Node::Link { uid: 0, .. })
    );
}

/// Which of the two a file's contents belong to.
fn version(data: &[u8]) -> u8 {
    data[0] - b'0'
}

#[test]
fn row_139_a_reader_of_the_directory_sees_all_old_or_all_new_files_at_every_interleaving() {
    let mut interleavings = 0_u64;
    for (name, old, new) in changes() {
        let disk = disk_with(&old);
        write_in(&disk, &update(&new, 2)).unwrap();
        let states = disk.states();
        let names: Vec<_> = old.keys().chain(new.keys()).collect();
        for opened in 0..states.len() {
            let Some(Node::Link { to, .. }) = states[opened].get(DATA) else { continue };
            let (expected, other) = match to.ends_with(".1") {
                true => (&old, &new),
                false => (&new, &old),
            };
            for path in &names {
                for (read, state) in states.iter().enumerate().skip(opened) {
                    interleavings += 1;
                    // What is in a directory that was shown once never changes; it can only go.
                    match state.get(&format!("{to}/{path}")).and_then(Node::contents) {
                        Some(data) => assert_eq!(data, expected[*path].data, "{name} {path} {opened} {read}"),
                        None => assert!(
                            !expected.contains_key(*path) || (read > opened && other == &new),
                            "{name} {path} {opened} {read}"
                        ),
                    }
                }
            }
        }
    }
    println!("{interleavings} interleavings of a reader of the directory");
    assert!(interleavings > 1000);
}

#[test]
fn row_139_a_reader_of_links_sees_each_file_old_or_new_and_never_goes_back_at_every_interleaving() {
    let mut interleavings = 0_u64;
    for (name, old, new) in changes() {
        let disk = disk_with(&old);
        write_in(&disk, &update(&new, 2)).unwrap();
        let states = disk.states();
        for path in old.keys().filter(|path| new.contains_key(*path)) {
            let first = path.split('/').next().unwrap();
            // A path is walked in three steps, between which the writer may do anything: the link, `..data`, the file.
            for one in 0..states.len() {
                let Some(Node::Link { to: link, .. }) = states[one].get(first) else {
                    panic!("{name}: {first} is gone")
                };
                assert_eq!(link, &format!("{DATA}/{first}"));
                for two in one..states.len() {
                    let Some(Node::Link { to, .. }) = states[two].get(DATA) else { panic!("{name}: no data") };
                    for (three, state) in states.iter().enumerate().skip(two) {
                        interleavings += 1;
                        let found = state.get(&format!("{to}/{path}")).and_then(Node::contents);
                        match found {
                            Some(data) => assert!(data == old[path].data || data == new[path].data),
                            // Only one who began before the switch and was still on the way at the removal.
                            None => assert!(to.ends_with(".1") && three > two, "{name} {path} {one} {two} {three}"),
                        }
                    }
                }
            }
        }
        // Files read one after the other, each at once: none is missing, and none is older than one read before.
        let both: Vec<_> = old.keys().filter(|path| new.contains_key(*path)).collect();
        for one in 0..states.len() {
            for two in one..states.len() {
                let at = |state: &State, path: &str| shown(state).get(path).map(|data| version(data));
                for pair in both.windows(2) {
                    let (before, after) = (at(&states[one], pair[0]).unwrap(), at(&states[two], pair[1]).unwrap());
                    assert!(before <= after, "{name} {one} {two}");
                }
            }
        }
    }
    println!("{interleavings} interleavings of a reader of links");
    assert!(interleavings > 1000);
}

#[test]
fn row_139_a_crash_at_any_call_leaves_the_old_or_the_new_files_and_the_next_write_mends_the_rest() {
    let mut crashes = 0;
    for (name, old, new) in changes() {
        for group in [None, Some(FsGroup { gid: 9, read_only: false })] {
            let steps = {
                let disk = disk_with(&old);
                write_in(&disk, &Update { group, ..update(&new, 2) }).unwrap();
                disk.states().len() - 1
            };
            for step in 0..steps {
                crashes += 1;
                let crash = || {
                    let disk = disk_with(&old).stopping_at(step);
                    assert!(write_in(&disk, &Update { group, ..update(&new, 2) }).is_err(), "{name} {step}");
                    disk.revived()
                };
                let left = crash().state();
                assert!(shown(&left) == contents(&old) || shown(&left) == contents(&new), "{name} {step}: {left:?}");
                // The next run may have the new files again, under the same or another name, or the old ones.
                for (then, number) in [(&new, 2), (&new, 3), (&old, 3)] {
                    let disk = crash();
                    write_in(&disk, &update(then, number)).unwrap();
                    let mut expected = nameless(&disk_with(then).state());
                    let mut mended = nameless(&disk.state());
                    for state in [&mut expected, &mut mended] {
                        state.values_mut().for_each(Node::forget_group);
                    }
                    assert_eq!(mended, expected, "{name} {step} {number}");
                }
            }
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 200);
}

#[test]
fn a_directory_is_named_by_its_time_as_the_kubelet_names_it() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(directory_name(now, 123_456_789), "..2026_01_02_03_04_05.123456789");
    assert!(is_directory_name(&directory_name(now, 1)));
    for other in [DATA, DATA_WAITING, LINK_WAITING, "..", "../../etc", "..a/b", ".hidden", "plain", ""] {
        assert!(!is_directory_name(other), "{other}");
    }
}

#[test]
fn what_is_in_a_file_is_not_printed() {
    assert_eq!(format!("{:?}", file(b"password")), "8 bytes, mode 644, owner None");
}
