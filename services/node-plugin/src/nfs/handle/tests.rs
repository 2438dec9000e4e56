use proptest::prelude::*;

use super::*;

fn parts(text: &str) -> Option<(String, String, String, String, Option<OnDelete>)> {
    let VolumeId { export, way, uuid, on_delete } = VolumeId::parse(text)?;
    Some((export.server, export.share, way.display().to_string(), uuid, on_delete))
}

#[test]
fn ids_that_the_original_makes_or_made_are_understood() {
    let owned = |server: &str, share: &str, way: &str, uuid: &str, policy| {
        Some((server.into(), share.into(), way.into(), uuid.into(), policy))
    };
    let retain = Some(OnDelete::Retain);
    for (id, expected) in [
        ("test-server#test-base-dir#volume-name##", owned("test-server", "test-base-dir", "volume-name", "", None)),
        ("test-server#test-base-dir#volume-name", owned("test-server", "test-base-dir", "volume-name", "", None)),
        ("s#share#sub#pvc-4bcbf944#retain", owned("s", "share", "sub", "pvc-4bcbf944", retain)),
        ("s#share#sub#pvc-4bcbf944#Retain", owned("s", "share", "sub", "pvc-4bcbf944", retain)),
        ("s#share#ns/claim#pvc-1#archive", owned("s", "share", "ns/claim", "pvc-1", Some(OnDelete::Archive))),
        ("s##pvc-1##", owned("s", "", "pvc-1", "", None)),
        ("s#/a/b/#/pvc-1/##", owned("s", "a/b", "pvc-1", "", None)),
        ("nfs.example.org/share/pvc-1", owned("nfs.example.org", "share", "pvc-1", "", None)),
        ("nfs.example.org/a/b/pvc-1", owned("nfs.example.org", "a/b", "pvc-1", "", None)),
        ("10.0.0.1#test/base#pvc-1#", owned("10.0.0.1", "test/base", "pvc-1", "", None)),
        ("fd00::1#share#pvc-1##", owned("fd00::1", "share", "pvc-1", "", None)),
        ("test-server", None),
        ("test-server/share", None),
        ("test-server#share", None),
        ("", None),
    ] {
        assert_eq!(parts(id), expected, "{id}");
    }
}

#[test]
fn ids_that_lead_elsewhere_are_nobodys() {
    for id in [
        "s#share#..##",
        "s#share#a/../..##",
        "s#share#a\\..\\..##",
        "s#../etc#a##",
        "s#share###",
        "s#share#/##",
        "s#share#.##",
        "s#share#a#..#",
        "s#share#a#x/y#",
        "s#share#a##shred",
        "-o#share#a##",
        "s o#share#a##",
        "s#share\n#a##",
        "s#share#a\0b##",
        "s/share/..",
        "#share#a##",
    ] {
        assert_eq!(VolumeId::parse(id), None, "{id}");
    }
    let long = format!("s#share#{}##", "a".repeat(256));
    assert_eq!(VolumeId::parse(&long), None);
    for id in [
        "s#share#snap#snap",
        "s#share#..#..#pvc-1",
        "s#share###pvc-1",
        "s#share#.#.#pvc-1",
        "s#share#a/b#a/b#pvc-1",
        "s#share#snap#snap#../x",
        "s#share#snap#snap#a/b",
        "s#share#.stowage-x#x#pvc-1",
    ] {
        assert_eq!(SnapshotId::parse(id), None, "{id}");
    }
}

#[test]
fn ids_and_files_have_the_originals_names() {
    let volume = VolumeId::parse("s#share#ns/claim#pvc-1#archive").unwrap();
    assert_eq!(volume.archived(), Path::new("archived-ns/claim"));
    assert_eq!(volume.unfinished(), Path::new("ns/.stowage-pvc-1"));
    let is_alone = |way: &str| VolumeId::parse(&format!("s#share#{way}#pvc-1#")).unwrap().is_alone();
    assert!(is_alone("pvc-1") && is_alone("a/pvc-1-x") && is_alone("ns/pvc-1"));
    assert!(!is_alone("ns/claim") && !is_alone("pvc-12") && !is_alone("xpvc-1"));
    let text = "s#share#snapshot-1#snapshot-1#pvc-1";
    let snapshot = SnapshotId::parse(text).unwrap();
    assert_eq!(snapshot.to_string(), text);
    assert_eq!(snapshot.archives(), ["pvc-1.tar.gz", "pvc-1.tar"]);
}

#[test]
fn a_source_has_brackets_around_an_address_of_version_6_only() {
    for (server, share, source) in [
        ("s", "/", "s:/"),
        ("s/", "/a/b/", "s:/a/b"),
        ("10.0.0.1", "share", "10.0.0.1:/share"),
        ("fd00::1", "/x", "[fd00::1]:/x"),
        ("[fd00::1]", "/x", "[fd00::1]:/x"),
    ] {
        assert_eq!(Export::new(server, share).unwrap().source(), source);
    }
}

proptest! {
    #[test]
    fn whatever_is_understood_stays_below_its_share_and_says_itself_again(text in "[a-z#/.\\\\ ]{0,60}") {
        if let Some(id) = VolumeId::parse(&text) {
            for way in [&id.way, &id.unfinished(), &id.archived()] {
                prop_assert!(way.components().all(|part| matches!(part, Component::Normal(_))) && way.file_name().is_some());
            }
            prop_assert_eq!(VolumeId::parse(&id.to_string()), Some(id));
        }
        if let Some(id) = SnapshotId::parse(&text) {
            prop_assert_eq!(SnapshotId::parse(&id.to_string()), Some(id));
        }
    }
}
