//! What the hub keeps of the API server's objects.

use std::{collections::BTreeSet, sync::Arc};

use fleet_api::v1::{MemberCluster, MySQLClusterFederated};
use fleet_runtime::{controller::Changed, process::Process};
use kube::{
    ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::{Mutex, watch};

/// The kept objects of all namespaces.
#[derive(Clone)]
pub struct Stores {
    /// The federated clusters, those that can't be decoded among them.
    pub federated: Store<DeserializeGuard<MySQLClusterFederated>>,
    /// The member clusters, likewise.
    pub members: Store<DeserializeGuard<MemberCluster>>,
    /// Grows with each change of one of them.
    pub changed: watch::Receiver<u64>,
    /// Held while somebody waits for the first list.
    waiting: Arc<Mutex<()>>,
}

impl Stores {
    /// Begins to watch, in tasks of the process. A federated cluster is marked when one of its members has changed.
    pub fn watch(process: &mut Process, federated_changed: &Changed) -> Self {
        let (generation, changed) = watch::channel(0_u64);
        let count = {
            let generation = generation.clone();
            move |_: &DeserializeGuard<MySQLClusterFederated>| {
                generation.send_modify(|generation| *generation = generation.wrapping_add(1));
                None
            }
        };
        let all = watcher::Config::default();
        let federated = process.watch_everywhere(
            "watch of MySQLClustersFederated",
            all.clone(),
            federated_changed,
            count,
        );
        let (ours, marks) = (federated.clone(), federated_changed.clone());
        let of_member = move |member: &DeserializeGuard<MemberCluster>| {
            generation.send_modify(|generation| *generation = generation.wrapping_add(1));
            for (namespace, name) in placed_on(&ours, &member.name_any(), None) {
                marks.mark_in(&namespace, &name);
            }
            None
        };
        let members = process.watch_everywhere("watch of MemberClusters", all, federated_changed, of_member);
        Self::new(federated, members, changed)
    }

    /// Stores that somebody else fills.
    pub fn new(
        federated: Store<DeserializeGuard<MySQLClusterFederated>>,
        members: Store<DeserializeGuard<MemberCluster>>,
        changed: watch::Receiver<u64>,
    ) -> Self {
        Self { federated, members, changed, waiting: Arc::default() }
    }

    /// Waits until both kinds have been listed once: before that, an absent object says nothing.
    pub async fn ready(&self) -> Result<(), reflector::store::WriterDropped> {
        // A store wakes only the last of those who wait for it: the others would wait for ever.
        let _waiting = self.waiting.lock().await;
        self.federated.wait_until_ready().await?;
        self.members.wait_until_ready().await
    }

    /// Whether a member may speak for a namespace; the reason why not, for people who look at the hub.
    pub fn allows(&self, member: &str, namespace: &str) -> Result<(), String> {
        let found = self.members.get(&ObjectRef::new(member));
        let Some(spec) = found.as_deref().and_then(|guard| guard.0.as_ref().ok()).map(|member| &member.spec)
        else {
            return Err(format!(
                "there is no MemberCluster {member}: create it, or remove the member from placement"
            ));
        };
        if spec.namespaces.iter().any(|allowed| allowed == namespace) {
            Ok(())
        } else {
            Err(format!(
                "MemberCluster {member} does not list namespace {namespace} in spec.namespaces: add it there"
            ))
        }
    }

    /// Namespace and name of the federated clusters that a member has to do with, of one namespace or of all.
    pub fn placed_on(&self, member: &str, namespace: Option<&str>) -> Vec<(String, String)> {
        placed_on(&self.federated, member, namespace)
    }
}

fn placed_on(
    federated: &Store<DeserializeGuard<MySQLClusterFederated>>,
    member: &str,
    namespace: Option<&str>,
) -> Vec<(String, String)> {
    let all = federated.state();
    all.iter()
        .filter_map(|guard| guard.0.as_ref().ok())
        .filter(|object| namespace.is_none_or(|namespace| object.namespace().as_deref() == Some(namespace)))
        .filter(|object| concerned(object).contains(member))
        .map(|object| (object.namespace().unwrap_or_default(), object.name_any()))
        .collect()
}

/// Names of the members that a federated cluster has to do with: those that are placed, and those that were.
pub fn concerned(object: &MySQLClusterFederated) -> BTreeSet<String> {
    let placed = object.spec.placement.iter().map(|placement| placement.member.clone());
    let known = object.status.iter().flat_map(|status| &status.members).map(|member| member.member.clone());
    placed.chain(known).collect()
}
