//! `stowage certificates`: what a kube-apiserver that nobody has set up needs to serve, and an administrator to reach it.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::Path;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rand::TryRngCore as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::args::Certificates;

/// Makes what is missing; a directory that has an authority already keeps everything.
pub fn run(options: &Certificates) -> anyhow::Result<()> {
    check_server(&options.server)?;
    options.names.iter().try_for_each(|name| check_name(name))?;
    let folder = &options.directory;
    fs::create_dir_all(folder).with_context(|| format!("cannot create --directory {}", folder.display()))?;
    let authority = folder.join("ca.crt");
    if !authority.try_exists().with_context(|| format!("cannot look for {}", authority.display()))? {
        make(folder, &options.names).with_context(|| format!("cannot fill --directory {}", folder.display()))?;
    }
    let read = |name: &str| {
        let file = folder.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let tokens = read("tokens.csv")?;
    let token = tokens.split(',').next().context("tokens.csv has no token")?;
    let authority = STANDARD.encode(read("ca.crt")?);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: stowage\n  cluster:\n    server: {}\n    \
         certificate-authority-data: {authority}\nusers:\n- name: admin\n  user:\n    token: {token}\ncontexts:\n- name: \
         stowage\n  context:\n    cluster: stowage\n    user: admin\ncurrent-context: stowage\n",
        options.server
    );
    let out = &options.kubeconfig_out;
    write_for(options.owner, out, &kubeconfig)
        .with_context(|| format!("cannot write --kubeconfig-out {}", out.display()))
}

/// It goes into the kubeconfig as it is.
fn check_server(server: &str) -> anyhow::Result<()> {
    let url: Option<http::Uri> = server.parse().ok();
    let is_url =
        url.is_some_and(|url| url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty()));
    ensure!(
        is_url,
        "--server {server:?} is not the URL of a server; write https://HOST:PORT, for example https://127.0.0.1:6443"
    );
    Ok(())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_name = name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(label);
    ensure!(
        is_address || is_name,
        "--name {name:?} is neither a DNS name nor an IP address; write for example kubernetes.example.com or 10.0.0.1"
    );
    Ok(())
}

fn make(folder: &Path, names: &[String]) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = named("stowage-ca");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = authority.self_signed(&key)?.pem();

    let usual = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1"];
    let mut subjects: Vec<String> = usual.iter().map(|name| (*name).to_owned()).chain(names.iter().cloned()).collect();
    subjects.sort();
    subjects.dedup();
    let mut server = CertificateParams::new(subjects)?;
    server.distinguished_name = named("kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    server.use_authority_key_identifier_extension = true;
    let server_key = KeyPair::generate()?;
    let signed = server.signed_by(&server_key, &Issuer::new(authority, key))?.pem();

    let accounts = KeyPair::generate()?;
    let mut bytes = [0; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).context("the system has no randomness")?;
    let tokens = format!("{},admin,admin,\"system:masters\"\n", URL_SAFE_NO_PAD.encode(bytes));
    write(&folder.join("server.crt"), &signed)?;
    write(&folder.join("server.key"), &server_key.serialize_pem())?;
    write(&folder.join("service-account.key"), &accounts.serialize_pem())?;
    write(&folder.join("service-account.pub"), &accounts.public_key_pem())?;
    write(&folder.join("tokens.csv"), &tokens)?;
    // Last: its presence says that all the others are there.
    write(&folder.join("ca.crt"), &certificate)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    write_for(None, path, content)
}

/// A new file takes the place of an earlier one, which may belong to the user it was given to: as root without
/// DAC_OVERRIDE we could not open it again.
fn write_for(owner: Option<u32>, path: &Path, content: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(failed),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    file.and_then(|mut file| file.write_all(content.as_bytes())).with_context(failed)?;
    if let Some(owner) = owner {
        chown(&unfinished, Some(owner), Some(owner)).with_context(failed)?;
    }
    fs::rename(&unfinished, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_second_run_keeps_the_authority_and_writes_the_same_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let options = Certificates {
            directory: folder.path().join("pki"),
            server: "https://127.0.0.1:6443".to_owned(),
            names: vec!["kubernetes".to_owned(), "example".to_owned()],
            kubeconfig_out: folder.path().join("kubeconfig"),
            owner: None,
        };
        run(&options).unwrap();
        let first = fs::read_to_string(&options.kubeconfig_out).unwrap();
        assert!(first.contains("server: https://127.0.0.1:6443\n"), "{first}");
        run(&options).unwrap();
        assert_eq!(fs::read_to_string(&options.kubeconfig_out).unwrap(), first);
        let public = fs::read_to_string(folder.path().join("pki/service-account.pub")).unwrap();
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----"), "{public}");
    }

    #[test]
    fn a_server_or_name_that_is_none_is_refused_by_flag_and_value_before_anything_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |server: &str, name: &str| {
            let options = Certificates {
                directory: folder.path().join("pki"),
                server: server.to_owned(),
                names: vec![name.to_owned()],
                kubeconfig_out: folder.path().join("kubeconfig"),
                owner: None,
            };
            run(&options).unwrap_err().to_string()
        };
        for server in ["kubernetes:6443", "http://kubernetes:6443", "", "https://a b", "https://a\ntoken: x"] {
            let error = refused(server, "kubernetes");
            assert!(
                error.starts_with(&format!("--server {server:?}")) && error.contains("https://HOST:PORT"),
                "{error}"
            );
        }
        for name in ["grün", "a b", "", "a..b", "https://a"] {
            let error = refused("https://127.0.0.1:6443", name);
            assert!(error.starts_with(&format!("--name {name:?}")), "{error}");
        }
        assert!(!folder.path().join("pki").try_exists().unwrap());
        ["kubernetes", "*.example.com", "10.0.0.1", "::1"].iter().try_for_each(|name| check_name(name)).unwrap();
    }

    /// A thread whose files belong to another user than root has no DAC_OVERRIDE, as the container of compose has not.
    #[test]
    fn a_kubeconfig_that_was_given_to_another_user_is_replaced_without_the_right_to_open_it() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let (user, other) = (4_321, 65_532);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("kubeconfig");
        fs::write(&out, "old").unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&out, Some(other), Some(other)).unwrap();
        chown(folder.path(), Some(user), Some(user)).unwrap();
        let path = out.clone();
        let written = std::thread::spawn(move || {
            nix::unistd::setfsuid(user.into());
            assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
            write(&path, "new")
        });
        written.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "new");
        assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
