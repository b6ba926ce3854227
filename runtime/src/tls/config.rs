//! TLS configurations that follow their certificate.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::WebPkiClientVerifier,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Identity, Material, TlsError, identity_of};

/// HTTP/2, the only protocol that the fleet speaks over TLS.
const ALPN: &[u8] = b"h2";

/// A certificate, its key and the trusted authorities, which can be swapped while the process runs.
///
/// New connections use what is current; open ones go on with what they began with. Clones share it.
#[derive(Clone, Debug)]
pub struct ReloadingIdentity {
    current: Arc<RwLock<Loaded>>,
    generation: Arc<watch::Sender<u64>>,
}

#[derive(Debug)]
struct Loaded {
    material: Material,
    server: Arc<ServerConfig>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ReloadingIdentity {
    /// Takes a certificate from memory.
    pub fn new(material: &Material) -> Result<Self, TlsError> {
        let loaded = Loaded::new(material)?;
        Ok(Self { current: Arc::new(RwLock::new(loaded)), generation: Arc::new(watch::Sender::new(0)) })
    }

    /// Reads a certificate from a directory, once. [`Self::watch_dir`] follows its changes.
    pub fn from_dir(directory: &Path) -> Result<Self, TlsError> {
        Self::new(&Material::read_dir(directory)?)
    }

    /// Takes another certificate, and tells whether it is another one. One that can't be used is refused,
    /// and the old one stays.
    pub fn swap(&self, material: &Material) -> Result<bool, TlsError> {
        if self.current.read().unwrap_or_else(PoisonError::into_inner).material == *material {
            return Ok(false);
        }
        let loaded = Loaded::new(material)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
        Ok(true)
    }

    /// Has everybody who watches `current` show this certificate from now on, the first one or another one.
    pub fn adopt(current: &watch::Sender<Option<Self>>, material: &Material) -> Result<(), TlsError> {
        let known = current.borrow().clone();
        match known {
            Some(identity) => drop(identity.swap(material)?),
            None => drop(current.send_replace(Some(Self::new(material)?))),
        }
        Ok(())
    }

    /// What is current.
    pub fn material(&self) -> Material {
        self.current.read().unwrap_or_else(PoisonError::into_inner).material.clone()
    }

    /// A number that grows with each swap.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Reads the directory every `interval` until `shutdown`, and swaps when the files have changed.
    ///
    /// Contents are compared, since Kubernetes exchanges a symbolic link and keeps no useful times. A
    /// directory that can't be read or used leaves the old certificate in place and is told once in the
    /// log, until it changes.
    pub async fn watch_dir(
        self,
        directory: PathBuf,
        interval: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), Infallible> {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut complaint = String::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            match Material::read_dir(&directory).and_then(|material| self.swap(&material)) {
                Ok(swapped) => {
                    complaint.clear();
                    if swapped {
                        tracing::info!(directory = %directory.display(), "certificate has been exchanged");
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != complaint {
                        tracing::error!(directory = %directory.display(), error = %text,
                            "certificate can't be exchanged, the old one stays");
                        complaint = text;
                    }
                }
            }
        }
    }

    /// What a server accepts connections with now: TLS 1.3, a client certificate is mandatory.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).server.clone()
    }

    /// What a client connects with now: TLS 1.3, the server must prove its DNS name and be `expected`.
    pub fn client_config(&self, expected: &Identity) -> Result<Arc<ClientConfig>, TlsError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let provider = provider();
        let names = WebPkiServerVerifier::builder_with_provider(current.roots.clone(), provider.clone())
            .build()
            .map_err(|error| TlsError::Config(error.to_string()))?;
        let verifier = IdentityVerifier { names, expected: expected.clone() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Config(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(current.chain.clone(), current.key.clone_key())
            .map_err(|error| TlsError::Config(error.to_string()))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Each connection shows and checks certificates: a resumed one would go on with old ones.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Loaded {
    fn new(material: &Material) -> Result<Self, TlsError> {
        let unusable = |part, message: String| TlsError::Unusable { part, message };
        let mut roots = RootCertStore::empty();
        for root in certificates("ca.crt", &material.ca)? {
            roots.add(root).map_err(|error| unusable("ca.crt", error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("tls.crt", &material.cert)?;
        let key = PrivateKeyDer::from_pem_slice(material.key.as_bytes())
            .map_err(|error| unusable("tls.key", error.to_string()))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| unusable("ca.crt", error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Config(error.to_string()))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unusable("tls.crt with tls.key", error.to_string()))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Self { material: material.clone(), server: Arc::new(server), roots, chain, key })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(part: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Unusable { part, message: error.to_string() })?;
    if all.is_empty() {
        return Err(TlsError::Unusable { part, message: "it holds no certificate".to_owned() });
    }
    Ok(all)
}

/// Checks the DNS name as every client does, and then that the server is who is expected: with a DNS
/// name alone, any holder of a certificate of the namespace could stand in for another.
#[derive(Debug)]
struct IdentityVerifier {
    names: Arc<WebPkiServerVerifier>,
    expected: Identity,
}

impl ServerCertVerifier for IdentityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.names.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        match identity_of(end_entity) {
            Some(identity) if identity == self.expected => Ok(verified),
            _ => Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.names.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.names.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.names.supported_verify_schemes()
    }
}
