//! The MySQLCluster controller: one reconcile is dereference, observe, decide, build, apply, status.
//!
//! | step | module | what it may do |
//! |---|---|---|
//! | dereference | [`dereference`] | read the kept objects |
//! | observe | [`observe`] | read what agents have said |
//! | decide | `fleet_topology::decide` | nothing: pure |
//! | build | [`build`] | nothing: pure |
//! | apply | [`apply`], [`orders`], [`requests`] | write children, give orders, answer requests of people |
//! | status | [`status`], [`publish`] | write the status |

pub mod apply;
pub mod build;
pub mod copy;
pub mod delete;
pub mod dereference;
mod error;
pub mod observe;
pub mod orders;
pub mod pod_problem;
pub mod publish;
pub mod requests;
pub mod rollout;
pub mod status;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use fleet_api::{
    names,
    v1::{MySQLCluster, MySQLClusterStatus},
};
use fleet_proto::agent::v1::{InstanceFacts, ProcessState};
use fleet_runtime::{
    apply::Applier,
    controller::Reconcile,
    error::{Classified, ErrorClass},
};
use fleet_topology::{
    CatchingUp, Decision, Forcing, Fulfilment, InstanceId, Rebuild, Rebuilding, Stage, State, TermRecord,
    Verdict, decide,
};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _, runtime::controller::Action};
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

use build::{Applied, Resources, Traffic};
use delete::Progress;
use dereference::{Children, Dereferenced};
pub use error::ReconcileError;
use observe::{Detail, Observation};
use publish::Publisher;
use requests::Answer;
use rollout::{Plan, Stopwatch};
use status::Outcome;

use crate::{
    agents::{Agents, Target},
    config::Images,
    stores::Stores,
    tenant::FoundKeys,
};

/// Reconcile again after this time though nothing has changed: what moves without an event (positions,
/// lag, disks) is then refreshed.
const RESYNC: Duration = Duration::from_secs(10);
/// The same while something is under way.
const RESYNC_UNSETTLED: Duration = Duration::from_secs(1);
/// How many times a reconcile writes what has to be decided on anew: a bootstrap takes one, a change of the quorum one, and
/// a template that is given up.
const MAX_RECORDS: usize = 4;

/// The controller of a namespace's clusters.
pub struct Reconciler {
    /// The namespace.
    pub namespace: String,
    /// Images of MySQL pods.
    pub images: Images,
    /// The kept objects.
    pub stores: Stores,
    /// The only writer.
    pub applier: Applier,
    /// The connections to the instances.
    pub agents: Arc<Agents>,
    /// The tenant's keys.
    pub keys: watch::Receiver<FoundKeys>,
    /// Writes statuses and events.
    pub publisher: Publisher,
    /// The clusters, for reading one past the cache.
    pub clusters: Api<MySQLCluster>,
    /// By UID of the cluster, what is remembered between reconciles.
    pub memory: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of a cluster between reconciles. Losing it is safe.
#[derive(Clone, Default)]
pub struct Memory {
    /// The ackers of the last decision that are on their way to being in sync.
    catching_up: Vec<CatchingUp>,
    /// The record that this process has written last.
    record: Option<TermRecord>,
    /// For how long an instance with a new template has been waited for.
    stopwatch: Option<Stopwatch>,
}

/// What was observed and decided, with the object that it was decided for.
struct Decided {
    cluster: MySQLCluster,
    /// Which template its pods are to have.
    plan: Plan,
    found: Dereferenced,
    decision: Decision,
    details: BTreeMap<u32, Detail>,
    /// What people are to be told of their requests.
    answers: Vec<Answer>,
}

impl Reconcile<MySQLCluster> for Reconciler {
    type Error = ReconcileError;

    async fn reconcile(&self, cluster: Arc<MySQLCluster>) -> Result<Action, ReconcileError> {
        if cluster.namespace().as_deref() != Some(&self.namespace) {
            return Err(ReconcileError::ForeignNamespace {
                cluster: cluster.name_any(),
                namespace: cluster.namespace().unwrap_or_default(),
            });
        }
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.delete(&cluster).await;
        }
        if cluster.spec.paused.reconcile {
            self.publisher.publish(&cluster, status::paused(&cluster, Timestamp::now())).await?;
            return Ok(Action::await_change());
        }
        let cluster = if delete::has_finalizer(&cluster) {
            MySQLCluster::clone(&cluster)
        } else {
            delete::add_finalizer(&self.applier, &cluster).await?
        };
        match self.look(&cluster).await {
            Ok(decided) => Box::pin(self.act(&decided)).await,
            Err(error) => {
                if error.class() != ErrorClass::Transient {
                    let text = error.to_string();
                    let status = status::undecided(&cluster, error.reason(), &text, Timestamp::now());
                    self.publisher.publish(&cluster, status).await?;
                }
                Err(error)
            }
        }
    }
}

impl Reconciler {
    /// Dereference, observe, decide. A new record is written and decided on again until none is needed.
    async fn look(&self, cluster: &MySQLCluster) -> Result<Decided, ReconcileError> {
        let name = cluster.name_any();
        let uid = cluster.uid().unwrap_or_default();
        let keys = self.keys.borrow().clone();
        let found = dereference::dereference(cluster, &self.stores, keys)?;
        self.hold_connections(&name, &found.children);
        let mut cluster = self.up_to_date(cluster.clone(), &uid).await?;
        let mut answers: Vec<Answer> = Vec::new();
        for _ in 0..MAX_RECORDS {
            let requests = requests::requests(&cluster);
            let now = Instant::now();
            let Memory { catching_up, stopwatch, .. } = self.remembered(&uid).await;
            let plan = Plan::of(&cluster, &found.children, stopwatch.as_ref().map(|watch| (watch, now)));
            let sighting = |pod: &str| self.agents.sighting(&name, pod);
            let Observation { view, details } =
                observe::observe(&plan, &found.children, sighting, catching_up, &requests)?;
            let decision = decide(&view);
            self.agents.attend(&name, waits_for_positions(&view.record, &decision));
            // The first answer has the reason: after the record that gives a handover up, only that it was.
            for answer in requests.answers(&name, &decision) {
                if answers.iter().all(|first| first.kind != answer.kind) {
                    answers.push(answer);
                }
            }
            let mut memory = self.memory.lock().await;
            let remembered = memory.entry(uid.clone()).or_default();
            remembered.catching_up.clone_from(&decision.catching_up);
            let waits_for = decision.progress.waits_for;
            let problem = waits_for.and_then(|id| details.get(&id.0)?.problem.as_ref());
            let stopwatch = plan.stopwatch(stopwatch, &decision.progress, problem, now);
            remembered.stopwatch.clone_from(&stopwatch);
            drop(memory);
            if let (Verdict::GivenUp, Some(instance), Some(stopwatch)) =
                (decision.progress.verdict, waits_for, &stopwatch)
            {
                let says = status::said_of(&name, &decision, &details, instance);
                let reason = stopwatch.reason(says, problem.is_some());
                if let Some(status) = plan.give_up(&cluster, instance, reason, Timestamp::now()) {
                    cluster = self.publisher.give_up(&cluster, &status).await?;
                    continue;
                }
            }
            if let (Some(Forcing::UnderWay { begun }), Some(force)) = (&decision.forcing, requests.force) {
                cluster = requests::take_up_force(&self.applier, cluster, force.instance, *begun).await?;
            }
            let Some(record) = decision.record else {
                // Before traffic goes there: what was written to it must never be taken for nothing.
                cluster = self.publisher.remember_opened(cluster, decision.opened).await?;
                // Before the order, after which there may be nothing left to tell it by.
                if let (Some(Rebuilding::UnderWay), Some(Rebuild { instance, .. })) =
                    (&decision.rebuilding, requests.rebuild)
                {
                    cluster = requests::take_up_rebuild(&self.applier, cluster, instance).await?;
                }
                return Ok(Decided { cluster, plan, found, decision, details, answers });
            };
            if let Some(Fulfilment::UnderWay { to, term }) = decision.wish {
                cluster = requests::take_up(&self.applier, cluster, to, term).await?;
            }
            tracing::info!(cluster = name, term = %record.term, "a term begins: {}", decision.message);
            cluster = self.begin_term(&cluster, &uid, record).await?;
        }
        Err(ReconcileError::TooManyRecords { cluster: name })
    }

    async fn remembered(&self, uid: &str) -> Memory {
        self.memory.lock().await.entry(uid.to_owned()).or_default().clone()
    }

    async fn begin_term(
        &self,
        cluster: &MySQLCluster,
        uid: &str,
        record: TermRecord,
    ) -> Result<MySQLCluster, ReconcileError> {
        let written = self.publisher.write_record(cluster, &record).await?;
        self.memory.lock().await.entry(uid.to_owned()).or_default().record = Some(record);
        self.publisher.tell_of_term(&written);
        Ok(written)
    }

    /// The cluster with a record no older than the one that this process has written last: a cache that
    /// lags must not bring an old term back. Where the API server itself has another record of that term, or
    /// an older one, somebody has edited the status, and it is put back: a primary changes with a new term
    /// only.
    async fn up_to_date(&self, cached: MySQLCluster, uid: &str) -> Result<MySQLCluster, ReconcileError> {
        let written = self.memory.lock().await.get(uid).and_then(|memory| memory.record.clone());
        let Some(written) = written else { return Ok(cached) };
        let name = cached.name_any();
        let strays = |cluster: &MySQLCluster| strays(&name, cluster.status.as_ref(), &written);
        if !strays(&cached) {
            return Ok(cached);
        }
        let live = self.clusters.get(&name).await.map_err(ReconcileError::Read)?;
        if strays(&live) {
            tracing::warn!(cluster = name, "the record in the status was edited; it is put back");
            return self.begin_term(&live, uid, written).await;
        }
        Ok(live)
    }

    /// Build, apply, status.
    async fn act(&self, decided: &Decided) -> Result<Action, ReconcileError> {
        let Decided { cluster, plan, found, decision, details, answers } = decided;
        let name = cluster.name_any();
        // Orders first, and whatever becomes of the objects: a role is worth more than a Service.
        orders::send(&self.agents, &self.namespace, &name, decision);
        let applied = self.bring_about(cluster, plan, found, decision, &unable(details)).await;
        let cluster = &self.answer(cluster, answers).await?;
        let text = applied.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let outcome = match &applied {
            Ok(applied) => Outcome::Succeeded(applied),
            Err(error) => Outcome::Failed { reason: error.reason(), message: &text },
        };
        let worth_telling = applied.as_ref().err().is_none_or(|error| error.class() != ErrorClass::Transient);
        if worth_telling {
            let status = status::decided(cluster, plan, decision, details, outcome, Timestamp::now());
            self.publisher.publish(cluster, status).await?;
        }
        applied?;
        let settled = decision.replace.is_none()
            && matches!(decision.state, State::Healthy | State::Offline | State::Paused);
        Ok(Action::requeue(if settled { RESYNC } else { RESYNC_UNSETTLED }))
    }

    /// Answers the requests that there are to answer; returns the cluster as it is then.
    async fn answer(
        &self,
        cluster: &MySQLCluster,
        answers: &[Answer],
    ) -> Result<MySQLCluster, ReconcileError> {
        let mut cluster = cluster.clone();
        for answer in answers {
            cluster = requests::settle(&self.applier, &cluster, answer, Timestamp::now()).await?;
            self.publisher.tell_of_answer(&cluster, answer);
        }
        Ok(cluster)
    }

    async fn bring_about(
        &self,
        asked: &MySQLCluster,
        plan: &Plan,
        found: &Dereferenced,
        decision: &Decision,
        unable: &BTreeSet<u32>,
    ) -> Result<Resources<Applied>, ReconcileError> {
        let cluster = &plan.cluster;
        let prepared = build::build(&build::Inputs {
            cluster,
            namespace: &self.namespace,
            others: &plan.others(asked),
            found,
            traffic: &traffic(&cluster.name_any(), &found.children, decision),
            pods: decision.pods,
            works: decision.progress.verdict == Verdict::Works,
            images: &self.images,
            now: Timestamp::now(),
        })?;
        let replace = decision.replace;
        // All children are in it: on the heap, it is not a part of each future around it.
        let applying =
            Box::pin(apply::apply(&self.applier, cluster, prepared, &found.children, unable, replace));
        Ok(applying.await?)
    }

    async fn delete(&self, cluster: &MySQLCluster) -> Result<Action, ReconcileError> {
        let name = cluster.name_any();
        self.agents.hold(&name, Vec::new());
        self.memory.lock().await.remove(&cluster.uid().unwrap_or_default());
        if !delete::has_finalizer(cluster) {
            return Ok(Action::await_change());
        }
        let found = dereference::children(&name, &self.stores);
        let now = Timestamp::now();
        match delete::proceed(&self.applier, cluster, &found, now).await? {
            Progress::Waiting(left) => {
                let text = format!("waits until {left} is gone");
                self.publisher.publish(cluster, status::deleting(cluster, &text, now)).await?;
                Ok(Action::requeue(RESYNC_UNSETTLED))
            }
            Progress::Done { left } => {
                if let Some(left) = left {
                    tracing::warn!(
                        cluster = name,
                        left,
                        "the cluster is deleted while a child is still on its way out"
                    );
                }
                Ok(Action::await_change())
            }
        }
    }

    fn hold_connections(&self, cluster: &str, children: &Children) {
        let targets = children.pods.values().filter_map(|pod| {
            let name = pod.name_any();
            let ip = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
            Some(Target {
                server_name: names::instance_host(&self.namespace, cluster, &name),
                pod_uid: pod.uid()?,
                address: SocketAddr::new(ip, names::PORT_AGENT),
                pod: name,
            })
        });
        self.agents.hold(cluster, targets.collect());
    }
}

/// Whether something goes on once an instance has got or applied what another one has.
fn waits_for_positions(record: &TermRecord, decision: &Decision) -> bool {
    let hands_over = |record: &TermRecord| matches!(record.stage, Stage::Handover { .. });
    hands_over(record) || decision.record.as_ref().is_some_and(hands_over)
}

/// Whether a status has a record that does not follow from the one that was written last.
fn strays(name: &str, status: Option<&MySQLClusterStatus>, written: &TermRecord) -> bool {
    observe::record(name, status).map_or(true, |record| {
        record.term < written.term || (record.term == written.term && record != *written)
    })
}

/// The instances whose mysqld can't be run, or ends again and again before it answers.
fn unable(details: &BTreeMap<u32, Detail>) -> BTreeSet<u32> {
    let fails = |facts: &InstanceFacts| match facts.process_state() {
        ProcessState::Failed => true,
        ProcessState::Exited | ProcessState::Starting => {
            facts.mysqld_exits > 1 && facts.mysqld_version.is_empty()
        }
        ProcessState::Unspecified
        | ProcessState::Initializing
        | ProcessState::Running
        | ProcessState::Leaving
        | ProcessState::Stopping => false,
    };
    details
        .iter()
        .filter(|(_, detail)| detail.facts.as_deref().is_some_and(fails))
        .map(|(ordinal, _)| *ordinal)
        .collect()
}

/// Where traffic goes from now on: an instance that can't be asked keeps what it has.
fn traffic(cluster: &str, children: &Children, decision: &Decision) -> Traffic {
    let instances = |service: String| -> Vec<InstanceId> {
        let endpoints = children.slices.get(&service).and_then(|slice| slice.endpoints.as_ref());
        endpoints
            .into_iter()
            .flatten()
            .filter_map(|endpoint| names::ordinal(cluster, endpoint.target_ref.as_ref()?.name.as_deref()?))
            .map(InstanceId)
            .collect()
    };
    let primary = instances(names::primary_service(cluster)).first().copied();
    let (primary, replicas) = decision.traffic.after(primary, &instances(names::replicas_service(cluster)));
    Traffic { primary, replicas }
}

#[cfg(test)]
mod tests {
    use fleet_topology::{Quorum, Term};

    use super::*;

    fn status(term: i64, primary: &str) -> MySQLClusterStatus {
        MySQLClusterStatus {
            term,
            primary: Some(primary.to_owned()),
            primary_since: 1,
            quorum_since: 1,
            ackers: 2,
            required_acks: 1,
            ..MySQLClusterStatus::default()
        }
    }

    #[test]
    fn a_record_changes_with_a_new_term_only() {
        let written = TermRecord {
            term: Term(2),
            primary: Some(InstanceId(0)),
            primary_since: Term(1),
            quorum: Quorum::new(2, 1).unwrap(),
            quorum_since: Term(1),
            ..TermRecord::NONE
        };
        let strays = |status: &MySQLClusterStatus| strays("orders", Some(status), &written);
        assert!(!strays(&status(2, "orders-0")));
        assert!(!strays(&status(3, "orders-1")), "another leader's newer term");
        assert!(strays(&status(2, "orders-1")), "the primary was edited");
        assert!(strays(&status(1, "orders-0")), "the term was lowered");
        assert!(strays(&status(0, "orders-0")), "the term was removed");
        assert!(strays(&status(2, "invoices-0")), "the primary was edited to nonsense");
    }
}
