//! The bytes a volume moves beside those of a file in the bare pool, both past the page cache.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
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
/// Where buffers begin, so that both sides get large pages on machines that give them unasked.
const HUGE_PAGE: usize = 2 * MIB;

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

    /// Does one turn with `depth` accesses under way at once: from the first start to the last end.
    fn turn(self, file: &File, turn: usize, depth: usize) -> Duration {
        // Memory is touched and threads are there before the clock starts.
        let ready = Barrier::new(depth);
        let work = |worker| {
            let mut memory = vec![0x5A; MIB + HUGE_PAGE];
            let start = memory.as_ptr().align_offset(HUGE_PAGE);
            let block = &mut memory[start..start + MIB];
            ready.wait();
            let begin = Instant::now();
            (worker..self.count()).step_by(depth).for_each(|index| self.access(file, block, turn, index));
            (begin, Instant::now())
        };
        std::thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> = (0..depth).map(|worker| scope.spawn(move || work(worker))).collect();
            let spans: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            let (begin, end) = (spans.iter().map(|span| span.0).min(), spans.iter().map(|span| span.1).max());
            end.unwrap() - begin.unwrap()
        })
    }
}

/// A file whose space is there: allocation is not what is compared. Written in order by one thread, so that on both sides
/// it lies on the disk as it is read.
fn prepared(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    let file = file.open(path).unwrap();
    for turn in 0..FILE / SLICE {
        Work::Write.turn(&file, turn, 1);
    }
    file.sync_all().unwrap();
    file
}

/// In how many pieces a file lies, as filefrag counts them.
fn pieces(path: &Path) -> String {
    let output = Command::new("filefrag").arg(path).output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let count = said.rsplit_once(": ").map(|(_, count)| count.trim().trim_end_matches(" found").to_owned());
    count.unwrap_or_else(|| "unknown extents".to_owned())
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
        let key = volume.split('.').nth(1).unwrap();
        let image = bench.root.join("pool/volumes").join(key).with_extension("img");
        println!(
            "{word}: the image has {}, the file in it {}, the bare file {}",
            pieces(&image),
            pieces(&bench.path("pod/file")),
            pieces(&bare_path)
        );
        for depth in [8, 1] {
            for work in Work::ALL.into_iter().filter(|work| depth > 1 || !work.is_random()) {
                let speeds = |turn| {
                    let amount = if work.is_random() { ACCESSES as f64 } else { (SLICE / MIB) as f64 };
                    let speed = |file| amount / work.turn(file, turn, depth).as_secs_f64();
                    // Who goes first may find the disk busy with what was left to do for the other.
                    match turn % 2 {
                        0 => [&bare, &inside].map(speed),
                        _ => {
                            let [inside, bare] = [&inside, &bare].map(speed);
                            [bare, inside]
                        }
                    }
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
