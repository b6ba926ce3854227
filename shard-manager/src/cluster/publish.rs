//! Writes statuses, and tells of their changes in events.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fleet_api::v1::{
    Condition, ConditionType, MySQLCluster, MySQLClusterStatus, Phase, RequestKind, RequestOutcome,
    RolloutState, TermStage,
};
use fleet_runtime::{
    apply::{Applier, ApplyError},
    events::{EventType, Events},
};
use fleet_topology::{Term, TermRecord};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{
    requests::Answer,
    rollout::words::{ROLLING_BACK, ROLLING_UPDATE, given_up},
    status::{same_but_positions, with_opened, with_record},
};

/// How often a status is written of which only positions in the stream of transactions have moved.
const POSITIONS_EVERY: Duration = Duration::from_secs(10);

/// Writes statuses, and hands events to whoever writes those.
pub struct Publisher {
    applier: Applier,
    events: Events,
    written: Mutex<HashMap<String, Instant>>,
}

/// Something to tell of.
#[derive(Debug, PartialEq)]
struct News {
    type_: EventType,
    reason: String,
    note: String,
}

impl Publisher {
    /// A publisher that tells of what it writes.
    pub fn new(applier: Applier, events: Events) -> Self {
        Self { applier, events, written: Mutex::default() }
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

    /// Writes that the spec's template was given up, unless the cluster has changed since it was read, and tells of it.
    pub async fn give_up(
        &self,
        cluster: &MySQLCluster,
        status: &MySQLClusterStatus,
    ) -> Result<MySQLCluster, ApplyError> {
        let written = self.applier.patch_status(cluster, &complete(status)).await?;
        if let Some(note) = status.rollout.as_ref().and_then(given_up) {
            tracing::warn!(cluster = cluster.name_any(), "{note}");
            self.tell(cluster, news(EventType::Warning, "RollingUpdateGivenUp", &note));
        }
        Ok(written)
    }

    /// Tells of the term that has begun.
    pub fn tell_of_term(&self, cluster: &MySQLCluster) {
        let news = of_term(cluster.status.clone().unwrap_or_default());
        tracing::info!(cluster = cluster.name_any(), reason = news.reason, "{}", news.note);
        self.tell(cluster, news);
    }

    /// Tells what became of a request.
    pub fn tell_of_answer(&self, cluster: &MySQLCluster, answer: &Answer) {
        let news = of_answer(answer);
        tracing::info!(cluster = cluster.name_any(), reason = news.reason, "{}", news.note);
        self.tell(cluster, news);
    }

    fn positions_due(&self, cluster: &MySQLCluster) -> bool {
        let written = self.lock();
        let last = cluster.uid().and_then(|uid| written.get(&uid).copied());
        last.is_none_or(|at| at.elapsed() >= POSITIONS_EVERY)
    }

    fn tell(&self, cluster: &MySQLCluster, News { type_, reason, note }: News) {
        self.events.tell(cluster, type_, &reason, &note);
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
        "rollout": null,
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

/// The term that has begun.
fn of_term(status: MySQLClusterStatus) -> News {
    let primary = status.primary.unwrap_or_default();
    match status.stage {
        Some(TermStage::Fencing) => {
            let text = format!("{primary} is lost; term {} revokes its ackers", status.term);
            news(EventType::Warning, "FailoverBegan", &text)
        }
        Some(TermStage::Handover) => {
            let to = status.handover_to.unwrap_or_default();
            let text = format!("{primary} hands over to {to} in term {}", status.term);
            news(EventType::Normal, "SwitchoverBegan", &text)
        }
        Some(TermStage::Reign) | None => {
            let text = format!(
                "{primary} is the primary of term {}; each commit waits for {} of {} acknowledgements",
                status.term, status.required_acks, status.ackers
            );
            match status.forced.filter(|forced| forced.term == status.term) {
                Some(forced) => {
                    let point = forced.point;
                    let text = format!(
                        "{text}. It was forced: what was acknowledged and is not in {point} is left out"
                    );
                    news(EventType::Warning, "PrimaryForced", &text)
                }
                None => news(EventType::Normal, "TermBegan", &text),
            }
        }
    }
}

/// What became of a request.
fn of_answer(answer: &Answer) -> News {
    let Answer { kind, asked, outcome, message } = answer;
    let type_ = match (outcome, kind) {
        (
            RequestOutcome::Done,
            RequestKind::Switchover
            | RequestKind::Rebuild
            | RequestKind::Release
            | RequestKind::RotateAuthority,
        ) => EventType::Normal,
        // Something may be lost by it.
        (RequestOutcome::Done, RequestKind::ForcePrimary) | (RequestOutcome::Refused, _) => {
            EventType::Warning
        }
    };
    let but = match outcome {
        RequestOutcome::Done => "",
        RequestOutcome::Refused => ", and nothing was changed",
    };
    news(type_, answer.reason(), &format!("asked for {asked}{but}: {message}"))
}

/// What of a change of status is worth an event.
fn events(before: &MySQLClusterStatus, after: &MySQLClusterStatus) -> Vec<News> {
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
        events.push(news(type_, &format!("{phase:?}"), told));
    }
    let is_under_way = |status, reason: &str| {
        condition(status, ConditionType::Progressing)
            .filter(|condition| condition.reason == reason)
            .map(|condition| condition.message.clone())
    };
    let healthy = after.phase == Some(Phase::Healthy);
    let rolls = |status| is_under_way(status, ROLLING_UPDATE);
    match (rolls(before), rolls(after)) {
        (None, Some(message)) => events.push(news(EventType::Normal, "RollingUpdateBegan", &message)),
        (Some(_), None) if healthy && after.rollout.is_none() => {
            events.push(news(EventType::Normal, "RollingUpdateEnded", "all pods are of the present spec"));
        }
        (None | Some(_), None) | (Some(_), Some(_)) => {}
    }
    let stopped = |status: &MySQLClusterStatus| {
        status.rollout.as_ref().is_some_and(|rollout| rollout.state == RolloutState::Stopped)
    };
    if let Some(message) = rolls(after).filter(|_| stopped(after) && !stopped(before)) {
        events.push(news(EventType::Warning, "RollingUpdateStopped", &message));
    }
    if is_under_way(before, ROLLING_BACK).is_some() && is_under_way(after, ROLLING_BACK).is_none() && healthy
    {
        let note = after.rollout.as_ref().and_then(given_up);
        events.extend(note.map(|note| news(EventType::Normal, "RolledBack", &note)));
    }
    let failure = |status| {
        condition(status, ConditionType::ReconcileSucceeded)
            .filter(|condition| condition.status == "False")
            .map(|condition| (condition.reason.as_str(), condition.message.as_str()))
    };
    if let Some((reason, message)) = failure(after).filter(|failed| failure(before) != Some(*failed)) {
        events.push(news(EventType::Warning, reason, message));
    }
    events
}

fn condition(status: &MySQLClusterStatus, type_: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn news(type_: EventType, reason: &str, note: &str) -> News {
    News { type_, reason: reason.to_owned(), note: note.to_owned() }
}

#[cfg(test)]
mod tests {
    use fleet_api::v1::{
        AnsweredRequest, ForcedTakeover, InSyncInstance, InstanceRole, InstanceStatus, RolloutStatus,
    };
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_forced_primary_is_told_of_as_a_warning_with_what_it_held() {
        let told = |term: i64, forced: i64| {
            let forced = Some(ForcedTakeover { term: forced, point: "a:1-7".to_owned() });
            let primary = Some("orders-2".to_owned());
            let News { type_, reason, note } =
                of_term(MySQLClusterStatus { term, primary, forced, ..MySQLClusterStatus::default() });
            (format!("{type_:?}"), reason, note)
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
            let told = of_answer(&answer(kind, outcome));
            assert_eq!((format!("{:?}", told.type_), told.note.as_str()), (type_.to_owned(), note));
        }
    }

    #[test]
    fn a_template_that_did_not_work_is_told_of_and_never_as_an_update_that_ended() {
        let status = |reason: &str, state: Option<RolloutState>| {
            let progressing = serde_json::json!([{
                "type": "Progressing", "status": "True", "reason": reason, "message": "1 of 3 pods",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]);
            let given_up = serde_json::json!({
                "template": "b", "progressDeadline": "5m", "instance": "orders-2", "reason": "no such image",
                "since": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:05:00Z", "fields": ["spec.image"], "restored": "a",
            });
            let back = matches!(state, Some(RolloutState::RollingBack | RolloutState::RolledBack));
            MySQLClusterStatus {
                phase: Some(Phase::Healthy),
                conditions: serde_json::from_value(progressing).unwrap(),
                rollout: state.map(|state| RolloutStatus {
                    state,
                    template: "a".to_owned(),
                    proved: Vec::new(),
                    waits_for: None,
                    given_up: back.then(|| serde_json::from_value(given_up).unwrap()),
                }),
                ..MySQLClusterStatus::default()
            }
        };
        let told = |before: (&str, Option<RolloutState>), after: (&str, Option<RolloutState>)| -> Vec<_> {
            let events = events(&status(before.0, before.1), &status(after.0, after.1));
            events
                .into_iter()
                .map(|News { type_, reason, note }| (format!("{type_:?}"), reason, note))
                .collect()
        };
        let updating = ("RollingUpdate", Some(RolloutState::Updating));
        let back = ("RollingBack", Some(RolloutState::RollingBack));
        assert_eq!(told(updating, ("Healthy", None))[0].1, "RollingUpdateEnded");
        assert_eq!(told(updating, back), []);
        let [(type_, reason, note)] = &told(back, ("Healthy", Some(RolloutState::RolledBack)))[..] else {
            unreachable!("one event");
        };
        assert_eq!((type_.as_str(), reason.as_str()), ("Normal", "RolledBack"));
        for word in ["spec.image", "orders-2", "5m", "no such image", "all pods are as they were"] {
            assert!(note.contains(word), "{note}");
        }
        let stopped = ("RollingUpdate", Some(RolloutState::Stopped));
        assert_eq!(told(updating, stopped)[0].1, "RollingUpdateStopped");
        assert_eq!(told(stopped, stopped), []);
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
            rollout: Some(RolloutStatus {
                state: RolloutState::Updating,
                template: String::new(),
                proved: Vec::new(),
                waits_for: None,
                given_up: None,
            }),
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
                copy: None,
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
