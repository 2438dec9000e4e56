//! Who uses a VolumeAttributesClass, looked up live before nothing protects it any more.

use serde_json::Value;

use stowage_model::AttributesClass;
use stowage_model::object::Projection;
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Error;

use crate::watches::Caches;

/// Where a claim names classes: the wanted one, the current one, and the one it is on the way to.
const OF_CLAIM: [&str; 3] = [
    "/spec/volumeAttributesClassName",
    "/status/currentVolumeAttributesClassName",
    "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
];

const OF_VOLUME: [&str; 1] = ["/spec/volumeAttributesClassName"];

/// An object may use the class, which is kept.
#[derive(Debug, thiserror::Error)]
#[error("the class is kept: {user}, which may use it, cannot be read: {source}")]
struct UnreadableUser {
    user: String,
    source: serde_json::Error,
}

/// Fails if a claim or a volume uses the class, or may do so.
pub async fn look_for_users(api: &Api, caches: &Caches, class: &AttributesClass) -> Result<(), Error> {
    look(api, &caches.claims, &OF_CLAIM, &class.meta.name).await?;
    look(api, &caches.volumes, &OF_VOLUME, &class.meta.name).await
}

async fn look<T: Projection>(api: &Api, cache: &Cache<T>, members: &[&str], class: &str) -> Result<(), Error> {
    let may_use =
        |object: &Value| members.iter().any(|member| object.pointer(member).is_some_and(|name| is(name, class)));
    let Some(found) = api.find_raw(T::KIND, may_use).await.map_err(Error::read("who uses the class"))? else {
        return Ok(());
    };
    let text = |member: &str| found["metadata"][member].as_str().unwrap_or_default();
    let user = format!("{} {}/{}", T::KIND.kind, text("namespace"), text("name"));
    match serde_json::from_value(found) {
        Ok(object) => {
            cache.observe(object);
            Err(Error::Stale("who uses the class"))
        }
        Err(source) => Err(Error::other(UnreadableUser { user, source })),
    }
}

/// A name in a form that nobody knows may be any.
fn is(name: &Value, class: &str) -> bool {
    match name {
        Value::Null => false,
        Value::String(name) => name == class,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn claim(name: &str, spec: Value) -> Value {
        let meta = json!({ "namespace": "n", "name": name, "uid": name, "resourceVersion": "7" });
        json!({ "metadata": meta, "spec": spec })
    }

    /// What a look at these pages of claims says, and what it asked for.
    async fn looked(pages: &[Vec<Value>]) -> (Result<(), Error>, Vec<String>, Caches) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (pages, log) = (pages.to_vec(), Arc::clone(&asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let uri = uri[uri.find("/api/").unwrap()..].to_owned();
            let at =
                uri.split_once("&continue=").map_or(0, |(_, at)| at.trim_start_matches("page%2F").parse().unwrap());
            log.lock().unwrap().push(uri.clone());
            let items = if uri.contains("claims") { pages[at].clone() } else { vec![] };
            let next =
                if uri.contains("claims") && at + 1 < pages.len() { format!("page/{}", at + 1) } else { String::new() };
            let body = json!({ "metadata": { "continue": next }, "items": items }).to_string();
            async move { Ok::<_, std::io::Error>(Response::new(Body::from(body.into_bytes()))) }
        });
        let (api, caches) = (Api::new(kube::Client::new(service, "default")), Caches::default());
        let class = json!({ "metadata": { "name": "gold" }, "driverName": "d" });
        let result = look_for_users(&api, &caches, &serde_json::from_value(class).unwrap()).await;
        let asked = asked.lock().unwrap().clone();
        (result, asked, caches)
    }

    #[tokio::test]
    async fn a_class_that_nobody_uses_is_looked_for_on_every_page() {
        let others = || vec![claim("a", json!({})), claim("b", json!({ "volumeAttributesClassName": "silver" }))];
        let (result, asked, _) = looked(&[others(), others()]).await;
        assert!(result.is_ok(), "{result:?}");
        let claims = "/api/v1/persistentvolumeclaims?limit=500";
        let second = format!("{claims}&continue=page%2F1");
        assert_eq!(asked, [claims, second.as_str(), "/api/v1/persistentvolumes?limit=500"]);
    }

    #[tokio::test]
    async fn the_look_ends_with_the_first_user_which_is_known_from_then_on() {
        let user = || claim("user", json!({ "volumeAttributesClassName": "gold" }));
        let (result, asked, caches) = looked(&[vec![claim("a", json!({})), user()], vec![user()]]).await;
        assert!(matches!(result, Err(Error::Stale(_))), "{result:?}");
        assert_eq!(asked, ["/api/v1/persistentvolumeclaims?limit=500"]);
        assert_eq!(caches.claims.keys()[0].name, "user");
    }

    #[tokio::test]
    async fn a_claim_that_cannot_be_read_counts_only_if_it_may_name_the_class() {
        let odd = |class: Value| {
            let mut odd = claim("odd", json!({ "volumeAttributesClassName": class }));
            odd["metadata"]["finalizers"] = "not a list".into();
            odd
        };
        let (result, ..) = looked(&[vec![odd("silver".into()), odd(Value::Null)]]).await;
        assert!(result.is_ok(), "{result:?}");
        for class in [json!("gold"), json!({ "newer": "form" })] {
            let (result, ..) = looked(&[vec![odd(class)]]).await;
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Other(_)) && error.to_string().contains("n/odd"), "{error}");
        }
    }
}
