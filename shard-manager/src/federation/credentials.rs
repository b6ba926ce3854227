//! The certificate that a shard shows its hub: read anew at each dial, so that one that was exchanged is used.

use fleet_runtime::tls::{CertificateFacts, Identity, Material, ReloadingIdentity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

/// A certificate that can be shown now.
#[derive(Debug)]
pub struct Credentials {
    /// The certificate, its key, and the hub's authority.
    pub identity: ReloadingIdentity,
    /// What the certificate says.
    pub facts: CertificateFacts,
}

/// The Secret holds nothing that can be shown.
#[derive(Debug, thiserror::Error)]
#[error("Secret {secret}: {problem}. {ADVICE}")]
pub struct CredentialsError {
    /// Name of the Secret.
    secret: String,
    /// What is wrong with it.
    problem: String,
}

const ADVICE: &str = "Put what `kubectl fleet member certificate` prints at the hub into this namespace";

impl CredentialsError {
    /// The Secret can't be used for this reason.
    pub fn new(secret: &str, problem: impl Into<String>) -> Self {
        Self { secret: secret.to_owned(), problem: problem.into() }
    }
}

impl Credentials {
    /// Reads what a shard of `namespace` shows its hub; `secret` is the Secret's name.
    pub fn read(
        secret: &str,
        namespace: &str,
        found: Option<&Secret>,
        now: Timestamp,
    ) -> Result<Self, CredentialsError> {
        let wrong = |problem: String| CredentialsError::new(secret, problem);
        let data = found.ok_or_else(|| wrong("it is not there".to_owned()))?.data.as_ref();
        let text = |key: &str| {
            let bytes =
                data.and_then(|data| data.get(key)).ok_or_else(|| wrong(format!("{key} is missing")))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| wrong(format!("{key} is not PEM")))
        };
        let material = Material { ca: text("ca.crt")?, cert: text("tls.crt")?, key: text("tls.key")? };
        let facts = material.certificate().map_err(|error| wrong(error.to_string()))?;
        match &facts.identity {
            Some(Identity::Member { namespace: of, .. }) if of == namespace => {}
            Some(other) => {
                return Err(wrong(format!(
                    "tls.crt speaks for {other}, not for namespace {namespace} of a member"
                )));
            }
            None => return Err(wrong("tls.crt speaks for nobody of the fleet".to_owned())),
        }
        if now >= facts.not_after {
            return Err(wrong(format!("tls.crt has expired at {}", facts.not_after)));
        }
        if now < facts.not_before {
            return Err(wrong(format!("tls.crt is not valid before {}", facts.not_before)));
        }
        let identity = ReloadingIdentity::new(&material).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { identity, facts })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fleet_runtime::tls::{Authority, CertificateRequest, Role, install_provider};
    use k8s_openapi::ByteString;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> Timestamp {
        "2026-03-01T00:00:00Z".parse().unwrap()
    }

    fn secret(identity: Option<Identity>) -> Secret {
        install_provider();
        let authority = Authority::generate("hub", now()).unwrap();
        let request = CertificateRequest {
            common_name: "member".to_owned(),
            dns_names: Vec::new(),
            identity,
            validity: 90 * DAY,
        };
        let issued = authority.issue(&request, now()).unwrap();
        let parts = [("ca.crt", authority.cert_pem()), ("tls.crt", &issued.cert), ("tls.key", &issued.key)];
        let data = parts.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())));
        Secret { data: Some(data.into()), ..Secret::default() }
    }

    fn member() -> Identity {
        Identity::member("east", "tenant-a")
    }

    fn refused(found: Option<&Secret>, now: Timestamp) -> String {
        Credentials::read("hub", "tenant-a", found, now).unwrap_err().to_string()
    }

    #[test]
    fn a_good_certificate_is_shown() {
        let read = Credentials::read("hub", "tenant-a", Some(&secret(Some(member()))), now()).unwrap();
        assert_eq!(read.facts.identity, Some(member()));
        assert_eq!(read.facts.not_after, now() + 90 * DAY);
        assert!(read.facts.renewal() < now() + 61 * DAY && read.facts.renewal() > now() + 59 * DAY);
    }

    #[test]
    fn each_fault_is_named_with_what_to_do() {
        let good = secret(Some(member()));
        let with = |key: &str, value: Option<&[u8]>| {
            let mut secret = good.clone();
            let data = secret.data.as_mut().unwrap();
            match value {
                Some(value) => drop(data.insert(key.to_owned(), ByteString(value.to_vec()))),
                None => drop(data.remove(key)),
            }
            secret
        };
        for (found, at, words) in [
            (None, now(), "it is not there"),
            (Some(with("tls.key", None)), now(), "tls.key is missing"),
            (Some(with("ca.crt", Some(b"\xff"))), now(), "ca.crt is not PEM"),
            (Some(with("ca.crt", Some(b"nonsense"))), now(), "ca.crt can't be used"),
            (Some(with("tls.crt", Some(b"nonsense"))), now(), "tls.crt can't be used"),
            (Some(with("tls.key", Some(b"nonsense"))), now(), "tls.key can't be used"),
            (Some(good.clone()), now() + 91 * DAY, "has expired at 2026-05-30"),
            (Some(good.clone()), now() - DAY, "not valid before"),
            (Some(secret(None)), now(), "for nobody"),
            (Some(secret(Some(Identity::member("east", "tenant-b")))), now(), "ns/tenant-b"),
            (Some(secret(Some(Identity::new("tenant-a", Role::Shard)))), now(), "ns/tenant-a/shard"),
        ] {
            let text = refused(found.as_ref(), at);
            assert!(
                text.contains(words) && text.starts_with("Secret hub: ") && text.contains("kubectl fleet"),
                "{text}"
            );
        }
    }
}
