//! The three files of a TLS Secret.

use std::{fmt, fs, path::Path};

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Identity, TlsError, identity_of};

/// A certificate, its key, and the authority that the other side's certificate must come from, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// ca.crt: one or more certificates of authorities.
    pub ca: String,
    /// tls.crt: the certificate, and the intermediate ones after it.
    pub cert: String,
    /// tls.key: the private key.
    pub key: String,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

impl Material {
    /// Reads `ca.crt`, `tls.crt` and `tls.key` of a directory, as a mounted Secret has them.
    pub fn read_dir(directory: &Path) -> Result<Self, TlsError> {
        let read = |file: &str| {
            let path = directory.join(file);
            fs::read_to_string(&path).map_err(|source| TlsError::Read { path, source })
        };
        Ok(Self { ca: read("ca.crt")?, cert: read("tls.crt")?, key: read("tls.key")? })
    }

    /// What the certificate says of its holder.
    pub fn certificate(&self) -> Result<CertificateFacts, TlsError> {
        let unusable = |message: String| TlsError::Unusable { part: "tls.crt", message };
        let der = CertificateDer::from_pem_slice(self.cert.as_bytes())
            .map_err(|error| unusable(error.to_string()))?;
        let (_, certificate) =
            X509Certificate::from_der(&der).map_err(|error| unusable(error.to_string()))?;
        let time =
            |seconds: i64| Timestamp::from_second(seconds).map_err(|error| unusable(error.to_string()));
        Ok(CertificateFacts {
            identity: identity_of(&der),
            not_before: time(certificate.validity().not_before.timestamp())?,
            not_after: time(certificate.validity().not_after.timestamp())?,
        })
    }
}

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whom it speaks for, if for anybody of the fleet.
    pub identity: Option<Identity>,
    /// Begin of its life.
    pub not_before: Timestamp,
    /// End of its life.
    pub not_after: Timestamp,
}

impl CertificateFacts {
    /// When two thirds of its life are over: it should have been exchanged by then.
    pub fn renewal(&self) -> Timestamp {
        let life = self.not_after.duration_since(self.not_before);
        self.not_before.saturating_add(life / 3 * 2).unwrap_or(self.not_after)
    }
}
