//! The one task that writes the journal.

use std::collections::BTreeSet;
use std::time::Duration;

use stowage_runtime::backoff::Backoff;

use super::book::Edit;
use super::pages::{Failure, Pages};
use super::{Change, Error, Journal, State, Waiter};

/// Between tries to read the journal at start, without which nothing may begin.
const START: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(10) };

/// Tries before the start is given up and left to whoever restarts us.
const START_TRIES: u32 = 8;

/// Reads every page and signs it, so that an earlier run can write no more.
///
/// The first page is signed before the others are looked for: an earlier run that makes a page later than that finds
/// the signature before it uses the page, and one made before is in the list.
pub async fn take_over(journal: &Journal, pages: &Pages) -> Result<(), Error> {
    // The first list is for its rights and for the Lease of the first page.
    if list(journal, pages).await?.is_none() || !sign(journal, pages, 0).await? {
        return Ok(());
    }
    let Some(existing) = list(journal, pages).await? else { return Ok(()) };
    for page in existing.into_iter().filter(|page| *page > 0) {
        if !sign(journal, pages, page).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// The pages there are; `None` without the right to know.
async fn list(journal: &Journal, pages: &Pages) -> Result<Option<Vec<usize>>, Error> {
    let mut failures = 0;
    loop {
        let error = match pages.list().await {
            Ok(existing) => return Ok(Some(existing)),
            Err(error) if error.is_forbidden() => {
                journal.stay_in_memory(&error.to_string());
                return Ok(None);
            }
            Err(error) => error,
        };
        failures += 1;
        let namespace = pages.key(0).namespace;
        if failures > START_TRIES {
            return Err(Error::Read { namespace, reason: error.to_string() });
        }
        tracing::warn!(namespace, %error, "cannot list the intent journal yet");
        tokio::time::sleep(START.delay(failures)).await;
    }
}

/// Makes this run the page's writer; says whether it has the right to.
async fn sign(journal: &Journal, pages: &Pages, page: usize) -> Result<bool, Error> {
    match pages.write(journal, page, true).await {
        Ok(edit) => {
            journal.confirm(&edit);
            Ok(true)
        }
        Err(Failure::Forbidden(error)) => {
            journal.stay_in_memory(&error.to_string());
            Ok(false)
        }
        Err(Failure::Lost(error)) => Err(error),
    }
}

/// Writes a page. Around a page that does not exist yet the first one is written, for only there a run that was deposed
/// finds its successor's signature: before, so that no page of a deposed run is left, and after, so that none is used.
async fn write(journal: &Journal, pages: &Pages, page: usize) -> Result<Edit, Failure> {
    if page == 0 || pages.exists(page) {
        return pages.write(journal, page, false).await;
    }
    journal.confirm(&pages.write(journal, 0, false).await?);
    let edit = pages.write(journal, page, false).await?;
    journal.confirm(&pages.write(journal, 0, false).await?);
    Ok(edit)
}

/// Writes whatever gathered, page by page, for ever.
pub async fn run(journal: Journal, pages: Pages) {
    loop {
        journal.0.work.notified().await;
        loop {
            // What gathers while these are written is the next batch; no timer holds anybody up.
            let Some(Batch { pages: batch, flushing }) = journal.lock().batch() else { break };
            let mut flushed = write_all(&journal, &pages, batch).await;
            if !flushing.is_empty() && flushed.is_ok() {
                // Only now that the records are gone.
                let places = journal.lock().book.pages_of_leaving_parts();
                flushed = write_all(&journal, &pages, places).await;
            }
            answer(flushing, &flushed);
        }
    }
}

async fn write_all(journal: &Journal, pages: &Pages, batch: BTreeSet<usize>) -> Result<(), Error> {
    let mut written = Ok(());
    for page in batch {
        match write(journal, pages, page).await {
            Ok(edit) => journal.confirm(&edit),
            Err(Failure::Forbidden(error)) => journal.stay_in_memory(&error.to_string()),
            Err(Failure::Lost(error)) => {
                journal.lock().fail(page, &error);
                written = Err(error);
            }
        }
    }
    written
}

struct Batch {
    pages: BTreeSet<usize>,
    flushing: Vec<Waiter>,
}

/// Whoever no longer waits was dropped with the whole service.
fn answer(waiters: impl IntoIterator<Item = Waiter>, result: &Result<(), Error>) {
    for waiter in waiters {
        let _ = waiter.send(result.clone());
    }
}

impl State {
    /// The pages somebody waits for; `None` when nobody does.
    fn batch(&mut self) -> Option<Batch> {
        let flushing = std::mem::take(&mut self.flushing);
        let mut pages: BTreeSet<usize> = self.waiting.keys().filter_map(|uid| self.book.page_of(uid)).collect();
        if !flushing.is_empty() {
            pages.extend(self.book.pages_to_clean());
        }
        (!pages.is_empty() || !flushing.is_empty()).then_some(Batch { pages, flushing })
    }

    fn fail(&mut self, page: usize, error: &Error) {
        let on_page = |uid: &String| self.book.page_of(uid) == Some(page);
        let failed: Vec<String> = self.waiting.keys().filter(|uid| on_page(uid)).cloned().collect();
        let waiters: Vec<Waiter> = failed.iter().filter_map(|uid| self.waiting.remove(uid)).flatten().collect();
        answer(waiters, &Err(error.clone()));
    }
}

impl Journal {
    fn confirm(&self, edit: &Edit) {
        let gone = {
            let mut state = self.lock();
            let (durable, gone) = state.book.confirm(edit);
            let settled = durable.iter().chain(gone.iter().map(|intent| &intent.claim.uid));
            let waiters: Vec<Waiter> = settled.filter_map(|uid| state.waiting.remove(uid)).flatten().collect();
            answer(waiters, &Ok(()));
            gone
        };
        for intent in &gone {
            (self.0.on_change)(Change::Left { intent });
        }
        for uid in &edit.adopted {
            (self.0.on_change)(Change::Adopted { uid });
        }
    }

    /// Every page was read.
    pub(super) fn settle(&self) {
        let (adopted, has_leftovers) = self.lock().book.settle();
        for uid in &adopted {
            (self.0.on_change)(Change::Adopted { uid });
        }
        if has_leftovers {
            self.0.left.notify_one();
        }
    }

    fn stay_in_memory(&self, reason: &str) {
        let gone = {
            let mut state = self.lock();
            if state.stored {
                tracing::warn!(
                    reason,
                    "no right to write Leases: intents stay in memory, so a crash can leak a volume; grant get, list, \
                     create and update of leases in this namespace, or pass --intent-journal=false to silence this"
                );
            }
            state.stored = false;
            let gone = state.book.give_up_storing();
            answer(std::mem::take(&mut state.waiting).into_values().flatten(), &Ok(()));
            answer(std::mem::take(&mut state.flushing), &Ok(()));
            gone
        };
        for intent in &gone {
            (self.0.on_change)(Change::Left { intent });
        }
    }
}
