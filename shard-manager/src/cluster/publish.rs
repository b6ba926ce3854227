//! Writes statuses, and tells of their changes in events.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fleet_api::v1::{
    Condition, ConditionType, MySQLCluster, MySQLClusterStatus, Phase, RequestKind, RequestOutcome, TermStage,
};
use fleet_runtime::{
    apply::{Applier, ApplyError},
    lease::Gate,
};
use fleet_topology::{Term, TermRecord};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource as _, ResourceExt as _,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    requests::Answer,
    status::{ROLLING_UPDATE, same_but_positions, with_opened, with_record},
};

/// How often a status is written of which only positions in the stream of transactions have moved.
const POSITIONS_EVERY: Duration = Duration::from_secs(10);

/// How long the write of an event may take.
const EVENT_LIMIT: Duration = Duration::from_secs(2);

/// How many events wait to be written at most. Those that come then are lost.
const EVENTS: usize = 256;

/// Writes statuses, and hands events to whoever writes those.
pub struct Publisher {
    applier: Applier,
    events: mpsc::Sender<Told>,
    written: Mutex<HashMap<String, Instant>>,
}

/// Writes events, one after the other, beside everything else: a role that changes waits for none of them.
pub struct Teller {
    gate: Gate,
    recorder: Recorder,
    events: mpsc::Receiver<Told>,
}

/// An event, and the cluster that it is about.
struct Told {
    cluster: ObjectReference,
    event: Event,
}

impl Teller {
    /// Writes in the name of this pod what is handed to it. An event that can't be written soon is lost, with a line
    /// in the log. Ends with the shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Infallible> {
        loop {
            let told = tokio::select! {
                told = self.events.recv() => told,
                () = shutdown.cancelled() => return Ok(()),
            };
            let Some(told) = told else {
                // Nobody leads any more.
                shutdown.cancelled().await;
                return Ok(());
            };
            self.tell(&told).await;
        }
    }

    async fn tell(&self, Told { cluster, event }: &Told) {
        if !self.gate.is_open() {
            return;
        }
        let problem = match timeout(EVENT_LIMIT, self.recorder.publish(event, cluster)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {EVENT_LIMIT:?}"),
        };
        lost(cluster, event, &problem);
    }
}

fn lost(cluster: &ObjectReference, event: &Event, problem: &str) {
    let cluster = cluster.name.as_deref().unwrap_or_default();
    tracing::warn!(cluster, reason = event.reason, problem, "an event could not be written");
}

impl Publisher {
    /// A publisher that writes in the name of this pod, and what writes its events.
    pub fn new(client: Client, applier: Applier, gate: Gate, pod: String) -> (Self, Teller) {
        let reporter = Reporter { controller: "mysqlfleet.io/shard-manager".to_owned(), instance: Some(pod) };
        let (sender, events) = mpsc::channel(EVENTS);
        let teller = Teller { gate, recorder: Recorder::new(client, reporter), events };
        (Self { applier, events: sender, written: Mutex::default() }, teller)
    }

    /// Writes the status if it says something new.
    pub async fn publish(
        &self,
        cluster: &MySQLCluster,
        status: MySQLClusterStatus,
    ) -> Result<(), ApplyError> {
        let before = cluster.status.clone().unwrap_or_default();
        if before == status || (same_but_positions(&before, &status) && !self.positions_due(cluster)) {
            return Ok(());
        }
        let uid = cluster.uid().unwrap_or_default();
        self.applier.patch_status(cluster, &complete(&status)).await?;
        self.lock().insert(uid, Instant::now());
        for event in events(&before, &status) {
            self.tell(cluster, event);
        }
        Ok(())
    }

    /// Writes the record of a new term, unless the cluster has changed since it was read.
    pub async fn write_record(
        &self,
        cluster: &MySQLCluster,
        record: &TermRecord,
    ) -> Result<MySQLCluster, ApplyError> {
        self.applier.patch_status(cluster, &complete(&with_record(cluster, record))).await
    }

    /// Remembers that a reign was opened, unless the cluster has changed since it was read.
    pub async fn remember_opened(
        &self,
        cluster: MySQLCluster,
        opened: Term,
    ) -> Result<MySQLCluster, ApplyError> {
        match with_opened(&cluster, opened) {
            Some(status) => self.applier.patch_status(&cluster, &status).await,
            None => Ok(cluster),
        }
    }

    /// Tells of the term that has begun.
    pub fn tell_of_term(&self, cluster: &MySQLCluster) {
        let status = cluster.status.clone().unwrap_or_default();
        let primary = status.primary.unwrap_or_default();
        let (type_, reason, text) = match status.stage {
            Some(TermStage::Fencing) => {
                let text = format!("{primary} is lost; term {} revokes its ackers", status.term);
                (EventType::Warning, "FailoverBegan", text)
            }
            Some(TermStage::Handover) => {
                let to = status.handover_to.unwrap_or_default();
                (
                    EventType::Normal,
                    "SwitchoverBegan",
                    format!("{primary} hands over to {to} in term {}", status.term),
                )
            }
            Some(TermStage::Reign) | None => {
                let text = format!(
                    "{primary} is the primary of term {}; each commit waits for {} of {} acknowledgements",
                    status.term, status.required_acks, status.ackers
                );
                match status.forced.filter(|forced| forced.term == status.term) {
                    Some(forced) => (
                        EventType::Warning,
                        "PrimaryForced",
                        format!(
                            "{text}. It was forced: what was acknowledged and is not in {} is left out",
                            forced.point
                        ),
                    ),
                    None => (EventType::Normal, "TermBegan", text),
                }
            }
        };
        tracing::info!(cluster = cluster.name_any(), term = status.term, reason, "{text}");
        self.tell(cluster, event(type_, reason, &text));
    }

    /// Tells what became of a request.
    pub fn tell_of_answer(&self, cluster: &MySQLCluster, answer: &Answer) {
        let Answer { kind, asked, outcome, message } = answer;
        let type_ = match (outcome, kind) {
            (RequestOutcome::Done, RequestKind::Switchover | RequestKind::Rebuild) => EventType::Normal,
            // Something may be lost by it.
            (RequestOutcome::Done, RequestKind::ForcePrimary) | (RequestOutcome::Refused, _) => {
                EventType::Warning
            }
        };
        let but = match outcome {
            RequestOutcome::Done => "",
            RequestOutcome::Refused => ", and nothing was changed",
        };
        let text = format!("asked for {asked}{but}: {message}");
        tracing::info!(cluster = cluster.name_any(), reason = answer.reason(), "{text}");
        self.tell(cluster, event(type_, answer.reason(), &text));
    }

    fn positions_due(&self, cluster: &MySQLCluster) -> bool {
        let written = self.lock();
        let last = cluster.uid().and_then(|uid| written.get(&uid).copied());
        last.is_none_or(|at| at.elapsed() >= POSITIONS_EVERY)
    }

    fn tell(&self, cluster: &MySQLCluster, event: Event) {
        let told = Told { cluster: cluster.object_ref(&()), event };
        if let Err(refused) = self.events.try_send(told) {
            let problem = refused.to_string();
            let Told { cluster, event } = refused.into_inner();
            lost(&cluster, &event, &problem);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status with null for what it does not have, so that a merge patch removes it.
fn complete(status: &MySQLClusterStatus) -> serde_json::Value {
    let mut value = serde_json::json!({
        "observedGeneration": null,
        "phase": null,
        "primary": null,
        "ready": null,
        "selector": null,
        "stage": null,
        "handoverTo": null,
        "promotionPoint": null,
        "forced": null,
        "inSync": [],
        "answeredRequests": [],
        "instances": [],
        "conditions": [],
    });
    if let (Some(all), Ok(serde_json::Value::Object(given))) =
        (value.as_object_mut(), serde_json::to_value(status))
    {
        all.extend(given);
    }
    value
}

/// What of a change of status is worth an event.
fn events(before: &MySQLClusterStatus, after: &MySQLClusterStatus) -> Vec<Event> {
    let mut events = Vec::new();
    if let Some(phase) = after.phase.filter(|phase| before.phase != Some(*phase)) {
        let type_ = match phase {
            Phase::Degraded | Phase::WritesBlocked | Phase::PrimaryLost | Phase::FailoverBlocked => {
                EventType::Warning
            }
            Phase::Pending
            | Phase::Offline
            | Phase::Paused
            | Phase::Bootstrapping
            | Phase::Cloning
            | Phase::SwitchoverRequested
            | Phase::Healthy
            | Phase::Incomplete
            | Phase::Deleting => EventType::Normal,
        };
        let told =
            condition(after, ConditionType::Progressing).map_or("", |condition| condition.message.as_str());
        events.push(event(type_, &format!("{phase:?}"), told));
    }
    let rolls = |status| {
        condition(status, ConditionType::Progressing)
            .filter(|condition| condition.reason == ROLLING_UPDATE)
            .map(|condition| condition.message.as_str())
    };
    match (rolls(before), rolls(after)) {
        (None, Some(message)) => events.push(event(EventType::Normal, "RollingUpdateBegan", message)),
        (Some(_), None) if after.phase == Some(Phase::Healthy) => {
            events.push(event(EventType::Normal, "RollingUpdateEnded", "all pods are of the present spec"));
        }
        (None | Some(_), None) | (Some(_), Some(_)) => {}
    }
    let failure = |status| {
        condition(status, ConditionType::ReconcileSucceeded)
            .filter(|condition| condition.status == "False")
            .map(|condition| (condition.reason.as_str(), condition.message.as_str()))
    };
    if let Some((reason, message)) = failure(after).filter(|failed| failure(before) != Some(*failed)) {
        events.push(event(EventType::Warning, reason, message));
    }
    events
}

fn condition(status: &MySQLClusterStatus, type_: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// An event. Its note is cut to what the API server takes: 1,024 bytes (API reference, events.k8s.io/v1).
fn event(type_: EventType, reason: &str, note: &str) -> Event {
    let mut note = note.to_owned();
    while note.len() > 1024 {
        note.pop();
    }
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use fleet_api::v1::{AnsweredRequest, ForcedTakeover, InSyncInstance, InstanceRole, InstanceStatus};
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn a_forced_primary_is_told_of_as_a_warning_with_what_it_held() {
        let (service, _server) =
            tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
        let client = Client::new(service, "tenant-a");
        let gate = Gate::always_open();
        let applier = Applier::new(client.clone(), gate.clone());
        let (publisher, mut teller) = Publisher::new(client, applier, gate, "shard-0".to_owned());
        let mut told = |term: i64, forced: i64| {
            let mut cluster: MySQLCluster = serde_json::from_value(serde_json::json!({
                "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
                "spec": {"version": "9.7", "storage": {"size": "1Gi"}},
            }))
            .unwrap();
            let forced = Some(ForcedTakeover { term: forced, point: "a:1-7".to_owned() });
            let primary = Some("orders-2".to_owned());
            cluster.status =
                Some(MySQLClusterStatus { term, primary, forced, ..MySQLClusterStatus::default() });
            publisher.tell_of_term(&cluster);
            let Event { type_, reason, note, .. } = teller.events.try_recv().unwrap().event;
            (format!("{type_:?}"), reason, note.unwrap())
        };
        let (type_, reason, note) = told(3, 3);
        assert_eq!((type_.as_str(), reason.as_str()), ("Warning", "PrimaryForced"));
        assert!(note.contains("orders-2 is the primary of term 3") && note.contains("a:1-7"), "{note}");
        let (type_, reason, _) = told(4, 3);
        assert_eq!((type_.as_str(), reason.as_str()), ("Normal", "TermBegan"), "a later term");

        let answer = |kind, outcome| Answer {
            kind,
            asked: "orders-2".to_owned(),
            outcome,
            message: "orders-2 takes writes".to_owned(),
        };
        let cluster = MySQLCluster::new(
            "orders",
            serde_json::from_value(serde_json::json!({"version": "9.7", "storage": {"size": "1Gi"}}))
                .unwrap(),
        );
        for (kind, outcome, type_, note) in [
            (
                RequestKind::ForcePrimary,
                RequestOutcome::Done,
                "Warning",
                "asked for orders-2: orders-2 takes writes",
            ),
            (
                RequestKind::Rebuild,
                RequestOutcome::Done,
                "Normal",
                "asked for orders-2: orders-2 takes writes",
            ),
            (
                RequestKind::ForcePrimary,
                RequestOutcome::Refused,
                "Warning",
                "asked for orders-2, and nothing was changed: orders-2 takes writes",
            ),
        ] {
            publisher.tell_of_answer(&cluster, &answer(kind, outcome));
            let event = teller.events.try_recv().unwrap().event;
            assert_eq!((format!("{:?}", event.type_), event.note.as_deref()), (type_.to_owned(), Some(note)));
        }
    }

    /// What a merge patch leaves out stays as it was: a promotion point of an earlier term would come back.
    #[test]
    fn everything_that_a_status_does_not_have_is_removed() {
        let text = || Some(String::new());
        let full = MySQLClusterStatus {
            observed_generation: Some(1),
            phase: Some(Phase::Healthy),
            primary: text(),
            stage: Some(TermStage::Handover),
            handover_to: text(),
            promotion_point: text(),
            forced: Some(ForcedTakeover { term: 1, point: String::new() }),
            ready: text(),
            selector: text(),
            in_sync: vec![InSyncInstance {
                name: String::new(),
                volume_id: String::new(),
                boot_id: String::new(),
                errant: None,
            }],
            answered_requests: vec![AnsweredRequest {
                kind: RequestKind::Switchover,
                asked: String::new(),
                outcome: RequestOutcome::Done,
                message: String::new(),
                answered_at: k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
                    jiff::Timestamp::UNIX_EPOCH,
                ),
            }],
            instances: vec![InstanceStatus {
                name: String::new(),
                role: InstanceRole::Unknown,
                ready: false,
                message: None,
                gtid_executed: None,
                lag_seconds: None,
                incarnation: None,
            }],
            conditions: vec![Condition {
                type_: ConditionType::Healthy,
                status: String::new(),
                reason: String::new(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    jiff::Timestamp::UNIX_EPOCH,
                ),
            }],
            ..MySQLClusterStatus::default()
        };
        let (Value::Object(full), Value::Object(removed)) =
            (serde_json::to_value(full).unwrap(), complete(&MySQLClusterStatus::default()))
        else {
            unreachable!("a status is an object");
        };
        let named = |fields: &serde_json::Map<String, Value>| fields.keys().cloned().collect::<Vec<_>>();
        assert_eq!(named(&full), named(&removed));
    }
}
