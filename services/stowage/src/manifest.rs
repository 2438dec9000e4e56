//! Files with objects, as kubectl reads them.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// The objects of a file, in their order; what is empty is left out.
pub fn read(file: &Path) -> anyhow::Result<Vec<Value>> {
    let text = fs::read_to_string(file)?;
    // Of members given twice the last counts.
    let reading = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(&text, reading).context("it is not YAML or JSON")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}
