//! The task that keeps the tenant's Secrets.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleet_api::names;
use fleet_runtime::{
    apply::{Applier, ApplyError},
    error::{Classified as _, ErrorClass},
    tls::{ReloadingIdentity, material},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::{sync::watch, time::interval};
use tokio_util::sync::CancellationToken;

use super::{
    certificates::{Keys, KeysError, desired},
    exchange::{Exchange, ExchangeError},
};
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
    /// Exchanges the authority.
    pub exchange: Exchange,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Write(#[from] ApplyError),
    #[error("the authority can't be exchanged: {0}")]
    Exchange(#[from] ExchangeError),
    #[error("can't read Secret {0}: {1}")]
    Read(String, #[source] kube::Error),
}

impl KeepError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Keys(_) | Self::Exchange(ExchangeError::Keys(_)) => ErrorClass::Blocked,
            Self::Write(error) | Self::Exchange(ExchangeError::Write(error)) => error.class(),
            Self::Read(_, error) => error.class(),
        }
    }
}

impl Keeper {
    /// Keeps them until the shutdown. `leading` says whether this pod may write.
    pub async fn run(
        mut self,
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

    async fn keep(&mut self, leading: bool) -> Result<(), KeepError> {
        let kept = if leading { self.keep_secrets().await.map(Some) } else { Ok(None) };
        // The certificate in use does not depend on what it was made with.
        let secret = self.stores.get(&self.stores.secrets, &names::shard_tls_secret(&self.namespace));
        if let Some(material) = secret.and_then(|live| material(&live)) {
            ReloadingIdentity::adopt(&self.identity, &material).map_err(KeysError::from)?;
        }
        let keys = kept?;
        match keys {
            Some(keys) => self.exchange(&keys).await,
            None => Ok(()),
        }
    }

    /// Takes the next step of an exchange of the authority. It is written before anybody goes by it: whoever leads next
    /// finds what was done.
    async fn exchange(&mut self, keys: &Keys) -> Result<(), KeepError> {
        let own = self.identity.borrow().as_ref().map(ReloadingIdentity::material);
        let Some(next) = self.exchange.next(keys, own.as_ref(), Timestamp::now()).await? else {
            return Ok(());
        };
        let live = self.stores.get(&self.stores.secrets, &names::shard_ca_secret(&self.namespace));
        self.applier.ensure_or_replace(&next.secret(&self.namespace), live.as_deref()).await?;
        self.exchange.tell(keys, &next);
        self.keys.send_replace(Some(Ok(Arc::new(next))));
        Ok(())
    }

    async fn keep_secrets(&self) -> Result<Arc<Keys>, KeepError> {
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
        Ok(keys)
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
        // Past the cache: it may have the stage of an exchange that another leader has ended since.
        let name = names::shard_ca_secret(&self.namespace);
        let found = self.secrets.get_opt(&name).await.map_err(|error| KeepError::Read(name, error))?;
        let keys = Arc::new(match found {
            Some(found) => Keys::read(&found)?,
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
}
