//! The exchange of the tenant's authority: asked for, carried out step by step, and told.

use std::{sync::Arc, time::Duration};

use fleet_api::{
    names,
    v1::{MySQLCluster, RequestKind, RequestOutcome},
};
use fleet_runtime::{
    apply::{Applier, ApplyError},
    events::{EventType, Events},
    tls::Material,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use tokio::{sync::watch, time::Instant};

use super::{
    asked::{Reply, friendly, reply, time_of},
    certificates::{Keys, KeysError},
    parties::parties,
    rotation::{Party, Stage, Step, step},
};
use crate::{
    agents::{Agents, Sighting},
    cluster::{
        publish::Publisher,
        requests::{self, Answer},
    },
    stores::Stores,
};

/// Time at each step for who can't be seen, where nobody has asked for the exchange: there are years left.
const BY_ITSELF: Duration = Duration::from_hours(30 * 24);
/// Who is waited for is told when it changes, at most this often.
const TELL_EVERY: Duration = Duration::from_mins(1);

/// Carries out the exchange, as the leader.
pub struct Exchange {
    namespace: String,
    stores: Stores,
    applier: Applier,
    agents: watch::Receiver<Option<Arc<Agents>>>,
    publisher: Publisher,
    events: Events,
    /// Who was last waited for, and when that was told.
    told: Option<(String, Instant)>,
}

/// The exchange did not go on.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// There is no new authority.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A write has failed.
    #[error(transparent)]
    Write(#[from] ApplyError),
}

impl Exchange {
    /// Nothing was told yet. `agents` are the connections to the instances, once there are any.
    pub fn new(
        namespace: &str,
        stores: &Stores,
        applier: &Applier,
        agents: watch::Receiver<Option<Arc<Agents>>>,
        events: &Events,
    ) -> Self {
        Self {
            namespace: namespace.to_owned(),
            stores: stores.clone(),
            applier: applier.clone(),
            agents,
            publisher: Publisher::new(applier.clone(), events.clone()),
            events: events.clone(),
            told: None,
        }
    }

    /// Takes one step, if one is due: the keys that the tenant has from now on, which are to be written first. `own` is
    /// what this process shows and trusts.
    pub async fn next(
        &mut self,
        keys: &Keys,
        own: Option<&Material>,
        now: Timestamp,
    ) -> Result<Option<Keys>, ExchangeError> {
        if let Some(asked) = self.heed(keys, now).await? {
            return Ok(Some(asked));
        }
        if matches!(keys.stage, Stage::Steady) {
            self.told = None;
            if keys.is_aged(now) {
                tracing::info!("two thirds of the authority's life are over");
                return Ok(Some(keys.introduce(&self.namespace, BY_ITSELF, now)?));
            }
            return Ok(None);
        }
        let parties = self.parties(own, now);
        let mut stage = keys.stage.clone();
        match step(&keys.authority.fingerprint(), &keys.seen(), &parties, now) {
            Step::Rest | Step::WaitUntil(_) => return Ok(None),
            Step::WaitFor(who) => {
                self.tell_wait(&who);
                return Ok(None);
            }
            Step::NoteReady => stage.set_since(Some(now)),
            Step::NoteUnready(who) => {
                self.tell_wait(&who);
                stage.set_since(None);
            }
            Step::Replace => return Ok(Some(keys.replace())),
            Step::Withdraw => stage = Stage::Steady,
        }
        Ok(Some(keys.at(stage)))
    }

    /// Tells of what has been written.
    pub fn tell(&mut self, before: &Keys, after: &Keys) {
        let until = |wait: Duration, since: Timestamp| {
            since.saturating_add(wait).map_or_else(|_| String::new(), |until| format!(" at {until}"))
        };
        let (reason, note) = match (&before.stage, &after.stage) {
            (Stage::Steady, Stage::Introducing { next, wait, .. }) => (
                "AuthorityIntroduced",
                format!(
                    "another authority is made, {}, and is trusted beside the old one from now on; it issues certificates \
                     {:#} after everybody trusts it",
                    next.fingerprint(),
                    friendly(*wait)
                ),
            ),
            (Stage::Introducing { .. }, Stage::Replacing { wait, .. }) => (
                "AuthorityReplaced",
                format!(
                    "the new authority, {}, issues all certificates from now on; the old one is trusted until {:#} after \
                     nobody shows one of it",
                    after.authority.fingerprint(),
                    friendly(*wait)
                ),
            ),
            (Stage::Replacing { .. }, Stage::Steady) => (
                "AuthorityWithdrawn",
                format!("the authority is {}; the old one is trusted no more", after.authority.fingerprint()),
            ),
            (_, Stage::Introducing { wait, since: Some(since), .. }) => (
                "AuthorityTrusted",
                format!("everybody trusts the new authority; it issues certificates{}", until(*wait, *since)),
            ),
            (_, Stage::Replacing { wait, since: Some(since), .. }) => (
                "AuthorityShown",
                format!(
                    "everybody shows a certificate of the new authority; the old one goes{}",
                    until(*wait, *since)
                ),
            ),
            (_, Stage::Introducing { .. } | Stage::Replacing { .. } | Stage::Steady) => return,
        };
        self.told = None;
        self.event(EventType::Normal, reason, &note);
    }

    fn parties(&self, own: Option<&Material>, now: Timestamp) -> Vec<Party> {
        let agents = self.agents.borrow().clone();
        let unseen = || Sighting { facts: None, unknown_for: Duration::ZERO, problem: None };
        let sighting = |cluster: &str, pod: &str| {
            agents.as_ref().map_or_else(unseen, |agents| agents.sighting(cluster, pod))
        };
        parties(&self.namespace, &self.stores, own, sighting, now)
    }

    /// Heeds what people ask for: one request at a time. Nothing else goes on before it is taken up, so a request that
    /// this exchange came from is never taken for another one.
    async fn heed(&self, keys: &Keys, now: Timestamp) -> Result<Option<Keys>, ExchangeError> {
        for cluster in self.stores.clusters.state() {
            let Ok(cluster) = &cluster.0 else { continue };
            let kind = RequestKind::RotateAuthority;
            let Some(value) = cluster.annotations().get(requests::annotation(kind)) else { continue };
            if cluster.metadata.deletion_timestamp.is_some() || cluster.spec.paused.reconcile {
                continue;
            }
            let done =
                format!("the authority is {}, and no other one is trusted", keys.authority.fingerprint());
            let written = match reply(value, &keys.stage) {
                Reply::Nothing => Ok(()),
                Reply::Refuse(reason) => {
                    self.settle(cluster, value, RequestOutcome::Refused, reason, now).await
                }
                Reply::Done => self.settle(cluster, value, RequestOutcome::Done, done, now).await,
                Reply::Mark(value) => {
                    requests::mark(&self.applier, cluster.clone(), kind, &value).await.map(drop)
                }
                Reply::Begin(wait) => return Ok(Some(keys.introduce(&self.namespace, wait, now)?)),
                Reply::SetWait(wait) => {
                    let mut stage = keys.stage.clone();
                    stage.set_wait(wait);
                    return Ok(Some(keys.at(stage)));
                }
            };
            match written {
                // The cache is behind: what it has next is looked at anew.
                Err(error) if error.is_conflict() => {}
                written => written?,
            }
        }
        Ok(None)
    }

    async fn settle(
        &self,
        cluster: &MySQLCluster,
        value: &str,
        outcome: RequestOutcome,
        message: String,
        now: Timestamp,
    ) -> Result<(), ApplyError> {
        let answer = Answer { kind: RequestKind::RotateAuthority, asked: time_of(value), outcome, message };
        let settled = requests::settle(&self.applier, cluster, &answer, now).await?;
        self.publisher.tell_of_answer(&settled, &answer);
        Ok(())
    }

    fn tell_wait(&mut self, who: &str) {
        let due = |(text, at): &(String, Instant)| text != who && at.elapsed() >= TELL_EVERY;
        if self.told.as_ref().is_none_or(due) {
            self.event(
                EventType::Normal,
                "AuthorityWaits",
                &format!("the exchange of the authority waits: {who}"),
            );
            self.told = Some((who.to_owned(), Instant::now()));
        }
    }

    /// Tells of the authority's Secret.
    fn event(&self, type_: EventType, reason: &str, note: &str) {
        tracing::info!(reason, "{note}");
        let mut secret = Secret::default();
        secret.metadata.name = Some(names::shard_ca_secret(&self.namespace));
        secret.metadata.namespace = Some(self.namespace.clone());
        self.events.tell(&secret, type_, reason, note);
    }
}
