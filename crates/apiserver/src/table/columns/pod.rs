//! What a pod does, in one word, from what its containers do.

use jiff::Timestamp;
use serde_json::Value;

use super::list;
use crate::object::{filled, is_deleting, text};
use crate::table::age;

/// What the containers' states come to.
struct Seen {
    reason: String,
    ready: usize,
    total: usize,
    restarts: Restarts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += container.get("restartCount").and_then(Value::as_i64).unwrap_or(0);
        self.last = self.last.max(text(container, "/lastState/terminated/finishedAt").parse().ok());
    }
}

fn state<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    container.pointer(&format!("/state/{name}")).filter(|state| state.is_object())
}

fn ended(state: &Value, before: &str) -> String {
    let number = |name: &str| state.get(name).and_then(Value::as_i64).unwrap_or(0);
    match (text(state, "/reason"), number("signal")) {
        ("", 0) => format!("{before}ExitCode:{}", number("exitCode")),
        ("", signal) => format!("{before}Signal:{signal}"),
        (reason, _) => format!("{before}{reason}"),
    }
}

fn is_true(container: &Value, name: &str) -> bool {
    container.get(name) == Some(&Value::Bool(true))
}

fn has_condition(pod: &Value, condition: &str) -> bool {
    list(pod, "/status/conditions").any(|c| text(c, "/type") == condition && text(c, "/status") == "True")
}

fn look(pod: &Value) -> Seen {
    let (phase, why) = (text(pod, "/status/phase"), text(pod, "/status/reason"));
    let sidecars: Vec<&str> = list(pod, "/spec/initContainers")
        .filter(|c| text(c, "/restartPolicy") == "Always")
        .map(|c| text(c, "/name"))
        .collect();
    let mut seen = Seen {
        reason: if why.is_empty() { phase } else { why }.to_owned(),
        ready: 0,
        total: list(pod, "/spec/containers").count() + sidecars.len(),
        restarts: Restarts::default(),
    };
    let gated = |c: &Value| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated";
    if list(pod, "/status/conditions").any(gated) {
        seen.reason = "SchedulingGated".to_owned();
    }
    let mut of_sidecars = Restarts::default();
    let initializing = look_at_beginning(pod, &sidecars, &mut seen, &mut of_sidecars);
    if !initializing || has_condition(pod, "Initialized") {
        seen.restarts = of_sidecars;
        look_at_containers(pod, &mut seen);
    }
    if is_deleting(pod) && why == "NodeLost" {
        seen.reason = "Unknown".to_owned();
    } else if is_deleting(pod) && !matches!(phase, "Succeeded" | "Failed") {
        seen.reason = "Terminating".to_owned();
    }
    seen
}

/// Goes through the init containers up to the first that has not done its part; whether there is one.
fn look_at_beginning(pod: &Value, sidecars: &[&str], seen: &mut Seen, of_sidecars: &mut Restarts) -> bool {
    for (index, container) in list(pod, "/status/initContainerStatuses").enumerate() {
        let is_sidecar = sidecars.contains(&text(container, "/name"));
        seen.restarts.add(container);
        if is_sidecar {
            of_sidecars.add(container);
        }
        match (state(container, "terminated"), state(container, "waiting")) {
            (Some(end), _) if end.get("exitCode").and_then(Value::as_i64).unwrap_or(0) == 0 => continue,
            _ if is_sidecar && is_true(container, "started") => {
                seen.ready += usize::from(is_true(container, "ready"));
                continue;
            }
            (Some(end), _) => seen.reason = ended(end, "Init:"),
            (None, Some(waiting)) if !matches!(text(waiting, "/reason"), "" | "PodInitializing") => {
                seen.reason = format!("Init:{}", text(waiting, "/reason"));
            }
            _ => seen.reason = format!("Init:{index}/{}", list(pod, "/spec/initContainers").count()),
        }
        return true;
    }
    false
}

fn look_at_containers(pod: &Value, seen: &mut Seen) {
    let mut running = false;
    for container in list(pod, "/status/containerStatuses").rev() {
        seen.restarts.add(container);
        let waiting = state(container, "waiting").and_then(|w| filled(w, "/reason")).and_then(Value::as_str);
        match (waiting, state(container, "terminated")) {
            (Some(reason), _) => seen.reason = reason.to_owned(),
            (None, Some(end)) => seen.reason = ended(end, ""),
            (None, None) if is_true(container, "ready") && state(container, "running").is_some() => {
                running = true;
                seen.ready += 1;
            }
            (None, None) => {}
        }
    }
    if seen.reason == "Completed" && running {
        seen.reason = if has_condition(pod, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
}

pub(super) fn ready(pod: &Value) -> String {
    let seen = look(pod);
    format!("{}/{}", seen.ready, seen.total)
}

pub(super) fn status(pod: &Value) -> String {
    look(pod).reason
}

pub(super) fn restarts(pod: &Value, now: Timestamp) -> String {
    let Restarts { count, last } = look(pod).restarts;
    match last {
        Some(last) if count != 0 => format!("{count} ({} ago)", age(&last.to_string(), now)),
        _ => count.to_string(),
    }
}

pub(super) fn readiness_gates(pod: &Value) -> String {
    let gates: Vec<&Value> = list(pod, "/spec/readinessGates").collect();
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| has_condition(pod, text(gate, "/conditionType"))).count();
    format!("{open}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: Value) -> Value {
        json!({
            "metadata": {"name": "p"}, "status": status,
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
        })
    }

    #[test]
    fn a_pod_is_shown_as_its_containers_are() {
        let running = json!({"name": "a", "ready": true, "state": {"running": {}}});
        let init = |state: Value| json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": state}]});
        let first = |state: Value| json!({"phase": "Pending", "containerStatuses": [{"name": "a", "state": state}]});
        let done = json!({"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
        for (status_of, word) in [
            (json!({"phase": "Pending"}), "Pending"),
            (json!({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
            (init(json!({"running": {}})), "Init:0/1"),
            (init(json!({"terminated": {"exitCode": 3}})), "Init:ExitCode:3"),
            (first(json!({"waiting": {"reason": "ContainerCreating"}})), "ContainerCreating"),
            (json!({"phase": "Running", "containerStatuses": [running, done]}), "NotReady"),
        ] {
            assert_eq!(status(&pod(status_of.clone())), word, "{status_of}");
        }
    }

    #[test]
    fn restarts_are_counted_with_the_last_ones_age() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let status = json!({"phase": "Running", "containerStatuses": [
            {"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2026-01-01T00:30:00Z"}}},
        ]});
        assert_eq!(restarts(&pod(status.clone()), now), "2 (30m ago)");
        assert_eq!(ready(&pod(status)), "1/2");
    }
}
