//! The kinds of snapshots, installed into a world's API server.

use stowage_model::object::kinds;

use crate::admin::Admin;

/// Installs the definitions of snapshots and group snapshots, as `kubectl apply -k deploy/crds` does; they are served at once.
pub async fn install(admin: &Admin) -> Result<(), kube::Error> {
    for definition in stowage_crds::definitions() {
        admin.create(kinds::DEFINITION, definition.object()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
