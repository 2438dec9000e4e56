//! Long lists of places beside the records that name them: each part stands once, on a page without records.
//!
//! A record is written after its parts and removed before them, so that whatever a crash leaves can be replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Book, Edit, RECORD_BYTES, Refused, Stage};
use crate::places::{Part, Places};

/// Annotations that start so are parts of lists of places; the part's name follows.
pub const PLACES: &str = "places.provisioner.stowage.dev/";

/// A page takes no new part beyond this. They are written rarely, so that it is more than for records.
const PAGE_BYTES: usize = 128 * 1024;

/// Never the first page, which is written before and after every new one.
const FIRST_PAGE: usize = 1;

/// All parts.
#[derive(Debug, Default)]
pub struct Shelf {
    parts: BTreeMap<String, Kept>,
    /// Lists that were joined while an earlier run's pages are read: its records share them.
    joined: BTreeMap<Vec<String>, Places>,
}

#[derive(Debug)]
struct Kept {
    part: Arc<Part>,
    page: usize,
    stage: Stage,
    /// How many records name it, or may still do so where they are stored.
    users: usize,
    /// Distinguishes a part from itself before it was last wanted again.
    generation: u64,
    /// Whether an earlier run wrote it: a record that cannot be read may name it.
    adopted: bool,
}

fn bytes_of(part: &Part) -> usize {
    PLACES.len() + part.name.len() + part.text.len()
}

impl Shelf {
    pub fn has(&self, key: &str) -> bool {
        key.strip_prefix(PLACES).is_some_and(|name| self.parts.contains_key(name))
    }

    /// Whether none of these parts is yet to be written.
    pub fn has_stored(&self, parts: &[Arc<Part>]) -> bool {
        self.page_of_missing(parts).is_none()
    }

    /// The page of the first of these parts that is yet to be written.
    pub fn page_of_missing(&self, parts: &[Arc<Part>]) -> Option<usize> {
        let mut kept = parts.iter().filter_map(|part| self.parts.get(&part.name));
        kept.find(|kept| kept.stage == Stage::Wanted).map(|kept| kept.page)
    }

    /// The list of which these are the parts.
    pub fn join(&mut self, names: &[String]) -> Option<Places> {
        if let Some(known) = self.joined.get(names) {
            return Some(known.clone());
        }
        let parts = names.iter().map(|name| self.parts.get(name).map(|kept| Arc::clone(&kept.part)));
        // Each was read when it was found.
        let places = Places::joined(parts.collect::<Option<Vec<_>>>()?).ok()?;
        self.joined.insert(names.to_vec(), places.clone());
        Some(places)
    }

    /// An earlier run's pages are read.
    pub fn forget_joined(&mut self) {
        self.joined.clear();
    }

    /// Nothing can be stored.
    pub fn clear(&mut self) {
        self.parts.clear();
    }
}

impl Book {
    /// Whether the parts can be stored at all.
    pub(super) fn check_parts(&self, parts: &[Arc<Part>]) -> Result<(), Refused> {
        for part in parts {
            let bytes = bytes_of(part);
            if bytes > RECORD_BYTES {
                return Err(Refused::LongPlaces { bytes });
            }
            if self.shelf.parts.get(&part.name).is_some_and(|kept| kept.part.text != part.text) {
                return Err(Refused::SameHash { name: part.name.clone() });
            }
        }
        Ok(())
    }

    /// A record names these parts.
    pub(super) fn hold(&mut self, parts: &[Arc<Part>]) {
        for part in parts {
            let bytes = bytes_of(part);
            self.generation += 1;
            match self.shelf.parts.get_mut(&part.name) {
                Some(kept) => {
                    kept.users += 1;
                    if kept.stage == Stage::Leaving {
                        // Whether it is still stored nobody knows: its removal may be in flight.
                        (kept.stage, kept.generation) = (Stage::Wanted, self.generation);
                        let fill = self.pages.entry(kept.page).or_default();
                        fill.leaving -= bytes;
                        fill.live += bytes;
                    }
                }
                None => self.put_part(Arc::clone(part), self.page_for_part(bytes), Stage::Wanted, 1),
            }
        }
    }

    /// A record does not name these parts any more.
    pub(super) fn release(&mut self, parts: &[Arc<Part>]) {
        for part in parts {
            if let Some(kept) = self.shelf.parts.get_mut(&part.name) {
                kept.users = kept.users.saturating_sub(1);
            }
        }
        self.clear_shelf(parts);
    }

    /// Of these parts, those that nobody names are to go. While there are records that cannot be read, those of earlier runs may
    /// be theirs.
    fn clear_shelf(&mut self, parts: &[Arc<Part>]) {
        let may_be_named = !self.unreadable.is_empty();
        for part in parts {
            let Some(kept) = self.shelf.parts.get_mut(&part.name) else { continue };
            let is_unused = kept.users == 0 && !(kept.adopted && may_be_named);
            if is_unused && kept.stage != Stage::Leaving {
                kept.stage = Stage::Leaving;
                let (fill, bytes) = (self.pages.entry(kept.page).or_default(), bytes_of(part));
                fill.live -= bytes;
                fill.leaving += bytes;
            }
        }
    }

    /// The parts that an earlier run left and nobody names are to go; says whether there are any.
    pub(super) fn clear_left_parts(&mut self) -> bool {
        let unused = self.shelf.parts.values().filter(|kept| kept.users == 0);
        let unused: Vec<_> = unused.map(|kept| Arc::clone(&kept.part)).collect();
        self.clear_shelf(&unused);
        !unused.is_empty()
    }

    fn put_part(&mut self, part: Arc<Part>, page: usize, stage: Stage, users: usize) {
        let fill = self.pages.entry(page).or_default();
        fill.parts += 1;
        fill.live += bytes_of(&part);
        let adopted = stage == Stage::Stored;
        let kept = Kept { page, stage, users, generation: self.generation, adopted, part: Arc::clone(&part) };
        self.shelf.parts.insert(part.name.clone(), kept);
    }

    fn remove_part(&mut self, name: &str) {
        let Some(kept) = self.shelf.parts.remove(name) else { return };
        let Some(fill) = self.pages.get_mut(&kept.page) else { return };
        fill.parts -= 1;
        if let Some(sum) = fill.of(kept.stage) {
            *sum -= bytes_of(&kept.part);
        }
        if fill.is_empty() {
            self.pages.remove(&kept.page);
        }
    }

    fn page_for_part(&self, bytes: usize) -> usize {
        let has_room = |page: usize, limit: usize| {
            // A part that is to go keeps its room: it stays where it is if it is wanted again before.
            let taken = self.pages.get(&page).map_or(0, |fill| fill.live + fill.leaving);
            taken + self.foreign_on(page) + bytes <= limit
        };
        let first = FIRST_PAGE.max(self.first);
        let beside = self.pages.iter().filter(|(page, fill)| fill.records == 0 && **page >= first);
        let beside = beside.map(|(page, _)| *page).find(|page| has_room(*page, PAGE_BYTES));
        let free = |page: &usize| !self.pages.contains_key(page) && has_room(*page, RECORD_BYTES);
        beside.or_else(|| (first..).find(free)).unwrap_or(first)
    }

    /// Takes in the parts that stand on a page and are not known.
    pub(super) fn adopt_parts(&mut self, page: usize, annotations: &Map<String, Value>) {
        for (key, value) in annotations {
            let Some(name) = key.strip_prefix(PLACES).filter(|name| !self.shelf.parts.contains_key(*name)) else {
                continue;
            };
            let part = Arc::new(Part { name: name.to_owned(), text: value.as_str().unwrap_or_default().to_owned() });
            match Places::joined(vec![Arc::clone(&part)]) {
                Ok(_) => self.put_part(part, page, Stage::Stored, 0),
                Err(error) => tracing::error!(name, %error, "a list of places cannot be read and is left alone"),
            }
        }
    }

    /// Brings the parts on a page to what the book says.
    pub(super) fn edit_parts(&self, page: usize, annotations: &mut Map<String, Value>, edit: &mut Edit) {
        for (name, kept) in self.shelf.parts.iter().filter(|(_, kept)| kept.page == page) {
            let key = format!("{PLACES}{name}");
            if kept.stage == Stage::Leaving {
                annotations.remove(&key);
                edit.parts_dropped.push((name.clone(), kept.generation));
            } else {
                if !annotations.contains_key(&key) {
                    annotations.insert(key, kept.part.text.as_str().into());
                }
                edit.parts_put.push((name.clone(), kept.generation));
            }
        }
    }

    /// The edit is stored.
    pub(super) fn confirm_parts(&mut self, edit: &Edit) {
        for (name, generation) in &edit.parts_put {
            let kept = self.shelf.parts.get_mut(name).filter(|kept| kept.generation == *generation);
            // Left meanwhile: stored, and to be removed by a later write.
            if let Some(kept) = kept.filter(|kept| kept.stage == Stage::Wanted) {
                kept.stage = Stage::Stored;
            }
        }
        for (name, generation) in &edit.parts_dropped {
            let is_meant = |kept: &Kept| kept.generation == *generation && kept.stage == Stage::Leaving;
            if self.shelf.parts.get(name).is_some_and(is_meant) {
                self.remove_part(name);
            }
        }
    }

    /// Pages from which parts are to go.
    pub fn pages_of_leaving_parts(&self) -> BTreeSet<usize> {
        let leaving = self.shelf.parts.values().filter(|kept| kept.stage == Stage::Leaving);
        leaving.map(|kept| kept.page).collect()
    }
}

#[cfg(test)]
mod tests;
