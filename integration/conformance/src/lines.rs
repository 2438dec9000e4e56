//! A watch, line by line.

use http_body_util::BodyExt as _;
use serde_json::Value;

/// The events of one watch.
pub struct Lines {
    body: kube::client::Body,
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(body: kube::client::Body) -> Self {
        Self { body, rest: Vec::new() }
    }

    /// Type and object of the next event; none when the server has ended the watch.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()));
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    /// The object of the next event, which must be of this type.
    pub async fn expect(&mut self, event_type: &str) -> Value {
        let (found, object) = self.next().await.expect("the watch goes on");
        assert_eq!(found, event_type, "{object}");
        object
    }
}
