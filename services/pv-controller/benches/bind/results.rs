//! What was measured, kept in a file from run to run, and shown as a table and a plot.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::plot;

/// One shape at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub server: String,
    pub shape: String,
    pub pairs: usize,
    pub binds: f64,
    pub spread: f64,
    pub raw: f64,
    pub raw_spread: f64,
    /// The part of what the server can do, of each pair of runs that followed each other: the median and its spread.
    pub ratio: f64,
    pub ratio_spread: f64,
    /// The same in processor time, which other users of the machine do not change.
    pub processor_ratio: f64,
    pub writes: f64,
    pub decisions: f64,
    pub conflicts: u64,
    /// From create to Bound, one claim after the other: median and 99th of a hundred.
    pub alone: [Duration; 2],
    /// The same, as many claims at once as are in flight.
    pub burst: [Duration; 2],
}

impl Line {
    pub const HEAD: &'static str = "    server     life  pairs   binds/s spread   raw wr/s spread writes/bind conflicts \
                                    decisions  ratio spread   cpu  p50 alone  p99 alone  p50 burst  p99 burst";

    fn text(&self) -> String {
        let [a, b] = self.alone.map(|time| time.as_micros());
        let [c, d] = self.burst.map(|time| time.as_micros());
        format!(
            "{}\t{}\t{}\t{:.1}\t{:.3}\t{:.1}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{}\t{a}\t{b}\t{c}\t{d}",
            self.server,
            self.shape,
            self.pairs,
            self.binds,
            self.spread,
            self.raw,
            self.raw_spread,
            self.ratio,
            self.ratio_spread,
            self.processor_ratio,
            self.writes,
            self.decisions,
            self.conflicts
        )
    }

    fn read(text: &str) -> Option<Self> {
        let cells: Vec<&str> = text.split('\t').collect();
        let number = |at: usize| cells.get(at)?.parse::<f64>().ok();
        let time = |at: usize| Some(Duration::from_micros(number(at)? as u64));
        Some(Self {
            server: (*cells.first()?).to_owned(),
            shape: (*cells.get(1)?).to_owned(),
            pairs: number(2)? as usize,
            binds: number(3)?,
            spread: number(4)?,
            raw: number(5)?,
            raw_spread: number(6)?,
            ratio: number(7)?,
            ratio_spread: number(8)?,
            processor_ratio: number(9)?,
            writes: number(10)?,
            decisions: number(11)?,
            conflicts: number(12)? as u64,
            alone: [time(13)?, time(14)?],
            burst: [time(15)?, time(16)?],
        })
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>10} {:>8} {:>6} {:>9.0} {:>5.0}% {:>10.0} {:>5.0}% {:>11.2} {:>9} {:>9.1} {:>6.2} {:>5.0}% {:>5.2}",
            self.server,
            self.shape,
            self.pairs,
            self.binds,
            self.spread * 100.0,
            self.raw,
            self.raw_spread * 100.0,
            self.writes,
            self.conflicts,
            self.decisions,
            self.ratio,
            self.ratio_spread * 100.0,
            self.processor_ratio,
        )?;
        self.alone.iter().chain(&self.burst).try_for_each(|time| write!(f, " {:>10}", milliseconds(*time)))
    }
}

/// All lines so far; a newer one stands for an older of the same server, shape and size.
pub struct Results {
    file: Option<PathBuf>,
    lines: Vec<Line>,
}

impl Results {
    pub fn open(file: Option<&str>) -> Self {
        let file = file.map(PathBuf::from);
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let mut results = Self { file, lines: vec![] };
        text.lines().filter_map(Line::read).for_each(|line| results.put(line));
        results
    }

    fn put(&mut self, line: Line) {
        let same = |other: &Line| (&other.server, &other.shape, other.pairs) == (&line.server, &line.shape, line.pairs);
        self.lines.retain(|other| !same(other));
        self.lines.push(line);
        self.lines.sort_by(|a, b| (&a.server, &a.shape, a.pairs).cmp(&(&b.server, &b.shape, b.pairs)));
    }

    pub fn add(&mut self, line: Line) {
        if let Some(file) = &self.file {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
            writeln!(file, "{}", line.text()).unwrap();
        }
        self.put(line);
    }

    /// Prints the table for the page and writes the plot beside the file.
    pub fn page(&self) {
        println!(
            "| server | life | pairs | binds/s | server's writes/s | writes per bind | conflicts | ratio | of processor time | alone p50 / p99 | burst p50 / p99 |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for line in &self.lines {
            let pair = |times: [Duration; 2]| times.map(milliseconds).join(" / ");
            println!(
                "| {} | {} | {} | {:.0} (±{:.0} %) | {:.0} (±{:.0} %) | {:.2} | {} | {:.2} (±{:.0} %) | {:.2} | {} | {} |",
                line.server,
                line.shape,
                line.pairs,
                line.binds,
                line.spread * 50.0,
                line.raw,
                line.raw_spread * 50.0,
                line.writes,
                line.conflicts,
                line.ratio,
                line.ratio_spread * 50.0,
                line.processor_ratio,
                pair(line.alone),
                pair(line.burst)
            );
        }
        let Some(file) = &self.file else { return };
        let mut names: Vec<(String, String)> =
            self.lines.iter().map(|line| (line.server.clone(), line.shape.clone())).collect();
        names.dedup();
        let curves: Vec<(String, Vec<(f64, f64)>)> = names
            .into_iter()
            .map(|(server, shape)| {
                let of = self.lines.iter().filter(|line| line.server == server && line.shape == shape);
                (format!("{shape}, {server}"), of.map(|line| (line.pairs as f64, line.binds)).collect())
            })
            .collect();
        let plot = file.with_extension("svg");
        std::fs::write(&plot, plot::svg("Claims bound per second", "pairs", "binds/s", &curves)).unwrap();
        println!("plot: {}", plot.display());
    }
}
