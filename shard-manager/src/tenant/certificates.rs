//! The Secrets of the tenant: what is read from them, and what they should be.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fleet_api::names;
use fleet_runtime::tls::{
    Authority, CertificateRequest, Fingerprint, Identity, RenewalReason, Role, TlsError, certificate,
    tls_data,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Seed, asked::friendly, rotation::Stage};
use crate::labels;

/// Life of the certificates of the shard and of its clients; they are renewed after two thirds of it.
const VALIDITY: Duration = Duration::from_hours(90 * 24);

/// What the leader needs to make certificates and passwords.
#[derive(Debug)]
pub struct Keys {
    /// Signs the tenant's certificates.
    pub authority: Arc<Authority>,
    /// Whether it is being exchanged. Of the authority that comes all is kept, of the one that goes its certificate: it
    /// signs nothing any more.
    pub stage: Stage<Arc<Authority>, String>,
    /// Derives the tenant's passwords. It stays when the authority is exchanged.
    pub seed: Seed,
}

/// Keys of the authority's Secret that say how far an exchange is.
const STAGE: &str = "rotation";
const WAIT: &str = "rotation-wait";
const SINCE: &str = "rotation-since";

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
            authority: Arc::new(Authority::generate(&format!("mysql-fleet {namespace}"), now)?),
            stage: Stage::Steady,
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
        let authority = |cert: &str, key: &str| {
            Authority::from_pem(&pem(cert)?, &pem(key)?)
                .map(Arc::new)
                .map_err(|error| unreadable(error.to_string()))
        };
        let text = |key: &str| {
            String::from_utf8(bytes(key)?.to_vec()).map_err(|_| unreadable(format!("{key} is no text")))
        };
        let wait = || {
            let wait: Option<SignedDuration> = text(WAIT)?.parse().ok();
            let wait = wait.and_then(|wait| Duration::try_from(wait).ok());
            wait.ok_or_else(|| unreadable(format!("{WAIT} is no time")))
        };
        let since = || match text(SINCE)?.as_str() {
            "" => Ok(None),
            since => since.parse().map(Some).map_err(|_| unreadable(format!("{SINCE} is no moment"))),
        };
        let stage = match bytes(STAGE).unwrap_or_default() {
            b"" | b"Steady" => Stage::Steady,
            b"Introducing" => Stage::Introducing {
                next: authority("next.crt", "next.key")?,
                wait: wait()?,
                since: since()?,
            },
            b"Replacing" => {
                let previous = pem("previous.crt")?;
                if Fingerprint::of_pem(&previous).is_none() {
                    return Err(unreadable("previous.crt is no certificate".to_owned()));
                }
                Stage::Replacing { previous, wait: wait()?, since: since()? }
            }
            _ => return Err(unreadable(format!("{STAGE} is neither Steady, Introducing nor Replacing"))),
        };
        let authority = authority("ca.crt", "ca.key")?;
        let seed =
            Seed::from_bytes(bytes("seed")?).ok_or_else(|| unreadable("seed is not 32 bytes".to_owned()))?;
        Ok(Self { authority, stage, seed })
    }

    /// The authority's Secret.
    pub fn secret(&self, namespace: &str) -> Secret {
        let text = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut data = BTreeMap::from([
            ("ca.crt", text(self.authority.cert_pem())),
            ("ca.key", text(self.authority.key_pem())),
            ("seed", ByteString(self.seed.as_bytes().to_vec())),
        ]);
        let pace = match &self.stage {
            Stage::Steady => None,
            Stage::Introducing { next, wait, since } => {
                data.insert("next.crt", text(next.cert_pem()));
                data.insert("next.key", text(next.key_pem()));
                Some((wait, since))
            }
            Stage::Replacing { previous, wait, since } => {
                data.insert("previous.crt", text(previous));
                Some((wait, since))
            }
        };
        data.insert(STAGE, text(self.stage.name()));
        if let Some((wait, since)) = pace {
            data.insert(WAIT, text(&format!("{:#}", friendly(*wait))));
            data.insert(SINCE, text(&since.map(|since| since.to_string()).unwrap_or_default()));
        }
        let data = data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        secret(namespace, names::shard_ca_secret(namespace), None, data)
    }

    /// What everybody is to trust. Who signs comes first: some programs read one certificate of a file.
    pub fn bundle(&self) -> String {
        let issuer = self.authority.cert_pem();
        match &self.stage {
            Stage::Steady => issuer.to_owned(),
            Stage::Introducing { next, .. } => format!("{issuer}{}", next.cert_pem()),
            Stage::Replacing { previous, .. } => format!("{issuer}{previous}"),
        }
    }

    /// How far an exchange is.
    pub fn seen(&self) -> Stage {
        match &self.stage {
            Stage::Steady => Stage::Steady,
            Stage::Introducing { next, wait, since } => {
                Stage::Introducing { next: next.fingerprint(), wait: *wait, since: *since }
            }
            Stage::Replacing { previous, wait, since } => Stage::Replacing {
                // It was read as a certificate.
                previous: Fingerprint::of_pem(previous).unwrap_or_else(|| String::new().into()),
                wait: *wait,
                since: *since,
            },
        }
    }

    /// Whether two thirds of the authority's life are over. A clock that is far behind is no reason.
    pub fn is_aged(&self, now: Timestamp) -> bool {
        self.authority.needs_renewal(now) == Some(RenewalReason::Expiring)
    }

    /// The same, with another authority beside this one. It has another name, for programs that look for an authority
    /// by that alone.
    pub fn introduce(&self, namespace: &str, wait: Duration, now: Timestamp) -> Result<Self, KeysError> {
        let name = format!("mysql-fleet {namespace} {}", now.strftime("%Y%m%dT%H%M%SZ"));
        let next = Arc::new(Authority::generate(&name, now)?);
        Ok(self.at(Stage::Introducing { next, wait, since: None }))
    }

    /// The same at another stage.
    #[must_use]
    pub fn at(&self, stage: Stage<Arc<Authority>, String>) -> Self {
        Self { authority: Arc::clone(&self.authority), stage, seed: self.seed.clone() }
    }

    /// The same once the new authority signs; unchanged where there is none.
    #[must_use]
    pub fn replace(&self) -> Self {
        match &self.stage {
            Stage::Introducing { next, wait, .. } => {
                let previous = self.authority.cert_pem().to_owned();
                let stage = Stage::Replacing { previous, wait: *wait, since: None };
                Self { authority: Arc::clone(next), ..self.at(stage) }
            }
            Stage::Steady | Stage::Replacing { .. } => self.at(self.stage.clone()),
        }
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
        certificate(&keys.authority, &keys.bundle(), &request, live(&name), now)
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

    /// Keys at each stage of an exchange.
    fn exchanged() -> [Keys; 3] {
        let before = Keys::generate("tenant-a", now()).unwrap();
        let mut introducing = before.introduce("tenant-a", Duration::from_hours(24), now()).unwrap();
        introducing.stage.set_since(Some(now()));
        let replacing = introducing.replace();
        [before, introducing, replacing]
    }

    #[test]
    fn an_exchange_goes_on_from_its_secret_and_leaves_the_passwords() {
        let [before, introducing, replacing] = exchanged();
        let after = replacing.at(Stage::Steady);
        for keys in [&before, &introducing, &replacing, &after] {
            let read = Keys::read(&keys.secret("tenant-a")).unwrap();
            assert_eq!(read.seen(), keys.seen());
            assert_eq!(read.bundle(), keys.bundle());
            assert_eq!(read.seed, before.seed);
        }
        let keys_of = |keys: &Keys| keys.secret("tenant-a").data.unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(keys_of(&after), ["ca.crt", "ca.key", "rotation", "seed"]);
        let old_key = before.authority.key_pem().as_bytes();
        let kept = replacing.secret("tenant-a").data.unwrap();
        assert!(kept.values().all(|value| value.0 != old_key), "the old authority signs nothing any more");
    }

    #[test]
    fn certificates_follow_who_signs_and_bundles_who_is_trusted() {
        let [before, introducing, replacing] = exchanged();
        let after = replacing.at(Stage::Steady);
        let mut live = HashMap::new();
        let mut step = |keys: &Keys| {
            let made = by_name(&desired(keys, "tenant-a", |name| live.get(name), now()).unwrap());
            live = made;
            let secret = &live["shard-tenant-a-tls"];
            let material = fleet_runtime::tls::material(secret).unwrap();
            (material.cert.clone(), material.trust(now()).unwrap())
        };
        let [old, new] = [&before, &after].map(|keys| keys.authority.fingerprint());
        let both = [old.clone(), new.clone()].into();
        let (first, trust) = step(&before);
        assert_eq!((trust.issuer, trust.authorities), (Some(old.clone()), [old.clone()].into()));
        let (cert, trust) = step(&introducing);
        assert_eq!(
            (&cert, trust.issuer),
            (&first, Some(old)),
            "a longer bundle is no reason for a new certificate"
        );
        assert_eq!(trust.authorities, both);
        let (second, trust) = step(&replacing);
        assert_eq!((trust.issuer, trust.authorities), (Some(new.clone()), both));
        let (cert, trust) = step(&after);
        assert_eq!((cert, trust.issuer, trust.authorities), (second, Some(new.clone()), [new].into()));
    }

    #[test]
    fn an_authority_is_aged_after_two_thirds_of_its_life() {
        let keys = Keys::generate("tenant-a", now()).unwrap();
        let years = |years: u32| keys.is_aged(now() + years * Duration::from_hours(365 * 24));
        assert!(!years(6) && years(7));
        assert!(!keys.is_aged(now() - Duration::from_hours(1)), "a clock that is behind");
    }

    #[test]
    fn a_stage_that_can_not_be_read_is_named() {
        let [_, introducing, replacing] = exchanged();
        for (keys, key, value) in [
            (&introducing, "rotation", "Sideways"),
            (&introducing, "rotation-wait", "soon"),
            (&introducing, "rotation-since", "lately"),
            (&introducing, "next.key", "nonsense"),
            (&replacing, "previous.crt", "nonsense"),
        ] {
            let mut secret = keys.secret("tenant-a");
            secret.data.as_mut().unwrap().insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
            let text = Keys::read(&secret).unwrap_err().to_string();
            assert!(text.contains(key) || text.contains("ca.key"), "{key}: {text}");
        }
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
