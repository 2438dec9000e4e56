//! Events, with what people are told and when; the model's keep less.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use stowage_model::object::{Key, Kind, Meta, Projection, kinds};

/// Something that was told about an object.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Told {
    #[serde(rename = "metadata")]
    pub meta: Meta,
    #[serde(rename = "involvedObject", deserialize_with = "or_default")]
    pub about: About,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type", deserialize_with = "or_default")]
    severity: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    #[serde(deserialize_with = "or_default")]
    count: u64,
    last_timestamp: Option<Timestamp>,
    event_time: Option<Timestamp>,
    series: Option<Series>,
    source: Option<Source>,
    #[serde(deserialize_with = "or_default")]
    reporting_component: String,
}

/// The object that an event is about.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct About {
    #[serde(deserialize_with = "or_default")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    namespace: String,
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    uid: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Series {
    count: u64,
    last_observed_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Source {
    #[serde(deserialize_with = "or_default")]
    component: String,
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    stowage_model::object::or_default(deserializer)
}

impl Projection for Told {
    const KIND: Kind = kinds::EVENT;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Told {
    /// Kind, namespace and name of the object that it is about; events of what has no namespace may name one.
    pub fn subject(&self) -> (&str, &str, &str) {
        let about = &self.about;
        let of_cluster = [kinds::VOLUME, kinds::VOLUME_SNAPSHOT_CONTENT].iter().any(|kind| kind.kind == about.kind);
        (&about.kind, if of_cluster { "" } else { &about.namespace }, &about.name)
    }

    /// Whether it is about the object of this uid; one of the same name that was there before has another.
    pub fn is_of_uid(&self, uid: &str) -> bool {
        self.about.uid.is_empty() || self.about.uid == uid
    }

    /// Whether it is about an object of this kind.
    pub fn is_of(&self, kind: Kind) -> bool {
        self.about.kind == kind.kind
    }

    pub fn is_warning(&self) -> bool {
        self.severity == "Warning"
    }

    /// The pod that it is about.
    pub fn pod(&self) -> Option<Key> {
        let is_of_pod = self.about.kind == kinds::POD.kind;
        is_of_pod.then(|| Key::namespaced(self.about.namespace.as_str(), self.about.name.as_str()))
    }

    /// When it was told last. Writers of the two generations of events fill in different fields.
    pub fn last(&self) -> Option<Timestamp> {
        let series = self.series.as_ref().and_then(|series| series.last_observed_time);
        series.max(self.last_timestamp).max(self.event_time).or(self.meta.creation_timestamp)
    }

    /// How often it was told.
    pub fn times(&self) -> u64 {
        self.series.as_ref().map_or(0, |series| series.count).max(self.count).max(1)
    }

    /// Who told it.
    pub fn component(&self) -> &str {
        let source = self.source.as_ref().map_or("", |source| source.component.as_str());
        if source.is_empty() { &self.reporting_component } else { source }
    }
}
