//! The format of tar archives: what is written is POSIX ustar with pax headers where it does not suffice; what is read may
//! come from GNU tar or Go as well.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;

use nix::sys::time::TimeSpec;

use crate::attributes::Attributes;

pub(crate) const BLOCK: usize = 512;
/// A header of headers is small; a larger one is not from a tar we know.
const MAX_EXTENSION: u64 = 1 << 20;
/// The largest number of eleven octal digits.
const MAX_OCTAL: u64 = 0o77_777_777_777;
/// The same of seven.
const MAX_SHORT_OCTAL: u64 = 0o7_777_777;

/// What an entry of an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
    HardLink,
    Pipe,
    /// A device, or what no tar we know writes; it is passed over.
    Other,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    /// Where a link leads.
    pub(crate) leads: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) attributes: Attributes,
}

fn bad(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not a tar archive that can be read: {reason}"))
}

/// Of its kind, so that an archive whose writer was killed is told from one that nobody here can read.
fn cut(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("not a whole tar archive: {reason}"))
}

/// How many zeros follow contents of this length.
pub(crate) fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

pub(crate) fn write_header(out: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let mut extension = Vec::new();
    let mut say = |key: &str, value: &[u8]| extension.extend(pax_line(key, value));
    if entry.name.len() > 100 || !entry.name.is_ascii() {
        say("path", &entry.name);
    }
    if entry.leads.len() > 100 || !entry.leads.is_ascii() {
        say("linkpath", &entry.leads);
    }
    if entry.size > MAX_OCTAL {
        say("size", entry.size.to_string().as_bytes());
    }
    for (key, number) in [("uid", entry.attributes.owner), ("gid", entry.attributes.group)] {
        if u64::from(number) > MAX_SHORT_OCTAL {
            say(key, number.to_string().as_bytes());
        }
    }
    let modified = entry.attributes.modified;
    if modified.tv_nsec() != 0 || modified.tv_sec() < 0 {
        say("mtime", pax_time(modified).as_bytes());
    }
    if !extension.is_empty() {
        let size = extension.len() as u64;
        // Better not packed than never unpacked.
        if size > MAX_EXTENSION {
            let message = "a path is longer than an archive can say, which is 1 MiB; move what is there further up";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let attributes = Attributes { mode: 0o644, ..entry.attributes };
        out.write_all(&header(b"PaxHeaders/entry", b"", b'x', size, &attributes))?;
        out.write_all(&extension)?;
        out.write_all(&[0; BLOCK][..padding(size)])?;
    }
    let flag = match entry.kind {
        Kind::File => b'0',
        Kind::HardLink => b'1',
        Kind::Link => b'2',
        Kind::Directory => b'5',
        Kind::Pipe => b'6',
        Kind::Other => return Err(io::Error::from(ErrorKind::Unsupported)),
    };
    out.write_all(&header(&entry.name, &entry.leads, flag, entry.size, &entry.attributes))
}

/// Two blocks of zeros.
pub(crate) fn write_end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

fn header(name: &[u8], leads: &[u8], flag: u8, size: u64, attributes: &Attributes) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name[..name.len().min(100)]);
    let seconds = u64::try_from(attributes.modified.tv_sec()).unwrap_or(0);
    let short = |number: u64| format!("{:07o}", number.min(MAX_SHORT_OCTAL));
    let long = |number: u64| format!("{:011o}", number.min(MAX_OCTAL));
    put(100, short(u64::from(attributes.mode)).as_bytes());
    put(108, short(u64::from(attributes.owner)).as_bytes());
    put(116, short(u64::from(attributes.group)).as_bytes());
    put(124, long(size).as_bytes());
    put(136, long(seconds).as_bytes());
    put(148, b"        ");
    put(156, &[flag]);
    put(157, &leads[..leads.len().min(100)]);
    put(257, b"ustar\x0000");
    let sum = format!("{:06o}\0 ", sum(&block));
    block[148..156].copy_from_slice(sum.as_bytes());
    block
}

/// Of all bytes, those of the sum itself counted as spaces.
fn sum(block: &[u8; BLOCK]) -> u32 {
    let byte = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) };
    block.iter().enumerate().map(byte).sum()
}

/// A line that begins with its own length.
fn pax_line(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let fits = |digits: &usize| (rest + digits).to_string().len() == *digits;
    let digits = (1..20).find(fits).unwrap_or(1);
    let mut line = format!("{} {key}=", rest + digits).into_bytes();
    line.extend_from_slice(value);
    line.push(b'\n');
    line
}

/// What a pax header says of the entry after it, or of all.
#[derive(Debug, Clone, Default)]
struct Said {
    name: Option<Vec<u8>>,
    leads: Option<Vec<u8>>,
    size: Option<u64>,
    owner: Option<u32>,
    group: Option<u32>,
    modified: Option<TimeSpec>,
}

impl Said {
    fn read(&mut self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(|| bad("a pax line has no length"))?;
            let length: usize = number(&text[..space], 10).and_then(|length| length.try_into().ok()).unwrap_or(0);
            if length <= space + 1 || length > text.len() || text[length - 1] != b'\n' {
                return Err(bad("the length of a pax line is wrong"));
            }
            let line = &text[space + 1..length - 1];
            let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(|| bad("a pax line has no value"))?;
            self.take(&line[..equals], &line[equals + 1..])?;
            text = &text[length..];
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let count = || number(value, 10).ok_or_else(|| bad("a number in a pax header is none"));
        let id = || count()?.try_into().map_err(|_| bad("an owner in a pax header is too large"));
        match key {
            b"path" => self.name = Some(value.into()),
            b"linkpath" => self.leads = Some(value.into()),
            b"size" => self.size = Some(count()?),
            b"uid" => self.owner = Some(id()?),
            b"gid" => self.group = Some(id()?),
            b"mtime" => self.modified = Some(time(value)?),
            // The contents of these are not what the entry's name and size say.
            key if key.starts_with(b"GNU.sparse.") => return Err(bad("it holds sparse files; pack them without -S")),
            _ => {}
        }
        Ok(())
    }
}

const NANOSECONDS: i64 = 1_000_000_000;

/// As a decimal fraction; before 1970 it is below zero as a whole, where the kernel counts nanoseconds upwards.
fn pax_time(time: TimeSpec) -> String {
    match (time.tv_sec(), time.tv_nsec()) {
        (seconds, 0) => seconds.to_string(),
        (seconds @ 0.., part) => format!("{seconds}.{part:09}"),
        (seconds, part) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), NANOSECONDS - part),
    }
}

fn time(value: &[u8]) -> io::Result<TimeSpec> {
    let read = || {
        let text = std::str::from_utf8(value).ok()?;
        let (is_below, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part: String = part.chars().chain("000000000".chars()).take(9).collect();
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok())?;
        Some(match (is_below, digits(whole)?, digits(&part)?) {
            (false, whole, part) => TimeSpec::new(whole, part),
            (true, whole, 0) => TimeSpec::new(-whole, 0),
            (true, whole, part) => TimeSpec::new(-whole - 1, NANOSECONDS - part),
        })
    };
    read().ok_or_else(|| bad("a time in a pax header is none"))
}

fn number(text: &[u8], base: u32) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches(|c| c == ' ' || c == '\0');
    match text {
        "" => Some(0),
        text => u64::from_str_radix(text, base).ok().filter(|_| !text.starts_with('+')),
    }
}

/// A number in a header: octal digits, or binary as GNU tar has it.
fn field(bytes: &[u8]) -> io::Result<u64> {
    let wrong = || bad("a number in a header is none");
    match bytes[0] & 0x80 {
        0 => number(bytes, 8).ok_or_else(wrong),
        _ => {
            let (first, rest) = (u64::from(bytes[0] & 0x7f), &bytes[1..]);
            let push = |value: u64, byte: &u8| value.checked_mul(256).map(|value| value | u64::from(*byte));
            rest.iter().try_fold(first, push).ok_or_else(wrong)
        }
    }
}

/// A time in a header; GNU tar writes those before 1970 as binary numbers below zero.
fn seconds(bytes: &[u8]) -> io::Result<i64> {
    if bytes[0] & 0xc0 != 0xc0 {
        return Ok(i64::try_from(field(bytes)?).unwrap_or(0));
    }
    let (high, low) = bytes.split_at(bytes.len() - size_of::<i64>());
    let low = low.try_into().map(i64::from_be_bytes).map_err(|_| bad("a time in a header is none"))?;
    // What does not fit is before all times that a file system knows.
    let fits = high.iter().all(|byte| *byte == 0xff) && low < 0;
    Ok(if fits { low } else { i64::MIN })
}

/// Bytes up to the first zero.
fn text(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).collect()
}

/// Reads an archive entry by entry; between two, the contents of the first must be read or skipped.
pub(crate) struct Entries<R> {
    source: R,
    always: Said,
    left: u64,
    padding: usize,
}

impl<R: Read> Entries<R> {
    pub(crate) fn new(source: R) -> Self {
        Entries { source, always: Said::default(), left: 0, padding: 0 }
    }

    /// The next entry; none at the end of the archive, which must be marked as such.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut said = self.always.clone();
        loop {
            let rest = self.left;
            if io::copy(&mut self.by_ref(), &mut io::sink())? != rest {
                return Err(cut("it ends within a file"));
            }
            let mut gap = [0; BLOCK];
            let padding = std::mem::take(&mut self.padding);
            self.source.read_exact(&mut gap[..padding]).map_err(ends)?;
            let mut block = [0; BLOCK];
            self.source.read_exact(&mut block).map_err(ends)?;
            if block.iter().all(|byte| *byte == 0) {
                // To the end, so that a compressed archive is checked by its sum.
                io::copy(&mut self.source, &mut io::sink())?;
                return Ok(None);
            }
            if field(&block[148..156])? != u64::from(sum(&block)) {
                return Err(bad("the sum of a header is wrong"));
            }
            let flag = block[156];
            let size = field(&block[124..136])?;
            match flag {
                b'x' => said.read(&self.extension(size)?)?,
                b'g' => {
                    let all = self.extension(size)?;
                    self.always.read(&all)?;
                    said.read(&all)?;
                }
                b'L' => said.name = Some(text(&self.extension(size)?)),
                b'K' => said.leads = Some(text(&self.extension(size)?)),
                b'S' => return Err(bad("it holds sparse files; pack them without -S")),
                _ => return self.entry(&block, said, size).map(Some),
            }
        }
    }

    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_EXTENSION {
            return Err(bad("a header is longer than 1 MiB"));
        }
        let mut contents = vec![0; size as usize];
        self.source.read_exact(&mut contents).map_err(ends)?;
        self.padding = padding(size);
        Ok(contents)
    }

    fn entry(&mut self, block: &[u8; BLOCK], said: Said, size: u64) -> io::Result<Entry> {
        let kind = match block[156] {
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Link,
            b'5' => Kind::Directory,
            b'6' => Kind::Pipe,
            _ => Kind::Other,
        };
        let mut name = text(&block[0..100]);
        // GNU tar keeps other things where POSIX has the beginning of a long name.
        let prefix = if &block[257..263] == b"ustar\0" { text(&block[345..500]) } else { Vec::new() };
        if !prefix.is_empty() {
            name = [prefix, b"/".to_vec(), name].concat();
        }
        let short =
            |at: usize| -> io::Result<u32> { Ok(u32::try_from(field(&block[at..at + 8])?).unwrap_or(u32::MAX)) };
        let seconds = seconds(&block[136..148])?;
        let modified = said.modified.unwrap_or_else(|| TimeSpec::new(seconds, 0));
        let attributes = Attributes {
            mode: short(100)? & 0o7777,
            owner: said.owner.map_or_else(|| short(108), Ok)?,
            group: said.group.map_or_else(|| short(116), Ok)?,
            accessed: modified,
            modified,
        };
        let size = said.size.unwrap_or(size);
        self.left = if kind == Kind::HardLink || kind == Kind::Link || kind == Kind::Directory { 0 } else { size };
        self.padding = padding(self.left);
        let leads = said.leads.unwrap_or_else(|| text(&block[157..257]));
        Ok(Entry { name: said.name.unwrap_or(name), leads, kind, size: self.left, attributes })
    }
}

impl<R: Read + Seek> Entries<R> {
    /// Where the contents of the entry that was returned last begin.
    pub(crate) fn position(&mut self) -> io::Result<u64> {
        self.source.stream_position()
    }

    /// Passes over those contents without reading them.
    pub(crate) fn skip(&mut self) -> io::Result<()> {
        let beyond = |_| bad("a file in it is longer than any archive");
        let rest = i64::try_from(std::mem::take(&mut self.left)).map_err(beyond)?;
        self.source.seek_relative(rest)
    }
}

fn ends(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => cut("it ends too early"),
        _ => error,
    }
}

/// The contents of the entry that was returned last.
impl<R: Read> Read for Entries<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.source.read(&mut buffer[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

pub(crate) fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
