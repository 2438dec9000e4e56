//! Tables: objects as rows of the columns that kubectl prints.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::{Object, filled, text};

mod columns;

use columns::{Column, columns_of};

/// Whether answers are objects or tables of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Objects,
    Table,
}

impl Form {
    /// What an `Accept` header asks for first.
    pub fn asked(accept: &str) -> Self {
        let first = accept.split(',').next().unwrap_or_default();
        let is = |wanted: &str| first.split(';').any(|part| part.trim() == wanted);
        if is("as=Table") && is("g=meta.k8s.io") && is("v=v1") { Self::Table } else { Self::Objects }
    }
}

/// A table of `objects`, with `metadata` of the list it stands for.
pub(crate) fn table<'a>(
    kind: &Kind,
    objects: impl IntoIterator<Item = &'a Object>,
    metadata: Value,
    now: Timestamp,
) -> Bytes {
    let columns = columns_of(kind);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({
                "name": column.name, "type": "string", "format": format, "description": "",
                "priority": i32::from(column.wide),
            })
        })
        .collect();
    let rows: Vec<Value> = objects.into_iter().map(|object| row(&columns, &object.tree(), now)).collect();
    let document = json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions,
        "rows": rows,
    });
    document.to_string().into()
}

fn row(columns: &[Column], tree: &Value, now: Timestamp) -> Value {
    let cells: Vec<String> = columns.iter().map(|column| (column.cell)(tree, now)).collect();
    let object = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": tree.get("metadata"),
    });
    json!({"cells": cells, "object": object})
}

/// The text at `pointer`, or what stands for nothing.
fn shown(tree: &Value, pointer: &str, nothing: &str) -> String {
    match filled(tree, pointer) {
        None => nothing.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// How long ago `pointer` was, in kubectl's short form.
fn since(tree: &Value, pointer: &str, now: Timestamp) -> String {
    match text(tree, pointer).parse::<Timestamp>() {
        Ok(then) => short_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Two units at most, the second only while it matters.
fn short_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => two(days / 365, "y", days % 365, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_short_as_kubectl_shows_them() {
        for (seconds, shown) in [
            (-5, "0s"),
            (59, "59s"),
            (125, "2m5s"),
            (900, "15m"),
            (11_000, "3h3m"),
            (180_000, "2d2h"),
            (900_000, "10d"),
        ] {
            assert_eq!(short_duration(seconds), shown);
        }
    }

    #[test]
    fn a_table_is_given_to_those_who_ask_for_it_first() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(Form::asked(kubectl), Form::Table);
        assert_eq!(Form::asked("application/json"), Form::Objects);
    }
}
