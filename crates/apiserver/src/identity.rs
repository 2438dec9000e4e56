//! What makes a server the same one after a restart: its authority, its administrator's token, its signing key.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rand::TryRngCore as _;

use crate::auth::Credentials;
use crate::tls::{MakeCertificates, Tls};
use crate::tokens::TokenKey;

/// The identity cannot be read, made or kept.
#[derive(Debug, thiserror::Error)]
pub enum LoadIdentity {
    /// A file of it cannot be read or written.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Some of its files are missing.
    #[error(
        "{path} is missing beside its companions; restore it, or remove ca.crt, ca.key, admin.token and service-account.key \
         to make new ones"
    )]
    Incomplete {
        /// The missing file.
        path: PathBuf,
    },
    /// The certificates cannot be made.
    #[error(transparent)]
    Certificates(#[from] MakeCertificates),
    /// The system has no randomness to give.
    #[error("cannot make a token: {0}")]
    Random(#[source] rand::rand_core::OsError),
}

/// A server's authority, certificate and administrator.
pub struct Identity {
    tls: Tls,
    token: String,
    /// Secret of the key that signs service-account tokens.
    seed: String,
}

const FILES: [&str; 4] = ["ca.crt", "ca.key", "admin.token", "service-account.key"];

impl Identity {
    /// A new identity that is not kept.
    pub fn generate(addresses: &[IpAddr]) -> Result<Self, LoadIdentity> {
        Ok(Self { tls: Tls::generate(addresses)?, token: new_token()?, seed: new_token()? })
    }

    /// The identity kept in `directory`, made if there is none.
    pub fn load_or_create(directory: &Path, addresses: &[IpAddr]) -> Result<Self, LoadIdentity> {
        let paths = FILES.map(|name| directory.join(name));
        let [certificate, key, token, seed] = paths.each_ref().map(|path| read(path));
        let (certificate, key, token, mut seed) = (certificate?, key?, token?, seed?);
        // Directories from before there were service-account tokens have no key for them.
        if certificate.is_some() && key.is_some() && token.is_some() && seed.is_none() {
            let made = new_token()?;
            keep(&paths[3], &made)?;
            seed = Some(made);
        }
        match (certificate, key, token, seed) {
            (Some(certificate), Some(key), Some(token), Some(seed)) => {
                let tls = Tls::from_authority(&certificate, &key, addresses)?;
                Ok(Self { tls, token: token.trim().to_owned(), seed: seed.trim().to_owned() })
            }
            (None, None, None, None) => {
                let made = Self::generate(addresses)?;
                let contents = [&made.tls.ca_certificate, &made.tls.ca_key, &made.token, &made.seed];
                for (path, content) in paths.iter().zip(contents) {
                    keep(path, content)?;
                }
                Ok(made)
            }
            (certificate, key, token, _) => {
                let missing = [certificate.is_none(), key.is_none(), token.is_none()];
                let missing = missing.iter().position(|missing| *missing).unwrap_or(3);
                Err(LoadIdentity::Incomplete { path: paths[missing].clone() })
            }
        }
    }

    /// Takes client certificates of the authorities in `pem` too.
    pub fn with_client_authorities(mut self, pem: &str) -> Result<Self, LoadIdentity> {
        self.tls = self.tls.with_client_authorities(pem)?;
        Ok(self)
    }

    /// The certificate of the authority, as PEM.
    pub fn authority(&self) -> &str {
        &self.tls.ca_certificate
    }

    /// The TLS side.
    pub fn tls(&self) -> &Tls {
        &self.tls
    }

    /// Who may come in.
    pub fn credentials(&self) -> Credentials {
        Credentials::admin(self.token.clone())
    }

    /// The key that signs service-account tokens.
    pub fn token_key(&self) -> TokenKey {
        use sha2::Digest as _;
        TokenKey::from_seed(&sha2::Sha256::digest(&self.seed).into())
    }

    /// A kubeconfig for the administrator of the server at `address`.
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        // A wildcard address is for listening; clients on this machine use loopback.
        let host = match address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        let server = SocketAddr::new(host, address.port());
        let authority = STANDARD.encode(&self.tls.ca_certificate);
        let token = &self.token;
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: stowage\n  cluster:\n    server: https://{server}\n    \
             certificate-authority-data: {authority}\nusers:\n- name: admin\n  user:\n    token: {token}\ncontexts:\n- name: \
             stowage\n  context:\n    cluster: stowage\n    user: admin\ncurrent-context: stowage\n"
        )
    }

    /// Writes [`Identity::kubeconfig`] to `path`, whole or not at all, readable by its owner only.
    pub fn write_kubeconfig(&self, path: &Path, address: SocketAddr) -> io::Result<()> {
        write_private(path, self.kubeconfig(address).as_bytes())
    }
}

fn keep(path: &Path, content: &str) -> Result<(), LoadIdentity> {
    write_private(path, content.as_bytes()).map_err(|source| LoadIdentity::File { path: path.to_owned(), source })
}

fn new_token() -> Result<String, LoadIdentity> {
    let mut bytes = [0; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(LoadIdentity::Random)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn read(path: &Path) -> Result<Option<String>, LoadIdentity> {
    match fs::read_to_string(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadIdentity::File { path: path.to_owned(), source }),
    }
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".{}.tmp", std::process::id()));
    let unfinished = directory.join(unfinished);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(directory)?.sync_all()
    };
    write().inspect_err(|_| {
        // Best effort: the error that matters is the one above.
        let _gone = fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_identity_stays_the_same_and_its_secrets_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:6443".parse().unwrap();
        let first = Identity::load_or_create(directory.path(), &[]).unwrap().kubeconfig(address);
        let second = Identity::load_or_create(directory.path(), &[]).unwrap();
        assert_eq!(first, second.kubeconfig(address));
        let out = directory.path().join("kubeconfig");
        second.write_kubeconfig(&out, address).unwrap();
        for name in ["ca.key", "admin.token", "service-account.key", "kubeconfig"] {
            let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5, "no unfinished file is left");
    }

    #[test]
    fn a_missing_part_of_an_identity_is_named() {
        let directory = tempfile::tempdir().unwrap();
        Identity::load_or_create(directory.path(), &[]).unwrap();
        fs::remove_file(directory.path().join("ca.key")).unwrap();
        let Err(error) = Identity::load_or_create(directory.path(), &[]) else { panic!("made a second authority") };
        assert!(error.to_string().contains("ca.key"), "{error}");
    }

    #[test]
    fn a_wildcard_address_becomes_loopback_for_clients() {
        let identity = Identity::generate(&[]).unwrap();
        assert!(identity.kubeconfig("0.0.0.0:1234".parse().unwrap()).contains("https://127.0.0.1:1234"));
    }
}
