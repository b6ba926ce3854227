//! The only writer to the Kubernetes API.
//!
//! Every write asks the [`Gate`] first and has a limit that ends before another can hold the Lease.
//! [`Applier::ensure`] writes only what is not so already: an unchanged object costs no request at all.

mod matches;

use std::{
    fmt::{Debug, Write},
    future::Future,
};

use fleet_api::names::MANAGER;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::NamespaceResourceScope,
};
pub use matches::{amount, satisfied_by};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    error::{Classified, ErrorClass},
    lease::{Gate, GateClosed},
};

/// Annotation that holds a hash of the object as it was last wanted. It tells a field that is wanted no
/// more from one that another party has set, which are both absent from what is wanted now.
pub const DESIRED_HASH: &str = "mysqlfleet.io/desired-hash";

/// A namespaced object that can be written.
pub trait Object: Resource<DynamicType = (), Scope = NamespaceResourceScope> + ResourceExt
where
    Self: Clone + Debug + Serialize + DeserializeOwned,
{
}

impl<K> Object for K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + Serialize + DeserializeOwned,
{
}

/// What [`Applier::ensure`] has done.
#[derive(Clone, Debug)]
pub enum Applied<K> {
    /// The live object was as wanted; nothing was sent.
    Unchanged,
    /// It was made or changed; this is what the API server has now.
    Written(Box<K>),
}

/// A write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The Lease is not held.
    #[error("{action} {object}: {source}")]
    GateClosed {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// Why not.
        source: GateClosed,
    },
    /// The API server refuses, or can't be reached.
    #[error("can't {action} {object}: {source}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// There was no answer in time. The write may have happened.
    #[error("can't {action} {object}: no answer from the API server in {seconds} s")]
    NoAnswer {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// The limit.
        seconds: f64,
    },
    /// The live object is being deleted: it can't be brought to what is wanted, and not yet made anew.
    #[error("can't {action} {object}: it is being deleted; it is made anew when it is gone")]
    Terminating {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
    },
    /// The wanted object can't be sent.
    #[error("can't {action} {object}: {message}")]
    Malformed {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// What is wrong with it.
        message: String,
    },
}

impl ApplyError {
    /// Whether an object of the name exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.status(), Some(status) if status.reason == "AlreadyExists")
    }

    /// Whether the object has changed, or was replaced, since it was read.
    pub fn is_conflict(&self) -> bool {
        matches!(self.status(), Some(status) if status.code == 409 && status.reason != "AlreadyExists")
    }

    /// Whether the API server takes no such object: a field is invalid, or may not be changed.
    pub fn is_rejected(&self) -> bool {
        matches!(self.status(), Some(status) if status.code == 422)
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Classified for ApplyError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::GateClosed { source, .. } => source.class(),
            // Gone since it was read: the next reconcile sees that.
            Self::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(s) if s.code == 404) => {
                ErrorClass::Transient
            }
            Self::Api { source, .. } => source.class(),
            Self::NoAnswer { .. } => ErrorClass::Transient,
            Self::Terminating { .. } => ErrorClass::Blocked,
            Self::Malformed { .. } => ErrorClass::Fatal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::GateClosed { source, .. } => source.reason(),
            Self::Api { source, .. } => source.reason(),
            Self::NoAnswer { .. } => "ApiServerTimeout",
            Self::Terminating { .. } => "Terminating",
            Self::Malformed { .. } => "Malformed",
        }
    }

    fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            Self::Api { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

/// Writes objects to the Kubernetes API, as field manager `mysql-fleet`.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    gate: Gate,
}

impl Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Applier {
    /// A writer behind a gate.
    pub fn new(client: Client, gate: Gate) -> Self {
        Self { client, gate }
    }

    /// Makes the live object what is wanted, by server-side apply. Sends nothing if it is so already:
    /// when all that is wanted is in it ([`satisfied_by`]), and its hash says that nothing more was
    /// wanted before.
    ///
    /// `live` is the object as a cache has it. A cache that lags costs one needless write, or delays a
    /// needed one to its next event. Fields of `desired` that are `None` are other parties' to set.
    pub async fn ensure<K: Object>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, ApplyError> {
        let action = "apply";
        let mut wanted = value(action, desired)?;
        let hash = hash(&wanted);
        annotate(&mut wanted, &hash);
        if let Some(live) = live {
            if satisfied_by(&wanted, &value(action, live)?) {
                return Ok(Applied::Unchanged);
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(ApplyError::Terminating { action, object: describe(desired) });
            }
        }
        let api = self.api(action, desired)?;
        let (name, params) = (desired.name_any(), PatchParams::apply(MANAGER).force());
        let patch = Patch::Apply(&wanted);
        let written = self.send(action, desired, api.patch(&name, &params, &patch)).await?;
        Ok(Applied::Written(Box::new(written)))
    }

    /// Makes an object that must not exist. What exists is told by [`ApplyError::is_already_exists`].
    pub async fn create<K: Object>(&self, object: &K) -> Result<K, ApplyError> {
        let action = "create";
        let api = self.api(action, object)?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        self.send(action, object, api.create(&params, object)).await
    }

    /// Deletes exactly the live object, its children after it. That it is gone, or replaced by another
    /// of the same name, is fine.
    pub async fn delete<K: Object>(&self, live: &K) -> Result<(), ApplyError> {
        let action = "delete";
        let api = self.api(action, live)?;
        let preconditions = Preconditions { uid: live.uid(), resource_version: None };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match self.send(action, live, api.delete(&live.name_any(), &params)).await {
            Ok(_) => Ok(()),
            Err(error) if error.status().is_some_and(|status| status.code == 404 || status.code == 409) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the given fields of the status (JSON merge patch), unless the object has changed since
    /// `live` was read. Fields that shall go must be sent as null.
    ///
    /// The caller sends only a status that differs: this method always writes.
    pub async fn patch_status<K: Object>(&self, live: &K, status: &impl Serialize) -> Result<K, ApplyError> {
        let action = "write the status of";
        let api = self.api(action, live)?;
        let patch = guarded(action, live, json!({ "status": value_of(action, live, status)? }))?;
        let (name, params) = (live.name_any(), merge_params());
        let patch = Patch::Merge(&patch);
        self.send(action, live, api.patch_status(&name, &params, &patch)).await
    }

    /// Sets the finalizers, unless the object has changed since `live` was read.
    pub async fn set_finalizers<K: Object>(&self, live: &K, finalizers: &[String]) -> Result<K, ApplyError> {
        self.merge(live, &json!({ "metadata": { "finalizers": finalizers } })).await
    }

    /// Changes the given fields (JSON merge patch), unless the object has changed since `live` was read.
    pub async fn merge<K: Object>(&self, live: &K, patch: &Value) -> Result<K, ApplyError> {
        let action = "change";
        let api = self.api(action, live)?;
        let patch = guarded(action, live, patch.clone())?;
        let (name, params) = (live.name_any(), merge_params());
        let patch = Patch::Merge(&patch);
        self.send(action, live, api.patch(&name, &params, &patch)).await
    }

    async fn send<K: Object, T>(
        &self,
        action: &'static str,
        object: &K,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApplyError> {
        let object = || describe(object);
        self.gate.check().map_err(|source| ApplyError::GateClosed { action, object: object(), source })?;
        let limit = self.gate.write_timeout();
        let answer = timeout(limit, write).await.map_err(|_| ApplyError::NoAnswer {
            action,
            object: object(),
            seconds: limit.as_secs_f64(),
        })?;
        let written =
            answer.map_err(|source| ApplyError::Api { action, object: object(), source: source.into() })?;
        tracing::debug!(action, object = %object(), "written");
        Ok(written)
    }

    fn api<K: Object>(&self, action: &'static str, object: &K) -> Result<Api<K>, ApplyError> {
        match object.namespace() {
            Some(namespace) => Ok(Api::namespaced(self.client.clone(), &namespace)),
            None => Err(malformed(action, object, "it has no namespace")),
        }
    }
}

fn merge_params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// The object for people: `Service tenant-a/orders-primary`.
fn describe<K: Object>(object: &K) -> String {
    format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}

fn malformed<K: Object>(action: &'static str, object: &K, message: impl Into<String>) -> ApplyError {
    ApplyError::Malformed { action, object: describe(object), message: message.into() }
}

fn value<K: Object>(action: &'static str, object: &K) -> Result<Value, ApplyError> {
    value_of(action, object, object)
}

fn value_of<K: Object>(action: &'static str, object: &K, part: &impl Serialize) -> Result<Value, ApplyError> {
    serde_json::to_value(part).map_err(|error| malformed(action, object, error.to_string()))
}

fn guarded<K: Object>(action: &'static str, live: &K, mut patch: Value) -> Result<Value, ApplyError> {
    let version =
        live.resource_version().ok_or_else(|| malformed(action, live, "it has no resourceVersion"))?;
    let metadata = patch.as_object_mut().map(|patch| patch.entry("metadata").or_insert_with(|| json!({})));
    match metadata.and_then(Value::as_object_mut) {
        Some(metadata) => {
            metadata.insert("resourceVersion".to_owned(), Value::String(version));
            Ok(patch)
        }
        None => Err(malformed(action, live, "the change is no JSON object")),
    }
}

/// Half of the SHA-256 of the canonical JSON: enough to tell what was wanted from what is wanted.
fn hash(wanted: &Value) -> String {
    // Maps of serde_json are ordered by key, so equal objects have equal text.
    let digest = ring::digest::digest(&ring::digest::SHA256, wanted.to_string().as_bytes());
    digest.as_ref().iter().take(16).fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

fn annotate(wanted: &mut Value, hash: &str) {
    let mut inner = Some(wanted);
    for key in ["metadata", "annotations"] {
        inner = inner.and_then(Value::as_object_mut).map(|map| map.entry(key).or_insert_with(|| json!({})));
    }
    if let Some(annotations) = inner.and_then(Value::as_object_mut) {
        annotations.insert(DESIRED_HASH.to_owned(), Value::String(hash.to_owned()));
    }
}

#[cfg(test)]
mod tests;
