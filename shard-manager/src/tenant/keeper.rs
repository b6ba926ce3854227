//! The task that keeps the tenant's Secrets.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleet_api::names;
use fleet_runtime::{
    apply::{Applier, ApplyError},
    error::{Classified as _, ErrorClass},
    tls::{Material, ReloadingIdentity, material},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::{sync::watch, time::interval};
use tokio_util::sync::CancellationToken;

use super::certificates::{Keys, KeysError, desired};
use crate::stores::Stores;

/// How often the Secrets are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// The tenant's keys, or why there are none; nothing before they have been looked for.
pub type FoundKeys = Option<Result<Arc<Keys>, String>>;

/// Keeps the tenant's Secrets (as the leader) and what is read from them (in every pod).
pub struct Keeper {
    /// The namespace.
    pub namespace: String,
    /// The kept objects.
    pub stores: Stores,
    /// The only writer.
    pub applier: Applier,
    /// The Secrets, for reading one past the cache.
    pub secrets: Api<Secret>,
    /// The keys, for the controller.
    pub keys: watch::Sender<FoundKeys>,
    /// The shard's own certificate, once there is one.
    pub identity: watch::Sender<Option<ReloadingIdentity>>,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Write(#[from] ApplyError),
    #[error("can't read Secret {0}: {1}")]
    Read(String, #[source] kube::Error),
}

impl KeepError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Keys(_) => ErrorClass::Blocked,
            Self::Write(error) => error.class(),
            Self::Read(_, error) => error.class(),
        }
    }
}

impl Keeper {
    /// Keeps them until the shutdown. `leading` says whether this pod may write.
    pub async fn run(
        self,
        leading: impl Fn() -> bool,
        shutdown: CancellationToken,
    ) -> Result<(), Infallible> {
        let mut ticks = interval(EVERY);
        let mut complaint = String::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            if let Err(error) = self.keep(leading()).await {
                let text = error.to_string();
                if text != complaint {
                    tracing::error!(error = text, "the tenant's Secrets can't be kept");
                    complaint = text;
                }
            } else {
                complaint.clear();
            }
        }
    }

    async fn keep(&self, leading: bool) -> Result<(), KeepError> {
        let kept = if leading { self.keep_secrets().await } else { Ok(()) };
        // The certificate in use does not depend on what it was made with.
        let secret = self.stores.get(&self.stores.secrets, &names::shard_tls_secret(&self.namespace));
        if let Some(material) = secret.and_then(|live| material(&live)) {
            self.adopt(&material)?;
        }
        kept
    }

    async fn keep_secrets(&self) -> Result<(), KeepError> {
        let secret = |name: &str| self.stores.get(&self.stores.secrets, name);
        let keys = self.keys(secret(&names::shard_ca_secret(&self.namespace)).as_deref()).await;
        if let Err(error) = &keys {
            self.tell(error);
        }
        let keys = keys?;
        let names = [names::shard_tls_secret(&self.namespace), names::shard_client_secret(&self.namespace)];
        let live = names.map(|name| secret(&name));
        let find = |name: &str| {
            live.iter()
                .flatten()
                .map(AsRef::as_ref)
                .find(|live: &&Secret| live.metadata.name.as_deref() == Some(name))
        };
        for wanted in &desired(&keys, &self.namespace, find, Timestamp::now())? {
            let name = wanted.metadata.name.as_deref().unwrap_or_default();
            self.applier.ensure_or_replace(wanted, find(name)).await?;
        }
        Ok(())
    }

    /// Tells the controller why there are no keys. What is tried again soon is not worth telling.
    fn tell(&self, error: &KeepError) {
        if error.class() != ErrorClass::Transient {
            self.keys.send_if_modified(|found| {
                let missing = !matches!(found, Some(Ok(_)));
                if missing {
                    *found = Some(Err(error.to_string()));
                }
                missing
            });
        }
    }

    /// The tenant's keys: read, put back, or made.
    async fn keys(&self, live: Option<&Secret>) -> Result<Arc<Keys>, KeepError> {
        let kept = self.keys.borrow().clone().and_then(Result::ok);
        if let Some(kept) = kept {
            self.applier.ensure_or_replace(&kept.secret(&self.namespace), live).await?;
            return Ok(kept);
        }
        let keys = Arc::new(match live {
            Some(live) => Keys::read(live)?,
            None => self.make().await?,
        });
        self.keys.send_replace(Some(Ok(Arc::clone(&keys))));
        Ok(keys)
    }

    /// New keys. Made, not applied: where there are some already, those are the tenant's. Another leader may
    /// have been quicker, or a person may have restored the Secret without the label that the cache goes by;
    /// it gets that again once it is kept.
    async fn make(&self) -> Result<Keys, KeepError> {
        let keys = Keys::generate(&self.namespace, Timestamp::now())?;
        match self.applier.create(&keys.secret(&self.namespace)).await {
            Err(error) if error.is_already_exists() => {
                let name = names::shard_ca_secret(&self.namespace);
                match self.secrets.get(&name).await {
                    Ok(found) => Ok(Keys::read(&found)?),
                    Err(error) => Err(KeepError::Read(name, error)),
                }
            }
            made => Ok(made.map(|_| keys)?),
        }
    }

    fn adopt(&self, material: &Material) -> Result<(), KeysError> {
        let current = self.identity.borrow().clone();
        match current {
            Some(identity) => {
                identity.swap(material)?;
            }
            None => drop(self.identity.send_replace(Some(ReloadingIdentity::new(material)?))),
        }
        Ok(())
    }
}
