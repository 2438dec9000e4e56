//! The JSON paths of printer columns: members, indexes, and elements chosen by the value of a member.

use serde_json::Value;

/// A path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Index(usize),
    Every,
    Where { member: Vec<String>, value: String },
}

impl Path {
    /// Reads a path, or says what of it is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.trim().trim_start_matches('$');
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(bracket) = rest.strip_prefix('[') {
                let end = closing(bracket).ok_or_else(|| format!("{text:?} has a [ without its ]"))?;
                steps.push(
                    in_brackets(&bracket[..end]).ok_or_else(|| format!("[{}] is not understood", &bracket[..end]))?,
                );
                rest = &bracket[end + 1..];
                continue;
            }
            let member = rest.strip_prefix('.').ok_or_else(|| format!("{text:?} does not begin with a dot"))?;
            let (name, tail) = member_name(member);
            match name.as_str() {
                "" if steps.is_empty() && tail.is_empty() => break,
                "" => return Err(format!("{text:?} has an empty member")),
                "*" => steps.push(Step::Every),
                _ => steps.push(Step::Member(name)),
            }
            rest = tail;
        }
        Ok(Self(steps))
    }

    /// The first value that the path leads to.
    pub fn first<'a>(&self, tree: &'a Value) -> Option<&'a Value> {
        let mut found = vec![tree];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.follow(value)).collect();
        }
        found.first().copied()
    }
}

/// Up to the next unescaped `.` or `[`.
fn member_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '.' | '[' => return (name, &text[index..]),
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            other => name.push(other),
        }
    }
    (name, "")
}

fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (index, character) in text.char_indices() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            (None, ']') => return Some(index),
            _ => {}
        }
    }
    None
}

fn unquoted(text: &str) -> Option<&str> {
    let text = text.trim();
    let inner = |quote: char| text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote));
    inner('\'').or_else(|| inner('"'))
}

fn in_brackets(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::Every);
    }
    if let Some(name) = unquoted(text) {
        return Some(Step::Member(name.to_owned()));
    }
    if let Ok(index) = text.parse() {
        return Some(Step::Index(index));
    }
    let condition = text.strip_prefix("?(")?.strip_suffix(')')?;
    let (member, value) = condition.split_once("==")?;
    let member = member.trim().strip_prefix("@.")?;
    let value = unquoted(value).unwrap_or_else(|| value.trim());
    Some(Step::Where { member: member.split('.').map(str::to_owned).collect(), value: value.to_owned() })
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Member(name), Value::Object(members)) => members.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(elements)) => elements.get(*index).into_iter().collect(),
            (Self::Every, Value::Array(elements)) => elements.iter().collect(),
            (Self::Every, Value::Object(members)) => members.values().collect(),
            (Self::Where { member, value: wanted }, Value::Array(elements)) => {
                let matches = |element: &&Value| {
                    let found = member.iter().try_fold(*element, |at, name| at.get(name));
                    found.is_some_and(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned).eq(wanted))
                };
                elements.iter().filter(matches).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_members_indexes_and_chosen_elements() {
        let tree = json!({"spec": {"a": [1, 2], "x.y": "z"}, "status": {"conditions": [
            {"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        for (path, found) in [
            (".spec.a[1]", Some(json!(2))),
            (".spec.x\\.y", Some(json!("z"))),
            (".spec['x.y']", Some(json!("z"))),
            ("$.spec.a[*]", Some(json!(1))),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some(json!("True"))),
            (".spec.none.deeper", None),
        ] {
            assert_eq!(Path::parse(path).unwrap().first(&tree), found.as_ref(), "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in ["spec", ".a[", ".a..b", ".a[?(@.b>1)]"] {
            assert!(Path::parse(path).is_err(), "{path}");
        }
    }
}
