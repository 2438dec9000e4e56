//! The patterns of `matches` and `find`: compiled once where they are written out, and each time where they are computed.

use std::collections::BTreeMap;
use std::rc::Rc;

use regex::Regex;

use super::{Error, Run};
use crate::crd::pattern::compile;

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
        run.charge((text.len() / 10 + 1) * (pattern.len() / 4 + 1))?;
        if let Some((compiled, _)) = self.0.get(pattern) {
            // A regex is two counted pointers.
            return Ok(Rc::new(compiled.clone()));
        }
        run.charge((pattern.len() + 10) * COMPILING)?;
        let (compiled, size) = compile(pattern).map_err(Error::Failed)?;
        run.charge(size / 10)?;
        Ok(Rc::new(compiled))
    }
}
