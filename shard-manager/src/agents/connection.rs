//! One connection: the task that holds it, and what it has learned.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fleet_proto::agent::v1::{
    InstanceFacts, ServerFacts, WatchInstanceRequest, agent_service_client::AgentServiceClient,
};
use fleet_runtime::{
    controller::Changed,
    grpc,
    lease::Gate,
    tls::{Identity, ReloadingIdentity, Role},
};
use fleet_topology::decide::{SUSPECT_AFTER_MS, UNREACHED_AFTER_MS};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tonic::transport::Channel;

use super::{
    FRESH, Order, Sighting, Target,
    orders::{Outcome, Pace},
};

/// How long to wait before an agent that could not be reached is dialled again.
const REDIAL: Duration = Duration::from_millis(500);

/// A connection to one agent. Dropping it ends it.
pub(super) struct Connection {
    cluster: String,
    target: Target,
    shared: Arc<Shared>,
    changed: Changed,
    task: AbortHandle,
    order: Option<AbortHandle>,
}

/// What the connection's tasks have learned.
struct Shared {
    state: Mutex<State>,
}

struct State {
    channel: Option<Channel>,
    facts: Option<Arc<InstanceFacts>>,
    /// When the last facts came; before the first ones, when the connection was first wanted.
    heard_at: Instant,
    problem: Option<String>,
    pace: Pace,
    /// Whether every change of the instance's positions is news.
    attentive: bool,
}

impl Connection {
    pub(super) fn open(
        cluster: String,
        target: Target,
        namespace: String,
        identity: ReloadingIdentity,
        changed: Changed,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                channel: None,
                facts: None,
                heard_at: Instant::now(),
                problem: None,
                pace: Pace::default(),
                attentive: false,
            }),
        });
        let listener = Listener {
            cluster: cluster.clone(),
            target: target.clone(),
            expected: Identity::new(namespace, Role::Agent),
            identity,
            shared: Arc::clone(&shared),
            changed: changed.clone(),
        };
        let task = tokio::spawn(listener.run()).abort_handle();
        Self { cluster, target, shared, changed, task, order: None }
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn sighting(&self, now: Instant) -> Sighting {
        let state = self.shared.lock();
        let age = now.saturating_duration_since(state.heard_at);
        let fresh = state.facts.clone().filter(|_| age <= FRESH);
        Sighting {
            unknown_for: if fresh.is_some() { Duration::ZERO } else { age },
            facts: fresh,
            problem: state.pace.problem().or_else(|| state.problem.clone()),
        }
    }

    /// Whether positions in the stream of transactions are waited for.
    pub(super) fn attend(&self, attentive: bool) {
        self.shared.lock().attentive = attentive;
    }

    pub(super) fn order(&mut self, order: Order, gate: Gate) {
        let mut state = self.shared.lock();
        if !state.pace.may_send(&order, Instant::now()) {
            return;
        }
        let Some(channel) = state.channel.clone() else {
            return;
        };
        state.pace.sent(order.clone());
        drop(state);
        let shared = Arc::clone(&self.shared);
        let (cluster, pod, changed) = (self.cluster.clone(), self.target.pod.clone(), self.changed.clone());
        let task = tokio::spawn(async move {
            tracing::info!(%cluster, %pod, term = order.term, order = %order.kind, "ordering");
            let outcome = match gate.check() {
                Ok(()) => order.send(AgentServiceClient::new(channel)).await,
                Err(closed) => Outcome::Refused(closed.to_string()),
            };
            if let Outcome::Refused(reason) = &outcome {
                tracing::warn!(%cluster, %pod, term = order.term, order = %order.kind, reason, "order failed");
            }
            shared.lock().pace.ended(outcome, Instant::now());
            changed.mark(&cluster);
        });
        if let Some(replaced) = self.order.replace(task.abort_handle()) {
            replaced.abort();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(order) = &self.order {
            order.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that listens to one agent.
struct Listener {
    cluster: String,
    target: Target,
    expected: Identity,
    identity: ReloadingIdentity,
    shared: Arc<Shared>,
    changed: Changed,
}

impl Listener {
    async fn run(self) {
        loop {
            let Err(problem) = self.listen().await;
            if self.lose(&problem) {
                tracing::warn!(
                    cluster = self.cluster,
                    pod = self.target.pod,
                    problem,
                    "agent can't be asked"
                );
            }
            self.changed.mark(&self.cluster);
            sleep(REDIAL).await;
        }
    }

    /// Listens until the connection breaks; says why it did.
    async fn listen(&self) -> Result<Infallible, String> {
        let Target { address, server_name, .. } = &self.target;
        let channel = timeout(FRESH, grpc::channel(*address, server_name, &self.identity, &self.expected))
            .await
            .map_err(|_| format!("no connection to the agent at {address} within {FRESH:?}"))?
            .map_err(|error| error.to_string())?;
        let mut client = AgentServiceClient::new(channel.clone());
        let mut facts = timeout(FRESH, client.watch_instance(WatchInstanceRequest {}))
            .await
            .map_err(|_| format!("no answer of the agent at {address} within {FRESH:?}"))?
            .map_err(|status| format!("the agent at {address} refuses: {}", status.message()))?
            .into_inner();
        loop {
            let message = timeout(FRESH, facts.message())
                .await
                .map_err(|_| format!("the agent at {address} has been silent for {FRESH:?}"))?
                .map_err(|status| format!("the agent at {address} is lost: {}", status.message()))?
                .ok_or_else(|| format!("the agent at {address} has ended its stream"))?;
            let Some(facts) = message.facts else { continue };
            if self.learn(facts, &channel) {
                self.changed.mark(&self.cluster);
            }
        }
    }

    /// Gives the connection up; says whether the problem is a new one.
    fn lose(&self, problem: &str) -> bool {
        let mut state = self.shared.lock();
        let news = state.problem.as_deref() != Some(problem);
        state.channel = None;
        state.problem = Some(problem.to_owned());
        news
    }

    /// Keeps new facts; says whether a decision may differ by them.
    fn learn(&self, facts: InstanceFacts, channel: &Channel) -> bool {
        let mut state = self.shared.lock();
        let attentive = state.attentive;
        let news = state.facts.as_ref().is_none_or(|before| is_news(before, &facts, attentive))
            || state.channel.is_none();
        state.channel = Some(channel.clone());
        state.facts = Some(Arc::new(facts));
        state.heard_at = Instant::now();
        state.problem = None;
        news
    }
}

/// Whether a decision may differ by what is said now.
fn is_news(before: &InstanceFacts, now: &InstanceFacts, attentive: bool) -> bool {
    decisive(before) != decisive(now) || (attentive && positions(before) != positions(now))
}

/// What an instance has executed and received.
fn positions(facts: &InstanceFacts) -> Option<(&str, &str)> {
    let server = facts.server.as_ref()?;
    let retrieved = server.replication.as_ref().map_or("", |replication| &replication.gtid_retrieved);
    Some((&server.gtid_executed, retrieved))
}

/// The facts without what changes with every write or every second. Of a silence, and of a receiver that does not
/// get in, it matters whether it is long enough to be evidence.
fn decisive(facts: &InstanceFacts) -> InstanceFacts {
    let evidence = |duration: Option<prost_types::Duration>, after_ms: u64| {
        let long = |duration: &prost_types::Duration| {
            duration.seconds.saturating_mul(1000) >= after_ms.cast_signed()
        };
        duration.filter(long).map(|_| prost_types::Duration::default())
    };
    let mut facts = InstanceFacts {
        observed_at: None,
        disk_free_bytes: 0,
        silent_for: evidence(facts.silent_for, SUSPECT_AFTER_MS),
        isolated_for: facts.isolated_for.map(|_| prost_types::Duration::default()),
        ..facts.clone()
    };
    if let Some(ServerFacts { gtid_executed, replication, .. }) = &mut facts.server {
        gtid_executed.clear();
        if let Some(replication) = replication {
            replication.gtid_retrieved.clear();
            replication.lag = None;
            replication.connecting_for = evidence(replication.connecting_for, UNREACHED_AFTER_MS);
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_news_only_while_they_are_waited_for() {
        let facts = |executed: &str, closed| InstanceFacts {
            server: Some(ServerFacts {
                gtid_executed: executed.to_owned(),
                super_read_only: closed,
                ..ServerFacts::default()
            }),
            ..InstanceFacts::default()
        };
        let (before, moved) = (facts("a:1-4", false), facts("a:1-5", false));
        assert!(!is_news(&before, &moved, false));
        assert!(is_news(&before, &moved, true));
        assert!(!is_news(&before, &before.clone(), true));
        assert!(is_news(&before, &facts("a:1-4", true), false));
    }
}
