//! Tables: objects as rows of the columns that kubectl prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::crd::PrinterColumn;
use crate::kind::Kind;
use crate::object::{filled, text};
use crate::store::Store;
use crate::view::partial;

mod columns;

/// How much of each object comes with its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

/// One column: its heading and how a cell is made.
#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    column_type: String,
    format: String,
    description: String,
    /// 0 is always shown, more only with `-o wide`.
    priority: i64,
    cell: Cell,
}

#[derive(Debug)]
enum Cell {
    /// Of a built-in kind.
    Made(fn(&Value, Timestamp) -> String),
    /// Of a kind that a definition brought.
    Found(PrinterColumn),
}

/// The columns of a kind.
pub(crate) fn columns(store: &Store, kind: &Kind) -> Vec<Column> {
    let Some(definition) = store.definition(kind) else { return columns::columns_of(kind) };
    let mut all = vec![columns::name()];
    match definition.columns(kind) {
        [] => all.push(columns::age()),
        wanted => all.extend(wanted.iter().map(Column::found)),
    }
    all
}

impl Column {
    fn made(name: &str, cell: fn(&Value, Timestamp) -> String, priority: i64) -> Self {
        let format = if name == "Name" { "name" } else { "" };
        Self {
            name: name.to_owned(),
            column_type: "string".to_owned(),
            format: format.to_owned(),
            description: String::new(),
            priority,
            cell: Cell::Made(cell),
        }
    }

    fn of_type(self, column_type: &str) -> Self {
        Self { column_type: column_type.to_owned(), ..self }
    }

    fn found(column: &PrinterColumn) -> Self {
        Self {
            name: column.name.clone(),
            column_type: column.column_type.clone(),
            format: column.format.clone(),
            description: column.description.clone(),
            priority: column.priority,
            cell: Cell::Found(column.clone()),
        }
    }

    fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.column_type, "format": self.format, "description": self.description,
            "priority": self.priority,
        })
    }
}

impl Cell {
    fn show(&self, column_type: &str, tree: &Value, now: Timestamp) -> Value {
        match self {
            Self::Made(make) => typed(make(tree, now), column_type),
            Self::Found(column) => match (column.path.first(tree), column.column_type.as_str()) {
                (None | Some(Value::Null), _) => Value::Null,
                (Some(found), "date") => age(found.as_str().unwrap_or_default(), now).into(),
                (Some(found @ (Value::Number(_) | Value::Bool(_))), "integer" | "number" | "boolean") => found.clone(),
                (Some(Value::String(text)), "string") => text.clone().into(),
                (Some(found), "string") => found.to_string().into(),
                // Not what the definition promised.
                (Some(_), _) => Value::Null,
            },
        }
    }
}

/// A cell in the type of its column.
fn typed(shown: String, column_type: &str) -> Value {
    match column_type {
        "integer" => shown.parse::<i64>().map_or(Value::String(shown), Value::from),
        "boolean" => shown.parse::<bool>().map_or(Value::String(shown), Value::from),
        _ => shown.into(),
    }
}

/// A table up to its rows, with `metadata` of the list it stands for; after the rows comes `]}`.
pub(crate) fn head(columns: &[Column], metadata: &Value) -> String {
    let definitions: Vec<Value> = columns.iter().map(Column::definition).collect();
    let definitions = Value::from(definitions);
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{definitions},"rows":["#
    )
}

/// One row.
pub(crate) fn row(columns: &[Column], tree: Value, include: Include, now: Timestamp) -> String {
    let cells: Vec<Value> = columns.iter().map(|column| column.cell.show(&column.column_type, &tree, now)).collect();
    let object = match include {
        Include::None => Value::Null,
        Include::Metadata => partial(&tree),
        Include::Object => tree,
    };
    json!({"cells": cells, "object": object}).to_string()
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
    age(text(tree, pointer), now)
}

fn age(then: &str, now: Timestamp) -> String {
    match then.parse::<Timestamp>() {
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
}
