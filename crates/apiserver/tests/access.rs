//! Who may do what, as users of the API see it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{Options, Server, User};
use tower::ServiceExt as _;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

struct World {
    server: Server,
    seconds: Arc<AtomicI64>,
}

impl World {
    fn new() -> Self {
        let seconds = Arc::new(AtomicI64::new(1_700_000_000));
        let clock = seconds.clone();
        let mut next = 0_u128;
        let server = Server::in_memory(Options {
            clock: Arc::new(move || jiff::Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap()),
            ids: Box::new(move || {
                next += 1;
                next
            }),
            window: 100,
            bookmark_interval: Duration::from_secs(60),
        });
        Self { server, seconds }
    }

    async fn with_roles() -> Self {
        let world = Self::new();
        world.server.enable_rbac().await.unwrap();
        world
    }

    async fn call(&self, user: &str, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let user = if user == "root" { User::new("root", ["system:masters"]) } else { User::new(user, ["people"]) };
        self.call_as(user, method, path, body, &[]).await
    }

    async fn call_as(
        &self,
        user: User,
        method: Method,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> (StatusCode, Value) {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let patch = method == Method::PATCH;
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if patch {
            request = request.header("content-type", "application/merge-patch+json");
        }
        let response = self.server.service_as(user).oneshot(request.body(Full::new(body)).unwrap()).await.unwrap();
        let code = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Does something as the administrator that must work.
    async fn root(&self, method: Method, path: &str, body: Value) -> Value {
        let (code, answer) = self.call("root", method, path, body).await;
        assert!(code.is_success(), "{answer}");
        answer
    }

    async fn role(&self, name: &str, rules: Value) {
        self.root(Method::POST, &format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules}))
            .await;
    }

    async fn bind(&self, user: &str, role: &str) {
        let binding = json!({
            "metadata": {"name": format!("{user}-{role}")}, "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": user}],
        });
        self.root(Method::POST, &format!("{RBAC}/clusterrolebindings"), binding).await;
    }

    async fn can(&self, user: &str, resource: Value) -> bool {
        let review = json!({"spec": {"resourceAttributes": resource}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let (code, answer) = self.call(user, Method::POST, path, review).await;
        assert_eq!(code, StatusCode::CREATED, "{answer}");
        answer["status"]["allowed"].as_bool().unwrap()
    }
}

fn read_maps() -> Value {
    json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]}])
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn without_a_role_nothing_is_allowed_and_with_one_only_what_it_says() {
    let world = World::with_roles().await;
    let (code, status) = world.call("alice", Method::GET, MAPS, Value::Null).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert_eq!(
        status["message"],
        r#"configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" in the namespace "default""#
    );
    world.role("reader", read_maps()).await;
    world.bind("alice", "reader").await;
    assert_eq!(world.call("alice", Method::GET, MAPS, Value::Null).await.0, StatusCode::OK);
    let map = json!({"metadata": {"name": "a"}});
    assert_eq!(world.call("alice", Method::POST, MAPS, map.clone()).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("bob", Method::GET, MAPS, Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("root", Method::POST, MAPS, map).await.0, StatusCode::CREATED);
    assert_eq!(world.call("alice", Method::GET, "/metrics", Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("alice", Method::GET, "/apis", Value::Null).await.0, StatusCode::OK, "discovery is for all");
    world.root(Method::DELETE, &format!("{RBAC}/clusterrolebindings/alice-reader"), Value::Null).await;
    assert_eq!(world.call("alice", Method::GET, MAPS, Value::Null).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn without_roles_switched_on_everyone_known_may_everything() {
    let world = World::new();
    assert_eq!(world.call("alice", Method::GET, MAPS, Value::Null).await.0, StatusCode::OK);
    assert!(world.can("alice", json!({"verb": "delete", "resource": "nodes"})).await);
}

#[tokio::test]
async fn a_role_can_name_objects() {
    let world = World::with_roles().await;
    let rules = json!([{
        "verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"],
    }]);
    world.role("mine", rules).await;
    world.bind("alice", "mine").await;
    world.root(Method::POST, MAPS, json!({"metadata": {"name": "mine"}})).await;
    assert_eq!(world.call("alice", Method::GET, &format!("{MAPS}/mine"), Value::Null).await.0, StatusCode::OK);
    assert_eq!(world.call("alice", Method::GET, &format!("{MAPS}/other"), Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("alice", Method::GET, MAPS, Value::Null).await.0, StatusCode::FORBIDDEN);
    let one = format!("{MAPS}?fieldSelector=metadata.name%3Dmine");
    assert_eq!(world.call("alice", Method::GET, &one, Value::Null).await.0, StatusCode::OK);
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let world = World::with_roles().await;
    world
        .role(
            "role-writer",
            json!([{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"],
                    "resources": ["clusterroles", "clusterrolebindings"]}]),
        )
        .await;
    world.role("reader", read_maps()).await;
    world.bind("alice", "reader").await;
    // `*` is also `escalate` and `bind`; writing alone is neither.
    world
        .role(
            "careful",
            json!([{"verbs": ["create", "update", "patch"], "apiGroups": ["rbac.authorization.k8s.io"],
                    "resources": ["clusterroles", "clusterrolebindings"]}]),
        )
        .await;
    world.bind("alice", "careful").await;
    let roles = format!("{RBAC}/clusterroles");
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let (code, _) = world.call("alice", Method::POST, &roles, role("same", read_maps())).await;
    assert_eq!(code, StatusCode::CREATED, "what is held may be passed on");
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let (code, status) = world.call("alice", Method::POST, &roles, role("more", all.clone())).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(status["message"].as_str().unwrap().contains("not currently held"), "{status}");
    let more = json!({"rules": all});
    assert_eq!(
        world.call("alice", Method::PATCH, &format!("{roles}/same"), more.clone()).await.0,
        StatusCode::FORBIDDEN
    );
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(world.call("alice", Method::PATCH, &format!("{roles}/cluster-admin"), labels).await.0, StatusCode::OK);
    let bindings = format!("{RBAC}/clusterrolebindings");
    let binding = |role: &str| {
        json!({"metadata": {"name": format!("to-{role}")}, "roleRef": {"kind": "ClusterRole", "name": role},
               "subjects": [{"kind": "User", "name": "alice"}]})
    };
    assert_eq!(world.call("alice", Method::POST, &bindings, binding("reader")).await.0, StatusCode::CREATED);
    assert_eq!(world.call("alice", Method::POST, &bindings, binding("cluster-admin")).await.0, StatusCode::FORBIDDEN);
    world.bind("alice", "role-writer").await;
    assert_eq!(world.call("alice", Method::PATCH, &format!("{roles}/same"), more).await.0, StatusCode::OK);
    assert_eq!(world.call("alice", Method::POST, &bindings, binding("cluster-admin")).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn aggregated_roles_follow_their_parts() {
    let world = World::with_roles().await;
    let view = world.root(Method::GET, &format!("{RBAC}/clusterroles/view"), Value::Null).await;
    let admin = world.root(Method::GET, &format!("{RBAC}/clusterroles/admin"), Value::Null).await;
    assert!(!view["rules"].as_array().unwrap().is_empty());
    assert!(admin["rules"].as_array().unwrap().contains(&view["rules"][0]), "admin has what edit has what view has");
    world.bind("alice", "view").await;
    let snapshots = json!({"verb": "list", "group": "snapshot.storage.k8s.io", "resource": "volumesnapshots"});
    assert!(!world.can("alice", snapshots.clone()).await);
    let part = json!({
        "metadata": {"name": "snapshots", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["list"], "apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshots"]}],
    });
    world.root(Method::POST, &format!("{RBAC}/clusterroles"), part).await;
    assert!(world.can("alice", snapshots.clone()).await);
    world.root(Method::DELETE, &format!("{RBAC}/clusterroles/snapshots"), Value::Null).await;
    assert!(!world.can("alice", snapshots).await);
}

#[tokio::test]
async fn reviews_answer_for_oneself_and_for_others() {
    let world = World::with_roles().await;
    world.role("reader", read_maps()).await;
    world.bind("alice", "reader").await;
    let list = json!({"verb": "list", "resource": "configmaps", "namespace": "default"});
    assert!(world.can("alice", list.clone()).await);
    assert!(!world.can("bob", list.clone()).await);
    let review = json!({"spec": {"user": "alice", "resourceAttributes": list}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = world.root(Method::POST, path, review.clone()).await;
    assert_eq!(answer["status"]["allowed"], true);
    assert!(answer["status"]["reason"].as_str().unwrap().contains("reader"), "{answer}");
    assert_eq!(world.call("bob", Method::POST, path, review).await.0, StatusCode::FORBIDDEN);
    let rules = json!({"spec": {"namespace": "default"}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let (_, answer) = world.call("alice", Method::POST, path, rules).await;
    let rules = answer["status"]["resourceRules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["resources"] == json!(["configmaps"])), "{answer}");
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (_, answer) = world.call("alice", Method::POST, path, json!({})).await;
    assert_eq!(answer["status"]["userInfo"]["username"], "alice");
}

#[tokio::test]
async fn acting_as_somebody_else_needs_the_right_to() {
    let world = World::with_roles().await;
    let as_alice = [("impersonate-user", "alice")];
    let root = User::new("root", ["system:masters"]);
    let (code, status) = world.call_as(root, Method::GET, MAPS, Value::Null, &as_alice).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(status["message"].as_str().unwrap().contains("\"alice\" cannot list"), "{status}");
    let bob = User::new("bob", ["people"]);
    let (code, status) = world.call_as(bob, Method::GET, MAPS, Value::Null, &as_alice).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(status["message"].as_str().unwrap().contains("\"bob\" cannot impersonate"), "{status}");
}

#[tokio::test]
async fn somebody_with_a_name_of_another_script_is_that_one_and_not_the_caller() {
    let world = World::with_roles().await;
    let root = || User::new("root", ["system:masters"]);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [
        ("impersonate-user", "jörg"),
        ("impersonate-group", "größe"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-example.com%2fscope", "all"),
    ];
    let (_, answer) = world.call_as(root(), Method::POST, path, json!({}), &headers).await;
    let who = &answer["status"]["userInfo"];
    assert_eq!(who["username"], "jörg", "{answer}");
    assert_eq!(who["groups"], json!(["größe", "system:authenticated"]));
    assert_eq!((&who["uid"], &who["extra"]["example.com/scope"]), (&json!("7"), &json!(["all"])));
    let (code, _) = world.call_as(root(), Method::GET, MAPS, Value::Null, &[("impersonate-user", "jörg")]).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    let anonymous = [("impersonate-user", "system:anonymous")];
    let (code, _) = world.call_as(root(), Method::POST, path, json!({}), &anonymous).await;
    assert_eq!(code, StatusCode::FORBIDDEN, "system:basic-user is for those who are known");
}

#[tokio::test]
async fn who_may_view_a_namespace_may_get_it_and_no_other() {
    let world = World::with_roles().await;
    let binding = json!({"metadata": {"name": "v"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "alice"}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    world.root(Method::POST, path, binding).await;
    let get = |name: &str| format!("/api/v1/namespaces/{name}");
    assert_eq!(world.call("alice", Method::GET, &get("default"), Value::Null).await.0, StatusCode::OK);
    assert_eq!(world.call("alice", Method::GET, &get("kube-system"), Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("alice", Method::GET, "/api/v1/namespaces", Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.call("alice", Method::DELETE, &get("default"), Value::Null).await.0, StatusCode::FORBIDDEN);
}

async fn token(world: &World, spec: Value) -> (StatusCode, Value) {
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    world.call("root", Method::POST, path, json!({"spec": spec})).await
}

async fn review(world: &World, token: &Value, audiences: Value) -> Value {
    let body = json!({"spec": {"token": token, "audiences": audiences}});
    world.root(Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", body).await["status"].clone()
}

#[tokio::test]
async fn a_token_is_good_for_its_audience_until_it_expires_or_its_account_goes() {
    let world = World::new();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    world.root(Method::POST, accounts, json!({"metadata": {"name": "robot"}})).await;
    let (code, made) = token(&world, json!({"expirationSeconds": 600})).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    let good = &made["status"]["token"];
    let status = review(&world, good, json!(null)).await;
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:robot");
    assert!(status["user"]["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:default")));
    assert_eq!(review(&world, good, json!(["vault"])).await["authenticated"], false);
    let (_, other) = token(&world, json!({"audiences": ["vault"]})).await;
    assert_eq!(review(&world, &other["status"]["token"], json!(["vault"])).await["audiences"], json!(["vault"]));
    assert_eq!(review(&world, &other["status"]["token"], json!(null)).await["authenticated"], false);
    let mut forged = good.as_str().unwrap().to_owned();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'Q' } else { 'A' });
    assert_eq!(review(&world, &json!(forged), json!(null)).await["authenticated"], false);
    world.seconds.fetch_add(599, Ordering::Relaxed);
    assert_eq!(review(&world, good, json!(null)).await["authenticated"], true);
    world.seconds.fetch_add(1, Ordering::Relaxed);
    assert_eq!(review(&world, good, json!(null)).await["authenticated"], false);
    let (_, last) = token(&world, json!({})).await;
    world.root(Method::DELETE, &format!("{accounts}/robot"), Value::Null).await;
    world.root(Method::POST, accounts, json!({"metadata": {"name": "robot"}})).await;
    assert_eq!(review(&world, &last["status"]["token"], json!(null)).await["authenticated"], false, "another uid");
    assert_eq!(token(&world, json!({"expirationSeconds": 599})).await.0, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn a_token_bound_to_a_pod_ends_with_the_pod() {
    let world = World::new();
    world
        .root(Method::POST, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "robot"}}))
        .await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |account: &str| {
        json!({"metadata": {"name": format!("p-{account}")},
               "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}})
    };
    let made = world.root(Method::POST, pods, pod("robot")).await;
    world.root(Method::POST, pods, pod("other")).await;
    let bound = |name: &str, uid: &Value| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}});
    let (code, answer) = token(&world, bound("p-robot", &made["metadata"]["uid"])).await;
    assert_eq!(code, StatusCode::CREATED, "{answer}");
    let status = review(&world, &answer["status"]["token"], json!(null)).await;
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p-robot"]), "{status}");
    assert_eq!(token(&world, bound("p-robot", &json!("x"))).await.0, StatusCode::CONFLICT);
    assert_eq!(token(&world, bound("p-other", &Value::Null)).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(token(&world, bound("none", &Value::Null)).await.0, StatusCode::NOT_FOUND);
    world.root(Method::DELETE, &format!("{pods}/p-robot?gracePeriodSeconds=0"), Value::Null).await;
    assert_eq!(review(&world, &answer["status"]["token"], json!(null)).await["authenticated"], false);
}
