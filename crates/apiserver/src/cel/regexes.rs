//! The patterns of `matches` and `find`: compiled once where they are written out, and each time where they are computed.

use std::collections::BTreeMap;
use std::rc::Rc;

use regex::Regex;

use super::{Error, Run};
use crate::crd::pattern::{SIZES_OF_COMPUTED, compile, compile_within};

/// The patterns that stand in an expression as texts.
#[derive(Debug, Default)]
pub(super) struct Regexes(BTreeMap<String, (Regex, usize)>);

/// Compiling takes about so many times what looking at its characters takes.
const COMPILING: usize = 100;

impl Regexes {
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        if !self.0.contains_key(pattern) {
            self.0.insert(pattern.to_owned(), compile(pattern)?);
        }
        Ok(())
    }

    pub fn weight(&self) -> usize {
        self.0.values().map(|(_, size)| size).sum()
    }

    /// The pattern, compiled; the run is charged for compiling it and for looking at `text` with it.
    pub fn get(&self, pattern: &str, text: &str, run: &mut Run) -> Result<Rc<Regex>, Error> {
        let (compiled, size) = match self.0.get(pattern) {
            // A regex is two counted pointers.
            Some((compiled, size)) => (compiled.clone(), *size),
            None => computed(pattern, run)?,
        };
        run.charge((text.len() / 10 + 1).saturating_mul(matching(pattern, size)))?;
        Ok(Rc::new(compiled))
    }
}

/// What looking at ten bytes costs: as upstream by the pattern's length, and more where repetitions make a short one large.
fn matching(pattern: &str, size: usize) -> usize {
    (pattern.len() / 4 + 1).max(size.saturating_sub(SIZES_OF_COMPUTED[0]) >> 11)
}

/// Each try is paid for before it is made: what fails may be tried again for the next element.
fn computed(pattern: &str, run: &mut Run) -> Result<(Regex, usize), Error> {
    run.charge((pattern.len() + 10) * COMPILING)?;
    let mut most = 0;
    for size in SIZES_OF_COMPUTED {
        run.charge(size / 10)?;
        match compile_within(pattern, size) {
            Ok(compiled) => return Ok((compiled, size)),
            Err(regex::Error::CompiledTooBig(_)) => most = size,
            Err(error) => return Err(Error::Failed(error.to_string())),
        }
    }
    Err(Error::Failed(format!(
        "a pattern that is computed may take {most} bytes compiled, and this one takes more; repeat less in it, or write \
         it into the rule"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles to far more than its length tells.
    const HEAVY: &str = "([a-z]?){3000}[a-z]{3000}";

    #[test]
    fn each_try_to_compile_a_computed_pattern_is_paid_for_also_when_it_fails() {
        let regexes = Regexes::default();
        let mut run = Run::new(1_000_000);
        let mut tries = 0;
        let end = loop {
            match regexes.get(HEAVY, "a", &mut run) {
                Err(Error::Cost) => break Error::Cost,
                Err(Error::Failed(why)) => assert!(why.contains("may take 131072 bytes compiled"), "{why}"),
                other => panic!("{other:?}"),
            }
            tries += 1;
        };
        assert_eq!(end, Error::Cost);
        assert!((10..=60).contains(&tries), "{tries} tries for one evaluation");
    }

    #[test]
    fn matching_is_charged_by_what_a_pattern_is_when_compiled() {
        let (usual, text) = ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a".repeat(1 << 20));
        let mut regexes = Regexes::default();
        [HEAVY, usual].into_iter().for_each(|pattern| regexes.add(pattern).unwrap());
        let cost = |pattern: &str, text: &str| {
            let mut run = Run::new(1_000_000);
            regexes.get(pattern, text, &mut run).map(|_| 1_000_000 - run.left())
        };
        assert_eq!(cost(HEAVY, &text).unwrap_err(), Error::Cost);
        // As upstream: bytes by a tenth, the pattern by a quarter.
        assert_eq!(cost(usual, &text[..253]).unwrap(), 26 * 8);
    }
}
