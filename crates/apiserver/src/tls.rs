//! Certificates: an authority made at first start, and the server's own certificate made by it at every start.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::auth::{AUTHENTICATED, User};

/// Making or reading certificates failed.
#[derive(Debug, thiserror::Error)]
pub enum MakeCertificates {
    /// The key or certificate could not be made or read.
    #[error("cannot make the server's certificates: {0}")]
    Generate(#[source] rcgen::Error),
    /// The authority's certificates cannot be read.
    #[error("cannot read the client authority's certificates: {0}")]
    ReadAuthority(#[source] rustls_pki_types::pem::Error),
    /// Clients cannot be verified with them.
    #[error("cannot verify client certificates: {0}")]
    VerifyClients(#[source] rustls::server::VerifierBuilderError),
    /// TLS does not take them.
    #[error("cannot use the server's certificates: {0}")]
    Configure(#[source] rustls::Error),
}

/// What the TLS side of a listener needs, and what its clients must trust.
pub struct Tls {
    /// Certificate of the authority, PEM.
    pub ca_certificate: String,
    /// Private key of the authority, PEM; keep it secret.
    pub ca_key: String,
    /// Certificates of further authorities whose clients are known, PEM.
    client_authorities: String,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Tls {
    /// A server certificate for `addresses` from a new authority.
    pub fn generate(addresses: &[IpAddr]) -> Result<Self, MakeCertificates> {
        let key = KeyPair::generate().map_err(MakeCertificates::Generate)?;
        let certificate = authority().self_signed(&key).map_err(MakeCertificates::Generate)?;
        Self::issue(certificate.pem(), key, addresses)
    }

    /// Takes client certificates of the authorities in `pem` too, beside those of the own one.
    pub fn with_client_authorities(mut self, pem: &str) -> Result<Self, MakeCertificates> {
        pem.clone_into(&mut self.client_authorities);
        self.config().map(|_| self)
    }

    /// A certificate and key, PEM, for a client that is to be known as `user`.
    pub fn client_certificate(&self, user: &User) -> Result<(String, String), MakeCertificates> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user.name.as_str());
        // One organisation is all that rcgen writes; further groups come from bindings.
        if let Some(group) = user.groups.first().filter(|group| *group != AUTHENTICATED) {
            params.distinguished_name.push(DnType::OrganizationName, group.as_str());
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(MakeCertificates::Generate)?;
        let authority_key = KeyPair::from_pem(&self.ca_key).map_err(MakeCertificates::Generate)?;
        let issuer = Issuer::new(authority(), authority_key);
        let certificate = params.signed_by(&key, &issuer).map_err(MakeCertificates::Generate)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Configuration for a listener.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, MakeCertificates> {
        let mut roots = RootCertStore::empty();
        for pem in [&self.ca_certificate, &self.client_authorities] {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(MakeCertificates::ReadAuthority)?;
                roots.add(certificate).map_err(MakeCertificates::Configure)?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Who has no certificate may still show a token.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(MakeCertificates::VerifyClients)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(MakeCertificates::Configure)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(MakeCertificates::Configure)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A server certificate for `addresses` from the authority that [`Tls::generate`] made before.
    pub fn from_authority(ca_certificate: &str, ca_key: &str, addresses: &[IpAddr]) -> Result<Self, MakeCertificates> {
        let key = KeyPair::from_pem(ca_key).map_err(MakeCertificates::Generate)?;
        Self::issue(ca_certificate.to_owned(), key, addresses)
    }

    fn issue(ca_certificate: String, ca_key: KeyPair, addresses: &[IpAddr]) -> Result<Self, MakeCertificates> {
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let loopback = ["127.0.0.1".to_owned(), "::1".to_owned()];
        let mut subjects: Vec<String> = names.iter().map(|n| (*n).to_owned()).chain(loopback).collect();
        for address in addresses.iter().map(ToString::to_string) {
            if !subjects.contains(&address) {
                subjects.push(address);
            }
        }
        let mut params = CertificateParams::new(subjects).map_err(MakeCertificates::Generate)?;
        params.distinguished_name.push(DnType::CommonName, "stowage-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(MakeCertificates::Generate)?;
        let ca_key_pem = ca_key.serialize_pem();
        let issuer = Issuer::new(authority(), ca_key);
        let certificate = params.signed_by(&key, &issuer).map_err(MakeCertificates::Generate)?;
        let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(Self {
            ca_certificate,
            ca_key: ca_key_pem,
            client_authorities: String::new(),
            certificate: certificate.der().clone(),
            key: private,
        })
    }
}

/// The authority's own parameters, the same at every start.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "stowage-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}
