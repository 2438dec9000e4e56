//! Passes on what is told about the recycler pod, which nobody looks for, to the volume that it erases.

use stowage_model::event::EventType;
use stowage_model::object::{Key, Projection};
use stowage_model::{Event, Volume};
use stowage_runtime::api::Api;
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::events::{Note, Severity};
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

use super::Reclaimer;

pub(super) struct Relay {
    api: Api,
    random: Random,
    namespace: String,
    selector: String,
    events: Cache<Event>,
}

impl Relay {
    pub(super) fn new(reclaimer: &Reclaimer, pod: &Key, uid: &str, volume: &Volume) -> Self {
        let events = Cache::new();
        let (recorder, about) = (reclaimer.recorder.clone(), volume.reference());
        events.on_change(move |change: &Change<'_, Event>| {
            // What is told again is told again by whoever told it.
            let (None, Some(event)) = (change.before, change.after) else { return };
            let severity = match event.event_type {
                EventType::Warning => Severity::Warning,
                EventType::Normal | EventType::Unknown => Severity::Normal,
            };
            let message = format!("Recycler pod: {}", event.message);
            recorder.record(&about, Note { severity, reason: "RecyclerPod", message });
        });
        Self {
            api: reclaimer.api.clone(),
            random: reclaimer.random.clone(),
            namespace: pod.namespace.clone(),
            selector: format!("involvedObject.name={},involvedObject.uid={uid}", pod.name),
            events,
        }
    }

    pub(super) async fn follow(&self) {
        let scope = Scope { namespace: self.namespace.clone(), field_selector: self.selector.clone(), ..Scope::all() };
        watch::feed(self.api.clone(), self.events.clone(), scope, self.random.clone()).await;
    }

    /// What was told just before the pod ended may not have reached us yet.
    pub(super) async fn finish(&self) {
        let query = format!("fieldSelector={}", self.selector.replace('=', "%3D").replace(',', "%2C"));
        match self.api.list::<Event>(&self.namespace, &query).await {
            Ok(events) => events.into_iter().for_each(|event| _ = self.events.observe(event)),
            Err(error) => tracing::debug!(%error, "events of the recycler pod cannot be read"),
        }
    }
}
