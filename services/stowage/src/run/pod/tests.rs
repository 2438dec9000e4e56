use super::*;

fn file() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "app", "namespace": "team", "labels": { "app": "x" }, "annotations": { "note": "y" },
            "finalizers": ["example/never"] },
        "spec": {
            "containers": [{
                "name": "main",
                "volumeMounts": [
                    { "name": "files", "mountPath": "/files", "subPath": "a", "readOnly": true },
                    { "name": "config", "mountPath": "/config" },
                ],
                "volumeDevices": [{ "name": "device", "devicePath": "/dev/xvda" }],
            }],
            "volumes": [
                { "name": "files", "persistentVolumeClaim": { "claimName": "files" } },
                { "name": "device", "persistentVolumeClaim": { "claimName": "device" } },
                { "name": "config", "configMap": { "name": "config" } },
            ],
            "serviceAccountName": "somebody",
            "restartPolicy": "Always",
        },
    })
}

fn pod() -> CommandPod {
    CommandPod::of(vec![file()], None).unwrap()
}

fn refusal(spoil: impl FnOnce(&mut Value)) -> String {
    let mut file = file();
    spoil(&mut file);
    format!("{:#}", CommandPod::of(vec![file], None).unwrap_err())
}

#[test]
fn what_the_file_says_is_kept_and_the_pod_is_held_and_goes() {
    let body = pod().body("app-1", "team", &["node-1", "node-2"]);
    assert_eq!(body["metadata"]["name"], "app-1");
    assert_eq!(body["metadata"]["labels"], json!({ "app": "x", "stowage.dev/run": "true" }));
    assert_eq!(body["metadata"]["annotations"]["note"], "y");
    assert!(body["metadata"]["finalizers"].is_null(), "nobody would remove it, and the pod would stay");
    let spec = &body["spec"];
    assert_eq!((&spec["serviceAccountName"], &spec["restartPolicy"]), (&json!("somebody"), &json!("Never")));
    assert_eq!(spec["volumes"], file()["spec"]["volumes"]);
    assert_eq!(spec["containers"][0]["volumeMounts"], file()["spec"]["containers"][0]["volumeMounts"]);
    assert_eq!(spec["containers"][0]["image"], IMAGE, "a pod without an image is none");
    assert!(spec["automountServiceAccountToken"].is_null(), "as the cluster has it");
    let held = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1", "node-2"] }]);
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(required["nodeSelectorTerms"], json!([{ "matchExpressions": held }]));
}

#[test]
fn each_of_the_files_own_terms_is_held_too() {
    let mut file = file();
    let zone = |name: &str| json!({ "key": "zone", "operator": "In", "values": [name] });
    let terms = json!([{ "matchExpressions": [zone("a")] }, { "matchFields": [] }]);
    file["spec"]["affinity"] = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
    let body = CommandPod::of(vec![file], None).unwrap().body("app-1", "team", &["node-1"]);
    let terms = &body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = terms["nodeSelectorTerms"].as_array().unwrap();
    assert_eq!(terms.len(), 2);
    for term in terms {
        let last = term["matchExpressions"].as_array().unwrap().last().unwrap();
        assert_eq!(last["key"], "kubernetes.io/hostname");
    }
    assert_eq!(terms[0]["matchExpressions"][0], zone("a"));
}

#[test]
fn a_file_that_is_not_one_pod_is_refused_with_what_it_has() {
    let refused = |objects: Vec<Value>| format!("{:#}", CommandPod::of(objects, None).unwrap_err());
    assert!(refused(vec![]).contains("no object"));
    let several = refused(vec![json!({ "kind": "ConfigMap" }), file()]);
    assert!(several.contains("2 objects (ConfigMap, Pod)") && several.contains("kubectl"), "{several}");
    let other = refused(vec![json!({ "apiVersion": "apps/v1", "kind": "Deployment" })]);
    assert!(other.contains("\"apps/v1\" \"Deployment\""), "{other}");
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    type Spoil = fn(&mut Value);
    let table: [(Spoil, &str); 14] = [
        (
            |file| file["spec"] = Value::Null,
            "spec is missing, or not a map; write for example `spec: {containers: [{name: main",
        ),
        (|file| file["metadata"] = json!("x"), "metadata is not a map; write for example `metadata: {name: web"),
        (|file| file["spec"]["containers"] = Value::Null, "spec.containers is empty"),
        (|file| file["spec"]["containers"] = json!({}), "spec.containers is not a list"),
        (|file| file["spec"]["volumes"] = json!("x"), "spec.volumes is not a list"),
        (|file| mount(file)["mountPath"] = Value::Null, "spec.containers[0].volumeMounts[0].mountPath is missing"),
        (|file| mount(file)["mountPath"] = json!(7), "volumeMounts[0].mountPath is not a text"),
        (|file| mount(file)["mountPath"] = json!("srv"), "volumeMounts[0].mountPath: path \"srv\" must be absolute"),
        (|file| mount(file)["mountPath"] = json!("/"), "volumeMounts[0].mountPath: nothing can be mounted at"),
        (|file| mount(file)["mountPath"] = json!("/a/.."), "plain names"),
        (|file| mount(file)["mountPath"] = json!("/config/"), "volumeMounts[1].mountPath: \"/config\" is there twice"),
        (|file| mount(file)["name"] = json!("other"), "volumeMounts[0].name: spec.volumes has no \"other\""),
        (|file| mount(file)["mountPropagation"] = json!("Bidirectional"), "volumeMounts[0].mountPropagation"),
        (
            |file| file["spec"]["containers"][0]["volumeDevices"][0]["devicePath"] = json!(""),
            "volumeDevices[0].devicePath is missing",
        ),
    ];
    for (spoil, says) in table {
        let refusal = refusal(spoil);
        assert!(refusal.contains(says), "{says}: {refusal}");
    }
}

fn mount(file: &mut Value) -> &mut Value {
    &mut file["spec"]["containers"][0]["volumeMounts"][0]
}

#[test]
fn of_several_containers_one_is_named() {
    let mut file = file();
    file["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": "side" }));
    let choose = |name: Option<&str>| CommandPod::of(vec![file.clone()], name);
    assert_eq!(choose(Some("side")).unwrap().container(), "side");
    let which = choose(None).unwrap_err().to_string();
    assert!(which.contains("main, side") && which.contains("--container"), "{which}");
    let none = choose(Some("other")).unwrap_err().to_string();
    assert!(none.contains("\"other\"") && none.contains("main, side"), "{none}");
}

#[test]
fn its_claims_are_known_with_their_form_and_those_of_the_command_line_are_added() {
    let mut pod = pod();
    pod.add_claim(0, &"data/part:/srv:ro".parse().unwrap(), false).unwrap();
    pod.add_claim(1, &"raw:/dev/raw".parse().unwrap(), true).unwrap();
    let claims: Vec<(String, bool)> = pod.claims().into_iter().map(|claim| (claim.name, claim.is_block)).collect();
    let expected = [("files", false), ("device", true), ("data", false), ("raw", true)];
    assert_eq!(claims, expected.map(|(name, is_block)| (name.to_owned(), is_block)));
    let container = &pod.body("n", "team", &[])["spec"]["containers"][0];
    let added = json!({ "name": "stowage-run-0", "mountPath": "/srv", "readOnly": true, "subPath": "part" });
    assert_eq!(container["volumeMounts"][2], added);
    assert_eq!(container["volumeDevices"][1], json!({ "name": "stowage-run-1", "devicePath": "/dev/raw" }));
}

#[test]
fn a_claim_where_something_is_already_is_refused_and_so_is_a_part_of_a_device() {
    for (claim, is_block, says) in
        [("data:/config/", false, "already"), ("data:/dev/xvda", false, "already"), ("raw/a:/dev/b", true, "no parts")]
    {
        let error = pod().add_claim(0, &claim.parse().unwrap(), is_block).unwrap_err().to_string();
        assert!(error.contains(says), "{claim}: {error}");
    }
}

#[test]
fn namespace_and_node_may_be_said_once_or_twice_the_same() {
    assert_eq!(pod().namespace(None).unwrap(), "team");
    assert_eq!(pod().namespace(Some("team")).unwrap(), "team");
    assert!(pod().namespace(Some("other")).unwrap_err().to_string().contains("metadata.namespace team"));
    assert_eq!(CommandPod::of_claims().namespace(None).unwrap(), "default");
    assert_eq!(pod().node(Some("node-2")).unwrap().as_deref(), Some("node-2"));
    let mut file = file();
    file["spec"]["nodeName"] = json!("node-1");
    let pod = CommandPod::of(vec![file], None).unwrap();
    assert_eq!(pod.node(None).unwrap().as_deref(), Some("node-1"));
    assert!(pod.node(Some("node-2")).is_err());
    assert_eq!(pod.body("n", "team", &["node-1"])["spec"]["nodeName"], "node-1");
}

#[test]
fn its_name_is_nobody_elses_and_fits() {
    assert_eq!(pod().name("0a1b"), "app-0a1b");
    assert_eq!(CommandPod::of_claims().name("0a1b"), "run-0a1b");
    let mut file = file();
    file["metadata"] = json!({ "name": "a".repeat(200) });
    assert_eq!(CommandPod::of(vec![file], None).unwrap().name("0a1b").len(), 63);
}
