//! Works off what the hub wants: one cluster after the other, always from the member's present state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fleet_api::{fields::leaves, v1::MySQLCluster};
use fleet_proto::federation::v1::{Desired, DesiredCluster, Field, Outcome, Result as Done};
use fleet_runtime::{
    apply::ApplyError,
    backoff,
    error::{Classified as _, ErrorClass},
    events::{EventType, Events},
};
use kube::{
    Api, ResourceExt as _,
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    align::Difference,
    apply::FederationApplier,
    plan::{Plan, Wanted, Wish, federated_uid, normal},
};

/// Delay before what has failed is tried again: doubled each time, up to the longest.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Time between two passes that changes in the member ask for: who keeps changing what the hub wants otherwise must
/// not make the shard write without end.
const PAUSE: Duration = Duration::from_secs(1);
/// Limit of one question to the API server.
const READ: Duration = Duration::from_secs(10);

/// What was last worked off whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Sequence number of the desired state; 0 for none.
    pub sequence: u64,
    /// What came of each of its clusters.
    pub outcomes: Vec<Outcome>,
}

/// What the work is done with.
pub struct Work {
    /// The tenant namespace.
    pub namespace: String,
    /// The clusters as the API server has them.
    pub clusters: Api<MySQLCluster>,
    /// The clusters as they were last seen.
    pub seen: Store<DeserializeGuard<MySQLCluster>>,
    /// Grows with each change of a cluster.
    pub changed: watch::Receiver<u64>,
    /// The only writer.
    pub applier: FederationApplier,
    /// What people are told.
    pub events: Events,
}

/// What the hub wants now; nothing before it has said so.
pub type Latest = Option<Arc<Desired>>;

/// What the member has changed and the hub undone, for each cluster; told until the hub wants something new.
type Told = BTreeMap<String, Vec<Field>>;

impl Work {
    /// Works off the latest desired state, and again whenever a cluster changes or something has failed, until it is
    /// dropped. Nothing of it outlives the stream that it came by.
    pub async fn run(&self, mut desired: watch::Receiver<Latest>, answers: &watch::Sender<Answer>) {
        let mut changed = self.changed.clone();
        let (mut told, mut failures, mut wake) = (Told::new(), 0_u32, None::<Instant>);
        let mut last_pass = Instant::now();
        let mut sequence = 0;
        loop {
            let woken = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                new = desired.changed() => if new.is_err() { return },
                new = changed.changed(), if sequence != 0 => {
                    if new.is_err() {
                        return;
                    }
                    let next = last_pass + PAUSE;
                    wake = Some(wake.map_or(next, |wake: Instant| wake.min(next)));
                    continue;
                }
                () = woken => {}
            }
            let Some(current) = desired.borrow_and_update().clone() else {
                continue;
            };
            if current.sequence != sequence {
                sequence = current.sequence;
                told.clear();
            }
            let Some(outcomes) = self.pass(&current, &desired, &mut told).await else {
                wake = Some(Instant::now());
                continue;
            };
            last_pass = Instant::now();
            let failed = outcomes.iter().any(|outcome| outcome.result() == Done::Failed);
            failures = if failed { failures.saturating_add(1) } else { 0 };
            wake = failed.then(|| last_pass + backoff::exponential(failures, RETRY, LONGEST_RETRY));
            let answer = Answer { sequence, outcomes };
            answers.send_if_modified(|sent| {
                let news = *sent != answer;
                if news {
                    log(&answer.outcomes, &sent.outcomes);
                }
                *sent = answer;
                news
            });
        }
    }

    /// Works off each cluster; `None` where the hub wants something newer by now.
    async fn pass(
        &self,
        desired: &Desired,
        newer: &watch::Receiver<Latest>,
        told: &mut Told,
    ) -> Option<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(desired.clusters.len());
        for cluster in &desired.clusters {
            if newer.has_changed().unwrap_or(true) {
                return None;
            }
            let mut outcome = self.cluster(cluster).await;
            if outcome.fields.is_empty() {
                outcome.fields = told.get(&cluster.name).cloned().unwrap_or_default();
            } else {
                told.insert(cluster.name.clone(), outcome.fields.clone());
            }
            outcomes.push(outcome);
        }
        Some(outcomes)
    }

    /// Does what is to be done about one cluster.
    async fn cluster(&self, desired: &DesiredCluster) -> Outcome {
        let (result, message, fields) = match Wanted::read(desired) {
            Err(problem) => (Done::Refused, problem, Vec::new()),
            Ok(wanted) if self.is_seen_to_be_so(&wanted) => (Done::Aligned, String::new(), Vec::new()),
            Ok(wanted) => match self.bring(&wanted).await {
                Ok(done) => done,
                Err(error) => (error.result(), error.to_string(), Vec::new()),
            },
        };
        Outcome {
            name: desired.name.clone(),
            federated_uid: desired.federated_uid.clone(),
            result: result.into(),
            message,
            fields,
        }
    }

    /// Whether the cache has all that the hub wants. A cache that lags delays something that is to be done to its
    /// next event.
    fn is_seen_to_be_so(&self, wanted: &Wanted) -> bool {
        let Wish::There { spec, .. } = &wanted.wish else {
            return false;
        };
        let seen = self.seen.get(&ObjectRef::new(&wanted.name).within(&self.namespace));
        let Some(Ok(seen)) = seen.as_ref().map(|seen| seen.0.as_ref()) else {
            return false;
        };
        let same = |a: &Value, b: &Value| leaves(a) == leaves(b);
        federated_uid(seen) == Some(&wanted.federated_uid)
            && seen.metadata.deletion_timestamp.is_none()
            && matches!((normal(&seen.spec), normal(spec)), (Ok(has), Ok(wants)) if same(&has, &wants))
    }

    async fn bring(&self, wanted: &Wanted) -> Result<(Done, String, Vec<Field>), WorkError> {
        let live = self.read(&wanted.name).await?;
        let plan = wanted.plan(live.as_ref()).map_err(WorkError::Spec)?;
        let done = |result| (result, String::new(), Vec::new());
        match (plan, live, &wanted.wish) {
            (Plan::Conflict(message), ..) => Ok((Done::Conflict, message, Vec::new())),
            (Plan::Wait(message), ..) => Ok((Done::Failed, message, Vec::new())),
            (Plan::Gone(message), ..) => Ok((Done::Deleted, message, Vec::new())),
            (Plan::Create, _, Wish::There { spec, .. }) => {
                let name = (self.namespace.as_str(), wanted.name.as_str());
                self.applier.create(name, &wanted.federated_uid, spec).await?;
                tracing::info!(cluster = wanted.name, "made as the hub wants it");
                Ok(done(Done::Aligned))
            }
            (Plan::Delete, Some(live), _) => {
                self.applier.delete(&live).await?;
                tracing::info!(cluster = wanted.name, "deleted as the hub wants it");
                let message = "its deletion has begun in the member; it is not gone yet";
                Ok((Done::Failed, message.to_owned(), Vec::new()))
            }
            (Plan::Align(alignment), Some(live), _) => {
                let written = self.applier.align(&live, &wanted.federated_uid, &alignment).await?;
                if written {
                    tracing::info!(cluster = wanted.name, "brought to what the hub wants");
                    self.tell_of_drift(&live, &alignment.differences);
                }
                let fields = alignment.differences.iter().map(field).collect();
                Ok((if alignment.keeps() { Done::Kept } else { Done::Aligned }, String::new(), fields))
            }
            (Plan::Create | Plan::Delete | Plan::Align(_), ..) => Err(WorkError::Inconsistent),
        }
    }

    async fn read(&self, name: &str) -> Result<Option<MySQLCluster>, WorkError> {
        match timeout(READ, self.clusters.get_opt(name)).await {
            Ok(found) => Ok(found?),
            Err(_) => Err(WorkError::NoAnswer),
        }
    }

    /// Whoever has changed a field of the cluster finds the reason why it is as before with the cluster.
    fn tell_of_drift(&self, live: &MySQLCluster, differences: &[Difference]) {
        let undone: Vec<String> = differences
            .iter()
            .filter(|difference| difference.held_by.is_none())
            .map(|difference| format!("spec{} is {}", difference.path, text(difference.hub.as_ref())))
            .collect();
        if !undone.is_empty() {
            let note = format!(
                "The hub decides on the spec of {}: {}. Change it there, or declare the field by server-side apply",
                live.name_any(),
                undone.join(", ")
            );
            self.events.tell(live, EventType::Warning, "FederationReverted", &note);
        }
    }
}

/// Something could not be done about a cluster.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("can't read it: {0}")]
    Read(#[from] kube::Error),
    #[error("can't read it: no answer from the API server in {} s", READ.as_secs())]
    NoAnswer,
    #[error(transparent)]
    Write(#[from] ApplyError),
    #[error("its spec can't be compared: {0}")]
    Spec(serde_json::Error),
    #[error("it was decided on an object that is not there")]
    Inconsistent,
}

impl WorkError {
    fn result(&self) -> Done {
        match self {
            // What the API server does not take as it is won't be taken the next time.
            Self::Write(error) if error.class() == ErrorClass::Fatal => Done::Refused,
            Self::Write(_) | Self::Read(_) | Self::NoAnswer | Self::Spec(_) | Self::Inconsistent => {
                Done::Failed
            }
        }
    }
}

/// Logs what was not done, once as long as it stays so.
fn log(now: &[Outcome], before: &[Outcome]) {
    for outcome in now.iter().filter(|outcome| !before.contains(outcome)) {
        let Outcome { name, message, .. } = outcome;
        if !matches!(outcome.result(), Done::Aligned | Done::Deleted) {
            tracing::warn!(cluster = name, result = ?outcome.result(), message, "not all that the hub wants is done");
        }
    }
}

fn field(difference: &Difference) -> Field {
    let json = |value: &Option<Value>| value.as_ref().map(ToString::to_string).unwrap_or_default();
    Field {
        path: difference.path.to_string(),
        agreed_json: json(&difference.agreed),
        hub_json: json(&difference.hub),
        member_json: json(&difference.member),
        held_by: difference.held_by.clone().unwrap_or_default(),
        both_changed: difference.both_changed,
    }
}

fn text(value: Option<&Value>) -> String {
    value.map_or_else(|| "not set".to_owned(), ToString::to_string)
}
