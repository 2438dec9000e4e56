//! Times every driver call, so that the demo can tell driver time from ours.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use stowage_csi::{Channel, Connector, connect};

/// One finished driver call.
#[derive(Debug, Clone)]
pub struct Call {
    /// For example `CreateVolume`.
    pub method: String,
    /// When it was sent.
    pub from: Instant,
    /// When it was answered.
    pub to: Instant,
}

/// The calls of one stack so far.
#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    /// Every finished call, in the order of their ends.
    pub fn all(&self) -> Vec<Call> {
        self.lock().clone()
    }

    fn push(&self, call: Call) {
        self.lock().push(call);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Call>> {
        self.0.lock().expect("no code panics while holding the calls")
    }
}

/// Whether a call does something to a volume; questions about the driver itself are not part of a claim's life.
fn does_work(method: &str) -> bool {
    method.ends_with("Volume") && !method.contains("Get")
}

/// A connector whose channels note the calls that do something to a volume.
pub struct Timing {
    inner: Arc<dyn Connector>,
    calls: Calls,
}

impl Timing {
    pub fn new(inner: Arc<dyn Connector>, calls: Calls) -> Self {
        Self { inner, calls }
    }
}

impl Connector for Timing {
    fn connect(&self, endpoint: &str) -> Result<Channel, connect::Error> {
        let calls = self.calls.clone();
        let channel = self.inner.connect(endpoint)?;
        Ok(channel.intercept(move |request, next: Channel| {
            let calls = calls.clone();
            async move {
                let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let from = Instant::now();
                let answer = next.send(request).await;
                if does_work(&method) {
                    calls.push(Call { method, from, to: Instant::now() });
                }
                answer
            }
        }))
    }
}
