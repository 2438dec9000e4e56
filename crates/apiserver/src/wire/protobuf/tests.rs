//! Round trips against an encoder that writes what the Go one writes, and bytes spelled out by hand.

use proptest::prelude::*;

use super::*;

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_number(out: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(out, u64::from(field) << 3);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn seconds_and_nanos(text: &str) -> Vec<u8> {
    let at: Timestamp = text.parse().unwrap();
    let mut out = Vec::new();
    put_number(&mut out, 1, at.as_second() as u64);
    put_number(&mut out, 2, at.subsec_nanosecond() as u64);
    out
}

fn put_value(out: &mut Vec<u8>, number: u32, field: &Field, value: &Value) {
    let mut inner = Vec::new();
    match field.kind {
        FieldKind::Text => return put_bytes(out, number, value.as_str().unwrap().as_bytes()),
        FieldKind::Bool => return put_number(out, number, value.as_bool().unwrap().into()),
        FieldKind::Int => return put_number(out, number, value.as_i64().unwrap() as u64),
        FieldKind::Float => {
            put_varint(out, u64::from(number) << 3 | 1);
            return out.extend_from_slice(&value.as_f64().unwrap().to_le_bytes());
        }
        FieldKind::Bytes => return put_bytes(out, number, &STANDARD.decode(value.as_str().unwrap()).unwrap()),
        FieldKind::Time | FieldKind::MicroTime => inner = seconds_and_nanos(value.as_str().unwrap()),
        FieldKind::Quantity => put_bytes(&mut inner, 1, value.as_str().unwrap().as_bytes()),
        FieldKind::IntOrString => match value.as_str() {
            Some(text) => {
                put_number(&mut inner, 1, 1);
                put_number(&mut inner, 2, 0);
                put_bytes(&mut inner, 3, text.as_bytes());
            }
            None => {
                put_number(&mut inner, 1, 0);
                put_number(&mut inner, 2, value.as_i64().unwrap() as u64);
                put_bytes(&mut inner, 3, b"");
            }
        },
        FieldKind::Raw => put_bytes(&mut inner, 1, value.to_string().as_bytes()),
        FieldKind::Items => {
            value.as_array().unwrap().iter().for_each(|v| put_bytes(&mut inner, 1, v.as_str().unwrap().as_bytes()))
        }
        FieldKind::Message(name) => inner = encode(name, value),
        FieldKind::SchemaOrBool => match value.as_bool() {
            Some(allows) => put_number(&mut inner, 1, allows.into()),
            None => {
                put_number(&mut inner, 1, 1);
                put_bytes(&mut inner, 2, &encode("apiextensions.JSONSchemaProps", value));
            }
        },
        FieldKind::SchemaOrArray => match value.as_array() {
            Some(list) => {
                list.iter().for_each(|v| put_bytes(&mut inner, 2, &encode("apiextensions.JSONSchemaProps", v)));
            }
            None => put_bytes(&mut inner, 1, &encode("apiextensions.JSONSchemaProps", value)),
        },
        FieldKind::SchemaOrStrings => {
            value.as_array().unwrap().iter().for_each(|v| put_bytes(&mut inner, 2, v.as_str().unwrap().as_bytes()));
        }
    }
    put_bytes(out, number, &inner);
}

/// Encodes a message as the Go encoder does: fields that are not pointers are written even when they are empty.
fn encode(name: &str, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, field) in messages::message(name).unwrap() {
        if let (true, FieldKind::Message(inner)) = (field.inline, field.kind) {
            put_bytes(&mut out, *number, &encode(inner, value));
            continue;
        }
        match (field.shape, value.get(field.name)) {
            (Shape::One, Some(value)) => put_value(&mut out, *number, field, value),
            (Shape::One, None) if !field.zero => match field.kind {
                FieldKind::Text | FieldKind::Bytes => put_bytes(&mut out, *number, b""),
                FieldKind::Bool | FieldKind::Int => put_number(&mut out, *number, 0),
                FieldKind::Time | FieldKind::MicroTime => put_bytes(&mut out, *number, b""),
                FieldKind::Message(inner) => put_bytes(&mut out, *number, &encode(inner, &json!({}))),
                _ => {}
            },
            (Shape::List, Some(list)) => {
                list.as_array().unwrap().iter().for_each(|v| put_value(&mut out, *number, field, v));
            }
            (Shape::Map, Some(map)) => {
                for (key, value) in map.as_object().unwrap() {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    put_value(&mut entry, 2, field, value);
                    put_bytes(&mut out, *number, &entry);
                }
            }
            (_, None) => {}
        }
    }
    out
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let (mut meta, mut out) = (Vec::new(), MAGIC.to_vec());
    put_bytes(&mut meta, 1, api_version.as_bytes());
    put_bytes(&mut meta, 2, kind.as_bytes());
    put_bytes(&mut out, 1, &meta);
    put_bytes(&mut out, 2, raw);
    put_bytes(&mut out, 3, b"");
    put_bytes(&mut out, 4, b"");
    out
}

fn round_trip(object: &Value) -> Value {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let name = messages::name_of(version, kind).unwrap();
    decode(&envelope(version, kind, &encode(name, object))).unwrap()
}

#[test]
fn objects_of_every_corner_come_back_as_they_were_sent() {
    for object in [
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"},
            "creationTimestamp": "2024-01-02T03:04:05Z", "ownerReferences": [{"apiVersion": "v1", "kind": "Node",
            "name": "n", "uid": "u", "controller": false}]},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "initialDelaySeconds": 5},
                "livenessProbe": {"tcpSocket": {"port": 8080}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": false}}}]}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}],
                "terminationGracePeriodSeconds": 0}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"x": ""}},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k",
                    "operator": "In", "values": ["a", "b"]}]}]}}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "AAEC"}, "immutable": true}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-01-02T03:04:05.123456Z"}}),
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u"}, "propagationPolicy": "Background", "dryRun": ["All"]}),
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
            "spec": {"audiences": ["a"], "expirationSeconds": 600}, "status": {"token": "", "expirationTimestamp": "2024-01-02T03:04:05Z"}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"},
            "reason": "r", "message": "m", "source": {"component": "c"}, "count": 3, "type": "Normal",
            "firstTimestamp": "2024-01-02T03:04:05Z", "lastTimestamp": "2024-01-02T03:04:06Z",
            "reportingComponent": "", "reportingInstance": ""}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": false}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "c"},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"plural": "ps", "kind": "K"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "default": {"x": 1}}},
                    "b": {"additionalProperties": false}, "c": {"maximum": 1.5, "enum": ["a", 1]}}}}}]}}),
    ] {
        let back = round_trip(&object);
        for (name, member) in object.as_object().unwrap() {
            if name != "metadata" && name != "status" {
                assert!(contains(&back[name], member), "{name}: {} became {}", member, back[name]);
            }
        }
        assert!(
            contains(&back["metadata"], &object["metadata"])
                || object["kind"] == "DeleteOptions"
                || object["metadata"] == json!({})
        );
    }
}

/// Whether everything of `part` is in `whole`; required fields that were left out come back empty.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|w| contains(w, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| contains(w, p))
        }
        (whole, part) => whole == part,
    }
}

#[test]
fn bytes_spelled_out_by_hand_are_a_config_map() {
    // Unknown{typeMeta{"v1","ConfigMap"}, raw: ConfigMap{metadata{name "a"}, data{"k":"v"}}}
    let body =
        b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d\x0a\x03\x0a\x01a\x12\x06\x0a\x01k\x12\x01v\x1a\x00\x22\x00";
    assert_eq!(
        decode(body).unwrap(),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}})
    );
}

#[test]
fn a_field_of_a_newer_client_is_left_out() {
    let mut raw = encode("core.ConfigMap", &json!({"data": {"k": "v"}}));
    put_bytes(&mut raw, 999, b"new");
    let back = decode(&envelope("v1", "ConfigMap", &raw)).unwrap();
    assert_eq!(back["data"], json!({"k": "v"}));
}

#[test]
fn an_unknown_kind_and_a_foreign_body_are_refused() {
    assert!(matches!(decode(&envelope("policy/v1", "Eviction", b"")), Err(Decode::FindKind { .. })));
    assert_eq!(decode(b"{}"), Err(Decode::FindMark));
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _any_answer = decode(&envelope("v1", "Pod", &bytes));
        let _any_answer = decode(&[MAGIC.as_slice(), &bytes].concat());
    }

    #[test]
    fn a_pod_that_is_cut_short_anywhere_is_read_or_refused(cut in 0_usize..200) {
        let whole = encode("core.Pod", &json!({"spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}}));
        let _any_answer = decode(&envelope("v1", "Pod", &whole[..cut.min(whole.len())]));
    }
}
