//! The task that keeps the tenant's Secrets.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleet_api::names;
use fleet_runtime::{
    apply::{Applier, ApplyError},
    tls::{Material, ReloadingIdentity},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use tokio::{sync::watch, time::interval};
use tokio_util::sync::CancellationToken;

use super::certificates::{Keys, KeysError, desired, material};
use crate::stores::Stores;

/// How often the Secrets are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Keeps the tenant's Secrets (as the leader) and what is read from them (in every pod).
pub struct Keeper {
    /// The namespace.
    pub namespace: String,
    /// The kept objects.
    pub stores: Stores,
    /// The only writer.
    pub applier: Applier,
    /// The keys, for the controller.
    pub keys: watch::Sender<Option<Arc<Keys>>>,
    /// The shard's own certificate, once there is one.
    pub identity: watch::Sender<Option<ReloadingIdentity>>,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Write(#[from] ApplyError),
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
        let secret = |name: &str| self.stores.get(&self.stores.secrets, name);
        if leading {
            let keys = self.keys(secret(&names::shard_ca_secret(&self.namespace)).as_deref()).await?;
            let names =
                [names::shard_tls_secret(&self.namespace), names::shard_client_secret(&self.namespace)];
            let live = names.map(|name| secret(&name));
            let find = |name: &str| {
                live.iter()
                    .flatten()
                    .map(AsRef::as_ref)
                    .find(|live: &&Secret| live.metadata.name.as_deref() == Some(name))
            };
            for wanted in &desired(&keys, &self.namespace, find, Timestamp::now())? {
                let name = wanted.metadata.name.as_deref().unwrap_or_default();
                self.applier.ensure(wanted, find(name)).await?;
            }
        }
        if let Some(material) =
            secret(&names::shard_tls_secret(&self.namespace)).and_then(|live| material(&live))
        {
            self.adopt(&material)?;
        }
        Ok(())
    }

    /// The tenant's keys: read, put back, or made.
    async fn keys(&self, live: Option<&Secret>) -> Result<Arc<Keys>, KeepError> {
        let kept = self.keys.borrow().clone();
        if let Some(kept) = kept {
            self.applier.ensure(&kept.secret(&self.namespace), live).await?;
            return Ok(kept);
        }
        let keys = if let Some(live) = live {
            Keys::read(live)?
        } else {
            let keys = Keys::generate(&self.namespace, Timestamp::now())?;
            // Made, not applied: where another leader was quicker, its keys are the tenant's.
            self.applier.create(&keys.secret(&self.namespace)).await?;
            keys
        };
        let keys = Arc::new(keys);
        self.keys.send_replace(Some(Arc::clone(&keys)));
        Ok(keys)
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
