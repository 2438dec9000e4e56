//! Answers that wait to be sent: how many bytes of them are held, for whom, and since when.
//!
//! What is handed to hyper carries its count with it and gives it back when the last byte has gone to the socket, so
//! that neither HTTP/2 windows nor buffers in between hide anything.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::Response;
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::share::Taken;
use crate::status::Status;

use super::Body;
use super::limits::{Asker, Level, Pots, later};

/// What one connection has not yet sent.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// Of all connections, by level and user.
    pots: Pots,
    /// Most bytes of this one, at each level.
    limit: usize,
    timeout: Duration,
    bytes: [AtomicUsize; Level::COUNT],
    waiting: Mutex<Waiting>,
    /// There is something to be sent, after there was nothing.
    begun: Notify,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// When each must have been taken by the client; older ones first.
    until: BTreeMap<u64, Instant>,
}

impl Unsent {
    pub fn new(pots: Pots, limit: usize, timeout: Duration) -> Self {
        Self {
            pots,
            limit,
            timeout,
            bytes: Default::default(),
            waiting: Mutex::default(),
            begun: Notify::new(),
            freed: Notify::new(),
        }
    }

    /// Resolves when the client has not taken an answer, or a piece of one, in time.
    pub async fn stalled(&self) {
        loop {
            match self.first() {
                None => self.begun.notified().await,
                Some(until) if until <= Instant::now() => return,
                Some(until) => tokio::time::sleep_until(until).await,
            }
        }
    }

    fn first(&self) -> Option<Instant> {
        self.lock().until.first_key_value().map(|(_, until)| *until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, level: Level) -> bool {
        self.bytes[level as usize].load(Ordering::Acquire) < self.limit
    }

    /// Resolves when this connection and `asker` may have more to send.
    async fn room(&self, asker: &Asker) {
        loop {
            self.pots.of(asker.level).room(&asker.name, asker.level.claim()).await;
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the look, so that nothing falls between the two.
            freed.as_mut().enable();
            if self.has_room(asker.level) {
                return;
            }
            freed.await;
        }
    }

    fn hold(self: &Arc<Self>, taken: Taken, level: Level, amount: usize) -> Hold {
        self.bytes[level as usize].fetch_add(amount, Ordering::AcqRel);
        let mut waiting = self.lock();
        let id = waiting.add(Instant::now() + self.timeout);
        if waiting.until.len() == 1 {
            self.begun.notify_one();
        }
        Hold { unsent: self.clone(), _taken: taken, level, id, amount }
    }

    /// Counts what is there already.
    fn force(self: &Arc<Self>, asker: &Asker, amount: usize) -> Hold {
        self.hold(self.pots.force(asker, amount), asker.level, amount)
    }
}

impl Waiting {
    fn add(&mut self, until: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        self.until.insert(id, until);
        id
    }
}

/// Something that is held until the client has taken it.
#[derive(Debug)]
pub(crate) struct Hold {
    unsent: Arc<Unsent>,
    _taken: Taken,
    level: Level,
    id: u64,
    amount: usize,
}

impl Hold {
    /// The client has taken a part.
    pub fn renew(&mut self) {
        let mut waiting = self.unsent.lock();
        waiting.until.remove(&self.id);
        self.id = waiting.add(Instant::now() + self.unsent.timeout);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.unsent.bytes[self.level as usize].fetch_sub(self.amount, Ordering::AcqRel);
        self.unsent.lock().until.remove(&self.id);
        self.unsent.freed.notify_waiters();
    }
}

/// Counts what is held for one request; for the program around us nothing is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter {
    of: Option<(Arc<Unsent>, Asker)>,
}

impl Meter {
    pub fn new(unsent: Arc<Unsent>, asker: Asker) -> Self {
        Self { of: Some((unsent, asker)) }
    }

    /// Refuses those who have not taken what they asked for before: more would not be sent either.
    pub fn check(&self) -> Result<(), Status> {
        match &self.of {
            Some((unsent, asker)) if !unsent.has_room(asker.level) || !unsent.pots.has_room(asker) => Err(later()),
            _ => Ok(()),
        }
    }

    /// Counts `amount` bytes, if there is room for them.
    pub fn hold(&self, amount: usize) -> Result<Option<Hold>, Status> {
        let Some((unsent, asker)) = &self.of else { return Ok(None) };
        self.check()?;
        let taken = unsent.pots.take(asker, amount).ok_or_else(later)?;
        Ok(Some(unsent.hold(taken, asker.level, amount)))
    }

    /// Counts `amount` bytes, room or not.
    pub fn hold_always(&self, amount: usize) -> Option<Hold> {
        self.of.as_ref().map(|(unsent, asker)| unsent.force(asker, amount))
    }

    /// Counts an answer that is there as a whole; one that is made piece by piece is counted, and made, as there is room.
    pub fn answer(self, response: Response<Body>) -> Result<Response<Body>, Status> {
        let Some((unsent, asker)) = self.of.clone() else { return Ok(response) };
        let (parts, body) = response.into_parts();
        let body = match body.size_hint().exact() {
            Some(0) => body,
            Some(size) => {
                let hold = self.hold(usize::try_from(size).unwrap_or(usize::MAX))?;
                Full::new(held(whole(body), hold)).boxed_unsync()
            }
            None => pieces(body, unsent, asker),
        };
        Ok(Response::from_parts(parts, body))
    }

    /// Counts an answer for which there is always room: a refusal, or what was done already.
    pub fn always(self, response: Response<Body>) -> Response<Body> {
        let Some((unsent, asker)) = self.of else { return response };
        response.map(|body| {
            if body.size_hint().exact().is_none() {
                return pieces(body, unsent, asker);
            }
            let data = whole(body);
            let hold = unsent.force(&asker, data.len());
            Full::new(held(data, Some(hold))).boxed_unsync()
        })
    }
}

/// The only piece of a body of known size.
fn whole(body: Body) -> Bytes {
    let collected = futures::FutureExt::now_or_never(body.collect());
    collected.map_or_else(Bytes::new, |Ok(collected)| collected.to_bytes())
}

fn pieces(body: Body, unsent: Arc<Unsent>, asker: Asker) -> Body {
    let pieces = stream::unfold((body, unsent, asker), |(mut body, unsent, asker)| async move {
        unsent.room(&asker).await;
        let Ok(frame) = body.frame().await?;
        let frame = frame.map_data(|data| {
            let hold = unsent.force(&asker, data.len());
            held(data, Some(hold))
        });
        Some((Ok(frame), (body, unsent, asker)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Bytes that keep their count as long as any part of them is there.
fn held(data: Bytes, hold: Option<Hold>) -> Bytes {
    struct Owner(Bytes, #[expect(dead_code, reason = "given back with the bytes")] Hold);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    match hold {
        Some(hold) => Bytes::from_owner(Owner(data, hold)),
        None => data,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::FutureExt as _;
    use http_body::Frame;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn connection(all: &Pots, limit: usize) -> Arc<Unsent> {
        Arc::new(Unsent::new(all.clone(), limit, TIMEOUT))
    }

    fn meter(unsent: &Arc<Unsent>, user: &str) -> Meter {
        Meter::new(unsent.clone(), Asker { level: Level::Workload, name: user.into() })
    }

    fn full(size: usize) -> Response<Body> {
        Response::new(Full::new(Bytes::from(vec![b'x'; size])).boxed_unsync())
    }

    #[tokio::test]
    async fn an_answer_counts_until_its_last_byte_is_let_go() {
        let all = Pots::each(1000);
        let unsent = connection(&all, 100);
        let answer = meter(&unsent, "a").answer(full(100)).unwrap();
        assert_eq!(answer.body().size_hint().exact(), Some(100), "its size is still told");
        assert_eq!(meter(&unsent, "a").answer(full(1)).unwrap_err().code, 429);
        let mut bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let rest = bytes.split_off(99);
        drop(bytes);
        assert!(meter(&unsent, "a").check().is_err());
        drop(rest);
        assert!(meter(&unsent, "a").answer(full(1)).is_ok());
    }

    #[tokio::test]
    async fn one_user_with_many_connections_leaves_room_for_others() {
        let all = Pots::each(1000);
        let connections: Vec<Arc<Unsent>> = (0..20).map(|_| connection(&all, 100)).collect();
        let answers: Vec<_> = connections.iter().map(|unsent| meter(unsent, "a").answer(full(100))).collect();
        assert!(answers.iter().any(Result::is_err));
        assert!(meter(&connection(&all, 100), "b").answer(full(100)).is_ok());
    }

    #[tokio::test]
    async fn what_was_done_is_told_whatever_its_size_and_others_do_not_pay_for_it() {
        let all = Pots::each(1000);
        let told = meter(&connection(&all, 100), "a").always(full(5000));
        assert_eq!(meter(&connection(&all, 100), "a").check().unwrap_err().code, 429);
        assert!(meter(&connection(&all, 100), "b").answer(full(100)).is_ok());
        let unsent = connection(&all, 100);
        drop(told);
        let told = meter(&unsent, "a").always(full(5000));
        for level in [Level::Masters, Level::System, Level::LeaderElection] {
            let other = Meter::new(unsent.clone(), Asker { level, name: "a".into() });
            assert!(other.answer(full(500)).is_ok(), "{level:?}, over the same connection");
        }
        drop(told);
    }

    #[tokio::test]
    async fn pieces_are_made_as_there_is_room() {
        let all = Pots::each(1000);
        let unsent = connection(&all, 100);
        let endless = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 60]))));
        let response = Response::new(StreamBody::new(endless).boxed_unsync());
        let mut body = meter(&unsent, "a").answer(response).unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap();
        let second = body.frame().await.unwrap().unwrap();
        assert!(body.frame().now_or_never().is_none(), "nobody took the first two");
        drop((first, second));
        assert!(body.frame().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_is_noticed_and_one_that_reads_is_not() {
        let all = Pots::each(1000);
        let unsent = connection(&all, 1000);
        let mut stalled = Box::pin(unsent.stalled());
        for _ in 0..10 {
            let answer = meter(&unsent, "a").answer(full(10)).unwrap();
            assert!(stalled.as_mut().now_or_never().is_none());
            tokio::time::advance(TIMEOUT / 2).await;
            drop(answer);
        }
        tokio::time::advance(TIMEOUT * 2).await;
        assert!(stalled.as_mut().now_or_never().is_none(), "nothing is there to be read");
        let answer = meter(&unsent, "a").answer(full(10)).unwrap();
        stalled.await;
        drop(answer);
    }
}
