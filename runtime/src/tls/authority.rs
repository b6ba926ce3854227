//! A certificate authority, what it issues, and when that must be issued anew.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{CertificateError, RootCertStore, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{Fingerprint, Identity, TlsError};

/// Life of an authority.
const AUTHORITY_LIFE: Duration = Duration::from_hours(10 * 365 * 24);

/// Certificates are valid from a little before they are made: clocks of machines differ.
const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct CertifiedPem {
    /// The certificate.
    pub cert: String,
    /// The private key (PKCS #8).
    pub key: String,
}

impl fmt::Debug for CertifiedPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertifiedPem").field("cert", &self.cert).finish_non_exhaustive()
    }
}

/// What a certificate shall say.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// Common name, for people.
    pub common_name: String,
    /// DNS names of the holder.
    pub dns_names: Vec<String>,
    /// Whom it speaks for.
    pub identity: Option<Identity>,
    /// How long it is valid from now.
    pub validity: Duration,
}

/// A certificate authority.
pub struct Authority {
    cert: String,
    key: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority with a life of ten years.
    pub fn generate(common_name: &str, now: Timestamp) -> Result<Self, TlsError> {
        let issue = |source| TlsError::Issue { common_name: common_name.to_owned(), source };
        let mut params = params(common_name, AUTHORITY_LIFE, now);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(issue)?;
        let cert = params.self_signed(&key).map_err(issue)?.pem();
        Self::from_pem(&cert, &key.serialize_pem())
    }

    /// Reads an authority. Fails unless the key is the certificate's.
    pub fn from_pem(cert: &str, key: &str) -> Result<Self, TlsError> {
        let bad_cert = |message: String| TlsError::Unusable { part: "ca.crt", message };
        let bad_key = |message: String| TlsError::Unusable { part: "ca.key", message };
        let pair = KeyPair::from_pem(key).map_err(|error| bad_key(error.to_string()))?;
        let der =
            CertificateDer::from_pem_slice(cert.as_bytes()).map_err(|error| bad_cert(error.to_string()))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| bad_cert(error.to_string()))?;
        if !parsed.is_ca() {
            return Err(bad_cert("it is not the certificate of an authority".to_owned()));
        }
        if !holds_key(&parsed, &pair) {
            return Err(bad_key("it is not the key of the certificate in ca.crt".to_owned()));
        }
        let issuer = Issuer::from_ca_cert_der(&der, pair).map_err(|error| bad_cert(error.to_string()))?;
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), der: der.clone(), issuer })
    }

    /// The authority's certificate.
    pub fn cert_pem(&self) -> &str {
        &self.cert
    }

    /// The authority's private key.
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// By which it is told from others.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }

    /// Returns why the authority must be made anew, if it must.
    pub fn needs_renewal(&self, now: Timestamp) -> Option<RenewalReason> {
        let Ok((_, certificate)) = X509Certificate::from_der(&self.der) else {
            return Some(RenewalReason::Unparsable);
        };
        expiry(&certificate, now)
    }

    /// Issues a certificate for both sides of a connection, with a new key.
    pub fn issue(&self, request: &CertificateRequest, now: Timestamp) -> Result<CertifiedPem, TlsError> {
        let issue = |source| TlsError::Issue { common_name: request.common_name.clone(), source };
        let mut params = params(&request.common_name, request.validity, now);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        for name in &request.dns_names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().map_err(issue)?));
        }
        if let Some(identity) = &request.identity {
            let uri = identity.to_string();
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().map_err(issue)?));
        }
        let key = KeyPair::generate().map_err(issue)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(issue)?;
        Ok(CertifiedPem { cert: cert.pem(), key: key.serialize_pem() })
    }
}

fn params(common_name: &str, life: Duration, now: Timestamp) -> CertificateParams {
    let since_epoch = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.not_before = epoch + since_epoch.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + since_epoch + life;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

/// Why a certificate must be issued anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalReason {
    /// The certificate or its key can't be read.
    Unparsable,
    /// The key is not the certificate's.
    KeyMismatch,
    /// Its names are not the wanted ones.
    NamesDiffer,
    /// It does not come from the authority.
    NotSignedByAuthority,
    /// Two thirds of its life are over.
    Expiring,
    /// Its life begins in the future.
    NotYetValid,
}

impl fmt::Display for RenewalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unparsable => "it can't be read",
            Self::KeyMismatch => "its key is another one's",
            Self::NamesDiffer => "its names are not the wanted ones",
            Self::NotSignedByAuthority => "it does not come from the authority",
            Self::Expiring => "two thirds of its life are over",
            Self::NotYetValid => "its life begins in the future",
        })
    }
}

/// Returns why a certificate must be issued anew by `authority`, if it must.
pub fn needs_renewal(
    cert_pem: &str,
    key_pem: &str,
    authority: &Authority,
    request: &CertificateRequest,
    now: Timestamp,
) -> Option<RenewalReason> {
    let Ok(der) = CertificateDer::from_pem_slice(cert_pem.as_bytes()) else {
        return Some(RenewalReason::Unparsable);
    };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else {
        return Some(RenewalReason::Unparsable);
    };
    let Ok(pair) = KeyPair::from_pem(key_pem) else {
        return Some(RenewalReason::Unparsable);
    };
    if !holds_key(&certificate, &pair) {
        return Some(RenewalReason::KeyMismatch);
    }
    if !has_names(&certificate, request) {
        return Some(RenewalReason::NamesDiffer);
    }
    expiry(&certificate, now).or_else(|| issued_by(&der, &authority.der, now).err())
}

fn holds_key(certificate: &X509Certificate<'_>, pair: &KeyPair) -> bool {
    certificate.public_key().subject_public_key.data.as_ref() == pair.public_key_raw()
}

fn has_names(certificate: &X509Certificate<'_>, request: &CertificateRequest) -> bool {
    let mut wanted: BTreeSet<(&str, String)> =
        request.dns_names.iter().map(|name| ("DNS", name.clone())).collect();
    wanted.extend(request.identity.iter().map(|identity| ("URI", identity.to_string())));
    let names = certificate.subject_alternative_name().ok().flatten();
    let present: BTreeSet<(&str, String)> = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .map(|name| match name {
            GeneralName::DNSName(name) => ("DNS", (*name).to_owned()),
            GeneralName::URI(uri) => ("URI", (*uri).to_owned()),
            other => ("other", other.to_string()),
        })
        .collect();
    let common_name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    wanted == present && common_name == Some(request.common_name.as_str())
}

fn expiry(certificate: &X509Certificate<'_>, now: Timestamp) -> Option<RenewalReason> {
    let begin = certificate.validity().not_before.timestamp();
    let end = certificate.validity().not_after.timestamp();
    if now.as_second() < begin {
        return Some(RenewalReason::NotYetValid);
    }
    let two_thirds = begin.saturating_add(end.saturating_sub(begin) / 3 * 2);
    (now.as_second() >= two_thirds).then_some(RenewalReason::Expiring)
}

/// Whether the holder of `der` is accepted by who trusts `root`; otherwise why the certificate must be issued anew.
pub(super) fn issued_by(
    der: &CertificateDer<'_>,
    root: &CertificateDer<'_>,
    now: Timestamp,
) -> Result<(), RenewalReason> {
    let mut roots = RootCertStore::empty();
    let verifier = roots.add(root.clone().into_owned()).ok().and_then(|()| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
    });
    let verifier = verifier.ok_or(RenewalReason::NotSignedByAuthority)?;
    let seconds = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
    match verifier.verify_client_cert(der, &[], UnixTime::since_unix_epoch(seconds)) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => Err(RenewalReason::Expiring),
        Err(_) => Err(RenewalReason::NotSignedByAuthority),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Role, *};

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> Timestamp {
        "2026-03-01T00:00:00Z".parse().unwrap()
    }

    fn request() -> CertificateRequest {
        CertificateRequest {
            common_name: "orders".to_owned(),
            dns_names: vec!["orders-0.orders-instances.tenant-a.svc".to_owned()],
            identity: Some(Identity::new("tenant-a", Role::Agent)),
            validity: 90 * DAY,
        }
    }

    #[test]
    fn a_fresh_certificate_needs_nothing() {
        let authority = Authority::generate("test", now()).unwrap();
        let issued = authority.issue(&request(), now()).unwrap();
        assert_eq!(needs_renewal(&issued.cert, &issued.key, &authority, &request(), now()), None);
        assert_eq!(authority.needs_renewal(now()), None);
    }

    #[test]
    fn an_authority_survives_being_written_and_read() {
        let authority = Authority::generate("test", now()).unwrap();
        let read = Authority::from_pem(authority.cert_pem(), authority.key_pem()).unwrap();
        let issued = read.issue(&request(), now()).unwrap();
        assert_eq!(needs_renewal(&issued.cert, &issued.key, &authority, &request(), now()), None);
    }

    #[test]
    fn two_thirds_of_a_life_are_enough() {
        let authority = Authority::generate("test", now()).unwrap();
        let issued = authority.issue(&request(), now()).unwrap();
        let at =
            |days: u32| needs_renewal(&issued.cert, &issued.key, &authority, &request(), now() + days * DAY);
        assert_eq!(at(59), None);
        assert_eq!(at(61), Some(RenewalReason::Expiring));
        assert_eq!(at(200), Some(RenewalReason::Expiring));
        let before = needs_renewal(&issued.cert, &issued.key, &authority, &request(), now() - DAY);
        assert_eq!(before, Some(RenewalReason::NotYetValid));
    }

    #[test]
    fn each_difference_is_named() {
        let authority = Authority::generate("test", now()).unwrap();
        let other = Authority::generate("test", now()).unwrap();
        let issued = authority.issue(&request(), now()).unwrap();
        let second = authority.issue(&request(), now()).unwrap();
        let check = |cert: &str, key: &str, ca: &Authority, wanted: &CertificateRequest| {
            needs_renewal(cert, key, ca, wanted, now())
        };
        let mut names = request();
        names.dns_names.push("orders-1.orders-instances.tenant-a.svc".to_owned());
        let mut identity = request();
        identity.identity = Some(Identity::new("tenant-b", Role::Agent));
        assert_eq!(check("", &issued.key, &authority, &request()), Some(RenewalReason::Unparsable));
        assert_eq!(check(&issued.cert, "nonsense", &authority, &request()), Some(RenewalReason::Unparsable));
        assert_eq!(
            check(&issued.cert, &second.key, &authority, &request()),
            Some(RenewalReason::KeyMismatch)
        );
        assert_eq!(check(&issued.cert, &issued.key, &authority, &names), Some(RenewalReason::NamesDiffer));
        assert_eq!(check(&issued.cert, &issued.key, &authority, &identity), Some(RenewalReason::NamesDiffer));
        assert_eq!(
            check(&issued.cert, &issued.key, &other, &request()),
            Some(RenewalReason::NotSignedByAuthority)
        );
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let first = Authority::generate("first", now()).unwrap();
        let second = Authority::generate("second", now()).unwrap();
        let error = Authority::from_pem(first.cert_pem(), second.key_pem()).unwrap_err();
        assert_eq!(error.to_string(), "ca.key can't be used: it is not the key of the certificate in ca.crt");
        let leaf = first.issue(&request(), now()).unwrap();
        let error = Authority::from_pem(&leaf.cert, &leaf.key).unwrap_err();
        assert_eq!(error.to_string(), "ca.crt can't be used: it is not the certificate of an authority");
    }
}
