//! The plugins there are, found by what they claim or by their names.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, RwLock};

use stowage_model::names::UniqueVolumeName;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{Claim, VolumePlugin};
use crate::spec::VolumeSpec;
use crate::traits::Traits;

/// The plugins of one node.
#[derive(Default)]
pub struct VolumePluginManager {
    plugins: RwLock<Registered>,
}

#[derive(Default)]
struct Registered {
    by_name: HashMap<String, Arc<dyn VolumePlugin>>,
    by_claim: HashMap<Claim, Arc<dyn VolumePlugin>>,
}

/// Why a plugin was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its name would not split from the names of its volumes.
    #[error("plugin name {name:?} must have exactly one slash, as in kubernetes.io/csi")]
    Name {
        /// The name.
        name: String,
    },
    /// There is one of that name.
    #[error("a plugin named {name} is registered already")]
    Twice {
        /// The name.
        name: String,
    },
    /// There is one that has the same volumes.
    #[error("plugin {name} claims {claim:?}, which is {owner}'s already")]
    Claimed {
        /// The newcomer.
        name: String,
        /// What both claim.
        claim: Claim,
        /// Who has it.
        owner: String,
    },
}

impl VolumePluginManager {
    /// These plugins.
    pub fn new(plugins: impl IntoIterator<Item = Arc<dyn VolumePlugin>>) -> Result<Self, Error> {
        let manager = Self::default();
        plugins.into_iter().try_for_each(|plugin| manager.register(plugin))?;
        Ok(manager)
    }

    /// Takes one more, unless another has its name or its volumes.
    pub fn register(&self, plugin: Arc<dyn VolumePlugin>) -> Result<(), Error> {
        let name = plugin.name().to_owned();
        if name.split('/').filter(|part| !part.is_empty()).count() != 2 || name.matches('/').count() != 1 {
            return Err(Error::Name { name });
        }
        let mut registered = self.write();
        if registered.by_name.contains_key(&name) {
            return Err(Error::Twice { name });
        }
        let claims = plugin.claims();
        if let Some((claim, owner)) = claims.iter().find_map(|c| registered.by_claim.get(c).map(|owner| (c, owner))) {
            let owner = owner.name().to_owned();
            return Err(Error::Claimed { name, claim: claim.clone(), owner });
        }
        for claim in claims {
            registered.by_claim.insert(claim, Arc::clone(&plugin));
        }
        registered.by_name.insert(name, plugin);
        Ok(())
    }

    /// Lets go of one; says whether there was one.
    pub fn unregister(&self, name: &str) -> bool {
        let mut registered = self.write();
        registered.by_claim.retain(|_, plugin| plugin.name() != name);
        registered.by_name.remove(name).is_some()
    }

    /// The plugin of that name.
    pub fn by_name(&self, name: &str) -> Option<Arc<dyn VolumePlugin>> {
        self.read().by_name.get(name).cloned()
    }

    /// The plugin of the volume whose unique name this is.
    pub fn by_volume(&self, volume: &UniqueVolumeName) -> Option<Arc<dyn VolumePlugin>> {
        self.by_name(plugin_of(volume)?)
    }

    /// The plugin for the volume, or what to use instead.
    pub fn by_spec(&self, spec: &VolumeSpec) -> Result<Arc<dyn VolumePlugin>, Fault> {
        let found = self.read().by_claim.get(&Claim::of(spec)).cloned();
        found.ok_or_else(|| {
            Fault::refused(format!(
                "volume {}: source {} has no plugin on this node; use a CSI volume, or one of: {}",
                spec.name,
                spec.source.member(),
                self.names().join(", "),
            ))
        })
    }

    /// The plugin, its traits for the volume and the name under which the node knows it.
    pub fn describe(
        &self,
        spec: &VolumeSpec,
        pod_uid: &str,
        host: &VolumeHost,
    ) -> Result<(Arc<dyn VolumePlugin>, Traits, UniqueVolumeName), Fault> {
        let plugin = self.by_spec(spec)?;
        let own_name = plugin.volume_name(spec)?;
        let traits = plugin.traits(spec, host);
        let name = match traits.is_shared() {
            true => format!("{}/{own_name}", plugin.name()),
            false => format!("{}/{pod_uid}-{}", plugin.name(), spec.name),
        };
        Ok((plugin, traits, name.into()))
    }

    /// The names of all, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.read().by_name.keys().cloned().collect();
        names.sort();
        names
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Registered> {
        self.plugins.read().expect("no code panics while holding the plugins")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Registered> {
        self.plugins.write().expect("no code panics while holding the plugins")
    }
}

impl fmt::Debug for VolumePluginManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The name of the plugin in a volume's unique name: up to its second slash.
pub fn plugin_of(volume: &UniqueVolumeName) -> Option<&str> {
    let text = volume.as_str();
    let first = text.find('/')?;
    let second = text[first + 1..].find('/')?;
    Some(&text[..first + 1 + second])
}

#[cfg(test)]
mod tests {
    use stowage_model::volume_source::{EmptyDirSource, SourceKind, VolumeSource};

    use super::*;

    struct Fake(&'static str, Vec<Claim>);

    impl VolumePlugin for Fake {
        fn name(&self) -> &str {
            self.0
        }

        fn claims(&self) -> Vec<Claim> {
            self.1.clone()
        }

        fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
            Ok(spec.name.clone())
        }

        fn traits(&self, _: &VolumeSpec, _: &VolumeHost) -> Traits {
            Traits::PLAIN
        }
    }

    fn fake(name: &'static str, claims: impl Into<Vec<Claim>>) -> Arc<dyn VolumePlugin> {
        Arc::new(Fake(name, claims.into()))
    }

    fn empty_dir() -> VolumeSpec {
        VolumeSpec::inline("v", VolumeSource::EmptyDir(EmptyDirSource::default()))
    }

    #[test]
    fn a_plugin_is_found_by_its_name_by_a_volumes_name_and_by_what_it_claims() {
        let claim = Claim::Source(SourceKind::EmptyDir);
        let manager = VolumePluginManager::new([fake("kubernetes.io/empty-dir", [claim])]).unwrap();
        assert!(manager.by_name("kubernetes.io/empty-dir").is_some());
        assert!(manager.by_volume(&"kubernetes.io/empty-dir/uid-v/x".into()).is_some());
        assert!(manager.by_volume(&"kubernetes.io/empty-dir".into()).is_none());
        assert_eq!(manager.by_spec(&empty_dir()).unwrap().name(), "kubernetes.io/empty-dir");
        assert_eq!(manager.names(), ["kubernetes.io/empty-dir"]);
    }

    #[test]
    fn two_plugins_with_one_name_or_one_claim_are_refused_and_change_nothing() {
        let claim = Claim::Source(SourceKind::EmptyDir);
        let manager = VolumePluginManager::new([fake("a/b", [claim.clone()])]).unwrap();
        assert_eq!(manager.register(fake("a/b", [])), Err(Error::Twice { name: "a/b".into() }));
        let refused = manager.register(fake("a/c", [Claim::Flex("x/y".into()), claim.clone()]));
        assert_eq!(refused, Err(Error::Claimed { name: "a/c".into(), claim, owner: "a/b".into() }));
        assert_eq!(manager.names(), ["a/b"]);
        assert!(manager.unregister("a/b") && !manager.unregister("a/b"));
        assert!(manager.by_spec(&empty_dir()).is_err());
    }

    #[test]
    fn a_name_that_does_not_split_from_a_volumes_is_refused() {
        for name in ["csi", "a/b/c", "/csi", "a/"] {
            assert_eq!(VolumePluginManager::default().register(fake(name, [])), Err(Error::Name { name: name.into() }));
        }
    }

    #[test]
    fn a_volume_without_a_plugin_says_what_there_is() {
        let manager = VolumePluginManager::new([fake("a/b", [])]).unwrap();
        let message = manager.by_spec(&empty_dir()).err().unwrap().message;
        assert!(message.contains("source emptyDir has no plugin") && message.contains("a/b"), "{message}");
    }
}
