//! Mutual TLS: identities, a certificate authority per owner, and certificates that change at run time.
//!
//! Every connection of the fleet is TLS 1.3 with certificates on both sides. Who the other side is, is
//! the one URI name in its certificate: an [`Identity`].

mod authority;
mod config;
mod identity;
mod material;
mod secret;
mod trust;

pub use authority::{Authority, CertificateRequest, CertifiedPem, RenewalReason, needs_renewal};
pub use config::ReloadingIdentity;
pub use identity::{Identity, InvalidIdentity, InvalidRole, Role, identity_of};
pub use material::{CertificateFacts, Material};
pub use secret::{certificate, material, tls_data};
pub use trust::{Fingerprint, Trust};

/// Something about certificates can't be done.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of the certificate's directory can't be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A part of the material can't be used.
    #[error("{part} can't be used: {message}")]
    Unusable {
        /// ca.crt, tls.crt or tls.key.
        part: &'static str,
        /// Why.
        message: String,
    },
    /// A certificate can't be made.
    #[error("can't make a certificate for {common_name}: {source}")]
    Issue {
        /// Its common name.
        common_name: String,
        /// Why.
        source: rcgen::Error,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS can't be configured: {0}")]
    Config(String),
}

/// Makes ring the process's TLS provider. Harmless when called again.
///
/// Every binary calls it first: with more than one provider linked, the TLS library can't choose by itself.
pub fn install_provider() {
    // The error means that one is installed, by an earlier call.
    let _already = rustls::crypto::ring::default_provider().install_default();
}
