//! The state as JSON and YAML: the messages of `shard.proto`, by protobuf's mapping to JSON, but for
//! 64-bit numbers, which are numbers, and for fields without a value, which are null or empty.

use fleet_proto::shard::v1::{
    AnsweredRequest, ClusterStatus, Condition, FederationLink, InstanceStatus, LeaseStatus, ReconcileTotal,
    ShardStatus,
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// The state of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct ShardStatusView {
    pub namespace: String,
    pub version: String,
    pub pod: String,
    pub leader: bool,
    pub lease: LeaseView,
    pub clusters: Vec<ClusterView>,
    pub queue_depth: u64,
    pub reconcile_totals: Vec<ReconcileTotalView>,
    pub observed_at: Option<Timestamp>,
    pub federation: Option<FederationLinkView>,
}

/// The link to the hub.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct FederationLinkView {
    pub endpoint: String,
    pub connected: bool,
    pub since: Option<Timestamp>,
    pub last_error: String,
    pub certificate_expires_at: Option<Timestamp>,
}

/// The Lease of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct LeaseView {
    pub name: String,
    pub holder: String,
    pub transitions: u32,
    pub acquired_at: Option<Timestamp>,
    pub renewed_at: Option<Timestamp>,
}

/// Reconciles of one result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct ReconcileTotalView {
    pub result: String,
    pub reason: String,
    pub count: u64,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct ClusterView {
    pub summary: SummaryView,
    pub instances: Vec<InstanceView>,
    pub conditions: Vec<ConditionView>,
    pub observed_at: Option<Timestamp>,
    pub created_at: Option<Timestamp>,
    pub answered_requests: Vec<AnsweredRequestView>,
}

/// A request of a person, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct AnsweredRequestView {
    pub kind: String,
    pub asked: String,
    pub outcome: String,
    pub message: String,
    pub answered_at: Option<Timestamp>,
}

/// One line on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct SummaryView {
    pub name: String,
    pub phase: String,
    pub primary: String,
    pub term: u64,
    pub replicas: u32,
    pub ready_replicas: u32,
    pub version: String,
    pub rollout: String,
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct InstanceView {
    pub name: String,
    pub role: String,
    pub ready: bool,
    pub message: String,
    /// Seconds with an `s`, such as `1.5s`.
    pub lag: Option<String>,
    pub gtid_executed: String,
    pub mysqld_version: String,
    pub incarnation: String,
    pub disk_total_bytes: u64,
    pub disk_free_bytes: u64,
    pub copy: Option<CopyView>,
}

/// How far a copy of another instance's data is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct CopyView {
    pub percent: u32,
    pub bytes_per_second: u64,
    /// Seconds with an `s`, such as `15s`.
    pub remaining: Option<String>,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in shard.proto")]
pub struct ConditionView {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub last_transition_time: Option<Timestamp>,
}

impl From<&ShardStatus> for ShardStatusView {
    fn from(status: &ShardStatus) -> Self {
        Self {
            namespace: status.namespace.clone(),
            version: status.version.clone(),
            pod: status.pod.clone(),
            leader: status.leader,
            lease: lease(&status.lease.clone().unwrap_or_default()),
            clusters: status.clusters.iter().map(cluster).collect(),
            queue_depth: status.queue_depth,
            reconcile_totals: status.reconcile_totals.iter().map(total).collect(),
            observed_at: time(status.observed_at),
            federation: status.federation.as_ref().map(federation),
        }
    }
}

fn federation(link: &FederationLink) -> FederationLinkView {
    FederationLinkView {
        endpoint: link.endpoint.clone(),
        connected: link.connected,
        since: time(link.since),
        last_error: link.last_error.clone(),
        certificate_expires_at: time(link.certificate_expires_at),
    }
}

fn lease(lease: &LeaseStatus) -> LeaseView {
    LeaseView {
        name: lease.name.clone(),
        holder: lease.holder.clone(),
        transitions: lease.transitions,
        acquired_at: time(lease.acquired_at),
        renewed_at: time(lease.renewed_at),
    }
}

fn total(total: &ReconcileTotal) -> ReconcileTotalView {
    ReconcileTotalView { result: total.result.clone(), reason: total.reason.clone(), count: total.count }
}

fn cluster(cluster: &ClusterStatus) -> ClusterView {
    let summary = cluster.summary.clone().unwrap_or_default();
    ClusterView {
        summary: SummaryView {
            name: summary.name,
            phase: summary.phase,
            primary: summary.primary,
            term: summary.term,
            replicas: summary.replicas,
            ready_replicas: summary.ready_replicas,
            version: summary.version,
            rollout: summary.rollout,
        },
        instances: cluster.instances.iter().map(instance).collect(),
        conditions: cluster.conditions.iter().map(condition).collect(),
        observed_at: time(cluster.observed_at),
        created_at: time(cluster.created_at),
        answered_requests: cluster.answered_requests.iter().map(answered_request).collect(),
    }
}

fn answered_request(answered: &AnsweredRequest) -> AnsweredRequestView {
    AnsweredRequestView {
        kind: answered.kind.clone(),
        asked: answered.asked.clone(),
        outcome: answered.outcome.clone(),
        message: answered.message.clone(),
        answered_at: time(answered.answered_at),
    }
}

fn instance(instance: &InstanceStatus) -> InstanceView {
    InstanceView {
        name: instance.name.clone(),
        role: instance.role.clone(),
        ready: instance.ready,
        message: instance.message.clone(),
        lag: instance.lag.map(|lag| format!("{}s", duration(lag).as_secs_f64())),
        gtid_executed: instance.gtid_executed.clone(),
        mysqld_version: instance.mysqld_version.clone(),
        incarnation: instance.incarnation.clone(),
        disk_total_bytes: instance.disk_total_bytes,
        disk_free_bytes: instance.disk_free_bytes,
        copy: instance.copy.map(|copy| CopyView {
            percent: copy.percent,
            bytes_per_second: copy.bytes_per_second,
            remaining: copy.remaining.map(|left| format!("{}s", duration(left).as_secs_f64())),
        }),
    }
}

fn condition(condition: &Condition) -> ConditionView {
    ConditionView {
        type_: condition.r#type.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: time(condition.last_transition_time),
    }
}

/// A time, unless it is none that a calendar has.
pub(crate) fn time(time: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok())
}

pub(super) fn duration(duration: prost_types::Duration) -> SignedDuration {
    SignedDuration::new(duration.seconds, duration.nanos.clamp(-999_999_999, 999_999_999))
}
