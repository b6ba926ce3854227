//! Second step: what is known of the instances, in the words of `fleet-topology`.

use std::{collections::BTreeMap, sync::Arc};

use fleet_api::{
    names,
    v1::{self, MySQLClusterStatus, TermStage},
};
use fleet_proto::agent::v1 as proto;
use fleet_topology::{
    AckerIdentity, CatchingUp, CloneProgress, CloneState, ClusterView, Durability, Forced, GtidSet,
    InstanceFacts, InstanceId, InstanceView, Observed, PodState, ProcessState, Quorum, ReplicationFacts,
    ServerFacts, Stage, Term, TermRecord, ThreadState,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

use super::{dereference::Children, pod_problem, requests::Requests, rollout::Plan};
use crate::agents::Sighting;

/// Everything observed about a cluster.
#[derive(Debug)]
pub struct Observation {
    /// What the decision is made from.
    pub view: ClusterView,
    /// By ordinal, what only the status and people read.
    pub details: BTreeMap<u32, Detail>,
}

/// What is known of an instance beyond what a decision needs.
#[derive(Debug, Default)]
pub struct Detail {
    /// What the agent says, if it is fresh.
    pub facts: Option<Arc<proto::InstanceFacts>>,
    /// Why the pod or the agent is not as it should be.
    pub problem: Option<String>,
    /// Whether its pod is of another spec than the cluster's.
    pub outdated: bool,
}

/// The cluster can't be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The status has been edited to something no shard writes.
    #[error("status.{field} of the MySQLCluster is {value}, which no shard writes: {expected}")]
    Status {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
}

/// Merges the pods, their volume claims and what their agents say.
pub fn observe(
    plan: &Plan,
    children: &Children,
    sighting: impl Fn(&str) -> Sighting,
    catching_up: Vec<CatchingUp>,
    requests: &Requests,
) -> Result<Observation, ObserveError> {
    let cluster = &plan.cluster;
    let name = cluster.name_any();
    let replicas = u32::try_from(cluster.spec.replicas).unwrap_or_default();
    let resolver = Resolver { cluster: &name, namespace: &cluster.namespace().unwrap_or_default() };
    let volumes = children.claims.iter().filter(|(_, claim)| has_volume(claim)).map(|(ordinal, _)| *ordinal);
    let mut ordinals: Vec<u32> = (0..replicas).chain(children.pods.keys().copied()).chain(volumes).collect();
    ordinals.sort_unstable();
    ordinals.dedup();

    let mut instances = Vec::with_capacity(ordinals.len());
    let mut details = BTreeMap::new();
    for ordinal in ordinals {
        let pod = children.pods.get(&ordinal);
        let Sighting { facts, unknown_for, problem } = sighting(&names::pod(&name, ordinal));
        let claim = children.claims.get(&ordinal);
        let outdated = pod.is_some_and(|pod| plan.is_outdated(&pod.metadata));
        let pod_problem = pod.and_then(|pod| pod_problem::of(pod, claim.map(AsRef::as_ref)));
        let (observed, undecodable) = match &facts {
            None => (unknown(unknown_for), None),
            Some(facts) => match resolver.facts(facts) {
                Ok(facts) => (Observed::Known(facts), None),
                Err(message) => (unknown(unknown_for), Some(message)),
            },
        };
        instances.push(InstanceView {
            id: InstanceId(ordinal),
            pod: pod_state(pod),
            has_volume: claim.is_some_and(|claim| has_volume(claim)),
            outdated,
            abandoned: pod.is_some_and(|pod| plan.is_abandoned(&pod.metadata)),
            facts: observed,
        });
        let problem =
            pod_problem.or(undecodable).or(problem).or_else(|| facts.as_deref().and_then(end_of_mysqld));
        details.insert(ordinal, Detail { facts, problem, outdated });
    }
    let view = ClusterView {
        replicas,
        offline: cluster.spec.offline,
        paused: cluster.spec.paused.clustering,
        wanted_primary: requests.wish,
        rebuild: requests.rebuild,
        release: requests.release.clone(),
        force: requests.force,
        durability: match cluster.spec.durability {
            v1::Durability::Strict => Durability::Strict,
            v1::Durability::Relaxed => Durability::Relaxed,
        },
        record: record(&name, cluster.status.as_ref())?,
        opened: opened(cluster.status.as_ref())?,
        ackers: in_sync(&name, cluster.status.as_ref()),
        catching_up,
        trial: plan.trial.clone(),
        instances,
    };
    Ok(Observation { view, details })
}

fn unknown<T>(age: std::time::Duration) -> Observed<T> {
    Observed::Unknown { for_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
}

/// The record of the current term, from the status.
pub fn record(name: &str, status: Option<&MySQLClusterStatus>) -> Result<TermRecord, ObserveError> {
    let Some(status) = status.filter(|status| status.term != 0) else {
        return Ok(TermRecord::NONE);
    };
    let instance = |field, pod: &str| {
        names::ordinal(name, pod)
            .map(InstanceId)
            .ok_or_else(|| bad(field, &pod, "it is a pod of the cluster"))
    };
    let primary = status.primary.as_deref().map(|pod| instance("primary", pod)).transpose()?;
    let count =
        |field, value: i32| u32::try_from(value).map_err(|_| bad(field, &value, "a count is never negative"));
    let quorum = Quorum::new(count("ackers", status.ackers)?, count("requiredAcks", status.required_acks)?)
        .map_err(|_| bad("requiredAcks", &status.required_acks, "it is at most status.ackers"))?;
    let stage = match (status.stage, status.handover_to.as_deref()) {
        (Some(TermStage::Reign) | None, _) => Stage::Reign,
        (Some(TermStage::Fencing), _) => Stage::Fencing,
        (Some(TermStage::Handover), Some(pod)) => Stage::Handover { to: instance("handoverTo", pod)? },
        (Some(TermStage::Handover), None) => {
            return Err(bad("handoverTo", &"absent", "it names the other end of a handover"));
        }
    };
    Ok(TermRecord {
        term: term("term", status.term)?,
        primary,
        primary_since: term("primarySince", status.primary_since)?,
        quorum,
        quorum_since: term("quorumSince", status.quorum_since)?,
        stage,
        promotion_point: status
            .promotion_point
            .as_deref()
            .map(|text| gtids("promotionPoint", text))
            .transpose()?,
        planned: status.planned,
        forced: status.forced.as_ref().map(forced).transpose()?,
    })
}

fn forced(forced: &v1::ForcedTakeover) -> Result<Forced, ObserveError> {
    let v1::ForcedTakeover { term: since, point } = forced;
    Ok(Forced { since: term("forced.term", *since)?, point: gtids("forced.point", point)? })
}

fn opened(status: Option<&MySQLClusterStatus>) -> Result<Term, ObserveError> {
    term("openedSince", status.map(|status| status.opened_since).unwrap_or_default())
}

fn term(field: &'static str, value: i64) -> Result<Term, ObserveError> {
    u64::try_from(value).map(Term).map_err(|_| bad(field, &value, "a term is never negative"))
}

fn gtids(field: &'static str, text: &str) -> Result<GtidSet, ObserveError> {
    text.parse().map_err(|_| bad(field, &text, "it is a GTID set"))
}

fn bad(field: &'static str, value: &dyn ToString, expected: &'static str) -> ObserveError {
    ObserveError::Status { field, value: value.to_string(), expected }
}

/// Whether a claim has a volume that stays, and so may hold data: one that waits for its volume holds none.
fn has_volume(claim: &PersistentVolumeClaim) -> bool {
    let bound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    bound && claim.metadata.deletion_timestamp.is_none()
}

/// The instances that were in sync, from the status. What can't be read counts as forgotten, which is safe.
fn in_sync(name: &str, status: Option<&MySQLClusterStatus>) -> Vec<AckerIdentity> {
    let remembered = status.map(|status| status.in_sync.as_slice()).unwrap_or_default();
    remembered
        .iter()
        .filter_map(|known| {
            Some(AckerIdentity {
                instance: InstanceId(names::ordinal(name, &known.name)?),
                volume_id: known.volume_id.clone(),
                boot_id: known.boot_id.clone(),
                errant: known.errant.as_deref().unwrap_or_default().parse().ok()?,
            })
        })
        .collect()
}

/// With which words mysqld ended, while it waits to be started again: an option that it does not take, say.
fn end_of_mysqld(facts: &proto::InstanceFacts) -> Option<String> {
    let ended = facts.process_state() == proto::ProcessState::Exited;
    (ended && !facts.process_message.is_empty()).then(|| facts.process_message.clone())
}

fn pod_state(pod: Option<&Arc<Pod>>) -> PodState {
    let Some(pod) = pod else { return PodState::Absent };
    if pod.metadata.deletion_timestamp.is_some() {
        return PodState::Terminating;
    }
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodState::Running,
        Some("Failed" | "Succeeded") => PodState::Absent,
        _ => PodState::Pending,
    }
}

/// Turns the words of the wire into those of a decision. Whatever can't be read makes the whole facts
/// unreadable: a set that could not be parsed must never count as empty.
struct Resolver<'a> {
    cluster: &'a str,
    namespace: &'a str,
}

impl Resolver<'_> {
    fn facts(&self, facts: &proto::InstanceFacts) -> Result<InstanceFacts, String> {
        Ok(InstanceFacts {
            boot_id: facts.boot_id.clone(),
            volume_id: facts.volume_id.clone(),
            process: match facts.process_state() {
                proto::ProcessState::Unspecified => return Err("the agent sends no process state".to_owned()),
                proto::ProcessState::Initializing => ProcessState::Initializing,
                proto::ProcessState::Starting => ProcessState::Starting,
                proto::ProcessState::Running => ProcessState::Running,
                proto::ProcessState::Exited => ProcessState::Exited,
                proto::ProcessState::Failed => ProcessState::Failed(facts.process_message.clone()),
                proto::ProcessState::Leaving => ProcessState::Leaving,
                proto::ProcessState::Stopping => ProcessState::Stopping,
            },
            silent_for_ms: facts.silent_for.as_ref().and_then(milliseconds),
            persisted_term: Term(facts.term),
            server: facts.server.as_ref().map(|server| self.server(server)).transpose()?,
            clone: facts.clone.as_ref().map(|clone| self.clone(clone)).transpose()?,
        })
    }

    fn server(&self, server: &proto::ServerFacts) -> Result<ServerFacts, String> {
        Ok(ServerFacts {
            server_uuid: parse(&server.server_uuid)?,
            executed: parse(&server.gtid_executed)?,
            purged: parse(&server.gtid_purged)?,
            super_read_only: server.super_read_only,
            replication: server
                .replication
                .as_ref()
                .map(|replication| self.replication(replication))
                .transpose()?,
            semi_sync_source: server.semi_sync_source,
            required_acks: server.semi_sync_required_acks,
            semi_sync_clients: server.semi_sync_clients,
            semi_sync_replica: server.semi_sync_replica,
            recorded_term: Term(server.recorded_term),
            recorded_by: Some(&server.recorded_by)
                .filter(|text| !text.is_empty())
                .map(|text| parse(text))
                .transpose()?,
        })
    }

    fn replication(&self, replication: &proto::ReplicationFacts) -> Result<ReplicationFacts, String> {
        Ok(ReplicationFacts {
            source: self.instance(&replication.source_host),
            receiver: thread(replication.receiver())?,
            receiver_error: replication.receiver_error.clone(),
            applier: thread(replication.applier())?,
            applier_error: replication.applier_error.clone(),
            retrieved: parse(&replication.gtid_retrieved)?,
            lag_ms: replication.lag.as_ref().and_then(milliseconds),
            connecting_for_ms: replication.connecting_for.as_ref().and_then(milliseconds),
        })
    }

    fn clone(&self, clone: &proto::CloneFacts) -> Result<CloneProgress, String> {
        Ok(CloneProgress {
            state: match clone.state() {
                proto::CloneState::Unspecified => {
                    return Err("the agent sends no state of the copy".to_owned());
                }
                proto::CloneState::Running => CloneState::Running,
                proto::CloneState::Completed => CloneState::Completed,
                proto::CloneState::Failed => CloneState::Failed(clone.error.clone()),
            },
            donor: self.instance(&clone.donor_host),
        })
    }

    fn instance(&self, host: &str) -> Option<InstanceId> {
        let pod = host.split('.').next()?;
        (names::instance_host(self.namespace, self.cluster, pod) == host)
            .then(|| names::ordinal(self.cluster, pod))
            .flatten()
            .map(InstanceId)
    }
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("the agent's facts can't be read: {error}"))
}

fn thread(state: proto::ThreadState) -> Result<ThreadState, String> {
    match state {
        proto::ThreadState::Unspecified => Err("the agent sends no state of a replication thread".to_owned()),
        proto::ThreadState::Stopped => Ok(ThreadState::Stopped),
        proto::ThreadState::Connecting => Ok(ThreadState::Connecting),
        proto::ThreadState::Running => Ok(ThreadState::Running),
        proto::ThreadState::Failed => Ok(ThreadState::Failed),
    }
}

/// Whole milliseconds; a negative duration (clocks differ) is none.
fn milliseconds(duration: &prost_types::Duration) -> Option<u64> {
    let seconds = u64::try_from(duration.seconds).ok()?;
    let nanos = u64::try_from(duration.nanos).ok()?;
    seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)
}

/// A cluster of three of which nothing is known.
#[cfg(test)]
pub(super) fn unobserved() -> ClusterView {
    ClusterView {
        replicas: 3,
        offline: false,
        paused: false,
        wanted_primary: None,
        rebuild: None,
        release: None,
        force: None,
        durability: Durability::Strict,
        record: TermRecord::NONE,
        opened: Term::NONE,
        ackers: Vec::new(),
        catching_up: Vec::new(),
        trial: fleet_topology::Trial::default(),
        instances: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use fleet_api::v1::MySQLCluster;

    use super::*;

    fn status() -> MySQLClusterStatus {
        MySQLClusterStatus {
            term: 3,
            primary: Some("orders-1".to_owned()),
            primary_since: 2,
            quorum_since: 2,
            ackers: 2,
            required_acks: 1,
            ..MySQLClusterStatus::default()
        }
    }

    #[test]
    fn a_cluster_without_status_never_had_a_primary() {
        assert_eq!(record("orders", None).unwrap(), TermRecord::NONE);
    }

    #[test]
    fn the_record_is_read_from_the_status() {
        let record = record("orders", Some(&status())).unwrap();
        assert_eq!(
            (record.term, record.primary, record.primary_since),
            (Term(3), Some(InstanceId(1)), Term(2))
        );
        assert_eq!((record.quorum.ackers(), record.quorum.required_acks()), (2, 1));
    }

    #[test]
    fn a_forced_takeover_is_remembered_in_the_status() {
        let point: GtidSet = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7".parse().unwrap();
        let written = super::record("orders", Some(&status())).unwrap().taken_over(
            InstanceId(2),
            point,
            fleet_topology::Takeover::Forced,
        );
        assert!(written.is_forced());
        let spec = serde_json::json!({"version": "9.7", "storage": {"size": "1Gi"}});
        let cluster = MySQLCluster::new("orders", serde_json::from_value(spec).unwrap());
        let kept = crate::cluster::status::with_record(&cluster, &written);
        assert_eq!(record("orders", Some(&kept)).unwrap(), written);
    }

    #[test]
    fn an_edited_status_is_named() {
        let forced = |term, point: &str| Some(v1::ForcedTakeover { term, point: point.to_owned() });
        for (field, edited) in [
            ("term", MySQLClusterStatus { term: -1, ..status() }),
            ("primary", MySQLClusterStatus { primary: Some("invoices-0".to_owned()), ..status() }),
            ("openedSince", MySQLClusterStatus { opened_since: -1, ..status() }),
            ("forced.term", MySQLClusterStatus { forced: forced(-1, ""), ..status() }),
            ("forced.point", MySQLClusterStatus { forced: forced(2, "all"), ..status() }),
            ("requiredAcks", MySQLClusterStatus { required_acks: 9, ..status() }),
        ] {
            let read = record("orders", Some(&edited)).and_then(|_| opened(Some(&edited)));
            let text = read.unwrap_err().to_string();
            assert!(text.contains(&format!("status.{field}")), "{text}");
        }
    }

    fn claims(claims: serde_json::Value) -> Children {
        let claims: Vec<PersistentVolumeClaim> = serde_json::from_value(claims).unwrap();
        Children { claims: (0..).zip(claims.into_iter().map(Arc::new)).collect(), ..Children::default() }
    }

    #[test]
    fn a_volume_without_a_pod_is_an_instance_though_it_is_not_wanted() {
        let cluster: MySQLCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
            "spec": {"replicas": 1, "version": "9.7", "storage": {"size": "1Gi"}},
        }))
        .unwrap();
        let children = claims(serde_json::json!([
            {"metadata": {}, "spec": {"volumeName": "a"}},
            {"metadata": {}, "spec": {"volumeName": "b"}},
            {"metadata": {}, "spec": {}, "status": {"phase": "Pending"}},
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"volumeName": "c"}},
        ]));
        let unseen =
            |_: &str| Sighting { facts: None, unknown_for: std::time::Duration::ZERO, problem: None };
        let Observation { view, .. } = observe(
            &Plan::of(&cluster, &children, None),
            &children,
            unseen,
            Vec::new(),
            &Requests::default(),
        )
        .unwrap();
        let seen: Vec<_> = view
            .instances
            .iter()
            .map(|instance| (instance.id.0, instance.pod, instance.has_volume))
            .collect();
        assert_eq!(seen, [(0, PodState::Absent, true), (1, PodState::Absent, true)]);
    }

    #[test]
    fn an_instance_whose_mysqld_ended_says_why() {
        let cluster: MySQLCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
            "spec": {"replicas": 1, "version": "9.7", "storage": {"size": "1Gi"}},
        }))
        .unwrap();
        let plan = Plan::of(&cluster, &Children::default(), None);
        let problem = |state: proto::ProcessState, message: &str| {
            let facts = proto::InstanceFacts {
                process_state: state.into(),
                process_message: message.to_owned(),
                ..proto::InstanceFacts::default()
            };
            let seen = |_: &str| Sighting {
                facts: Some(Arc::new(facts.clone())),
                unknown_for: std::time::Duration::ZERO,
                problem: None,
            };
            let Observation { details, .. } =
                observe(&plan, &claims(serde_json::json!([])), seen, Vec::new(), &Requests::default())
                    .unwrap();
            details[&0].problem.clone()
        };
        let words = "mysqld ended with exit code 1: unknown variable 'x=1'.";
        assert_eq!(problem(proto::ProcessState::Exited, words).as_deref(), Some(words));
        assert_eq!(problem(proto::ProcessState::Exited, ""), None);
        assert_eq!(problem(proto::ProcessState::Running, words), None);
    }

    #[test]
    fn facts_that_cannot_be_read_are_unknown_and_not_empty() {
        let resolver = Resolver { cluster: "orders", namespace: "tenant-a" };
        let facts = proto::InstanceFacts {
            process_state: proto::ProcessState::Running.into(),
            server: Some(proto::ServerFacts {
                server_uuid: "3e11fa47-71ca-11e1-9e33-c80aa9429562".to_owned(),
                gtid_executed: "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-x".to_owned(),
                ..proto::ServerFacts::default()
            }),
            ..proto::InstanceFacts::default()
        };
        assert!(resolver.facts(&facts).unwrap_err().contains("1-x"));
    }

    #[test]
    fn only_hosts_of_this_cluster_are_its_instances() {
        let resolver = Resolver { cluster: "orders", namespace: "tenant-a" };
        assert_eq!(resolver.instance("orders-2.orders-instances.tenant-a.svc"), Some(InstanceId(2)));
        for other in ["orders-2.orders-instances.tenant-b.svc", "orders-2", "", "evil.example"] {
            assert_eq!(resolver.instance(other), None, "{other}");
        }
    }
}
