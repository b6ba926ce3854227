//! The only writer to the Kubernetes API.
//!
//! Every write asks the [`Gate`] first and has a limit that ends before another can hold the Lease.
//! [`Applier::ensure`] writes only what is not so already: an unchanged object costs no request at all.

mod declare;
mod matches;

use std::{borrow::Cow, fmt::Debug, future::Future};

use fleet_api::names::{LABEL_MANAGED_BY, MANAGER};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ClusterResourceScope, NamespaceResourceScope},
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

const APPLY: &str = "apply";

/// Where objects of a kind stand: in a namespace, or in none.
pub trait Scope: Sized {
    /// The API of an object's kind; `None` where it lacks the namespace that its kind has.
    fn api<K: Resource<DynamicType = (), Scope = Self>>(
        client: Client,
        namespace: Option<&str>,
    ) -> Option<Api<K>>;
}

impl Scope for NamespaceResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(
        client: Client,
        namespace: Option<&str>,
    ) -> Option<Api<K>> {
        namespace.map(|namespace| Api::namespaced(client, namespace))
    }
}

impl Scope for ClusterResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, _: Option<&str>) -> Option<Api<K>> {
        Some(Api::all(client))
    }
}

/// An object that can be written.
pub trait Object: Resource<DynamicType = (), Scope: Scope> + ResourceExt
where
    Self: Clone + Debug + Serialize + DeserializeOwned,
{
}

impl<K> Object for K
where
    K: Resource<DynamicType = (), Scope: Scope>,
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
    /// An object of the name is there that the fleet has not made.
    #[error(
        "{object} is there already and was not made by {manager}: rename it, or delete it if nobody needs it; \
         until then it is left as it is"
    )]
    NameTaken {
        /// The object.
        object: String,
        /// Who did not make it.
        manager: &'static str,
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
            Self::Terminating { .. } | Self::NameTaken { .. } => ErrorClass::Blocked,
            Self::Malformed { .. } => ErrorClass::Fatal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::GateClosed { source, .. } => source.reason(),
            Self::Api { source, .. } => source.reason(),
            Self::NoAnswer { .. } => "ApiServerTimeout",
            Self::Terminating { .. } => "Terminating",
            Self::NameTaken { .. } => "NameTaken",
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

/// Writes objects to the Kubernetes API, as field manager `mysql-fleet` or another one.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    gate: Gate,
    manager: &'static str,
}

impl Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Applier {
    /// A writer behind a gate.
    pub fn new(client: Client, gate: Gate) -> Self {
        Self { client, gate, manager: MANAGER }
    }

    /// Writes as this field manager. It is also the value of the managed-by label of what it makes: an object
    /// that has the label is taken for its own.
    #[must_use]
    pub fn managed_by(self, manager: &'static str) -> Self {
        Self { manager, ..self }
    }

    /// Makes the live object what is wanted, by server-side apply. Sends nothing if it is so already:
    /// when all that is wanted is in it ([`satisfied_by`]), and its hash says that nothing more was
    /// wanted before.
    ///
    /// `live` is the object as a cache has it. A cache that lags costs one needless write, or delays a
    /// needed one to its next event. Where the cache has none, the API server is asked: a cache narrowed by
    /// label doesn't show an object of the same name that somebody else has made, and that one must not be
    /// taken over ([`ApplyError::NameTaken`]). (To make the object by a POST instead would leave its fields
    /// to a second entry of managedFields, and no apply could remove one of them any more.) Fields of
    /// `desired` that are `None` are other parties' to set.
    pub async fn ensure<K: Object>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, ApplyError> {
        let found = self.find(desired, live).await?;
        self.bring(desired, found.as_deref()).await
    }

    /// The same for an object that holds nothing that can't be built again: a live one that can't be changed
    /// to what is wanted, because a field that may never change is another one (the type of a Secret, the
    /// address type of an EndpointSlice), is replaced.
    pub async fn ensure_or_replace<K: Object>(
        &self,
        desired: &K,
        live: Option<&K>,
    ) -> Result<(), ApplyError> {
        let found = self.find(desired, live).await?;
        match (self.bring(desired, found.as_deref()).await, found) {
            (Err(error), Some(found)) if error.is_rejected() => {
                tracing::warn!(%error, "the object is replaced");
                self.replace(desired, &found).await
            }
            (result, _) => result.map(drop),
        }
    }

    /// The live object that may be changed: the cache's, or the one that the cache does not show.
    async fn find<'a, K: Object>(
        &self,
        desired: &K,
        live: Option<&'a K>,
    ) -> Result<Option<Cow<'a, K>>, ApplyError> {
        if let Some(live) = live {
            return Ok(Some(Cow::Borrowed(live)));
        }
        let api = self.api(APPLY, desired)?;
        match self.send(APPLY, desired, api.get_opt(&desired.name_any())).await? {
            Some(found) if !self.is_ours(desired, &found) => {
                Err(ApplyError::NameTaken { object: describe(desired), manager: self.manager })
            }
            found => Ok(found.map(Cow::Owned)),
        }
    }

    async fn bring<K: Object>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, ApplyError> {
        let mut wanted = value(APPLY, desired)?;
        let hash = hash(&wanted);
        annotate(&mut wanted, &hash);
        if let Some(live) = live {
            if satisfied_by(&wanted, &value(APPLY, live)?) {
                return Ok(Applied::Unchanged);
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(ApplyError::Terminating { action: APPLY, object: describe(desired) });
            }
        }
        let api = self.api(APPLY, desired)?;
        let (name, params) = (desired.name_any(), PatchParams::apply(self.manager).force());
        let patch = Patch::Apply(&wanted);
        let written = self.send(APPLY, desired, api.patch(&name, &params, &patch)).await?;
        Ok(Applied::Written(Box::new(written)))
    }

    /// Deletes the live object and makes the wanted one in its place.
    pub async fn replace<K: Object>(&self, desired: &K, live: &K) -> Result<(), ApplyError> {
        self.delete(live).await?;
        self.ensure(desired, None).await.map(drop)
    }

    /// Makes an object that must not exist. What exists is told by [`ApplyError::is_already_exists`].
    pub async fn create<K: Object>(&self, object: &K) -> Result<K, ApplyError> {
        let action = "create";
        let api = self.api(action, object)?;
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
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
        let (name, params) = (live.name_any(), self.merge_params());
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
        let (name, params) = (live.name_any(), self.merge_params());
        let patch = Patch::Merge(&patch);
        self.send(action, live, api.patch(&name, &params, &patch)).await
    }

    async fn send<K: Object, T>(
        &self,
        action: &'static str,
        object: &K,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApplyError> {
        let object = || describe(object);
        self.gate.check().map_err(|source| ApplyError::GateClosed { action, object: object(), source })?;
        let limit = self.gate.write_timeout();
        let answer = timeout(limit, request).await.map_err(|_| ApplyError::NoAnswer {
            action,
            object: object(),
            seconds: limit.as_secs_f64(),
        })?;
        let answer =
            answer.map_err(|source| ApplyError::Api { action, object: object(), source: source.into() })?;
        tracing::debug!(action, object = %object(), "the API server has answered");
        Ok(answer)
    }

    /// Whether an object that a cache does not show may be changed: it belongs to the wanted one's owner, or says
    /// itself that this manager keeps it. A name without an owner is the manager's own, whoever has edited the object.
    fn is_ours<K: Object>(&self, desired: &K, found: &K) -> bool {
        let Some(owner) = desired.owner_references().iter().find(|owner| owner.controller == Some(true))
        else {
            return true;
        };
        found.owner_references().iter().any(|found| found.uid == owner.uid)
            || found.labels().get(LABEL_MANAGED_BY).is_some_and(|manager| manager == self.manager)
    }

    fn merge_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() }
    }

    fn api<K: Object>(&self, action: &'static str, object: &K) -> Result<Api<K>, ApplyError> {
        K::Scope::api(self.client.clone(), object.namespace().as_deref())
            .ok_or_else(|| malformed(action, object, "it has no namespace"))
    }
}

/// The object for people: `Service tenant-a/orders-primary`.
fn describe<K: Object>(object: &K) -> String {
    let namespace = object.namespace().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {namespace}{}", K::kind(&()), object.name_any())
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
    hex::encode(digest).chars().take(32).collect()
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
