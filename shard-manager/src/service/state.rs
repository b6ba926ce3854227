//! The state of a shard, in the words of the wire.

use std::sync::Arc;

use fleet_api::v1::{CopyStatus, InstanceStatus as KeptInstance, MySQLCluster};
use fleet_proto::shard::v1::{
    AnsweredRequest, ClusterStatus, ClusterSummary, Condition, CopyProgress, FederationLink, InstanceStatus,
    LeaseStatus, ReconcileTotal, ShardStatus,
};
use fleet_runtime::{
    controller::Totals,
    lease::{LeaseState, LeaseView},
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use prost_types::Timestamp as ProtoTimestamp;
use tokio::sync::watch;

use crate::{agents::Agents, cluster::copy, federation::LinkState, stores::Stores};

/// Where the state of a shard is taken from.
#[derive(Clone)]
pub struct ShardState {
    namespace: String,
    pod: String,
    lease_name: String,
    stores: Stores,
    lease: watch::Receiver<LeaseState>,
    totals: Totals,
    agents: watch::Receiver<Option<Arc<Agents>>>,
    link: Option<watch::Receiver<Option<LinkState>>>,
}

/// The state after each change.
pub struct Changes {
    state: ShardState,
    clusters: watch::Receiver<u64>,
    reconciles: watch::Receiver<u64>,
    lease: watch::Receiver<LeaseState>,
    link: Option<watch::Receiver<Option<LinkState>>>,
    told: Option<ShardStatus>,
}

impl ShardState {
    /// The state as this pod sees it. `agents` are the leader's connections, `link` is the one
    /// to the hub, where there is a hub.
    pub fn new(
        (namespace, pod, lease_name): (String, String, String),
        stores: Stores,
        lease: watch::Receiver<LeaseState>,
        totals: Totals,
        agents: watch::Receiver<Option<Arc<Agents>>>,
        link: Option<watch::Receiver<Option<LinkState>>>,
    ) -> Self {
        Self { namespace, pod, lease_name, stores, lease, totals, agents, link }
    }

    /// The tenant namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether this pod leads; the holder of the Lease where it does not.
    pub fn leads(&self) -> Result<(), Option<String>> {
        match &*self.lease.borrow() {
            LeaseState::Leader(_) => Ok(()),
            LeaseState::Follower(view) => Err(view.holder.clone().filter(|holder| !holder.is_empty())),
            LeaseState::Lost => Err(None),
        }
    }

    /// The pod that answers.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// The state now.
    pub fn status(&self) -> ShardStatus {
        let lease = self.lease.borrow().clone();
        let (leader, view) = match lease {
            LeaseState::Leader(view) => (true, view),
            LeaseState::Follower(view) => (false, view),
            LeaseState::Lost => (false, LeaseView::default()),
        };
        ShardStatus {
            namespace: self.namespace.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod: self.pod.clone(),
            leader,
            lease: Some(LeaseStatus {
                name: self.lease_name.clone(),
                holder: view.holder.unwrap_or_default(),
                transitions: view.transitions,
                acquired_at: view.acquired_at.map(timestamp),
                renewed_at: view.renewed_at.map(timestamp),
            }),
            clusters: self.clusters().iter().map(|cluster| self.cluster(cluster)).collect(),
            queue_depth: self.totals.queue_depth(),
            reconcile_totals: self
                .totals
                .snapshot()
                .into_iter()
                .map(|total| ReconcileTotal {
                    result: total.result.to_owned(),
                    reason: total.reason.to_owned(),
                    count: total.count,
                })
                .collect(),
            observed_at: Some(timestamp(Timestamp::now())),
            federation: self.link.as_ref().and_then(|link| link.borrow().as_ref().map(federation_link)),
        }
    }

    /// One line on each cluster, ordered by name.
    pub fn summaries(&self) -> Vec<ClusterSummary> {
        self.clusters().iter().map(summary).collect()
    }

    /// The state now, and after each change.
    pub fn changes(&self) -> Changes {
        Changes {
            clusters: self.stores.clusters_changed.clone(),
            reconciles: self.totals.changed(),
            lease: self.lease.clone(),
            link: self.link.clone(),
            state: self.clone(),
            told: None,
        }
    }

    fn clusters(&self) -> Vec<MySQLCluster> {
        let all = self.stores.clusters.state();
        let mut clusters: Vec<MySQLCluster> =
            all.iter().filter_map(|guard| guard.0.as_ref().ok().cloned()).collect();
        clusters.sort_by_key(kube::ResourceExt::name_any);
        clusters
    }

    fn cluster(&self, cluster: &MySQLCluster) -> ClusterStatus {
        let status = cluster.status.clone().unwrap_or_default();
        ClusterStatus {
            summary: Some(summary(cluster)),
            instances: status
                .instances
                .iter()
                .map(|instance| self.instance(&cluster.name_any(), instance))
                .collect(),
            conditions: status
                .conditions
                .into_iter()
                .map(|condition| Condition {
                    r#type: format!("{:?}", condition.type_),
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    last_transition_time: Some(timestamp(condition.last_transition_time.0)),
                })
                .collect(),
            observed_at: self.agents.borrow().is_some().then(|| timestamp(Timestamp::now())),
            created_at: cluster.metadata.creation_timestamp.as_ref().map(|at| timestamp(at.0)),
            answered_requests: status
                .answered_requests
                .into_iter()
                .map(|answered| AnsweredRequest {
                    kind: format!("{:?}", answered.kind),
                    asked: answered.asked,
                    outcome: format!("{:?}", answered.outcome),
                    message: answered.message,
                    answered_at: Some(timestamp(answered.answered_at.0)),
                })
                .collect(),
        }
    }

    /// What the status says, with fresher positions where this pod is the leader.
    fn instance(&self, cluster: &str, kept: &KeptInstance) -> InstanceStatus {
        let agents = self.agents.borrow().clone();
        let facts = agents.and_then(|agents| agents.sighting(cluster, &kept.name).facts);
        let server = facts.as_ref().and_then(|facts| facts.server.as_ref());
        let kept_lag = kept.lag_seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
        InstanceStatus {
            name: kept.name.clone(),
            role: format!("{:?}", kept.role),
            ready: kept.ready,
            message: kept.message.clone().unwrap_or_default(),
            lag: server.map_or(kept_lag, |server| {
                server.replication.as_ref().and_then(|replication| replication.lag)
            }),
            gtid_executed: server
                .map(|server| server.gtid_executed.clone())
                .or_else(|| kept.gtid_executed.clone())
                .unwrap_or_default(),
            mysqld_version: facts.as_ref().map(|facts| facts.mysqld_version.clone()).unwrap_or_default(),
            incarnation: kept.incarnation.clone().unwrap_or_default(),
            disk_total_bytes: facts.as_ref().map_or(0, |facts| facts.disk_total_bytes),
            disk_free_bytes: facts.as_ref().map_or(0, |facts| facts.disk_free_bytes),
            copy: facts.as_ref().map_or(kept.copy, |facts| copy::progress(facts)).map(copy_progress),
        }
    }
}

impl Changes {
    /// The next state that differs from the last one; `None` when there will be none any more.
    pub async fn next(&mut self) -> Option<ShardStatus> {
        loop {
            if self.told.is_some() {
                let still_there = tokio::select! {
                    changed = self.clusters.changed() => changed,
                    changed = self.reconciles.changed() => changed,
                    changed = self.lease.changed() => changed,
                    changed = link_changed(&mut self.link) => changed,
                };
                still_there.ok()?;
            }
            let status = self.state.status();
            if self.told.as_ref().is_none_or(|told| still(told) != still(&status)) {
                self.told = Some(status.clone());
                return Some(status);
            }
        }
    }
}

/// A change of the link; never where there is none.
async fn link_changed(
    link: &mut Option<watch::Receiver<Option<LinkState>>>,
) -> Result<(), watch::error::RecvError> {
    match link {
        Some(link) => link.changed().await,
        None => std::future::pending().await,
    }
}

fn federation_link(link: &LinkState) -> FederationLink {
    FederationLink {
        endpoint: link.endpoint.clone(),
        connected: link.connected,
        since: link.since.map(timestamp),
        last_error: link.last_error.clone(),
        certificate_expires_at: link.certificate_expires_at.map(timestamp),
    }
}

/// The state without the times of looking.
fn still(status: &ShardStatus) -> ShardStatus {
    let mut status = ShardStatus { observed_at: None, ..status.clone() };
    for cluster in &mut status.clusters {
        cluster.observed_at = None;
    }
    status
}

fn copy_progress(copy: CopyStatus) -> CopyProgress {
    CopyProgress {
        percent: u32::try_from(copy.percent).unwrap_or_default(),
        bytes_per_second: copy
            .bytes_per_second
            .and_then(|speed| u64::try_from(speed).ok())
            .unwrap_or_default(),
        remaining: copy.remaining_seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
    }
}

fn summary(cluster: &MySQLCluster) -> ClusterSummary {
    let status = cluster.status.clone().unwrap_or_default();
    ClusterSummary {
        name: cluster.name_any(),
        phase: status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
        primary: status.primary.unwrap_or_default(),
        term: u64::try_from(status.term).unwrap_or_default(),
        replicas: u32::try_from(cluster.spec.replicas).unwrap_or_default(),
        ready_replicas: u32::try_from(status.ready_replicas).unwrap_or_default(),
        version: cluster.spec.version.clone(),
        rollout: status.rollout.map(|rollout| format!("{:?}", rollout.state)).unwrap_or_default(),
    }
}

fn timestamp(at: Timestamp) -> ProtoTimestamp {
    ProtoTimestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}
