//! Event, as far as it is passed on to another object.

use crate::object::{Kind, Meta, Projection, kinds};

text_enum! {
    /// Whether somebody may have to look.
    pub enum EventType {
        /// For information.
        #[default]
        Normal = "Normal",
        /// Somebody may have to look.
        Warning = "Warning",
    }
}

projection! {
    /// Something that was told about an object.
    pub struct Event {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// Normal or Warning.
        #[serde(rename = "type")]
        pub event_type: EventType,
        /// A sentence for people.
        pub message: String,
    }
}

impl Projection for Event {
    const KIND: Kind = kinds::EVENT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}
