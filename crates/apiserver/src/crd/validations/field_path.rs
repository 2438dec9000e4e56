//! Where a rule wants its faults to be: `.spec.name` or `['a.b']`, of fields that the schema has.

use serde_json::Value;

/// The path as faults show it, or what is wrong with it.
pub(super) fn normalized(path: &str, schema: &Value) -> Result<String, String> {
    let mut shown = String::new();
    let mut schema = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let (name, after) = step(rest)?;
        let properties = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        schema = match (properties, others) {
            (Some(properties), _) => {
                shown.push_str(if shown.is_empty() { "" } else { "." });
                shown.push_str(&name);
                properties.get(&name).ok_or("does not refer to a valid field")?
            }
            (None, Some(others)) => {
                shown.push_str(&format!("[{name}]"));
                others
            }
            (None, None) => return Err("does not refer to a valid field".to_owned()),
        };
        rest = after;
    }
    Ok(shown)
}

/// The first name of a path, and what follows it.
fn step(path: &str) -> Result<(String, &str), String> {
    if let Some(rest) = path.strip_prefix('.') {
        let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
        return match end {
            0 => Err("unexpected end of JSON path".to_owned()),
            end => Ok((rest[..end].to_owned(), &rest[end..])),
        };
    }
    let rest = path.strip_prefix('[').ok_or_else(|| format!("expected [ or . but got: {path}"))?;
    let quoted = rest.strip_prefix('\'').ok_or_else(|| format!("expected single quoted string but got {rest}"))?;
    let mut name = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\'' => {
                let after = quoted[index + 1..].strip_prefix(']').ok_or("expected ] after the name")?;
                return Ok((name, after));
            }
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            other => name.push(other),
        }
    }
    Err("unexpected end of JSON path".to_owned())
}
