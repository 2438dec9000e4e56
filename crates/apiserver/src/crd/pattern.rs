//! The regular expressions of a schema: read as upstream reads them, compiled once, and bounded.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// What a compiled pattern may take, tried one after the other: most need little, and count for little.
const SIZES: [usize; 4] = [16 << 10, 128 << 10, 1 << 20, 8 << 20];
/// What a pattern may take that a rule computes, tried likewise: whoever writes an object may have chosen it.
pub(crate) const SIZES_OF_COMPUTED: [usize; 2] = [SIZES[0], SIZES[1]];
/// What all patterns of one definition may take together.
pub(super) const MAX_COMPILED: usize = 32 << 20;
/// What each thread may keep beside a pattern to match with it.
const MAX_MATCHING: usize = 256 << 10;

/// The patterns of one schema, each compiled when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Patterns(BTreeMap<String, OnceLock<Option<Regex>>>);

impl Patterns {
    /// The patterns anywhere in `schema`.
    pub fn of(schema: &Value) -> Self {
        let mut patterns = Self::default();
        patterns.gather(schema);
        patterns
    }

    /// Only where a schema stands: a default may have a member of that name too.
    fn gather(&mut self, schema: &Value) {
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            self.0.entry(pattern.to_owned()).or_default();
        }
        for inner in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.values()) {
            self.gather(inner);
        }
        for name in ["items", "additionalProperties", "not"] {
            schema.get(name).into_iter().for_each(|inner| self.gather(inner));
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            let parts = schema.get(name).and_then(Value::as_array);
            parts.into_iter().flatten().for_each(|inner| self.gather(inner));
        }
    }

    /// The patterns as they were written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether `text` has what `pattern` looks for. One that cannot be read, which no definition may have, matches nothing.
    pub fn matches(&self, pattern: &str, text: &str) -> bool {
        let compiled =
            self.0.get(pattern).and_then(|slot| slot.get_or_init(|| compile(pattern).ok().map(|(r, _)| r)).as_ref());
        compiled.is_some_and(|compiled| compiled.is_match(text))
    }
}

/// The compiled pattern and about how much it takes, or what is wrong with it.
pub(crate) fn compile(pattern: &str) -> Result<(Regex, usize), String> {
    let mut too_big = String::new();
    for size in SIZES {
        match compile_within(pattern, size) {
            Ok(compiled) => return Ok((compiled, size)),
            Err(error @ regex::Error::CompiledTooBig(_)) => too_big = error.to_string(),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(too_big)
}

/// The compiled pattern, if it takes at most about `size`.
pub(crate) fn compile_within(pattern: &str, size: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&as_upstream(pattern)).size_limit(size).dfa_size_limit(MAX_MATCHING).build()
}

/// The pattern with upstream's meaning: there `\d`, `\s`, `\w` and `\b` are of ASCII.
fn as_upstream(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            translated.push(character);
            continue;
        }
        match characters.next() {
            Some('d') => translated.push_str("[0-9]"),
            Some('D') => translated.push_str("[^0-9]"),
            Some('s') => translated.push_str(r"[\t\n\f\r ]"),
            Some('S') => translated.push_str(r"[^\t\n\f\r ]"),
            Some('w') => translated.push_str("[0-9A-Za-z_]"),
            Some('W') => translated.push_str("[^0-9A-Za-z_]"),
            Some('b') => translated.push_str(r"(?-u:\b)"),
            Some('B') => translated.push_str(r"(?-u:\B)"),
            Some(other) => translated.extend(['\\', other]),
            None => translated.push('\\'),
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Patterns::of(&json!({"properties": {"a": {"pattern": pattern}}})).matches(pattern, text)
    }

    #[test]
    fn classes_are_of_ascii_as_upstream_also_inside_brackets() {
        for (pattern, good, bad) in [
            (r"^\w+$", "a_1", "ä"),
            (r"^[\w.-]+$", "a.b-c", "ä"),
            (r"^[^\s]+$", "ä", "a b"),
            (r"^\d{2}$", "12", "١٢"),
            (r"^\W$", "ä", "a"),
            (r"^\\w$", r"\w", "a"),
            (r"\bx\b", "a x", "ax"),
            (r"^.$", "ä", "ab"),
        ] {
            assert!(matches(pattern, good), "{pattern} {good}");
            assert!(!matches(pattern, bad), "{pattern} {bad}");
        }
    }

    #[test]
    fn patterns_are_found_wherever_a_schema_stands_and_nowhere_else() {
        let pattern = |text: &str| json!({"pattern": text});
        let schema = json!({
            "properties": {"pattern": pattern("a"), "list": {"items": pattern("b")}},
            "additionalProperties": pattern("c"), "not": pattern("d"),
            "anyOf": [pattern("e")], "allOf": [{"oneOf": [pattern("f")]}],
            "default": pattern("("), "enum": [pattern("(")], "example": {"properties": {"x": pattern("(")}},
        });
        assert_eq!(Patterns::of(&schema).texts().collect::<String>(), "abcdef");
    }

    #[test]
    fn a_pattern_that_compiles_to_too_much_is_refused_and_a_usual_one_is_small() {
        assert_eq!(compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").unwrap().1, SIZES[0]);
        assert!(compile(r"^\w{1,200}$").is_ok());
        assert!(compile(r"^(\pL{1,200}){1,200}$").unwrap_err().contains("size"));
        assert!(compile("(").is_err());
    }
}
