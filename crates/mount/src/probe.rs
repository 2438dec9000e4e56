//! How full mounts are, when some of them may never answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::{Error, Mounter, Result, Usage};

/// How many questions may be without an answer at a time; each costs a thread.
const AT_ONCE: usize = 64;

/// What came of a question.
#[derive(Debug)]
pub enum Probed {
    /// The answer.
    Usage(Usage),
    /// There is none yet, for so long: the server behind the mount does not answer. Nothing is asked there again until it does.
    Hung(Duration),
    /// So many other mounts hang that no more are asked.
    Crowded,
}

/// Asks mounts how full they are, each at most once at a time: one that hangs holds one thread and nobody else up.
pub struct UsageProbe {
    host: Arc<dyn Mounter>,
    asked: Arc<Mutex<BTreeMap<PathBuf, Question>>>,
}

type Answer = Arc<Result<Usage>>;

#[derive(Clone)]
struct Question {
    since: Instant,
    answer: watch::Receiver<Option<Answer>>,
}

impl UsageProbe {
    /// A probe of this machine's mounts.
    pub fn new(host: Arc<dyn Mounter>) -> Self {
        UsageProbe { host, asked: Arc::default() }
    }

    /// How full the file system at a path is, if that is known within some time.
    pub async fn usage(&self, path: &Path, patience: Duration) -> Result<Probed> {
        let Some(mut question) = self.question(path) else { return Ok(Probed::Crowded) };
        let answered = timeout(patience, question.answer.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(answer)) => match answer.as_deref() {
                Some(Ok(usage)) => Ok(Probed::Usage(*usage)),
                Some(Err(error)) => Err(Error::ProbeUsage { path: path.into(), reason: error.to_string() }),
                None => Ok(Probed::Hung(question.since.elapsed())),
            },
            Ok(Err(_)) => Err(Error::ProbeUsage { path: path.into(), reason: "the question was lost".into() }),
            Err(_) => Ok(Probed::Hung(question.since.elapsed())),
        }
    }

    /// The mounts that have not answered, and for how long.
    pub fn hung(&self) -> Vec<(PathBuf, Duration)> {
        self.asked().iter().map(|(path, question)| (path.clone(), question.since.elapsed())).collect()
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Question>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The question that is asked there already, or a new one.
    fn question(&self, path: &Path) -> Option<Question> {
        let mut asked = self.asked();
        if let Some(question) = asked.get(path) {
            return Some(question.clone());
        }
        if asked.len() >= AT_ONCE {
            return None;
        }
        let (sender, answer) = watch::channel(None);
        let question = Question { since: Instant::now(), answer };
        asked.insert(path.to_owned(), question.clone());
        drop(asked);
        let (host, asked, path) = (self.host.clone(), self.asked.clone(), path.to_owned());
        // Joined by nobody: it ends with its answer, which may never come.
        tokio::spawn(async move {
            let answer = host.usage(&path).await;
            asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
            let _ = sender.send(Some(Arc::new(answer)));
        });
        Some(question)
    }
}
