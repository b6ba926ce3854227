//! The three files of a TLS Secret.

use std::{fmt, fs, path::Path};

use super::TlsError;

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
}
