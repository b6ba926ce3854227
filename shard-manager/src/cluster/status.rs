//! Last step: what is said of the cluster in its status.

use std::collections::BTreeMap;

use fleet_api::{
    names,
    v1::{
        Condition, ConditionType, CopyStatus, ForcedTakeover, InSyncInstance, InstanceRole, InstanceStatus,
        MySQLCluster, MySQLClusterStatus, Phase, TermStage,
    },
};
use fleet_topology::{
    AckerIdentity, Decision, Forced, InstanceId, InstanceVerdict, Role, Stage, Standing, State, Term,
    TermRecord,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::{
    build::{Applied, Resources},
    copy,
    observe::Detail,
    rollout::{
        Plan,
        words::{self, DEADLINE_EXCEEDED, ROLLING_BACK, ROLLING_UPDATE},
    },
};
use crate::labels;

/// How the reconcile went: what `ReconcileSucceeded` says.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It did all it had to.
    Succeeded(&'a Resources<Applied>),
    /// A step failed.
    Failed {
        /// The variant of its error.
        reason: &'static str,
        /// Its error.
        message: &'a str,
    },
}

/// The status after a decision.
pub fn decided(
    cluster: &MySQLCluster,
    plan: &Plan,
    decision: &Decision,
    details: &BTreeMap<u32, Detail>,
    outcome: Outcome<'_>,
    now: Timestamp,
) -> MySQLClusterStatus {
    let name = cluster.name_any();
    let instances: Vec<InstanceStatus> = decision
        .instances
        .iter()
        .map(|verdict| instance(&name, verdict, details.get(&verdict.id.0)))
        .collect();
    let wanted = cluster.spec.replicas;
    let ready = instances
        .iter()
        .zip(&decision.instances)
        .filter(|(instance, verdict)| instance.ready && verdict.role != Role::Leaving)
        .count();
    let exist = details.values().filter(|detail| detail.facts.is_some()).count();
    let message = explain(&name, decision, &instances);
    let mut status = MySQLClusterStatus {
        observed_generation: cluster.metadata.generation,
        phase: Some(phase(decision.state)),
        replicas: i32::try_from(exist).unwrap_or(i32::MAX),
        ready_replicas: i32::try_from(ready).unwrap_or(i32::MAX),
        ready: Some(format!("{ready}/{wanted}")),
        selector: Some(selector(&name)),
        in_sync: decision.ackers.iter().map(|known| in_sync(&name, known)).collect(),
        instances,
        rollout: plan.status(decision, words::outdated(cluster, details), now),
        conditions: Vec::new(),
        ..cluster.status.clone().unwrap_or_default()
    };
    let mut conditions = Conditions::of(cluster, now);
    for (type_, truth) in of_state(decision) {
        conditions.set(type_, truth, decision.state.name(), &message);
    }
    let goes_back = plan.given_up.is_some();
    if let Some(progress) = words::progress(cluster, decision, details, goes_back) {
        let reason = if goes_back { ROLLING_BACK } else { ROLLING_UPDATE };
        conditions.set(ConditionType::Progressing, "True", reason, &format!("{progress}; {message}"));
    }
    let rolled_back = status.rollout.as_ref().and_then(words::given_up);
    match &rolled_back {
        Some(text) => conditions.set(ConditionType::RolledBack, "True", DEADLINE_EXCEEDED, text),
        None => conditions.set(
            ConditionType::RolledBack,
            "False",
            "SpecInForce",
            "nothing of the spec was given up",
        ),
    }
    let (paused, reason, text) = if cluster.spec.paused.clustering {
        ("True", "Clustering", "spec.paused.clustering: roles stay as they are")
    } else {
        ("False", "NotPaused", "nothing is paused")
    };
    conditions.set(ConditionType::Paused, paused, reason, text);
    conditions.outcome(outcome);
    status.conditions = conditions.all;
    status
}

/// What an instance says for people, after a decision.
pub fn said_of(
    cluster: &str,
    decision: &Decision,
    details: &BTreeMap<u32, Detail>,
    id: InstanceId,
) -> String {
    let verdict = decision.instances.iter().find(|verdict| verdict.id == id);
    let said = verdict.and_then(|verdict| instance(cluster, verdict, details.get(&id.0)).message);
    said.unwrap_or_else(|| "it did not say why".to_owned())
}

/// What a decision says of each condition that is about the state of the cluster.
fn of_state(decision: &Decision) -> [(ConditionType, &'static str); 5] {
    let Decision { state, orders, .. } = decision;
    let truth = |yes: bool| if yes { "True" } else { "False" };
    let healthy = *state == State::Healthy;
    let under_way = matches!(state, State::Bootstrapping | State::Cloning | State::SwitchoverRequested)
        || !orders.is_empty();
    let available = if *state == State::Incomplete { "Unknown" } else { truth(state.takes_writes()) };
    [
        (ConditionType::Available, available),
        (ConditionType::Healthy, truth(healthy)),
        (ConditionType::Progressing, truth(under_way)),
        (ConditionType::Degraded, truth(!healthy && *state != State::Offline)),
        (ConditionType::FailoverBlocked, truth(*state == State::FailoverBlocked)),
    ]
}

/// The status after a step that failed before there was a decision: all that was said before stays, but
/// of conditions nothing is claimed that is not known any more.
pub fn undecided(
    cluster: &MySQLCluster,
    reason: &'static str,
    message: &str,
    now: Timestamp,
) -> MySQLClusterStatus {
    let before = cluster.status.clone().unwrap_or_default();
    let mut conditions = Conditions::of(cluster, now);
    conditions.all_unknown(reason, message);
    conditions.outcome(Outcome::Failed { reason, message });
    MySQLClusterStatus {
        observed_generation: cluster.metadata.generation,
        phase: before.phase.or(Some(Phase::Pending)),
        conditions: conditions.all,
        ..before
    }
}

/// The status of a cluster that is left alone altogether.
pub fn paused(cluster: &MySQLCluster, now: Timestamp) -> MySQLClusterStatus {
    let before = cluster.status.clone().unwrap_or_default();
    let mut conditions = Conditions::of(cluster, now);
    let text = "spec.paused.reconcile: nothing is changed, and nothing is looked at";
    conditions.all_unknown("Paused", text);
    conditions.set(ConditionType::Paused, "True", "Reconcile", text);
    MySQLClusterStatus {
        observed_generation: cluster.metadata.generation,
        phase: Some(Phase::Paused),
        conditions: conditions.all,
        ..before
    }
}

/// The status of a cluster on its way out.
pub fn deleting(cluster: &MySQLCluster, waits_for: &str, now: Timestamp) -> MySQLClusterStatus {
    let mut conditions = Conditions::of(cluster, now);
    for type_ in [ConditionType::Available, ConditionType::Healthy] {
        conditions.set(type_, "False", "Deleting", waits_for);
    }
    conditions.set(ConditionType::Progressing, "True", "Deleting", waits_for);
    MySQLClusterStatus {
        observed_generation: cluster.metadata.generation,
        phase: Some(Phase::Deleting),
        conditions: conditions.all,
        ..cluster.status.clone().unwrap_or_default()
    }
}

/// The status with another record of the current term, and nothing else changed.
pub fn with_record(cluster: &MySQLCluster, record: &TermRecord) -> MySQLClusterStatus {
    let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    MySQLClusterStatus {
        term: signed(record.term),
        primary: record.primary.map(|id| names::pod(&cluster.name_any(), id.0)),
        primary_since: signed(record.primary_since),
        quorum_since: signed(record.quorum_since),
        stage: Some(match record.stage {
            Stage::Reign => TermStage::Reign,
            Stage::Fencing => TermStage::Fencing,
            Stage::Handover { .. } => TermStage::Handover,
        }),
        handover_to: match record.stage {
            Stage::Handover { to } => Some(names::pod(&cluster.name_any(), to.0)),
            Stage::Reign | Stage::Fencing => None,
        },
        promotion_point: record.promotion_point.as_ref().map(ToString::to_string),
        planned: record.planned,
        forced: record.forced.as_ref().map(forced),
        ackers: count(record.quorum.ackers()),
        required_acks: count(record.quorum.required_acks()),
        ..cluster.status.clone().unwrap_or_default()
    }
}

fn forced(forced: &Forced) -> ForcedTakeover {
    let Forced { since, point } = forced;
    ForcedTakeover { term: signed(*since), point: point.to_string() }
}

fn signed(term: Term) -> i64 {
    i64::try_from(term.0).unwrap_or(i64::MAX)
}

/// The status that remembers which reign was opened, and nothing else changed; `None` where it does already.
pub fn with_opened(cluster: &MySQLCluster, opened: Term) -> Option<MySQLClusterStatus> {
    let before = cluster.status.clone().unwrap_or_default();
    let opened_since = signed(opened);
    (before.opened_since != opened_since).then_some(MySQLClusterStatus { opened_since, ..before })
}

/// Whether two statuses say the same but for what moves with every transaction.
pub fn same_but_positions(one: &MySQLClusterStatus, other: &MySQLClusterStatus) -> bool {
    let still = |status: &MySQLClusterStatus| {
        let mut status = status.clone();
        for instance in &mut status.instances {
            instance.gtid_executed = None;
            instance.lag_seconds = None;
            instance.copy = instance.copy.map(|_| CopyStatus::default());
        }
        for waits in status.rollout.iter_mut().filter_map(|rollout| rollout.waits_for.as_mut()) {
            waits.waited_seconds = 0;
        }
        status
    };
    still(one) == still(other)
}

fn phase(state: State) -> Phase {
    match state {
        State::Offline => Phase::Offline,
        State::Paused => Phase::Paused,
        State::Bootstrapping => Phase::Bootstrapping,
        State::Cloning => Phase::Cloning,
        State::SwitchoverRequested => Phase::SwitchoverRequested,
        State::Healthy => Phase::Healthy,
        State::Degraded => Phase::Degraded,
        State::WritesBlocked => Phase::WritesBlocked,
        State::PrimaryLost => Phase::PrimaryLost,
        State::FailoverBlocked => Phase::FailoverBlocked,
        State::Incomplete => Phase::Incomplete,
    }
}

fn in_sync(cluster: &str, known: &AckerIdentity) -> InSyncInstance {
    InSyncInstance {
        name: names::pod(cluster, known.instance.0),
        volume_id: known.volume_id.clone(),
        boot_id: known.boot_id.clone(),
        errant: (!known.errant.is_empty()).then(|| known.errant.to_string()),
    }
}

fn instance(cluster: &str, verdict: &InstanceVerdict, detail: Option<&Detail>) -> InstanceStatus {
    let facts = detail.and_then(|detail| detail.facts.as_deref());
    let server = facts.and_then(|facts| facts.server.as_ref());
    let ready = matches!(verdict.standing, Standing::Open | Standing::InSync);
    let role = match (&verdict.standing, verdict.role) {
        (Standing::Unknown, _) => InstanceRole::Unknown,
        (Standing::Errant(_), _) => InstanceRole::Errant,
        (_, Role::Primary) => InstanceRole::Primary,
        (Standing::InSync, Role::Acker | Role::Replica | Role::Leaving) => InstanceRole::Replica,
        (
            Standing::Down
            | Standing::Closed
            | Standing::Open
            | Standing::CatchingUp
            | Standing::Cloning
            | Standing::Blocked,
            Role::Acker | Role::Replica | Role::Leaving,
        ) => InstanceRole::Joining,
    };
    let problem = detail.and_then(|detail| detail.problem.clone());
    let own = (!verdict.message.is_empty()).then(|| with_pods(cluster, &verdict.message));
    let message = match (own, problem) {
        (Some(own), Some(problem)) => Some(format!("{own}; {problem}")),
        (own, problem) => own.or(problem),
    };
    InstanceStatus {
        name: names::pod(cluster, verdict.id.0),
        role,
        ready,
        message: message.filter(|_| !ready),
        gtid_executed: server.map(|server| server.gtid_executed.clone()),
        lag_seconds: server.and_then(|server| server.replication.as_ref()?.lag).map(|lag| lag.seconds.max(0)),
        incarnation: facts.map(|facts| facts.incarnation.clone()),
        copy: facts.and_then(copy::progress),
    }
}

/// The decision's message, and after it what keeps each instance from being ready.
fn explain(name: &str, decision: &Decision, instances: &[InstanceStatus]) -> String {
    let mut message = with_pods(name, &decision.message);
    for instance in instances.iter().filter(|instance| !instance.ready) {
        let said = instance.message.as_deref().unwrap_or_default();
        if let Some(more) = beyond(&message, &instance.name, said) {
            message = format!("{message}; {}: {more}", instance.name);
        }
    }
    message
}

/// What an instance says beyond what a message has of it.
fn beyond<'a>(message: &str, name: &str, said: &'a str) -> Option<&'a str> {
    if message.contains(said) {
        return None;
    }
    let more = said.split_once("; ").filter(|(own, _)| message.contains(&format!("{name} {own}")));
    Some(more.map_or(said, |(_, more)| more))
}

/// A decision knows ordinals and no names: its `instance 1` is pod `orders-1`.
pub(super) fn with_pods(name: &str, message: &str) -> String {
    const WORD: &str = "instance ";
    let mut parts = message.split(WORD);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let named = part.starts_with(|c: char| c.is_ascii_digit());
        text = if named { format!("{text}{name}-{part}") } else { format!("{text}{WORD}{part}") };
    }
    text
}

fn selector(cluster: &str) -> String {
    let pairs: Vec<String> =
        labels::selector(cluster).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// The conditions of a status: `lastTransitionTime` moves only with the condition's status.
struct Conditions<'a> {
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    all: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    fn of(cluster: &'a MySQLCluster, now: Timestamp) -> Self {
        let before = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        Self { before, generation: cluster.metadata.generation, now, all: before.to_vec() }
    }

    fn set(&mut self, type_: ConditionType, status: &str, reason: &str, message: &str) {
        let since = self
            .before
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == status)
            .map_or(Time(self.now), |condition| condition.last_transition_time.clone());
        self.all.retain(|condition| condition.type_ != type_);
        self.all.push(Condition {
            type_,
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: self.generation,
            last_transition_time: since,
        });
        self.all.sort_by_key(|condition| condition.type_);
    }

    /// Claims nothing, for one reason; what is known all the same is set afterwards.
    fn all_unknown(&mut self, reason: &str, message: &str) {
        for type_ in ConditionType::ALL {
            self.set(type_, "Unknown", reason, message);
        }
    }

    fn outcome(&mut self, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Succeeded(_) => self.set(
                ConditionType::ReconcileSucceeded,
                "True",
                "Applied",
                "all children are as they should be",
            ),
            Outcome::Failed { reason, message } => {
                self.set(ConditionType::ReconcileSucceeded, "False", reason, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{dereference::Children, observe::unobserved};

    #[test]
    fn a_cluster_that_could_not_be_looked_at_says_why_and_claims_nothing() {
        let cluster: MySQLCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
            "spec": {"version": "9.7", "storage": {"size": "1Gi"}},
        }))
        .unwrap();
        let status =
            undecided(&cluster, "NoTenantKeys", "Secret shard-a-ca: seed is missing", Timestamp::UNIX_EPOCH);
        assert_eq!(status.conditions.iter().map(|one| one.type_).collect::<Vec<_>>(), ConditionType::ALL);
        for condition in &status.conditions {
            let truth =
                if condition.type_ == ConditionType::ReconcileSucceeded { "False" } else { "Unknown" };
            assert_eq!((condition.status.as_str(), condition.reason.as_str()), (truth, "NoTenantKeys"));
            assert!(condition.message.contains("shard-a-ca"));
        }
        assert_eq!(status.phase, Some(Phase::Pending));
    }

    #[test]
    fn a_rolling_update_says_how_far_it_is_until_the_last_instance_is_in_sync() {
        let mut cluster: MySQLCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
            "spec": {"version": "9.7", "replicas": 3, "storage": {"size": "1Gi"}},
        }))
        .unwrap();
        let mut decision = fleet_topology::decide(&unobserved());
        let mut progress = |state, replace: Option<u32>, outdated: &[u32]| {
            (decision.state, decision.replace) = (state, replace.map(fleet_topology::InstanceId));
            let detail = |ordinal| Detail { outdated: outdated.contains(&ordinal), ..Detail::default() };
            let details = (0..3).map(|ordinal| (ordinal, detail(ordinal))).collect();
            let failed = Outcome::Failed { reason: "", message: "" };
            let plan = Plan::of(&cluster, &Children::default(), None);
            let status = decided(&cluster, &plan, &decision, &details, failed, Timestamp::UNIX_EPOCH);
            let all = status.conditions.clone();
            cluster.status = Some(status);
            let one = all.into_iter().find(|one| one.type_ == ConditionType::Progressing).unwrap();
            (one.reason, one.message)
        };
        assert_eq!(progress(State::Healthy, None, &[]).0, "Healthy");
        let (reason, message) = progress(State::Healthy, Some(0), &[0]);
        assert_eq!(reason, ROLLING_UPDATE);
        assert!(message.starts_with("2 of 3 pods are of the present spec, orders-0 is next"), "{message}");
        let (reason, message) = progress(State::Degraded, None, &[]);
        assert_eq!(reason, ROLLING_UPDATE);
        assert!(message.starts_with("3 of 3 pods"), "{message}");
        assert_eq!(progress(State::Healthy, None, &[]).0, "Healthy");
        assert_eq!(progress(State::Degraded, None, &[]).0, "Degraded", "no update goes on");
    }

    #[test]
    fn an_opened_reign_is_written_once() {
        let mut cluster = MySQLCluster::new(
            "orders",
            serde_json::from_value(serde_json::json!({
                "version": "9.7", "storage": {"size": "1Gi"},
            }))
            .unwrap(),
        );
        assert_eq!(with_opened(&cluster, Term::NONE), None);
        let status = with_opened(&cluster, Term(3)).unwrap();
        assert_eq!(status.opened_since, 3);
        cluster.status = Some(status);
        assert_eq!(with_opened(&cluster, Term(3)), None);
    }

    #[test]
    fn what_the_decision_says_of_an_instance_is_not_said_again() {
        let decision = "waits for every instance: orders-0 has a pod that has not been started";
        let said = "has a pod that has not been started; container mysqld waits: ErrImagePull: no such image";
        assert_eq!(
            beyond(decision, "orders-0", said),
            Some("container mysqld waits: ErrImagePull: no such image")
        );
        assert_eq!(beyond(decision, "orders-1", said), Some(said));
        assert_eq!(beyond(decision, "orders-0", "has a pod that has not been started"), None);
        assert_eq!(beyond(decision, "orders-0", ""), None);
    }

    #[test]
    fn ordinals_become_pods_and_other_words_stay() {
        assert_eq!(
            with_pods("orders", "waits for every instance before instance 0 follows instance 12"),
            "waits for every instance before orders-0 follows orders-12"
        );
        assert_eq!(with_pods("orders", "instance 1: gone"), "orders-1: gone");
    }
}
