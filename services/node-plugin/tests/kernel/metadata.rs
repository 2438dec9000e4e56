use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use stowage_csi::v1::*;
use tonic::Code;

use crate::world::{Answer, Client, SIZE, World, refused, request, test, test_on};

const BLOCK: usize = 4096;

fn image_of(world: &World, snapshot: &str) -> PathBuf {
    world.pool().join("snapshots").join(format!("{}.img", snapshot.split('.').nth(1).unwrap()))
}

async fn allocated(client: &Client, snapshot: &str, offset: i64, most: i32) -> Answer<Vec<BlockMetadata>> {
    let (snapshot_id, starting_offset, max_results) = (snapshot.into(), offset, most);
    let request = GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results, ..Default::default() };
    let mut stream = client.metadata().get_metadata_allocated(request).await?.into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await? {
        assert!(most == 0 || message.block_metadata.len() <= most as usize);
        assert_eq!(message.block_metadata_type(), BlockMetadataType::VariableLength);
        found.extend(message.block_metadata);
    }
    Ok(found)
}

async fn delta(client: &Client, base: &str, target: &str, offset: i64, most: i32) -> Answer<Vec<BlockMetadata>> {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.into(),
        target_snapshot_id: target.into(),
        starting_offset: offset,
        max_results: most,
        ..Default::default()
    };
    let mut stream = client.metadata().get_metadata_delta(request).await?.into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await? {
        assert!(message.volume_capacity_bytes >= SIZE);
        assert!(most == 0 || message.block_metadata.len() <= most as usize);
        found.extend(message.block_metadata);
    }
    Ok(found)
}

fn assert_in_order(found: &[BlockMetadata]) {
    assert!(found.iter().all(|range| range.size_bytes > 0));
    assert!(found.windows(2).all(|pair| pair[0].byte_offset + pair[0].size_bytes <= pair[1].byte_offset), "{found:?}");
}

fn blocks(found: &[BlockMetadata]) -> Vec<usize> {
    let blocks = |range: &BlockMetadata| {
        let start = range.byte_offset as usize / BLOCK;
        start..start + range.size_bytes as usize / BLOCK
    };
    found.iter().flat_map(blocks).collect()
}

/// The blocks in which two files differ, by reading all of them.
fn byte_diff(base: &[u8], target: &[u8]) -> Vec<usize> {
    let zeros = [0u8; BLOCK];
    let of = |bytes: &[u8], index: usize| bytes.get(index * BLOCK..(index + 1) * BLOCK).unwrap_or(&zeros).to_vec();
    (0..target.len() / BLOCK).filter(|index| of(base, *index) != of(target, *index)).collect()
}

async fn answers_agree_with_the_bytes(world: World) {
    let client = world.node("a").await;
    let volume = client.create(request("v")).await.unwrap().volume_id;
    let image = fs::OpenOptions::new().write(true).open(world.only_image()).unwrap();
    for index in [0u64, 1, 2, 100, 101, 4000] {
        image.write_all_at(&[1; BLOCK], index * BLOCK as u64).unwrap();
    }
    let base = client.snapshot(&volume, "base").await.unwrap().snapshot_id;
    image.write_all_at(&[2; BLOCK], 0).unwrap();
    image.write_all_at(&[3; 10], 101 * BLOCK as u64 + 7).unwrap();
    // Written anew with what was there: not a change.
    image.write_all_at(&[1; BLOCK], 2 * BLOCK as u64).unwrap();
    for index in (200..1200).step_by(2) {
        image.write_all_at(&[4; BLOCK], index * BLOCK as u64).unwrap();
    }
    // Beyond the old end after growth, and a block that becomes zeros.
    client.expand(&volume, 2 * SIZE).await.unwrap();
    image.write_all_at(&[5; BLOCK], SIZE as u64 + BLOCK as u64).unwrap();
    image.write_all_at(&[0; BLOCK], 4000 * BLOCK as u64).unwrap();
    let target = client.snapshot(&volume, "target").await.unwrap().snapshot_id;
    drop(image);

    let (old, new) = (fs::read(image_of(&world, &base)).unwrap(), fs::read(image_of(&world, &target)).unwrap());
    let found = delta(&client, &base, &target, 0, 0).await.unwrap();
    assert_in_order(&found);
    assert_eq!(blocks(&found), byte_diff(&old, &new));
    assert_eq!(delta(&client, &base, &target, 0, 7).await.unwrap(), found);
    assert_eq!(delta(&client, &base, &base, 0, 0).await.unwrap(), []);

    // What a backup would do: zeros, the allocated blocks of the base, the changes.
    let mut copy = vec![0u8; new.len()];
    let base_blocks = allocated(&client, &base, 0, 3).await.unwrap();
    assert_in_order(&base_blocks);
    for (ranges, from) in [(&base_blocks, &old), (&found, &new)] {
        for range in ranges {
            let range = range.byte_offset as usize..(range.byte_offset + range.size_bytes) as usize;
            copy[range.clone()].copy_from_slice(&from[range]);
        }
    }
    assert!(copy == new, "the copy made of the answers differs");

    // Going on after the last byte that was received.
    let middle = &found[found.len() / 2];
    let rest = delta(&client, &base, &target, middle.byte_offset + middle.size_bytes, 0).await.unwrap();
    assert_eq!(rest, found[found.len() / 2 + 1..]);
    for snapshot in [&base, &target] {
        client.delete_snapshot(snapshot).await.unwrap();
    }
    client.delete(&volume).await.unwrap();
}

#[test]
fn allocated_and_changed_blocks_agree_with_a_byte_diff_where_blocks_are_shared() {
    test_on("xfs", 1 << 30, async |world| answers_agree_with_the_bytes(world).await);
}

#[test]
fn allocated_and_changed_blocks_agree_with_a_byte_diff_on_btrfs() {
    test_on("btrfs", 1 << 30, async |world| answers_agree_with_the_bytes(world).await);
}

#[test]
fn allocated_and_changed_blocks_agree_with_a_byte_diff_without_reflink() {
    test(async |world| answers_agree_with_the_bytes(world).await);
}

#[test]
fn a_bad_question_about_blocks_is_refused() {
    test(async |world| {
        let client = world.node("a").await;
        let one = client.create(request("one")).await.unwrap().volume_id;
        let two = client.create(request("two")).await.unwrap().volume_id;
        let of_one = client.snapshot(&one, "1").await.unwrap().snapshot_id;
        let of_two = client.snapshot(&two, "2").await.unwrap().snapshot_id;
        assert_eq!(refused(allocated(&client, "", 0, 0).await, &["snapshot_id"]), Code::InvalidArgument);
        assert_eq!(refused(allocated(&client, "main.none", 0, 0).await, &["main.none"]), Code::NotFound);
        assert_eq!(refused(allocated(&client, &of_one, -1, 0).await, &["starting_offset"]), Code::OutOfRange);
        assert_eq!(refused(allocated(&client, &of_one, SIZE + 1, 0).await, &["starting_offset"]), Code::OutOfRange);
        assert_eq!(refused(allocated(&client, &of_one, 0, -1).await, &["max_results"]), Code::InvalidArgument);
        assert_eq!(allocated(&client, &of_one, SIZE, 0).await.unwrap(), []);
        assert_eq!(refused(delta(&client, "", &of_one, 0, 0).await, &["base_snapshot_id"]), Code::InvalidArgument);
        assert_eq!(refused(delta(&client, &of_one, "gone", 0, 0).await, &["gone"]), Code::NotFound);
        assert_eq!(refused(delta(&client, &of_one, &of_two, 0, 0).await, &["one volume"]), Code::InvalidArgument);
    });
}

#[test]
fn a_snapshot_is_not_deleted_while_its_blocks_are_listed() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let image = fs::OpenOptions::new().write(true).open(world.only_image()).unwrap();
        // More ranges than wait for a slow reader.
        for block in (0..SIZE as u64 / 4096).step_by(2) {
            image.write_all_at(b"data", block * 4096).unwrap();
        }
        drop(image);
        let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
        let (snapshot_id, max_results) = (snapshot.clone(), 1);
        let request = GetMetadataAllocatedRequest { snapshot_id, max_results, ..Default::default() };
        let mut stream = client.metadata().get_metadata_allocated(request).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        let deleted = client.delete_snapshot(&snapshot).await;
        assert_eq!(refused(deleted, &["blocks are being listed"]), Code::FailedPrecondition);
        drop(stream);
        // The driver learns with its next message that the reader has gone.
        let mut tries = 0;
        while let Err(error) = client.delete_snapshot(&snapshot).await {
            tries += 1;
            assert!(tries < 10_000 && error.code() == Code::FailedPrecondition, "{error}");
            tokio::task::yield_now().await;
        }
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn an_offset_beyond_the_snapshot_is_out_of_range() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let older = client.snapshot(&volume, "older").await.unwrap().snapshot_id;
        let newer = client.snapshot(&volume, "newer").await.unwrap().snapshot_id;
        assert_eq!(delta(&client, &older, &newer, SIZE, 0).await.unwrap(), []);
        for offset in [SIZE + 1, -1] {
            assert_eq!(delta(&client, &older, &newer, offset, 0).await.unwrap_err().code(), Code::OutOfRange);
            assert_eq!(allocated(&client, &newer, offset, 0).await.unwrap_err().code(), Code::OutOfRange);
        }
    });
}
