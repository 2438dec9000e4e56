use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};
use tonic::service::Routes;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::redact::tests::{SECRET, is_secret, messages, planted};
use crate::v1::controller_client::ControllerClient;
use crate::v1::controller_server::{Controller, ControllerServer};
use crate::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    ListVolumesRequest, ListVolumesResponse,
};
use crate::{Channel, Deadline};

/// What was logged, line by line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    fn at(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let lines = Self::default();
        let builder = tracing_subscriber::fmt().json().flatten_event(true).without_time().with_max_level(level);
        let subscriber = builder.with_writer(lines.clone()).finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn read(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

struct Driver;

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_publish_volume(
        &self,
        _: tonic::Request<ControllerPublishVolumeRequest>,
    ) -> Result<tonic::Response<ControllerPublishVolumeResponse>, Status> {
        let publish_context = [("device".to_owned(), "/dev/x".to_owned())].into();
        Ok(tonic::Response::new(ControllerPublishVolumeResponse { publish_context }))
    }

    async fn delete_volume(
        &self,
        _: tonic::Request<DeleteVolumeRequest>,
    ) -> Result<tonic::Response<DeleteVolumeResponse>, Status> {
        Err(Status::failed_precondition("in use"))
    }

    async fn list_volumes(
        &self,
        _: tonic::Request<ListVolumesRequest>,
    ) -> Result<tonic::Response<ListVolumesResponse>, Status> {
        std::future::pending().await
    }
}

fn client() -> ControllerClient<Channel> {
    let logged = tower::layer::layer_fn(|channel: Channel| LoggedCalls::new(channel));
    ControllerClient::new(Channel::in_process(Routes::new(ControllerServer::new(Driver))).layer(logged))
}

fn text(line: &Value, field: &str) -> Value {
    serde_json::from_str(line[field].as_str().unwrap_or_else(|| panic!("no {field} in {line}"))).unwrap()
}

#[tokio::test]
async fn a_call_is_two_lines_with_request_and_answer_and_no_secret() {
    let (lines, _guard) = Lines::at(tracing::Level::DEBUG);
    let request = ControllerPublishVolumeRequest {
        volume_id: "v\"1\n".into(),
        node_id: "n1".into(),
        volume_capability: Some(crate::v1::VolumeCapability::new(
            1,
            Some(crate::v1::volume_capability::MountVolume { fs_type: "ext4".into(), ..Default::default() }),
        )),
        secrets: [("token".to_owned(), SECRET.to_owned())].into(),
        volume_context: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    client().controller_publish_volume(request).await.unwrap();
    let [call, answer] = lines.read().try_into().unwrap();
    assert_eq!((&call["message"], &call["level"]), (&json!("GRPC call"), &json!("DEBUG")));
    assert_eq!(call["method"], "/csi.v1.Controller/ControllerPublishVolume");
    let expected = json!({
        "node_id": "n1",
        "secrets": "***stripped***",
        "volume_capability": { "access_mode": { "mode": "SINGLE_NODE_WRITER" }, "mount": { "fs_type": "ext4" } },
        "volume_context": { "a": "b" },
        "volume_id": "v\"1\n",
    });
    assert_eq!(text(&call, "request"), expected);
    assert_eq!(answer["message"], "GRPC response");
    assert_eq!(text(&answer, "response"), json!({ "publish_context": { "device": "/dev/x" } }));
    assert_eq!(answer["err"], Value::Null);
    assert!(!String::from_utf8(lines.0.lock().unwrap().clone()).unwrap().contains(SECRET));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_a_call_that_is_given_up_say_so() {
    let (lines, _guard) = Lines::at(tracing::Level::DEBUG);
    let request = DeleteVolumeRequest { volume_id: "v1".into(), ..Default::default() };
    client().delete_volume(request).await.unwrap_err();
    let mut client = client();
    let silent = Deadline(Duration::from_secs(3)).call(ListVolumesRequest::default(), |r| client.list_volumes(r)).await;
    silent.unwrap_err();
    let lines = lines.read();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[1]["err"], "rpc error: code = FailedPrecondition desc = in use");
    assert_eq!(lines[1]["response"], "{}");
    assert_eq!(lines[2]["request"], "{}");
    assert_eq!(lines[3]["err"], "the call was given up before its answer came");
}

#[tokio::test]
async fn below_that_level_nothing_is_written() {
    let (lines, _guard) = Lines::at(tracing::Level::INFO);
    client().controller_publish_volume(ControllerPublishVolumeRequest::default()).await.unwrap();
    assert_eq!(lines.read(), Vec::<Value>::new());
}

/// Every message of a call, with every field set: all that is no secret is there, and no secret is.
#[test]
fn no_call_shows_a_planted_secret() {
    let mut secrets = 0;
    let mut methods = 0;
    for descriptor in messages().iter().flat_map(|m| m.parent_pool().services().collect::<Vec<_>>()).take(5) {
        for call in descriptor.methods().filter(|call| !call.is_server_streaming()) {
            let method = method_of(&format!("/{}/{}", descriptor.full_name(), call.name()));
            methods += 1;
            for (place, message) in [(method.request, call.input()), (method.answer, call.output())] {
                let shown = wire::json(place, &planted(&message).encode_to_vec());
                assert!(!shown.contains(SECRET), "{}: {shown}", message.full_name());
                let json: Value = serde_json::from_str(&shown).unwrap();
                for field in message.fields().filter(|field| field.containing_oneof().is_none()) {
                    let value = &json[field.name()];
                    assert!(!value.is_null(), "{} leaves out {}: {shown}", message.full_name(), field.name());
                    if is_secret(&field) {
                        assert_eq!(value, "***stripped***");
                        secrets += 1;
                    }
                }
            }
        }
    }
    assert!(methods > 25 && secrets > 10, "{methods} methods with {secrets} secrets");
}

fn method_of(path: &str) -> Method {
    wire::method(path).unwrap_or_else(|| panic!("{path} is not logged"))
}

#[test]
fn a_long_answer_is_cut_where_the_flag_says() {
    assert_eq!(capped("{\"a\":\"ä\"}".into(), 8), "{\"a\":\"ä [response body too large, log capped to 8 chars]");
    assert_eq!(capped("{\"a\":\"ä\"}".into(), 7), "{\"a\":\" [response body too large, log capped to 7 chars]");
    assert_eq!(capped("{}".into(), 2), "{}");
    assert_eq!(capped("{}".into(), 0), "{}");
}

proptest! {
    #[test]
    fn whatever_comes_is_one_line_of_json(bytes in proptest::collection::vec(any::<u8>(), 0..200), place in 0usize..200) {
        let shown = wire::json(place, &bytes);
        prop_assert!(!shown.contains('\n'));
        prop_assert!(serde_json::from_str::<Value>(&shown).is_ok(), "{shown}");
    }
}
