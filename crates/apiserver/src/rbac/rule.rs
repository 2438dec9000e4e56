//! One rule of a role, and what a request must show to be covered by it.

use serde::Deserialize;
use serde_json::{Value, json};

/// What somebody wants to do, as authorisation sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// Something to objects.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        /// Empty for cluster-wide kinds and all namespaces.
        namespace: &'a str,
        /// Empty for collections.
        name: &'a str,
    },
    /// Something to a path that is no object.
    Path { verb: &'a str, path: &'a str },
}

impl Request<'_> {
    /// `resource` or `resource/subresource`.
    pub fn whole_resource(&self) -> String {
        match *self {
            Self::Resource { resource, subresource: "", .. } => resource.to_owned(),
            Self::Resource { resource, subresource, .. } => format!("{resource}/{subresource}"),
            Self::Path { .. } => String::new(),
        }
    }

    pub fn namespace(&self) -> &str {
        match self {
            Self::Resource { namespace, .. } => namespace,
            Self::Path { .. } => "",
        }
    }
}

/// A policy rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    /// The rules of a role; ones that cannot be read grant nothing.
    pub fn all_of(role: &Value) -> Vec<Self> {
        let rules = role.get("rules").and_then(Value::as_array).into_iter().flatten();
        rules.filter_map(|rule| Self::deserialize(rule).ok()).collect()
    }

    pub fn allows(&self, request: &Request<'_>) -> bool {
        match *request {
            Request::Resource { verb, group, resource, subresource, name, .. } => {
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && self.covers_resource(resource, subresource)
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == name))
            }
            Request::Path { verb, path } => has(&self.verbs, verb) && self.covers_path(path),
        }
    }

    fn covers_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| match rule.split_once('/') {
            _ if rule == "*" => true,
            None => subresource.is_empty() && rule == resource,
            Some(("*", part)) => part == subresource && !subresource.is_empty(),
            Some((whole, part)) => whole == resource && part == subresource,
        })
    }

    fn covers_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|rule| match rule.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => rule == path,
        })
    }

    /// The rule in pieces of one verb on one resource, name or path: somebody who has all of them has the rule.
    fn pieces(&self) -> Vec<Self> {
        let mut pieces = Vec::new();
        let one = |text: &str| vec![text.to_owned()];
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let piece =
                        Self { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Self::default() };
                    if self.resource_names.is_empty() {
                        pieces.push(piece);
                        continue;
                    }
                    let named = |name: &String| Self { resource_names: one(name), ..piece.clone() };
                    pieces.extend(self.resource_names.iter().map(named));
                }
            }
            let path = |url: &String| Self { verbs: one(verb), non_resource_urls: one(url), ..Self::default() };
            pieces.extend(self.non_resource_urls.iter().map(path));
        }
        pieces
    }

    fn count_pieces(&self) -> usize {
        let names = self.resource_names.len().max(1);
        let each = [self.api_groups.len(), self.resources.len(), names].into_iter().fold(1, usize::saturating_mul);
        self.verbs.len().saturating_mul(each.saturating_add(self.non_resource_urls.len()))
    }

    /// Whether this rule grants all of a single piece.
    fn grants(&self, piece: &Self) -> bool {
        let first = |list: &[String]| list.first().cloned().unwrap_or_default();
        if !has(&self.verbs, &first(&piece.verbs)) {
            return false;
        }
        if let Some(url) = piece.non_resource_urls.first() {
            // A piece that ends in a star is covered by a shorter prefix only.
            return self.covers_path(url);
        }
        let resource = first(&piece.resources);
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        has(&self.api_groups, &first(&piece.api_groups))
            && self.covers_resource(resource, subresource)
            && (self.resource_names.is_empty()
                || piece.resource_names.first().is_some_and(|name| self.resource_names.contains(name)))
    }

    pub fn to_json(&self) -> Value {
        let mut rule = json!({"verbs": self.verbs});
        let lists = [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ];
        for (name, list) in lists {
            if !list.is_empty() {
                rule[name] = json!(list);
            }
        }
        rule
    }
}

/// Few bytes of lists make very many pieces: who grants more than these must have all rights, or the right to `escalate`.
const MAX_PIECES: usize = 100_000;

/// What of `wanted` nobody who has only `owned` may do; empty if all of it is covered.
pub(crate) fn uncovered(wanted: &[Rule], owned: &[Rule]) -> Vec<Rule> {
    let count = wanted.iter().fold(0_usize, |count, rule| count.saturating_add(rule.count_pieces()));
    if count > MAX_PIECES {
        return wanted.iter().take(1).cloned().collect();
    }
    let pieces = wanted.iter().flat_map(Rule::pieces);
    pieces.filter(|piece| !owned.iter().any(|rule| rule.grants(piece))).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(rule: Value) -> Rule {
        serde_json::from_value(rule).unwrap()
    }

    fn get<'a>(resource: &'a str, subresource: &'a str, name: &'a str) -> Request<'a> {
        Request::Resource { verb: "get", group: "", resource, subresource, namespace: "default", name }
    }

    #[test]
    fn a_rule_covers_resources_subresources_and_names() {
        let pods = rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}));
        assert!(pods.allows(&get("pods", "", "a")));
        assert!(!pods.allows(&get("pods", "status", "a")));
        assert!(!pods.allows(&get("secrets", "", "a")));
        let statuses = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/status"]}));
        assert!(statuses.allows(&get("pods", "status", "a")));
        assert!(!statuses.allows(&get("pods", "", "a")));
        let named = rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}));
        assert!(named.allows(&get("pods", "", "a")));
        assert!(!named.allows(&get("pods", "", "b")));
        assert!(!named.allows(&get("pods", "", "")), "a list is of no name");
    }

    #[test]
    fn paths_are_matched_whole_or_by_prefix() {
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/apis/*"]}));
        let get = |path| Request::Path { verb: "get", path };
        assert!(paths.allows(&get("/healthz")) && paths.allows(&get("/apis/apps")));
        assert!(!paths.allows(&get("/healthz/x")) && !paths.allows(&get("/api")));
    }

    #[test]
    fn a_rule_of_a_thousand_million_pieces_is_not_taken_apart() {
        let many: Vec<String> = (0..1000).map(|n| format!("x{n}")).collect();
        let wanted = rule(json!({"verbs": many, "apiGroups": many, "resources": many}));
        let owned = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert_eq!(uncovered(&[wanted], &[owned]).len(), 1);
    }

    #[test]
    fn what_is_not_owned_is_found_piece_by_piece() {
        let owned = [
            rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "secrets"]})),
            rule(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/*"]})),
        ];
        let wanted = rule(json!({"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]}));
        let missing = uncovered(&[wanted], &owned);
        assert_eq!((missing.len(), missing[0].verbs[0].as_str()), (1, "delete"));
        let named = rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}));
        assert!(uncovered(std::slice::from_ref(&named), &owned).is_empty());
        assert_eq!(uncovered(&owned, &[named]).len(), 5);
        let all = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert!(!uncovered(&[all], &owned).is_empty(), "a star is covered only by a star");
        let path = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/apps/*"]}));
        assert!(uncovered(&[path], &owned).is_empty());
    }
}
