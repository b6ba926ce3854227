//! Requests of people: annotations of the MySQLCluster, each of which is done once.
//!
//! A request is carried out or refused, then its annotation is taken off; what became of it is in
//! `status.answeredRequests` and in an event. What is decided about it is decided by `fleet-topology`.
//!
//! | annotation | value | what it asks for |
//! |---|---|---|
//! | `mysqlfleet.io/switchover` | a pod of the cluster, or `any` | another primary |
//! | `mysqlfleet.io/rebuild` | a pod of the cluster | a copy in place of its data, which hold what the primary does not |
//! | `mysqlfleet.io/release` | a pod of the cluster and transactions | those count as the cluster's, which it alone holds |
//! | `mysqlfleet.io/force-primary` | a pod of the cluster and `accept-data-loss` | another primary where the failover is blocked |
//!
//! `mysqlfleet.io/rotate-authority` is about the whole tenant: [`crate::tenant`] answers it.
//!
//! A shard may die at any point. So what it has begun is written into the annotation before it is begun: whoever goes
//! on sees by the record what has become of it, and neither repeats it nor tries for ever.

use std::fmt;

use fleet_api::{
    names,
    v1::{AnsweredRequest, MySQLCluster, RequestKind, RequestOutcome},
};
use fleet_runtime::apply::{Applier, ApplyError};
use fleet_topology::{
    Decision, Force, Forcing, Fulfilment, GtidSet, InstanceId, Rebuild, Rebuilding, Release, Releasing, Term,
    Wish,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt as _;
use serde_json::json;

use super::status;

/// The value that asks for any other primary.
pub const ANY: &str = "any";
/// What stands before the term of a handover, or of a forced takeover, that was begun.
const BEGUN: &str = " in term ";
/// What stands after the pod that is to be forced: nobody loses data by a word that was meant for something else.
const ACCEPTS_LOSS: &str = " accept-data-loss";
/// What stands after the pod once its rebuilding was begun.
const GIVEN_UP: &str = " begun";
/// How much of a value that can't be read is repeated.
const REPEATED: usize = 60;

/// A request that is answered, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was asked for.
    pub kind: RequestKind,
    /// The value of the annotation, for people.
    pub asked: String,
    /// Whether it was done.
    pub outcome: RequestOutcome,
    /// What was done, or why nothing was.
    pub message: String,
}

impl Answer {
    /// The reason of the event that tells of it.
    pub const fn reason(&self) -> &'static str {
        match (self.kind, self.outcome) {
            (RequestKind::Switchover, RequestOutcome::Done) => "SwitchoverDone",
            (RequestKind::Switchover, RequestOutcome::Refused) => "SwitchoverRefused",
            (RequestKind::Rebuild, RequestOutcome::Done) => "RebuildDone",
            (RequestKind::Rebuild, RequestOutcome::Refused) => "RebuildRefused",
            (RequestKind::Release, RequestOutcome::Done) => "ReleaseDone",
            (RequestKind::Release, RequestOutcome::Refused) => "ReleaseRefused",
            (RequestKind::ForcePrimary, RequestOutcome::Done) => "ForcePrimaryDone",
            (RequestKind::ForcePrimary, RequestOutcome::Refused) => "ForcePrimaryRefused",
            (RequestKind::RotateAuthority, RequestOutcome::Done) => "RotateAuthorityDone",
            (RequestKind::RotateAuthority, RequestOutcome::Refused) => "RotateAuthorityRefused",
        }
    }
}

/// The annotation of a kind of request.
pub const fn annotation(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Switchover => names::ANNOTATION_SWITCHOVER,
        RequestKind::Rebuild => names::ANNOTATION_REBUILD,
        RequestKind::Release => names::ANNOTATION_RELEASE,
        RequestKind::ForcePrimary => names::ANNOTATION_FORCE_PRIMARY,
        RequestKind::RotateAuthority => names::ANNOTATION_ROTATE_AUTHORITY,
    }
}

/// What people ask for, and what they are to be told of it at once: that it makes no sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The primary that is asked for.
    pub wish: Option<Wish>,
    /// The instance that is to be rebuilt.
    pub rebuild: Option<Rebuild>,
    /// The instance that is to be released.
    pub release: Option<Release>,
    /// The instance that is to be the primary at the price of data.
    pub force: Option<Force>,
    /// Refusals of what can't be read.
    pub unread: Vec<Answer>,
}

/// Reads the requests of a cluster.
pub fn requests(cluster: &MySQLCluster) -> Requests {
    let name = cluster.name_any();
    let mut unread = Vec::new();
    let wish = read(cluster, RequestKind::Switchover, &mut unread, |value| parse(&name, value));
    let rebuild = read(cluster, RequestKind::Rebuild, &mut unread, |value| parse_rebuild(&name, value));
    let force = read(cluster, RequestKind::ForcePrimary, &mut unread, |value| parse_force(&name, value));
    let release = read(cluster, RequestKind::Release, &mut unread, |value| parse_release(&name, value));
    Requests { wish, rebuild, release, force, unread }
}

fn read<T>(
    cluster: &MySQLCluster,
    kind: RequestKind,
    unread: &mut Vec<Answer>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let value = cluster.annotations().get(annotation(kind))?;
    let refuse = |message| {
        unread.push(Answer { kind, asked: shortened(value), outcome: RequestOutcome::Refused, message });
    };
    parse(value).map_err(refuse).ok()
}

/// Reads the value of the annotation for rebuilding.
pub fn parse_rebuild(cluster: &str, value: &str) -> Result<Rebuild, String> {
    let (pod, begun) = value.strip_suffix(GIVEN_UP).map_or((value, false), |pod| (pod, true));
    let instance = names::ordinal(cluster, pod).map(InstanceId);
    instance
        .map(|instance| Rebuild { instance, begun })
        .ok_or_else(|| no_pod(RequestKind::Rebuild, cluster, value))
}

/// Reads the value of the annotation for releases.
pub fn parse_release(cluster: &str, value: &str) -> Result<Release, String> {
    let (pod, gtids) = value.split_once(' ').unwrap_or((value, ""));
    let Some(instance) = names::ordinal(cluster, pod).map(InstanceId) else {
        let no_pod = no_pod(RequestKind::Release, cluster, value);
        return Err(format!("{no_pod}, and the transactions that it may keep"));
    };
    let wrong = |problem: &dyn fmt::Display| {
        format!(
            "{} is {:?}, whose transactions can't be read: {problem}; write them as the message of {pod} in the status \
             does",
            names::ANNOTATION_RELEASE,
            shortened(value)
        )
    };
    let transactions: GtidSet = gtids.parse().map_err(|error| wrong(&error))?;
    if transactions.is_empty() {
        return Err(wrong(&"there is none"));
    }
    Ok(Release { instance, transactions })
}

/// The value that asks for a pod to be released with these transactions.
pub fn release(pod: &str, gtids: &str) -> String {
    let gtids: String = gtids.split_whitespace().collect();
    format!("{pod} {gtids}")
}

/// Reads the value of the annotation for forced takeovers.
pub fn parse_force(cluster: &str, value: &str) -> Result<Force, String> {
    let (chosen, begun) = split_begun(value).map_or((value, None), |(chosen, term)| (chosen, Some(term)));
    let instance = chosen.strip_suffix(ACCEPTS_LOSS).and_then(|pod| names::ordinal(cluster, pod));
    instance.map(|ordinal| Force { instance: InstanceId(ordinal), begun }).ok_or_else(|| {
        if names::ordinal(cluster, value).is_some() {
            return format!(
                "{} is {value:?}, which does not say that commits may be lost by it: make it {:?} if they may",
                names::ANNOTATION_FORCE_PRIMARY,
                force(value)
            );
        }
        format!("{}, and{ACCEPTS_LOSS}", no_pod(RequestKind::ForcePrimary, cluster, value))
    })
}

/// The value that asks for a pod to be forced.
pub fn force(pod: &str) -> String {
    format!("{pod}{ACCEPTS_LOSS}")
}

fn split_begun(value: &str) -> Option<(&str, Term)> {
    let (asked, term) = value.split_once(BEGUN)?;
    Some((asked, Term(term.parse().ok()?)))
}

/// Reads the value of the annotation for switchovers.
pub fn parse(cluster: &str, value: &str) -> Result<Wish, String> {
    let instance = |pod: &str| names::ordinal(cluster, pod).map(InstanceId);
    let begun = || {
        let (pod, term) = split_begun(value)?;
        Some(Wish::Begun { to: instance(pod)?, term })
    };
    let wish = if value == ANY { Some(Wish::Any) } else { instance(value).map(Wish::To).or_else(begun) };
    wish.ok_or_else(|| format!("{}, or {ANY}", no_pod(RequestKind::Switchover, cluster, value)))
}

fn no_pod(kind: RequestKind, cluster: &str, value: &str) -> String {
    format!(
        "{} is {:?}, which is no pod of the cluster: name one, such as {}",
        annotation(kind),
        shortened(value),
        names::pod(cluster, 1)
    )
}

impl Requests {
    /// What there is to answer once it was decided on; nothing of what goes on.
    pub fn answers(&self, cluster: &str, decision: &Decision) -> Vec<Answer> {
        let wish = self.wish.zip(decision.wish.as_ref());
        let wish = wish.and_then(|(wish, fulfilment)| answer(cluster, wish, fulfilment));
        let rebuild = self.rebuild.zip(decision.rebuilding.as_ref());
        let rebuild = rebuild.and_then(|(rebuild, outcome)| answer_rebuild(cluster, rebuild, outcome));
        let release = self.release.as_ref().zip(decision.releasing.as_ref());
        let release = release.and_then(|(release, outcome)| answer_release(cluster, release, outcome));
        let force = self.force.zip(decision.forcing.as_ref());
        let force = force.and_then(|(force, outcome)| answer_force(cluster, force, outcome));
        self.unread.iter().cloned().chain(wish).chain(rebuild).chain(release).chain(force).collect()
    }
}

fn answer_force(cluster: &str, force: Force, outcome: &Forcing) -> Option<Answer> {
    let asked = names::pod(cluster, force.instance.0);
    let (outcome, message) = match outcome {
        Forcing::Waits | Forcing::UnderWay { .. } => return None,
        Forcing::Done(said) => (RequestOutcome::Done, said),
        Forcing::Refused(reason) => (RequestOutcome::Refused, reason),
    };
    let message = status::with_pods(cluster, message);
    Some(Answer { kind: RequestKind::ForcePrimary, asked, outcome, message })
}

fn answer_rebuild(cluster: &str, rebuild: Rebuild, outcome: &Rebuilding) -> Option<Answer> {
    let asked = names::pod(cluster, rebuild.instance.0);
    let (outcome, message) = match outcome {
        Rebuilding::Waits | Rebuilding::UnderWay => return None,
        Rebuilding::Done => {
            (RequestOutcome::Done, format!("{asked} has a copy in place of its data, and is in sync"))
        }
        Rebuilding::Refused(reason) => (RequestOutcome::Refused, status::with_pods(cluster, reason)),
    };
    Some(Answer { kind: RequestKind::Rebuild, asked, outcome, message })
}

fn answer_release(cluster: &str, release: &Release, outcome: &Releasing) -> Option<Answer> {
    let asked = names::pod(cluster, release.instance.0);
    let (outcome, message) = match outcome {
        Releasing::Waits | Releasing::UnderWay => return None,
        Releasing::Done => {
            let kept = &release.transactions;
            (RequestOutcome::Done, format!("{asked} is in sync, and the cluster counts {kept} as its own"))
        }
        Releasing::Refused(reason) => (RequestOutcome::Refused, status::with_pods(cluster, reason)),
    };
    Some(Answer { kind: RequestKind::Release, asked, outcome, message })
}

/// What there is to answer once the wish was decided on; nothing while it goes on.
pub fn answer(cluster: &str, wish: Wish, fulfilment: &Fulfilment) -> Option<Answer> {
    let asked = match wish {
        Wish::Any => ANY.to_owned(),
        Wish::To(to) | Wish::Begun { to, .. } => names::pod(cluster, to.0),
    };
    let (outcome, message) = match fulfilment {
        Fulfilment::Waits | Fulfilment::UnderWay { .. } => return None,
        Fulfilment::Done(primary) => (
            RequestOutcome::Done,
            format!("{} is the primary and takes writes", names::pod(cluster, primary.0)),
        ),
        Fulfilment::Refused(reason) => (RequestOutcome::Refused, status::with_pods(cluster, reason)),
    };
    Some(Answer { kind: RequestKind::Switchover, asked, outcome, message })
}

/// Writes down that a handover begins for the wish, as [`mark`] does.
pub async fn take_up(
    applier: &Applier,
    cluster: MySQLCluster,
    to: InstanceId,
    term: Term,
) -> Result<MySQLCluster, ApplyError> {
    let value = format!("{}{BEGUN}{term}", names::pod(&cluster.name_any(), to.0));
    mark(applier, cluster, RequestKind::Switchover, &value).await
}

/// Writes down that an instance's data are given up, as [`mark`] does.
pub async fn take_up_rebuild(
    applier: &Applier,
    cluster: MySQLCluster,
    instance: InstanceId,
) -> Result<MySQLCluster, ApplyError> {
    let value = format!("{}{GIVEN_UP}", names::pod(&cluster.name_any(), instance.0));
    mark(applier, cluster, RequestKind::Rebuild, &value).await
}

/// Writes down in which term a forced takeover begins, as [`mark`] does.
pub async fn take_up_force(
    applier: &Applier,
    cluster: MySQLCluster,
    instance: InstanceId,
    begun: Term,
) -> Result<MySQLCluster, ApplyError> {
    let value = format!("{}{BEGUN}{begun}", force(&names::pod(&cluster.name_any(), instance.0)));
    mark(applier, cluster, RequestKind::ForcePrimary, &value).await
}

/// Writes down how far a request is, unless the cluster has changed since it was read. Sends nothing if that is written
/// down already.
pub async fn mark(
    applier: &Applier,
    cluster: MySQLCluster,
    kind: RequestKind,
    value: &str,
) -> Result<MySQLCluster, ApplyError> {
    if cluster.annotations().get(annotation(kind)).is_some_and(|now| now == value) {
        return Ok(cluster);
    }
    ask(applier, &cluster, kind, value).await
}

/// Puts a request on the cluster, unless the cluster has changed since it was read.
pub async fn ask(
    applier: &Applier,
    cluster: &MySQLCluster,
    kind: RequestKind,
    value: &str,
) -> Result<MySQLCluster, ApplyError> {
    annotate(applier, cluster, annotation(kind), Some(value)).await
}

/// Keeps the answer in the status and takes the annotation off, unless the cluster has changed since it was read.
///
/// In this order: a shard that dies in between finds the request again, and the record tells it the same.
pub async fn settle(
    applier: &Applier,
    cluster: &MySQLCluster,
    answer: &Answer,
    now: Timestamp,
) -> Result<MySQLCluster, ApplyError> {
    let before =
        cluster.status.as_ref().map(|status| status.answered_requests.as_slice()).unwrap_or_default();
    let others = before.iter().filter(|other| other.kind != answer.kind).cloned();
    let Answer { kind, asked, outcome, message } = answer.clone();
    let answered = AnsweredRequest { kind, asked, outcome, message, answered_at: MicroTime(now) };
    let all: Vec<_> = others.chain([answered]).collect();
    let told = applier.patch_status(cluster, &json!({ "answeredRequests": all })).await?;
    annotate(applier, &told, annotation(answer.kind), None).await
}

async fn annotate(
    applier: &Applier,
    cluster: &MySQLCluster,
    annotation: &str,
    value: Option<&str>,
) -> Result<MySQLCluster, ApplyError> {
    applier.merge(cluster, &json!({ "metadata": { "annotations": { annotation: value } } })).await
}

/// The value for people.
pub fn shortened(value: &str) -> String {
    if value.chars().count() <= REPEATED {
        return value.to_owned();
    }
    value.chars().take(REPEATED).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
