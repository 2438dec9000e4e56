//! What the documents of a layout say: which image is meant, for which machine, and what its layers are.

use std::collections::BTreeMap;

use serde::Deserialize;

use stowage_mount::{Digest, Layer};

use super::reference::Reference;

const NAME: &str = "org.opencontainers.image.ref.name";
/// What containerd and docker write besides.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

/// A list of manifests, or of such lists.
#[derive(Debug, Deserialize)]
pub struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// What a list says of one of them, or a manifest of a layer.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl Descriptor {
    pub fn digest(&self) -> Result<Digest, String> {
        self.digest.parse()
    }

    pub fn is_index(&self) -> bool {
        INDEXES.contains(&self.media_type.as_str())
    }

    fn is_named(&self, reference: &Reference) -> bool {
        let names = [NAME, CONTAINERD_NAME].map(|key| self.annotations.get(key));
        names.into_iter().flatten().any(|name| reference.is_named(name))
    }

    fn has_name(&self) -> bool {
        [NAME, CONTAINERD_NAME].iter().any(|key| self.annotations.contains_key(*key))
    }

    fn fits(&self) -> bool {
        let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
        self.platform.as_ref().is_none_or(fits)
    }
}

pub fn index(document: &[u8]) -> Result<Index, String> {
    serde_json::from_slice(document).map_err(|error| format!("its index cannot be read: {error}"))
}

impl Index {
    /// The image that is meant, of an index at the top of a layout.
    pub fn named(&self, reference: &Reference) -> Option<&Descriptor> {
        if let Some(digest) = &reference.digest {
            let wanted = digest.to_string();
            return self.manifests.iter().find(|one| one.digest == wanted);
        }
        let named = self.manifests.iter().filter(|one| one.is_named(reference));
        let fitting = named.clone().find(|one| one.fits());
        // Without names there is nothing to choose by, and nothing to choose from if there is but one.
        let only = match self.manifests.as_slice() {
            [only] if !only.has_name() => Some(only),
            _ => None,
        };
        fitting.or_else(|| named.into_iter().next()).or(only)
    }

    /// The names that it has, for people.
    pub fn names(&self) -> Vec<&str> {
        self.manifests.iter().filter_map(|one| one.annotations.get(NAME)).map(String::as_str).collect()
    }

    /// The digests of all lists in it, for one that names an image inside.
    pub fn lists(&self) -> impl Iterator<Item = &Descriptor> {
        self.manifests.iter().filter(|one| one.is_index())
    }

    /// The manifest of exactly this digest.
    pub fn exactly(&self, digest: &Digest) -> Option<&Descriptor> {
        let wanted = digest.to_string();
        self.manifests.iter().find(|one| one.digest == wanted)
    }

    /// The image for this machine, of a list of images for several.
    pub fn for_this_machine(&self) -> Result<&Descriptor, String> {
        // Without a platform it is an attestation or the like, unless nothing has one.
        let fitting = self.manifests.iter().find(|one| one.platform.is_some() && one.fits());
        let plain = || {
            self.manifests.iter().find(|one| self.manifests.iter().all(|other| other.platform.is_none()) && one.fits())
        };
        fitting.or_else(plain).ok_or_else(|| {
            let told = |one: &Descriptor| one.platform.as_ref().map(|is| format!("{}/{}", is.os, is.architecture));
            let there: Vec<String> = self.manifests.iter().filter_map(told).collect();
            format!("it has no image for linux/{}, only for {}", architecture(), there.join(", "))
        })
    }
}

/// The layers of an image, the lowest first.
pub fn layers(document: &[u8]) -> Result<Vec<Layer>, String> {
    let manifest: Manifest =
        serde_json::from_slice(document).map_err(|error| format!("its manifest cannot be read: {error}"))?;
    if manifest.layers.is_empty() {
        return Err("its manifest has no layers, so there is nothing to mount".to_owned());
    }
    manifest.layers.iter().map(layer).collect()
}

fn layer(layer: &Descriptor) -> Result<Layer, String> {
    let kind = layer.media_type.as_str();
    let is_gzip = match kind {
        "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => false,
        "application/vnd.oci.image.layer.v1.tar+gzip" | "application/vnd.docker.image.rootfs.diff.tar.gzip" => true,
        kind if kind.ends_with("+zstd") || kind.ends_with(".zstd") => {
            return Err(
                "its layers are compressed by zstd, which is not read here; copy the image with gzip layers, as in \
                 skopeo copy --dest-compress-format gzip --dest-force-compress-format"
                    .to_owned(),
            );
        }
        other => return Err(format!("a layer of the kind {other:?} is no file system; tar and tar+gzip are mounted")),
    };
    Ok(Layer { digest: layer.digest()?, size: layer.size, is_gzip })
}

/// As Go calls this machine.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(manifests: Value) -> Index {
        index(json!({ "manifests": manifests }).to_string().as_bytes()).unwrap()
    }

    fn one(digest: &str, name: &str, machine: &str) -> Value {
        let mut one = json!({ "digest": digest, "size": 1, "mediaType": "application/vnd.oci.image.manifest.v1+json" });
        if !name.is_empty() {
            one["annotations"] = json!({ NAME: name });
        }
        if !machine.is_empty() {
            one["platform"] = json!({ "os": "linux", "architecture": machine });
        }
        one
    }

    #[test]
    fn an_image_is_chosen_by_name_and_one_alone_without_a_name_is_meant() {
        let reference: Reference = "app:v1".parse().unwrap();
        let chosen = |index: &Index| index.named(&reference).map(|one| one.digest.clone());
        assert_eq!(chosen(&of(json!([one("a", "v0", ""), one("b", "v1", "")]))).as_deref(), Some("b"));
        assert_eq!(chosen(&of(json!([one("a", "", "")]))).as_deref(), Some("a"));
        assert_eq!(chosen(&of(json!([one("a", "v2", "")]))), None);
        assert_eq!(chosen(&of(json!([one("a", "", ""), one("b", "", "")]))), None);
        let several = json!([one("a", "v1", "vax"), one("b", "v1", architecture())]);
        assert_eq!(chosen(&of(several)).as_deref(), Some("b"));
        let digest = Digest::of(b"x").to_string();
        let exact: Reference = format!("app:v1@{digest}").parse().unwrap();
        let index = of(json!([one("a", "v1", ""), one(&digest, "old", "")]));
        assert_eq!(index.named(&exact).map(|one| one.digest.clone()), Some(digest));
    }

    #[test]
    fn of_a_list_for_several_machines_ours_is_taken() {
        let list = of(json!([one("a", "", "vax"), one("b", "", ""), one("c", "", architecture())]));
        assert_eq!(list.for_this_machine().unwrap().digest, "c");
        let error = of(json!([one("a", "", "vax")])).for_this_machine().unwrap_err();
        assert!(error.contains("linux/vax"), "{error}");
        assert_eq!(of(json!([one("a", "", "")])).for_this_machine().unwrap().digest, "a");
    }

    #[test]
    fn layers_that_cannot_be_mounted_are_refused_with_the_reason() {
        let of = |kind: &str| {
            let digest = Digest::of(b"x").to_string();
            layers(json!({ "layers": [{ "mediaType": kind, "digest": digest, "size": 7 }] }).to_string().as_bytes())
        };
        assert!(of("application/vnd.oci.image.layer.v1.tar+gzip").unwrap()[0].is_gzip);
        assert_eq!(of("application/vnd.oci.image.layer.v1.tar").unwrap()[0].size, 7);
        assert!(of("application/vnd.oci.image.layer.v1.tar+zstd").unwrap_err().contains("zstd"));
        assert!(of("application/wasm").unwrap_err().contains("application/wasm"));
        assert!(layers(b"{}").is_err() && layers(b"[").is_err() && index(b"7").is_err());
    }
}
