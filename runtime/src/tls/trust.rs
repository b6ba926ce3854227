//! Which authorities somebody trusts, and which one vouches for it.

use std::{collections::BTreeSet, fmt};

use jiff::Timestamp;
use ring::digest;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use super::{Material, TlsError, authority::issued_by};

/// An authority by its certificate: SHA-256 of it, 64 hexadecimal digits. Another key has another one, also under
/// the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of a certificate.
    pub(super) fn of(der: &CertificateDer<'_>) -> Self {
        Self(hex::encode(digest::digest(&digest::SHA256, der)))
    }

    /// Of a certificate as PEM; `None` where it is none.
    pub fn of_pem(pem: &str) -> Option<Self> {
        CertificateDer::from_pem_slice(pem.as_bytes()).ok().map(|der| Self::of(&der))
    }
}

impl From<String> for Fingerprint {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whom somebody trusts, and by whom it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The authorities of `ca.crt`.
    pub authorities: BTreeSet<Fingerprint>,
    /// The one of them that has issued `tls.crt`; `None` where none has, or it is not valid now.
    pub issuer: Option<Fingerprint>,
}

impl Material {
    /// Whom the holder trusts, and by whom it is trusted.
    pub fn trust(&self, now: Timestamp) -> Result<Trust, TlsError> {
        let unusable = |part, message: String| TlsError::Unusable { part, message };
        let roots = CertificateDer::pem_slice_iter(self.ca.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable("ca.crt", error.to_string()))?;
        let leaf = CertificateDer::from_pem_slice(self.cert.as_bytes())
            .map_err(|error| unusable("tls.crt", error.to_string()))?;
        let issuer = roots.iter().find(|root| issued_by(&leaf, root, now).is_ok());
        Ok(Trust {
            authorities: roots.iter().map(Fingerprint::of).collect(),
            issuer: issuer.map(Fingerprint::of),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{Authority, CertificateRequest},
        *,
    };

    #[test]
    fn the_issuer_is_found_among_authorities_of_the_same_name() {
        let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        let [old, new] = [(), ()].map(|()| Authority::generate("same name", now).unwrap());
        let request = CertificateRequest {
            common_name: "orders".to_owned(),
            dns_names: Vec::new(),
            identity: None,
            validity: Duration::from_hours(24),
        };
        let issued = new.issue(&request, now).unwrap();
        let ca = format!("{}{}", old.cert_pem(), new.cert_pem());
        let material = Material { ca, cert: issued.cert, key: issued.key };
        let trust = material.trust(now).unwrap();
        assert_eq!(trust.authorities, [old.fingerprint(), new.fingerprint()].into());
        assert_eq!(trust.issuer, Some(new.fingerprint()));
        assert_eq!(new.fingerprint().to_string().len(), 64);

        let expired = material.trust(now + Duration::from_hours(25)).unwrap();
        assert_eq!(expired.issuer, None, "nobody is shown a certificate that has ended");
        let foreign = Material { ca: old.cert_pem().to_owned(), ..material.clone() };
        assert_eq!(foreign.trust(now).unwrap().issuer, None);
        assert!(
            Material { ca: "nonsense".to_owned(), ..material.clone() }
                .trust(now)
                .unwrap()
                .authorities
                .is_empty()
        );
        let error = Material { cert: "nonsense".to_owned(), ..material }.trust(now).unwrap_err();
        assert!(error.to_string().starts_with("tls.crt can't be used"), "{error}");
    }
}
