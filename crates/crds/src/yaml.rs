//! Values as YAML for people: block style, sorted keys, quotes only where they are needed.

use serde_json::Value;

/// One document.
pub(crate) fn text(value: &Value) -> String {
    let mut text = "# Made by cargo xtask crds.\n".to_owned();
    write(value, 0, &mut text);
    text
}

fn write(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(fields) => {
            // Whether a map keeps its order depends on what else is compiled; the files must not.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            for (name, field) in fields {
                indent(depth, text);
                text.push_str(name);
                text.push(':');
                write_inner(field, depth + 1, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                indent(depth, text);
                text.push('-');
                write_item(item, depth + 1, text);
            }
        }
        scalar => text.push_str(&word(scalar)),
    }
}

/// What stands behind a key.
fn write_inner(value: &Value, depth: usize, text: &mut String) {
    if is_scalar(value) {
        text.push(' ');
        text.push_str(&word(value));
        text.push('\n');
    } else {
        text.push('\n');
        write(value, depth, text);
    }
}

/// What stands behind a dash: a map begins on the same line.
fn write_item(value: &Value, depth: usize, text: &mut String) {
    if !value.is_object() {
        return write_inner(value, depth, text);
    }
    let start = text.len();
    write(value, depth, text);
    text.replace_range(start..start + 2 * depth, " ");
}

/// Also the empty list and the empty map, which have no block style.
fn is_scalar(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether YAML reads it as the same text without quotes.
fn is_plain(text: &str) -> bool {
    let spoken_for = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = |c: char| c.is_ascii_alphanumeric() || " ./_-,()`'".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.ends_with(' ')
        && text.chars().all(plain)
        && !spoken_for.contains(&text.to_ascii_lowercase().as_str())
}

fn indent(depth: usize, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", depth));
}
