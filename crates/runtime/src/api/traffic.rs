//! How much is being written, for those who let others go first.

use tokio::sync::watch;

/// With fewer writes under way nobody is in anybody's way; one that hangs must not keep people from being told.
const BUSY: u64 = 8;

/// Who lets others go first waits for this many writes at most: else a service that is never idle would never tell anything.
const PATIENCE: u64 = 32;

/// The writes of one service, under way and done.
#[derive(Debug, Default)]
pub struct Traffic(watch::Sender<Count>);

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    under_way: u64,
    done: u64,
}

/// One write under way, until it is dropped.
pub(super) struct UnderWay<'a>(&'a Traffic);

impl Traffic {
    pub(super) fn enter(&self) -> UnderWay<'_> {
        self.0.send_modify(|count| count.under_way += 1);
        UnderWay(self)
    }

    /// Resolves when little is under way, or when enough went first.
    pub async fn let_pass(&self) {
        let mut counts = self.0.subscribe();
        let before = counts.borrow().done;
        // The sender lives as long as self, so the wait cannot fail.
        let _ = counts.wait_for(|count| count.under_way < BUSY || count.done - before >= PATIENCE).await;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| {
            count.under_way -= 1;
            count.done += 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn who_lets_others_pass_goes_at_once_when_there_are_few() {
        let traffic = Traffic::default();
        assert!(traffic.let_pass().now_or_never().is_some());
        let _few: Vec<UnderWay<'_>> = (1..BUSY).map(|_| traffic.enter()).collect();
        assert!(traffic.let_pass().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_lets_others_pass_goes_when_they_are_through_and_does_not_wait_for_ever() {
        let traffic = Traffic::default();
        let mut many: Vec<UnderWay<'_>> = (0..BUSY).map(|_| traffic.enter()).collect();
        let mut waiting = Box::pin(traffic.let_pass());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(many.pop());
        waiting.await;

        many.push(traffic.enter());
        let mut waiting = Box::pin(traffic.let_pass());
        for _ in 0..PATIENCE {
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(traffic.enter());
        }
        waiting.await;
    }
}
