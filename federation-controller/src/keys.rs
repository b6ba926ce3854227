//! The hub's certificate authority, its own certificate, and that of people who look at it: Secrets of its namespace.
//!
//! The leader makes them once and renews the certificates; every pod uses them. An authority that can't be read is
//! never replaced: each member would be turned away by a new one.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use fleet_api::names;
use fleet_runtime::{
    apply::{Applier, ApplyError},
    lease::Gate,
    tls::{
        Authority, CertificateRequest, Identity, ReloadingIdentity, TlsError, certificate, material, tls_data,
    },
};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Api;
use tokio::{sync::watch, time::interval};
use tokio_util::sync::CancellationToken;

/// Life of the certificates; they are renewed after two thirds of it.
const VALIDITY: Duration = Duration::from_hours(90 * 24);
/// How often the Secrets are looked at once the certificate is there, and before.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_LATER: u32 = 30;

/// Keeps the hub's Secrets (as the leader) and the certificate in use (in every pod).
pub struct Keeper {
    /// Namespace of the hub.
    pub namespace: String,
    /// Names that members dial, beside those of the hub's Service.
    pub dns_names: Vec<String>,
    /// The Secrets.
    pub secrets: Api<Secret>,
    /// The only writer.
    pub applier: Applier,
    /// Open while this pod leads.
    pub gate: Gate,
    /// The certificate in use, once there is one.
    pub identity: watch::Sender<Option<ReloadingIdentity>>,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("can't read Secret {0}: {1}")]
    Read(&'static str, #[source] kube::Error),
    #[error(
        "Secret {secret}: {message}. Restore it from a backup, or delete it: a hub that had read it before puts it back; \
         after a restart a new authority is made, and every member needs a new certificate",
        secret = names::HUB_CA_SECRET
    )]
    Unreadable { message: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Write(#[from] ApplyError),
}

impl Keeper {
    /// Keeps them until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Infallible> {
        let mut ticks = interval(EVERY);
        let mut complaint = String::new();
        let mut rest = 0;
        let mut known = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            if rest > 0 {
                rest -= 1;
                continue;
            }
            match self.keep(&mut known).await {
                Ok(()) => {
                    complaint.clear();
                    // A pod that has just come to lead must not wait long before the first certificate is made.
                    rest = if self.identity.borrow().is_some() { EVERY_LATER } else { 0 };
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != complaint {
                        tracing::error!(error = text, "the hub's Secrets can't be kept");
                        complaint = text;
                    }
                }
            }
        }
    }

    /// Keeps them once. `known` is the authority that was last seen.
    async fn keep(&self, known: &mut Option<Authority>) -> Result<(), KeepError> {
        if self.gate.is_open() {
            self.keep_secrets(known).await?;
        }
        match self.get(names::HUB_TLS_SECRET).await?.as_ref().and_then(material) {
            Some(material) => Ok(ReloadingIdentity::adopt(&self.identity, &material)?),
            None => Ok(()),
        }
    }

    async fn keep_secrets(&self, known: &mut Option<Authority>) -> Result<(), KeepError> {
        let authority = if let Some(secret) = self.get(names::HUB_CA_SECRET).await? {
            known.insert(read(&secret)?)
        } else {
            // One that was deleted is put back: with another, no member would get in any more.
            let authority = match known {
                Some(authority) => authority,
                None => known.insert(Authority::generate("mysql-fleet hub", Timestamp::now())?),
            };
            // Made, not applied: another leader's would be taken over by that.
            self.applier.create(&self.authority_secret(authority)).await?;
            authority
        };
        for (name, request) in self.requests() {
            let live = self.get(name).await?;
            let bundle = authority.cert_pem();
            let material = certificate(authority, bundle, &request, live.as_ref(), Timestamp::now())?;
            let wanted = self.secret(name, Some("kubernetes.io/tls"), tls_data(&material));
            self.applier.ensure_or_replace(&wanted, live.as_ref()).await?;
        }
        Ok(())
    }

    fn requests(&self) -> [(&'static str, CertificateRequest); 2] {
        let service = format!("{}.{}", names::FEDERATION, self.namespace);
        let mut dns_names = vec![format!("{service}.svc.cluster.local"), format!("{service}.svc"), service];
        dns_names.extend(
            self.dns_names.iter().filter(|name| !dns_names.contains(name)).cloned().collect::<Vec<_>>(),
        );
        let request = |common_name: &str, dns_names, identity| CertificateRequest {
            common_name: common_name.to_owned(),
            dns_names,
            identity: Some(identity),
            validity: VALIDITY,
        };
        [
            (names::HUB_TLS_SECRET, request("hub", dns_names, Identity::Hub)),
            (names::HUB_VIEWER_SECRET, request("hub viewer", Vec::new(), Identity::Viewer)),
        ]
    }

    async fn get(&self, name: &'static str) -> Result<Option<Secret>, KeepError> {
        self.secrets.get_opt(name).await.map_err(|error| KeepError::Read(name, error))
    }

    fn authority_secret(&self, authority: &Authority) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = BTreeMap::from([
            ("ca.crt".to_owned(), bytes(authority.cert_pem())),
            ("ca.key".to_owned(), bytes(authority.key_pem())),
        ]);
        self.secret(names::HUB_CA_SECRET, None, data)
    }

    fn secret(&self, name: &str, type_: Option<&str>, data: BTreeMap<String, ByteString>) -> Secret {
        let labels = BTreeMap::from([(names::LABEL_MANAGED_BY.to_owned(), names::MANAGER.to_owned())]);
        Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            type_: type_.map(ToOwned::to_owned),
            data: Some(data),
            ..Secret::default()
        }
    }
}

fn read(secret: &Secret) -> Result<Authority, KeepError> {
    let pem = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let value = value.ok_or_else(|| KeepError::Unreadable { message: format!("{key} is missing") })?;
        String::from_utf8(value.0.clone())
            .map_err(|_| KeepError::Unreadable { message: format!("{key} is not PEM") })
    };
    let (cert, key) = (pem("ca.crt")?, pem("ca.key")?);
    Authority::from_pem(&cert, &key).map_err(|error| KeepError::Unreadable { message: error.to_string() })
}
