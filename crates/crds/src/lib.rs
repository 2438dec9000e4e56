//! The CustomResourceDefinitions of snapshots and group snapshots: what `deploy/crds` holds and tests install.
//!
//! Fields, rules, columns and versions are those of the originals, so that a cluster can change from the one set to the
//! other; the words are ours. They are built with a small builder of schemas and not derived: kube's `CustomResource` and
//! schemars would bring two derive crates and a second set of types, and say neither rules nor older versions more briefly.
#![forbid(unsafe_code)]

mod definition;
mod group_snapshot;
mod schema;
mod snapshot;
mod yaml;

use std::fmt::Write as _;

pub use definition::Definition;

/// All six, in the order in which they are applied.
pub fn definitions() -> Vec<Definition> {
    vec![
        snapshot::class(),
        snapshot::content(),
        snapshot::snapshot(),
        group_snapshot::class(),
        group_snapshot::content(),
        group_snapshot::group_snapshot(),
    ]
}

/// The files of `deploy/crds`: name and text.
pub fn files() -> Vec<(String, String)> {
    let definitions = definitions();
    let mut kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n".to_owned();
    for definition in &definitions {
        writeln!(kustomization, "  - {}", definition.file_name()).expect("a text takes everything");
    }
    let files = definitions.iter().map(|definition| (definition.file_name(), yaml::text(&definition.object())));
    files.chain([("kustomization.yaml".to_owned(), format!("# Made by cargo xtask crds.\n{kustomization}"))]).collect()
}
