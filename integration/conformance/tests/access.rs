//! Who may come in, and who may do what.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::{World, rule};
use kube::Client;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}";
const ACCOUNTS: &str = "/api/v1/namespaces/{ns}/serviceaccounts";

async fn grant(world: &World, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": user}, "rules": rules});
    world.works("POST", &format!("{RBAC}/roles"), role).await;
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    world.works("POST", &format!("{RBAC}/rolebindings"), binding).await;
}

/// Roles take effect when the server has seen them: asked again until then, as every client must.
async fn until_allowed(world: &World, client: &Client, path: &str) {
    while world.call_by(client, "GET", path, Value::Null).await.code == 403 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_token_that_is_not_known_opens_nothing() {
    rule(async |world| {
        let stranger = world.with_token(Some("nonsense")).await;
        let answer = world.call_by(&stranger, "GET", MAPS, Value::Null).await;
        assert_eq!((answer.code, &answer.json()["reason"]), (401, &json!("Unauthorized")));
    })
    .await;
}

#[tokio::test]
async fn anyone_may_ask_about_health() {
    rule(async |world| {
        let nobody = world.with_token(None).await;
        for path in ["/healthz", "/livez", "/readyz"] {
            let answer = world.call_by(&nobody, "GET", path, Value::Null).await;
            assert_eq!((answer.code, &answer.bytes[..]), (200, &b"ok"[..]), "{path}");
        }
        let code = world.call_by(&nobody, "GET", MAPS, Value::Null).await.code;
        assert!(matches!(code, 401 | 403), "{code}");
    })
    .await;
}

#[tokio::test]
async fn a_role_allows_what_it_says_and_no_more() {
    rule(async |world| {
        world.map("a").await;
        let alice = world.acting_as("alice").await;
        let answer = world.call_by(&alice, "GET", MAPS, Value::Null).await;
        assert_eq!(answer.code, 403);
        let expected = world.path(
            r#"configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" in the namespace "{ns}""#,
        );
        assert_eq!(answer.json()["message"], expected);
        grant(&world, "alice", json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]}])).await;
        until_allowed(&world, &alice, MAPS).await;
        assert_eq!(world.call_by(&alice, "GET", &format!("{MAPS}/a"), Value::Null).await.code, 200);
        assert_eq!(world.call_by(&alice, "DELETE", &format!("{MAPS}/a"), Value::Null).await.code, 403);
        assert_eq!(world.call_by(&alice, "GET", "/api/v1/configmaps", Value::Null).await.code, 403);
    })
    .await;
}

#[tokio::test]
async fn a_role_can_name_the_objects_it_is_about() {
    rule(async |world| {
        world.map("mine").await;
        let rules = json!([{
            "verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"],
        }]);
        grant(&world, "bob", rules).await;
        let bob = world.acting_as("bob").await;
        until_allowed(&world, &bob, &format!("{MAPS}/mine")).await;
        assert_eq!(world.call_by(&bob, "GET", &format!("{MAPS}/other"), Value::Null).await.code, 403);
    })
    .await;
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    rule(async |world| {
        let rules = json!([
            {"verbs": ["create", "get"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]},
        ]);
        grant(&world, "carol", rules).await;
        let carol = world.acting_as("carol").await;
        until_allowed(&world, &carol, &format!("{RBAC}/roles/carol")).await;
        let role = |name: &str, verb: &str| {
            json!({"metadata": {"name": name}, "rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]})
        };
        let roles = format!("{RBAC}/roles");
        assert_eq!(world.call_by(&carol, "POST", &roles, role("same", "get")).await.code, 201);
        let answer = world.call_by(&carol, "POST", &roles, role("more", "delete")).await;
        assert_eq!(answer.code, 403);
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("attempting to grant RBAC permissions not currently held"), "{message}");
        world.works("POST", &roles, role("strong", "delete")).await;
        let binding = json!({
            "metadata": {"name": "strong"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "strong"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "carol"}],
        });
        assert_eq!(world.call_by(&carol, "POST", &format!("{RBAC}/rolebindings"), binding).await.code, 403);
    })
    .await;
}

#[tokio::test]
async fn access_reviews_answer_without_doing() {
    rule(async |world| {
        grant(&world, "dave", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}])).await;
        let dave = world.acting_as("dave").await;
        until_allowed(&world, &dave, &format!("{MAPS}/none")).await;
        let attributes = |verb: &str| json!({"verb": verb, "resource": "configmaps", "namespace": world.namespace});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        for (verb, allowed) in [("get", true), ("delete", false)] {
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes(verb)},
            });
            let answer = world.call_by(&dave, "POST", path, review).await;
            assert_eq!((answer.code, &answer.json()["status"]["allowed"]), (201, &json!(allowed)), "{verb}");
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": "dave", "resourceAttributes": attributes("get")},
        });
        let answer = world.works("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await;
        assert_eq!(answer["status"]["allowed"], true);
    })
    .await;
}

#[tokio::test]
async fn a_service_account_gets_tokens_that_name_it_and_are_for_their_audience() {
    rule(async |world| {
        world.works("POST", ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600},
        });
        let path = format!("{ACCOUNTS}/robot/token");
        let made = world.call("POST", &path, request.clone()).await;
        assert_eq!(made.code, 201);
        let token = made.json()["status"]["token"].as_str().unwrap().to_owned();
        assert!(made.json()["status"]["expirationTimestamp"].is_string());
        let robot = world.with_token(Some(&token)).await;
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let me = world.call_by(&robot, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review).await;
        let name = world.path("system:serviceaccount:{ns}:robot");
        assert_eq!(me.json()["status"]["userInfo"]["username"], name);
        let reviewed = async |token: &str, audiences: Value| {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "spec": {"token": token, "audiences": audiences},
            });
            world.works("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).await["status"].clone()
        };
        assert_eq!(reviewed(&token, Value::Null).await["user"]["username"], name);
        assert_ne!(reviewed(&token, json!(["vault"])).await["authenticated"], true);
        let mut other = request.clone();
        other["spec"]["audiences"] = json!(["vault"]);
        let other = world.works("POST", &path, other).await["status"]["token"].as_str().unwrap().to_owned();
        assert_eq!(reviewed(&other, json!(["vault"])).await["authenticated"], true);
        let code = world.call_by(&world.with_token(Some(&other)).await, "GET", MAPS, Value::Null).await.code;
        assert_eq!(code, 401, "a token for another audience opens nothing here");
        let mut short = request;
        short["spec"]["expirationSeconds"] = json!(60);
        world.refused(422, "POST", &path, short).await;
        world.works("DELETE", &format!("{ACCOUNTS}/robot"), Value::Null).await;
        assert_ne!(reviewed(&token, Value::Null).await["authenticated"], true, "its account is gone");
    })
    .await;
}

#[tokio::test]
async fn kubectl_auth_answers() {
    rule(async |world| {
        let Some((ok, answer)) = world.kubectl(&["auth", "can-i", "delete", "pods"], "").await else { return };
        assert!(ok && answer.trim() == "yes", "{answer}");
        let asked = ["auth", "can-i", "delete", "pods", "--as=eve"];
        let (ok, answer) = world.kubectl(&asked, "").await.unwrap();
        assert!(!ok && answer.trim() == "no", "{answer}");
        let (ok, answer) = world.kubectl(&["auth", "whoami"], "").await.unwrap();
        assert!(ok && answer.contains("system:authenticated"), "{answer}");
        let (ok, answer) = world.kubectl(&["auth", "can-i", "--list"], "").await.unwrap();
        assert!(ok && answer.contains("*.*"), "{answer}");
        world.works("POST", ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
        let (ok, token) = world.kubectl(&["create", "token", "robot"], "").await.unwrap();
        assert!(ok && token.matches('.').count() == 2, "{token}");
    })
    .await;
}
