//! The bytes a volume moves beside those of a file in the bare pool, both past the page cache.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use nix::libc;

use crate::{Bench, MIB};

/// The file that is read and written.
const FILE: usize = 512 * MIB;
/// Moved in one turn; volume and pool take turns, so that both see the same neighbours.
const SLICE: usize = 128 * MIB;
const TURNS: usize = 24;
/// Random accesses in one turn.
const ACCESSES: usize = 2000;
const LEAST: f64 = 0.90;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Write,
    Read,
    RandomWrite,
    RandomRead,
}

impl Work {
    const ALL: [Work; 4] = [Work::Write, Work::Read, Work::RandomWrite, Work::RandomRead];

    fn name(self) -> &'static str {
        match self {
            Work::Write => "sequential write",
            Work::Read => "sequential read",
            Work::RandomWrite => "random 4k write",
            Work::RandomRead => "random 4k read",
        }
    }

    fn is_random(self) -> bool {
        matches!(self, Work::RandomWrite | Work::RandomRead)
    }

    fn count(self) -> usize {
        if self.is_random() { ACCESSES } else { SLICE / MIB }
    }

    fn access(self, file: &File, block: &mut [u8], turn: usize, index: usize) {
        let at = match self.is_random() {
            true => {
                let number = (turn * ACCESSES + index) as u64;
                number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (FILE as u64 / 4096) * 4096
            }
            false => ((turn * SLICE + index * MIB) % FILE) as u64,
        };
        let block = if self.is_random() { &mut block[..4096] } else { block };
        match self {
            Work::Write | Work::RandomWrite => file.write_all_at(block, at).unwrap(),
            Work::Read | Work::RandomRead => file.read_exact_at(block, at).unwrap(),
        }
    }

    /// Does one turn with `depth` accesses under way at once.
    fn turn(self, file: &File, turn: usize, depth: usize) -> Duration {
        // Memory is touched and threads are there before the clock starts.
        let ready = Barrier::new(depth + 1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..depth)
                .map(|worker| {
                    let ready = &ready;
                    scope.spawn(move || {
                        let mut memory = vec![0x5A; MIB + 4096];
                        let start = memory.as_ptr().align_offset(4096);
                        let block = &mut memory[start..start + MIB];
                        ready.wait();
                        (worker..self.count()).step_by(depth).for_each(|index| self.access(file, block, turn, index));
                    })
                })
                .collect();
            ready.wait();
            let begin = Instant::now();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            begin.elapsed()
        })
    }
}

/// A file whose space is there: allocation is not what is compared.
fn prepared(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    let file = file.open(path).unwrap();
    for turn in 0..FILE / SLICE {
        Work::Write.turn(&file, turn, 8);
    }
    file.sync_all().unwrap();
    file
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| values[values.len() * part / 4])
}

pub async fn measure(bench: &Bench) {
    for thin in [true, false] {
        let word = if thin { "thin" } else { "thick" };
        let volume = bench.create(&format!("speed-{word}"), 2 * FILE, thin).await;
        bench.stage(&volume).await;
        bench.publish(&volume).await;
        let bare_path = bench.root.join("pool/bare");
        let (bare, inside) = (prepared(&bare_path), prepared(&bench.path("pod/file")));
        for depth in [8, 1] {
            for work in Work::ALL.into_iter().filter(|work| depth > 1 || !work.is_random()) {
                let speeds = |turn| {
                    let amount = if work.is_random() { ACCESSES as f64 } else { (SLICE / MIB) as f64 };
                    [&bare, &inside].map(|file| amount / work.turn(file, turn, depth).as_secs_f64())
                };
                let turns: Vec<_> = (0..TURNS).map(speeds).collect();
                let [bare, inside] = [0, 1].map(|side| quartiles(turns.iter().map(|turn| turn[side]).collect())[1]);
                let [low, middle, high] = quartiles(turns.iter().map(|[bare, inside]| inside / bare).collect());
                let unit = if work.is_random() { "/s" } else { "MiB/s" };
                let aim = if work.is_random() || depth == 1 { String::new() } else { format!(" (aim {LEAST:.2})") };
                println!(
                    "{word}, depth {depth}, {}: volume {inside:.0} {unit}, bare pool {bare:.0} {unit}, ratio \
                     {middle:.2}{aim}, half of the turns {low:.2} to {high:.2}",
                    work.name()
                );
            }
        }
        drop((bare, inside));
        fs::remove_file(bare_path).unwrap();
        bench.give_back(&volume).await;
        bench.delete(volume).await;
    }
}
