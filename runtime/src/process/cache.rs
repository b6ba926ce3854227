//! Caches of a namespace's objects.

use std::{convert::Infallible, fmt::Debug};

use futures::TryStreamExt as _;
use kube::{
    Api, Resource, ResourceExt as _,
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use super::Process;
use crate::controller::Changed;

/// The name of the object of kind `K` that a child belongs to, by its controller ownerReference.
pub fn owner<K: Resource<DynamicType = ()>>(child: &impl Resource) -> Option<String> {
    let (kind, version) = (K::kind(&()), K::api_version(&()));
    let mut owners = child.meta().owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    (owner.kind == kind && owner.api_version == version).then(|| owner.name.clone())
}

impl Process {
    /// Watches a kind of the namespace, in a task that ends with the shutdown; `name` is the task's. For each
    /// change, the object that `affected` names is marked in `changed`.
    ///
    /// Narrow it by label or field in `config`: whole objects are kept, but for the notes of field managers,
    /// which nothing reads.
    pub fn watch<K>(
        &mut self,
        name: &'static str,
        config: watcher::Config,
        changed: &Changed,
        affected: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let api = Api::<K>::namespaced(self.client.clone(), &self.args.namespace);
        self.reflect(name, api, config, changed, affected)
    }

    /// The same for the objects of all namespaces, or of a kind without namespaces. What `affected` returns is
    /// marked without a namespace.
    pub fn watch_everywhere<K>(
        &mut self,
        name: &'static str,
        config: watcher::Config,
        changed: &Changed,
        affected: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        self.reflect(name, api, config, changed, affected)
    }

    fn reflect<K>(
        &mut self,
        name: &'static str,
        api: Api<K>,
        config: watcher::Config,
        changed: &Changed,
        affected: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let (changed, shutdown) = (changed.clone(), self.shutdown.clone());
        let events = watcher(api, config)
            .modify(|object: &mut K| object.managed_fields_mut().clear())
            .default_backoff()
            .reflect(writer);
        self.tasks.essential(name, async move {
            let mut events = std::pin::pin!(events);
            loop {
                let event = tokio::select! {
                    event = events.try_next() => event,
                    () = shutdown.cancelled() => return Ok::<(), Infallible>(()),
                };
                match event {
                    Ok(Some(
                        watcher::Event::Apply(object)
                        | watcher::Event::InitApply(object)
                        | watcher::Event::Delete(object),
                    )) => {
                        if let Some(name) = affected(&object) {
                            changed.mark(&name);
                        }
                    }
                    Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                    Ok(None) => return Ok(()),
                    Err(error) => tracing::warn!(%error, "the {name} failed; it is tried again"),
                }
            }
        });
        store
    }
}
