//! `stowage certificates`: what a kube-apiserver that nobody has set up needs to serve, and an administrator to reach it.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::Path;

use anyhow::Context as _;
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
    let failed = || format!("cannot write --kubeconfig-out {}", out.display());
    write(out, &kubeconfig).with_context(failed)?;
    match options.owner {
        Some(owner) => chown(out, Some(owner), Some(owner)).with_context(failed),
        None => Ok(()),
    }
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
    let failed = || format!("cannot write {}", path.display());
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.with_context(failed)?.write_all(content.as_bytes()).with_context(failed)
}

#[cfg(test)]
mod tests {
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
}
