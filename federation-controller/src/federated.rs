//! One reconcile of a federated cluster: look up its members, decide, write the status, tell the members.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fleet_api::{
    names,
    v1::{MySQLClusterFederated, MySQLClusterFederatedStatus},
};
use fleet_runtime::{
    apply::{Applier, ApplyError},
    controller::Reconcile,
    error::{Classified, ErrorClass},
    events::{EventType, Events},
};
use jiff::Timestamp;
use kube::{ResourceExt as _, runtime::controller::Action};

use crate::{
    decide::{Decision, MemberFacts, decide},
    stores::{Stores, concerned},
    streams::{Shard, Streams},
};

/// Looked at after this time though nothing has changed.
const RESYNC: Duration = Duration::from_mins(1);

/// The controller of federated clusters.
pub struct Reconciler {
    /// The objects.
    pub stores: Stores,
    /// The streams of their members.
    pub streams: Streams,
    /// The only writer.
    pub applier: Applier,
    /// What people are told.
    pub events: Events,
}

/// A reconcile has failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FederatedError(#[from] ApplyError);

impl Classified for FederatedError {
    fn class(&self) -> ErrorClass {
        self.0.class()
    }

    fn reason(&self) -> &'static str {
        self.0.reason()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl Reconcile<MySQLClusterFederated> for Reconciler {
    type Error = FederatedError;

    async fn reconcile(&self, object: Arc<MySQLClusterFederated>) -> Result<Action, FederatedError> {
        let deleting = object.metadata.deletion_timestamp.is_some();
        let finalizer = object.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER_FEDERATED);
        if deleting && !finalizer {
            self.forget(&object);
            return Ok(Action::await_change());
        }
        if !finalizer {
            let mut finalizers = object.finalizers().to_vec();
            finalizers.push(names::FINALIZER_FEDERATED.to_owned());
            self.applier.set_finalizers(object.as_ref(), &finalizers).await?;
            // The change wakes the next reconcile.
            return Ok(Action::await_change());
        }
        let decision = decide(&object, &self.look_up(&object), Timestamp::now());
        if deleting && decision.nothing_left() {
            self.tell(&object, decision.wanted);
            let others =
                object.finalizers().iter().filter(|finalizer| *finalizer != names::FINALIZER_FEDERATED);
            let rest: Vec<String> = others.cloned().collect();
            self.applier.set_finalizers(object.as_ref(), &rest).await?;
            return Ok(Action::await_change());
        }
        let Decision { wanted, status } = decision;
        if object.status.as_ref() != Some(&status) {
            // Before anything is sent: what a member was told must never be unknown to the next hub.
            match self.applier.patch_status(object.as_ref(), &status).await {
                Err(error) if error.is_conflict() => return Ok(Action::await_change()),
                written => drop(written?),
            }
            self.tell_people(&object, &status);
        }
        self.tell(&object, wanted);
        Ok(Action::requeue(RESYNC))
    }
}

impl Reconciler {
    fn look_up(&self, object: &MySQLClusterFederated) -> BTreeMap<String, MemberFacts> {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let facts = |member: String| {
            let shard = shard(object, &member);
            let allowed = self.stores.allows(&member, &shard.namespace);
            (member, MemberFacts { allowed, contact: self.streams.contact(&shard, &name, &uid) })
        };
        concerned(object).into_iter().map(facts).collect()
    }

    fn tell(
        &self,
        object: &MySQLClusterFederated,
        wanted: BTreeMap<String, Option<fleet_proto::federation::v1::DesiredCluster>>,
    ) {
        let uid = object.uid().unwrap_or_default();
        for (member, desired) in wanted {
            self.streams.want(&shard(object, &member), &uid, desired);
        }
    }

    /// Nothing is wanted of anybody any more for an object that is let go.
    fn forget(&self, object: &MySQLClusterFederated) {
        self.tell(object, concerned(object).into_iter().map(|member| (member, None)).collect());
    }

    fn tell_people(&self, object: &MySQLClusterFederated, status: &MySQLClusterFederatedStatus) {
        let before = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        for condition in &status.conditions {
            let told = before.iter().any(|old| {
                (&old.type_, &old.status, &old.reason)
                    == (&condition.type_, &condition.status, &condition.reason)
            });
            if !told && condition.type_ != "Stale" {
                let good = condition.status == "True";
                let type_ = if good { EventType::Normal } else { EventType::Warning };
                let note = format!("{} is {}: {}", condition.type_, condition.status, condition.message);
                self.events.tell(object, type_, &condition.reason, &note);
            }
        }
    }
}

fn shard(object: &MySQLClusterFederated, member: &str) -> Shard {
    Shard { member: member.to_owned(), namespace: object.namespace().unwrap_or_default() }
}
