//! One reconcile: look, plan, apply, write the status.

use std::{sync::Arc, time::Duration};

use fleet_runtime::{
    apply::{Applier, ApplyError},
    conditions::condition,
    controller::Reconcile,
    error::{Classified, ErrorClass},
    events::{EventType, Events},
    pods::is_ready,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    runtime::{controller::Action, reflector::Store},
};

use crate::{
    api::{EchoPod, EchoPodStatus},
    plan::{CREATED_BY, ECHOPOD, NAME, Plan, is_current, plan},
};

/// Looked at after this time though nothing has changed.
const RESYNC: Duration = Duration::from_mins(1);

/// The controller of a namespace's EchoPods.
pub struct Reconciler {
    /// The pods of all EchoPods.
    pub pods: Store<Pod>,
    /// The only writer.
    pub applier: Applier,
    /// What people are told.
    pub events: Events,
}

/// A reconcile has failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EchoPodError(#[from] ApplyError);

impl Classified for EchoPodError {
    fn class(&self) -> ErrorClass {
        // The API server takes no such pod, and never will: only another spec helps.
        if self.0.is_rejected() { ErrorClass::Invalid } else { self.0.class() }
    }

    fn reason(&self) -> &'static str {
        self.0.reason()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl Reconcile<EchoPod> for Reconciler {
    type Error = EchoPodError;

    async fn reconcile(&self, echo: Arc<EchoPod>) -> Result<Action, EchoPodError> {
        if echo.metadata.deletion_timestamp.is_some() {
            // The garbage collector deletes the pods: they belong to it.
            return Ok(Action::await_change());
        }
        let mine = |pod: &Pod| pod.labels().get(NAME) == Some(&echo.name_any());
        let pods: Vec<Arc<Pod>> = self.pods.state().into_iter().filter(|pod| mine(pod)).collect();
        let plan = plan(&echo, &pods, Timestamp::now());
        let applied = Box::pin(self.apply(&echo, plan)).await;
        let status = status(&echo, &pods, applied.as_ref().err(), Timestamp::now());
        if echo.status.as_ref() != Some(&status) {
            match self.applier.patch_status(echo.as_ref(), &status).await {
                // It has changed since: that wakes the next reconcile.
                Err(error) if error.is_conflict() => return Ok(Action::await_change()),
                written => drop(written?),
            }
        }
        applied?;
        Ok(Action::requeue(RESYNC))
    }
}

impl Reconciler {
    async fn apply(&self, echo: &EchoPod, plan: Plan) -> Result<(), EchoPodError> {
        let Plan { wanted, surplus } = plan;
        for pod in surplus {
            self.applier.delete(pod.as_ref()).await?;
            self.events.tell(echo, EventType::Normal, "PodDeleted", &format!("deleted {}", pod.name_any()));
        }
        for (pod, live) in wanted {
            self.applier.ensure_or_replace(&pod, live.as_deref()).await?;
            if live.is_none() {
                self.events.tell(echo, EventType::Normal, "PodMade", &format!("made {}", pod.name_any()));
            }
        }
        Ok(())
    }
}

fn status(echo: &EchoPod, pods: &[Arc<Pod>], error: Option<&EchoPodError>, now: Timestamp) -> EchoPodStatus {
    let wanted = echo.spec.replicas;
    let count = |chosen: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.iter().filter(|pod| chosen(pod)).count()).unwrap_or(i32::MAX)
    };
    let ready = count(&is_ready);
    let current = count(&|pod| is_ready(pod) && is_current(echo, pod));
    let (before, generation) =
        (echo.status.as_ref().map_or(&[][..], |status| &status.conditions), echo.metadata.generation);
    let message = format!("{current} of {wanted} pods are ready and say the message");
    let available = (current == wanted, if current == wanted { "AllReady" } else { "PodsMissing" }, message);
    let succeeded = match error {
        None => (true, "Applied", "the pods are as wanted, or on their way".to_owned()),
        Some(error) => (false, error.reason(), error.to_string()),
    };
    let condition =
        |type_, (is, reason, message)| condition(before, type_, is, reason, message, generation, now);
    EchoPodStatus {
        observed_generation: generation.unwrap_or_default(),
        replicas: count(&|_| true),
        ready: format!("{ready}/{wanted}"),
        selector: format!("{CREATED_BY}={ECHOPOD},{NAME}={}", echo.name_any()),
        conditions: vec![condition("Available", available), condition("ReconcileSucceeded", succeeded)],
    }
}
