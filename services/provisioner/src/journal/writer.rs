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

/// How often a run that began without the right to write Leases tries whether it has it now.
const REGAIN: Duration = Duration::from_secs(60);

/// Reads every page and signs it, so that an earlier run can write no more.
///
/// The first page is signed before the others are looked for: an earlier run that makes a page later than that finds
/// the signature before it uses the page, and one made before is in the list.
pub async fn take_over(journal: &Journal, pages: &Pages) -> Result<(), Failure> {
    // The first list is for its rights and for the Lease of the first page.
    list(pages).await?;
    sign(journal, pages, 0).await?;
    for page in list(pages).await?.into_iter().filter(|page| *page > 0) {
        sign(journal, pages, page).await?;
    }
    Ok(())
}

/// The pages there are.
async fn list(pages: &Pages) -> Result<Vec<usize>, Failure> {
    let mut failures = 0;
    loop {
        let error = match pages.list().await {
            Ok(existing) => return Ok(existing),
            Err(error) if error.is_forbidden() => return Err(Failure::Forbidden(error)),
            Err(error) => error,
        };
        failures += 1;
        let namespace = pages.key(0).namespace;
        if failures > START_TRIES {
            return Err(Failure::Lost(Error::Read { namespace, reason: error.to_string() }));
        }
        tracing::warn!(namespace, %error, "cannot list the intent journal yet");
        tokio::time::sleep(START.delay(failures)).await;
    }
}

/// Makes this run the page's writer.
async fn sign(journal: &Journal, pages: &Pages, page: usize) -> Result<(), Failure> {
    journal.confirm(&pages.write(journal, page, true).await?);
    Ok(())
}

/// Works as the original, until the right is there; then whatever is at work is stored, and what earlier runs left is read.
pub async fn run_once_allowed(journal: Journal, pages: Pages) {
    loop {
        tokio::time::sleep(REGAIN).await;
        match regain(&journal, &pages).await {
            Ok(()) => break,
            Err(error) => {
                tracing::debug!(error = %error.into_error(&pages, 0), "intents stay in memory");
                journal.stay_in_memory();
            }
        }
    }
    tracing::info!("intents are stored from now on");
    run(journal, pages).await;
}

async fn regain(journal: &Journal, pages: &Pages) -> Result<(), Failure> {
    let existing = list(pages).await?;
    // What earlier runs recorded for the claims that are at work now is not written over: only it finds what they made.
    journal.store_from(existing.last().map_or(1, |page| page + 1));
    take_over(journal, pages).await?;
    journal.settle();
    Ok(())
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
            Err(failure) => {
                let error = failure.into_error(pages, page);
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
        (self.0.on_change)(Change::Storing(true));
        for uid in &adopted {
            (self.0.on_change)(Change::Adopted { uid });
        }
        if has_leftovers {
            self.0.left.notify_one();
        }
    }

    /// Only while this run has stored nothing: what memory forgets while its page keeps it is replayed at the next start, whatever has
    /// become of it since.
    pub(super) fn stay_in_memory(&self) {
        let gone = {
            let mut state = self.lock();
            state.stored = false;
            let gone = state.book.give_up_storing();
            answer(std::mem::take(&mut state.waiting).into_values().flatten(), &Ok(()));
            answer(std::mem::take(&mut state.flushing), &Ok(()));
            gone
        };
        for intent in &gone {
            (self.0.on_change)(Change::Left { intent });
        }
        (self.0.on_change)(Change::Storing(false));
    }

    /// Everything is to be stored, on pages from this one on.
    fn store_from(&self, first: usize) {
        {
            let mut state = self.lock();
            state.stored = true;
            for uid in state.book.store_from(first) {
                state.waiting.entry(uid).or_default();
            }
        }
        self.0.work.notify_one();
    }
}
