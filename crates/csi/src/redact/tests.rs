use prost::{DecodeError, Message};
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::STRIPPED;

pub(crate) const SECRET: &str = "planted-secret";
const PLAIN: &str = "planted-plain";

type Printer = fn(&[u8]) -> Result<String, DecodeError>;

/// Every message of both contracts, from build.rs.
const PRINTERS: &[(&str, Printer)] = include!(concat!(env!("OUT_DIR"), "/printers.rs"));

fn print<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> Result<String, DecodeError> {
    let message = M::decode(bytes)?;
    // The pretty form goes through the same impl by another path.
    Ok(format!("{message:?}\n{message:#?}"))
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin")).as_slice()).unwrap()
}

pub(crate) fn is_secret(field: &FieldDescriptor) -> bool {
    let option = field.parent_pool().get_extension_by_name("csi.v1.csi_secret").unwrap();
    matches!(field.options().get_extension(&option).as_ref(), Value::Bool(true))
}

pub(crate) fn messages() -> Vec<MessageDescriptor> {
    let ours = |m: &MessageDescriptor| matches!(m.parent_file().package_name(), "csi.v1" | "pluginregistration");
    pool().all_messages().filter(|m| ours(m) && !m.is_map_entry()).collect()
}

/// A message with every field set: secrets carry one marker, all other text another, with the field's name.
pub(crate) fn planted(descriptor: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let marker = format!("{}-{}", if is_secret(&field) { SECRET } else { PLAIN }, field.name());
        let value = if field.is_map() {
            Value::Map([(MapKey::String(format!("{marker}-key")), Value::String(marker))].into())
        } else if field.is_list() {
            Value::List(vec![planted_scalar(&field, marker)])
        } else {
            planted_scalar(&field, marker)
        };
        message.set_field(&field, value);
    }
    message
}

fn planted_scalar(field: &FieldDescriptor, marker: String) -> Value {
    match field.kind() {
        Kind::String => Value::String(marker),
        Kind::Bool => Value::Bool(true),
        Kind::Int32 => Value::I32(7),
        Kind::Int64 => Value::I64(7),
        Kind::Enum(_) => Value::EnumNumber(1),
        Kind::Message(nested) => Value::Message(planted(&nested)),
        other => panic!("{}: a kind the contract did not use so far: {other:?}", field.full_name()),
    }
}

#[test]
fn no_message_prints_a_planted_secret() {
    let mut seen = 0;
    for descriptor in messages() {
        let name = descriptor.full_name();
        let (_, printer) = PRINTERS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} has no printer"));
        let text = printer(&planted(&descriptor).encode_to_vec()).unwrap();
        assert!(!text.contains(SECRET), "{name} shows a secret: {text}");
        for field in descriptor.fields().filter(|f| f.containing_oneof().is_none()) {
            assert!(text.contains(&format!("{}:", field.name())), "{name} leaves out {}: {text}", field.name());
            if is_secret(&field) {
                assert!(text.contains(&format!("{}: {STRIPPED}", field.name())), "{name}: {text}");
                seen += 1;
            } else if matches!(field.kind(), Kind::String) {
                assert!(text.contains(&format!("{PLAIN}-{}", field.name())), "{name} hides {}: {text}", field.name());
            }
        }
    }
    // CSI 1.13 marks 19 fields; fewer means the option got lost between the contract and this test.
    assert_eq!(seen, 19, "secret fields found in the descriptors");
}

#[test]
fn a_request_inside_a_tonic_request_or_an_option_stays_stripped() {
    let secrets = [("token".to_owned(), SECRET.to_owned())].into();
    let request = crate::v1::NodeStageVolumeRequest { volume_id: "v-1".into(), secrets, ..Default::default() };
    let text = format!("{:?} {:?}", Some(&request), tonic::Request::new(request.clone()));
    assert!(!text.contains(SECRET) && !text.contains("token"), "{text}");
    assert!(text.contains("v-1"), "{text}");
}

#[test]
fn a_request_without_secrets_says_so() {
    let text = format!("{:?}", crate::v1::DeleteVolumeRequest { volume_id: "v-1".into(), ..Default::default() });
    assert_eq!(text, r#"DeleteVolumeRequest { volume_id: "v-1", secrets: {} }"#);
}
