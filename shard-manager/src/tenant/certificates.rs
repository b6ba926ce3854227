//! The Secrets of the tenant: what is read from them, and what they should be.

use std::{collections::BTreeMap, time::Duration};

use fleet_api::names;
use fleet_runtime::tls::{Authority, CertificateRequest, Identity, Role, TlsError, certificate, tls_data};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::Seed;
use crate::labels;

/// Life of the certificates of the shard and of its clients; they are renewed after two thirds of it.
const VALIDITY: Duration = Duration::from_hours(90 * 24);

/// What the leader needs to make certificates and passwords.
#[derive(Debug)]
pub struct Keys {
    /// Signs the tenant's certificates.
    pub authority: Authority,
    /// Derives the tenant's passwords.
    pub seed: Seed,
}

/// The tenant's Secrets can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The authority can't be read.
    #[error(
        "Secret {secret}: {message}. Restore it from a backup, or delete it: then a new authority is made, and \
         every MySQL pod of the namespace has to be restarted"
    )]
    Unreadable {
        /// The Secret.
        secret: String,
        /// What is wrong with it.
        message: String,
    },
    /// A certificate can't be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes for a seed")]
    NoRandomness,
}

impl Keys {
    /// New keys of a tenant.
    pub fn generate(namespace: &str, now: Timestamp) -> Result<Self, KeysError> {
        Ok(Self {
            authority: Authority::generate(&format!("mysql-fleet {namespace}"), now)?,
            seed: Seed::random().ok_or(KeysError::NoRandomness)?,
        })
    }

    /// The keys in the authority's Secret.
    pub fn read(secret: &Secret) -> Result<Self, KeysError> {
        let unreadable = |message: String| KeysError::Unreadable {
            secret: secret.metadata.name.clone().unwrap_or_default(),
            message,
        };
        let bytes = |key: &str| {
            secret
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .map(|value| value.0.as_slice())
                .ok_or_else(|| unreadable(format!("{key} is missing")))
        };
        let pem = |key: &str| {
            String::from_utf8(bytes(key)?.to_vec()).map_err(|_| unreadable(format!("{key} is not PEM")))
        };
        let authority = Authority::from_pem(&pem("ca.crt")?, &pem("ca.key")?)
            .map_err(|error| unreadable(error.to_string()))?;
        let seed =
            Seed::from_bytes(bytes("seed")?).ok_or_else(|| unreadable("seed is not 32 bytes".to_owned()))?;
        Ok(Self { authority, seed })
    }

    /// The authority's Secret.
    pub fn secret(&self, namespace: &str) -> Secret {
        secret(
            namespace,
            names::shard_ca_secret(namespace),
            None,
            BTreeMap::from([
                ("ca.crt".to_owned(), ByteString(self.authority.cert_pem().as_bytes().to_vec())),
                ("ca.key".to_owned(), ByteString(self.authority.key_pem().as_bytes().to_vec())),
                ("seed".to_owned(), ByteString(self.seed.as_bytes().to_vec())),
            ]),
        )
    }
}

/// What the certificates of the shard itself say.
fn requests(namespace: &str) -> [(String, CertificateRequest); 2] {
    let host = names::shard_host(namespace);
    [
        (
            names::shard_tls_secret(namespace),
            CertificateRequest {
                common_name: format!("shard {namespace}"),
                dns_names: vec![
                    format!("{host}.cluster.local"),
                    host,
                    format!("{}.{namespace}", names::SHARD),
                ],
                identity: Some(Identity::new(namespace, Role::Shard)),
                validity: VALIDITY,
            },
        ),
        (
            names::shard_client_secret(namespace),
            CertificateRequest {
                common_name: format!("client {namespace}"),
                dns_names: Vec::new(),
                identity: Some(Identity::new(namespace, Role::Client)),
                validity: VALIDITY,
            },
        ),
    ]
}

/// The Secrets of the shard and of its clients as they should be: a certificate that is still good is
/// kept, any other is made anew.
pub fn desired<'a>(
    keys: &Keys,
    namespace: &str,
    live: impl Fn(&str) -> Option<&'a Secret>,
    now: Timestamp,
) -> Result<[Secret; 2], KeysError> {
    let [shard, client] = requests(namespace);
    let make = |(name, request): (String, CertificateRequest)| {
        certificate(&keys.authority, &request, live(&name), now)
            .map(|material| secret(namespace, name, Some("kubernetes.io/tls"), tls_data(&material)))
    };
    Ok([make(shard)?, make(client)?])
}

fn secret(namespace: &str, name: String, type_: Option<&str>, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels::shard()),
            ..ObjectMeta::default()
        },
        type_: type_.map(ToOwned::to_owned),
        data: Some(data),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn by_name(secrets: &[Secret]) -> HashMap<String, Secret> {
        secrets.iter().map(|secret| (secret.metadata.name.clone().unwrap(), secret.clone())).collect()
    }

    #[test]
    fn keys_survive_their_secret() {
        let keys = Keys::generate("tenant-a", now()).unwrap();
        let read = Keys::read(&keys.secret("tenant-a")).unwrap();
        assert_eq!(read.seed, keys.seed);
        assert_eq!(read.authority.cert_pem(), keys.authority.cert_pem());
    }

    #[test]
    fn an_edited_authority_is_named_with_what_to_do() {
        let mut secret = Keys::generate("tenant-a", now()).unwrap().secret("tenant-a");
        secret.data.as_mut().unwrap().insert("ca.key".to_owned(), ByteString(b"nonsense".to_vec()));
        let text = Keys::read(&secret).unwrap_err().to_string();
        assert!(text.contains("shard-tenant-a-ca") && text.contains("Restore"), "{text}");
    }

    #[test]
    fn good_certificates_are_kept_and_edited_or_old_ones_replaced() {
        let keys = Keys::generate("tenant-a", now()).unwrap();
        let made = desired(&keys, "tenant-a", |_| None, now()).unwrap();
        let live = by_name(&made);
        let kept = desired(&keys, "tenant-a", |name| live.get(name), now()).unwrap();
        assert_eq!(made, kept);

        let mut edited = live.clone();
        let client = edited.get_mut("shard-tenant-a-client").unwrap();
        client.data.as_mut().unwrap().insert("tls.crt".to_owned(), ByteString(b"nonsense".to_vec()));
        let repaired = desired(&keys, "tenant-a", |name| edited.get(name), now()).unwrap();
        assert_eq!(repaired[0], made[0]);
        assert_ne!(repaired[1], edited["shard-tenant-a-client"]);
        assert_ne!(repaired[1], made[1]);

        let later = now() + Duration::from_hours(61 * 24);
        let renewed = desired(&keys, "tenant-a", |name| live.get(name), later).unwrap();
        assert_ne!(renewed, made);
    }
}
