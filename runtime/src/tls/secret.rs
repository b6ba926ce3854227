//! Certificates in Secrets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::{Authority, CertificateRequest, Material, TlsError, needs_renewal};

/// The certificate of a TLS Secret: the one it has while that is good, or a new one. `bundle` is what its holder is
/// to trust: the certificates of `authority` and of others. That it changes is no reason for a new certificate.
pub fn certificate(
    authority: &Authority,
    bundle: &str,
    request: &CertificateRequest,
    live: Option<&Secret>,
    now: Timestamp,
) -> Result<Material, TlsError> {
    let ca = bundle.to_owned();
    if let Some(material) = live.and_then(material)
        && needs_renewal(&material.cert, &material.key, authority, request, now).is_none()
    {
        return Ok(Material { ca, ..material });
    }
    let issued = authority.issue(request, now)?;
    Ok(Material { ca, cert: issued.cert, key: issued.key })
}

/// What a TLS Secret holds; `None` where a part of it is missing or no text.
pub fn material(secret: &Secret) -> Option<Material> {
    let text = |key: &str| {
        let value = secret.data.as_ref()?.get(key)?;
        String::from_utf8(value.0.clone()).ok()
    };
    Some(Material { ca: text("ca.crt")?, cert: text("tls.crt")?, key: text("tls.key")? })
}

/// The data of a TLS Secret.
pub fn tls_data(material: &Material) -> BTreeMap<String, ByteString> {
    [("ca.crt", &material.ca), ("tls.crt", &material.cert), ("tls.key", &material.key)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect()
}
