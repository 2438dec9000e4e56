use std::sync::Arc;

use stowage_model::Claim;
use stowage_model::object::Key;

use super::*;
use crate::cache::View;

fn line(kind: &str, name: &str, revision: u64) -> String {
    format!(
        r#"{{"type":"{kind}","object":{{"metadata":{{"namespace":"n","name":"{name}","uid":"u-{name}","resourceVersion":"{revision}"}}}}}}"#
    )
}

#[test]
fn events_move_the_cache_and_say_how_far_they_are() {
    let cache: Cache<Claim> = Cache::new();
    assert_eq!(take_line(&cache, &line("ADDED", "a", 3), 0).unwrap(), 3);
    assert_eq!(take_line(&cache, &line("MODIFIED", "a", 4), 0).unwrap(), 4);
    assert!(cache.get(&Key::namespaced("n", "a")).is_some());
    assert_eq!(take_line(&cache, &line("DELETED", "a", 5), 0).unwrap(), 5);
    assert!(cache.is_empty());
    assert_eq!(
        take_line(&cache, r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#, 0).unwrap(),
        9
    );
}

#[test]
fn a_line_is_read_in_any_order_and_one_that_is_cut_off_is_no_object() {
    let cache: Cache<Claim> = Cache::new();
    let whole = line("MODIFIED", "a", 4);
    let spaced = whole.replace("\"object\":", " \"object\" : ");
    assert_eq!(take_line(&cache, &spaced, 0).unwrap(), 4);
    let object = whole.strip_prefix(r#"{"type":"MODIFIED","#).unwrap().strip_suffix('}').unwrap();
    assert_eq!(take_line(&cache, &format!(r#"{{{object},"type":"MODIFIED"}}"#), 0).unwrap(), 4);
    for length in 0..whole.len() {
        assert!(matches!(take_line(&cache, &whole[..length], 0), Err(Error::Decode { .. })), "{}", &whole[..length]);
    }
}

#[test]
fn one_unreadable_object_is_unknown_and_the_watch_goes_on() {
    let cache: Cache<Claim> = Cache::new();
    let bad = r#"{"type":"ADDED","object":{"metadata":{"name":"bad","resourceVersion":"x"}}}"#;
    assert_eq!(take_line(&cache, bad, 0).unwrap(), 0);
    let odd = line("MODIFIED", "a", 2).replace(r#""2"}"#, r#""2"},"spec":{"resources":7}"#);
    assert_eq!(take_line(&cache, &odd, 0).unwrap(), 2);
    assert_eq!(cache.view(&Key::namespaced("n", "a")), View::Unknown);
    assert_eq!(take_line(&cache, &odd.replace("MODIFIED", "DELETED"), 0).unwrap(), 2);
    assert_eq!(cache.view(&Key::namespaced("n", "a")), View::Absent);
    assert_eq!(take_line(&cache, &line("ADDED", "a", 3), 0).unwrap(), 3);
}

#[test]
fn a_forgotten_revision_asks_for_a_new_list() {
    let cache: Cache<Claim> = Cache::new();
    let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;
    assert!(matches!(take_line(&cache, gone, 7), Err(Error::Expired(7))));
    let ahead = r#"{"type":"ERROR","object":{"kind":"Status","code":504,"message":"Too large resource version: 9, current: 3"}}"#;
    assert!(matches!(take_line(&cache, ahead, 7), Err(Error::Expired(7))));
    let other = r#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":"no"}}"#;
    assert!(matches!(take_line(&cache, other, 7), Err(Error::Ended { code: 500, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_brings_nothing_but_errors_is_given_up_for_a_list() {
    let asked: Arc<std::sync::Mutex<Vec<bool>>> = Arc::default();
    let service = tower::service_fn({
        let asked = Arc::clone(&asked);
        move |request: Request<kube::client::Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            asked.lock().unwrap().push(is_watch);
            let body = if is_watch {
                "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":500,\"message\":\"no\"}}\n"
            } else {
                r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#
            };
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            async move { Ok::<_, std::io::Error>(http::Response::new(body)) }
        }
    });
    let api = Api::new(kube::Client::new(service, "default"));
    let fed = feed(api, Cache::<Claim>::new(), Scope::all(), Random::seeded(1));
    let _ = timeout(Duration::from_secs(30), fed).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked[..5], [false, true, true, true, false]);
    assert!(asked.len() < 25, "{} requests in half a minute", asked.len());
}

/// The first list made the cache synced, and the watch was refused from then on: nothing that came later was ever seen.
#[tokio::test(start_paused = true)]
async fn a_kind_that_may_be_listed_and_not_watched_is_listed_again_and_again() {
    for code in [403, 404, 405] {
        let asked: Arc<std::sync::Mutex<Vec<bool>>> = Arc::default();
        let service = tower::service_fn({
            let asked = Arc::clone(&asked);
            move |request: Request<kube::client::Body>| {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                asked.lock().unwrap().push(is_watch);
                let lists = asked.lock().unwrap().iter().filter(|is_watch| !**is_watch).count();
                let (status, body) = match is_watch {
                    true => (code, "no watch for you".to_owned()),
                    // One object more with each list.
                    false => {
                        let item =
                            |n| format!(r#"{{"metadata":{{"namespace":"n","name":"c{n}","resourceVersion":"{n}"}}}}"#);
                        let items: Vec<String> = (1..=lists).map(item).collect();
                        (
                            200,
                            format!(r#"{{"metadata":{{"resourceVersion":"{lists}"}},"items":[{}]}}"#, items.join(",")),
                        )
                    }
                };
                let response = http::Response::builder().status(status);
                let body = kube::client::Body::from(body.into_bytes());
                async move { Ok::<_, std::io::Error>(response.body(body).unwrap()) }
            }
        });
        let (api, cache) = (Api::new(kube::Client::new(service, "default")), Cache::<Claim>::new());
        let fed = feed(api, cache.clone(), Scope::all(), Random::seeded(1));
        let _ = timeout(Duration::from_secs(120), fed).await;
        let asked = asked.lock().unwrap();
        assert_eq!(asked[..6], [false, true, true, true, false, true], "{code}");
        assert!(!cache.is_followed(), "{code}");
        assert!(cache.len() >= 4, "{code}: {} objects were seen", cache.len());
        assert!(asked.len() < 30, "{code}: {} requests in two minutes", asked.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_followed_from_when_its_watch_is_let_in_until_one_is_refused() {
    let refuses = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let service = tower::service_fn({
        let refuses = Arc::clone(&refuses);
        move |request: Request<kube::client::Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let status = if is_watch && refuses.load(std::sync::atomic::Ordering::Relaxed) { 403 } else { 200 };
            let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"8\"}}}\n";
            let list = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;
            let body = kube::client::Body::from((if is_watch { bookmark } else { list }).as_bytes().to_vec());
            let response = http::Response::builder().status(status);
            async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok::<_, std::io::Error>(response.body(body).unwrap())
            }
        }
    });
    let (api, cache) = (Api::new(kube::Client::new(service, "default")), Cache::<Claim>::new());
    let mut fed = feed(api, cache.clone(), Scope::all(), Random::seeded(1));
    let mut after = async |seconds: u64| {
        let _ = timeout(Duration::from_secs(seconds), &mut fed).await;
        (cache.is_synced(), cache.is_followed())
    };
    assert_eq!([after(3).await, after(6).await], [(true, false), (true, true)]);
    refuses.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(after(10).await, (true, false));
}

#[test]
fn selectors_are_escaped() {
    let uri = request(Claim::KIND, &Scope::fields("spec.nodeName=a,b"), vec![]).uri().to_string();
    assert_eq!(uri, "/api/v1/persistentvolumeclaims?fieldSelector=spec.nodeName%3Da%2Cb");
}
