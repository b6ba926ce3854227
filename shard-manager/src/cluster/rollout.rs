//! Which template the pods are to have: that of the spec, or the last one that worked where the spec's was given up.
//!
//! What is known of both outlives whoever leads: the template that worked is a ControllerRevision, the trial of the
//! present one and what was given up are in the status.

pub mod words;

use std::collections::BTreeMap;

use fleet_api::{
    fields, names,
    v1::{
        Durability, GivenUpTemplate, MySQLCluster, MySQLClusterSpec, MySQLClusterStatus, RolloutState,
        RolloutStatus, RolloutWait,
    },
};
use fleet_topology::{Decision, Fallback, InstanceId, Progress, State, Trial, Verdict, Waiting};
use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    build::{MyCnf, TemplateMark},
    dereference::Children,
};

/// All that a spec says of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resources: Option<ResourceRequirements>,
    #[serde(default)]
    mysqld: BTreeMap<String, String>,
    durability: Durability,
}

impl Template {
    /// That of a spec.
    pub fn of(spec: &MySQLClusterSpec) -> Self {
        let MySQLClusterSpec { version, image, resources, mysqld, durability, .. } = spec.clone();
        Self { version, image, resources, mysqld, durability }
    }

    /// The cluster with this template in place of that of its spec.
    fn in_place_of(self, cluster: &MySQLCluster) -> MySQLCluster {
        let Self { version, image, resources, mysqld, durability } = self;
        let mut cluster = cluster.clone();
        cluster.spec = MySQLClusterSpec { version, image, resources, mysqld, durability, ..cluster.spec };
        cluster
    }

    /// The part of the version within which a mysqld reads what a later one has written: `9.7` of `9.7.4`.
    fn series(&self) -> Vec<&str> {
        self.version.split('.').take(2).collect()
    }

    /// The fields of a spec in which another template differs.
    fn differs(&self, other: &Self) -> Vec<String> {
        let json = |template: &Self| serde_json::to_value(template).unwrap_or_default();
        let (one, other) = (json(self), json(other));
        let (one, other) = (fields::leaves(&one), fields::leaves(&other));
        let mut paths: Vec<_> = one.keys().chain(other.keys()).collect();
        paths.sort();
        paths.dedup();
        let differ = paths.into_iter().filter(|path| one.get(*path) != other.get(*path));
        differ.map(|path| format!("spec{path}")).collect()
    }
}

/// The newest of the revisions that keep a template of the cluster.
pub fn newest<'a>(cluster: &MySQLCluster, children: &'a Children) -> Option<&'a ControllerRevision> {
    let uid = cluster.uid();
    let ours = children.revisions.values().map(AsRef::as_ref).filter(|revision: &&ControllerRevision| {
        revision.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
    });
    ours.max_by_key(|revision| revision.revision)
}

/// How long an instance has been waited for, by a monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopwatch {
    template: String,
    instance: InstanceId,
    /// What was counted before it was started last.
    before_ms: u64,
    started: Option<Instant>,
    /// What its pod or its mysqld said last. Between two tries they say nothing.
    said: Option<String>,
}

impl Stopwatch {
    /// What is wrong with an instance that says `now`: also what it said before, where it just tries again.
    pub fn reason(&self, now: String, says_why: bool) -> String {
        match &self.said {
            Some(before) if !says_why => format!("{now}; before: {before}"),
            Some(_) | None => now,
        }
    }

    fn waited_ms(&self, now: Instant) -> u64 {
        let since = self.started.map(|at| now.saturating_duration_since(at).as_millis()).unwrap_or_default();
        self.before_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// What the pods are to be made from.
#[derive(Debug)]
pub struct Plan {
    /// The cluster, with the template that is in force.
    pub cluster: MySQLCluster,
    /// How it has done so far.
    pub trial: Trial,
    /// The spec's template, where it was given up.
    pub given_up: Option<GivenUpTemplate>,
    mark: TemplateMark,
    /// The last one that has worked.
    good: Option<(Template, TemplateMark)>,
}

impl Plan {
    /// From the cluster as it is, and for how long this process has waited for an instance.
    pub fn of(cluster: &MySQLCluster, children: &Children, waited: Option<(&Stopwatch, Instant)>) -> Self {
        let good = newest(cluster, children).and_then(|revision| kept(cluster, revision));
        let asked = TemplateMark::of(cluster);
        let status = cluster.status.as_ref().and_then(|status| status.rollout.as_ref());
        let given_up = status.and_then(|status| status.given_up.clone()).filter(|given_up| {
            given_up.template == asked.spec() && given_up.progress_deadline == cluster.spec.progress_deadline
        });
        let back = good.clone().filter(|(_, mark)| *mark != asked).filter(|_| given_up.is_some());
        let (cluster, mark, given_up) = match back {
            Some((template, mark)) => (template.in_place_of(cluster), mark, given_up),
            None => (cluster.clone(), asked, None),
        };
        let trial = trial(&cluster, &mark, good.as_ref(), waited);
        Self { cluster, trial, given_up, mark, good }
    }

    /// Whether a pod is not of the template in force.
    pub fn is_outdated(&self, pod: &ObjectMeta) -> bool {
        self.mark.is_missing_from(pod)
    }

    /// Whether a pod is of a template that is neither in force nor has worked.
    pub fn is_abandoned(&self, pod: &ObjectMeta) -> bool {
        let works = |(_, mark): &(Template, TemplateMark)| !mark.is_missing_from(pod);
        self.is_outdated(pod) && self.good.as_ref().is_some_and(|good| !works(good))
    }

    /// The my.cnf keys of the templates that pods may be of besides the one in force: the last one that has worked, and
    /// that of the spec where it was given up.
    pub fn others(&self, asked: &MySQLCluster) -> Vec<MyCnf> {
        let keys =
            |mark: TemplateMark, mysqld: &BTreeMap<String, String>| MyCnf { mark, mysqld: mysqld.clone() };
        let good = self.good.iter().map(|(template, mark)| keys(mark.clone(), &template.mysqld));
        let asked = keys(TemplateMark::of(asked), &asked.spec.mysqld);
        good.chain([asked]).filter(|other| other.mark != self.mark).collect()
    }

    /// The stopwatch after a decision, by which an instance is waited for that may say a problem.
    pub fn stopwatch(
        &self,
        before: Option<Stopwatch>,
        progress: &Progress,
        problem: Option<&String>,
        now: Instant,
    ) -> Option<Stopwatch> {
        let instance = progress.waits_for?;
        let template = self.mark.spec().to_owned();
        let same = before.filter(|watch| watch.instance == instance && watch.template == template);
        let counted = self.trial.waiting.filter(|waiting| waiting.instance == instance);
        let before_ms = counted.map(|waiting| waiting.for_ms).unwrap_or_default();
        let said = problem.cloned().or_else(|| same.as_ref().and_then(|watch| watch.said.clone()));
        Some(match same {
            Some(watch) if watch.started.is_some() == progress.runs => Stopwatch { said, ..watch },
            _ => Stopwatch { template, instance, before_ms, started: progress.runs.then_some(now), said },
        })
    }

    /// The status in which the template in force is given up because of an instance that said `reason`; `None` where
    /// there is nothing to go back to.
    pub fn give_up(
        &self,
        cluster: &MySQLCluster,
        instance: InstanceId,
        reason: String,
        now: Timestamp,
    ) -> Option<MySQLClusterStatus> {
        let (good, restored) = self.good.as_ref()?;
        let status = cluster.status.clone().unwrap_or_default();
        let name = names::pod(&cluster.name_any(), instance.0);
        let waits_for = status.rollout.as_ref().and_then(|rollout| rollout.waits_for.as_ref());
        let since = waits_for.filter(|waits| waits.instance == name).map(|waits| waits.since.clone());
        let given_up = GivenUpTemplate {
            template: self.mark.spec().to_owned(),
            progress_deadline: cluster.spec.progress_deadline.clone(),
            instance: name,
            reason,
            since: since.unwrap_or(Time(now)),
            at: Time(now),
            fields: Template::of(&cluster.spec).differs(good),
            restored: restored.spec().to_owned(),
        };
        let rollout = RolloutStatus {
            state: RolloutState::RollingBack,
            template: restored.spec().to_owned(),
            proved: Vec::new(),
            waits_for: None,
            given_up: Some(given_up),
        };
        Some(MySQLClusterStatus { rollout: Some(rollout), ..status })
    }

    /// What the status says of the rolling update after a decision, by how many wanted pods are outdated.
    pub fn status(&self, decision: &Decision, outdated: usize, now: Timestamp) -> Option<RolloutStatus> {
        let name = self.cluster.name_any();
        let before = self.cluster.status.as_ref().and_then(|status| status.rollout.as_ref());
        let Progress { proved, waits_for, verdict, .. } = &decision.progress;
        let state = match (&self.given_up, verdict) {
            (Some(_), Verdict::Works) => RolloutState::RolledBack,
            (Some(_), Verdict::Open | Verdict::Overdue | Verdict::GivenUp) => {
                let was = before.is_some_and(|before| before.state == RolloutState::RolledBack);
                if was && outdated == 0 { RolloutState::RolledBack } else { RolloutState::RollingBack }
            }
            (None, Verdict::Works) => return None,
            (None, Verdict::Overdue) => RolloutState::Stopped,
            (None, Verdict::Open | Verdict::GivenUp) => {
                let starts = decision.state == State::Bootstrapping;
                let tries = self.trial.fallback != Fallback::None;
                let goes_on = before.is_some_and(|before| before.template == self.mark.spec());
                if starts || (outdated == 0 && !tries && !goes_on) {
                    return None;
                }
                RolloutState::Updating
            }
        };
        let same = before.filter(|before| before.template == self.mark.spec());
        let waits_for = waits_for.map(|id| {
            let instance = names::pod(&name, id.0);
            let waits = same.and_then(|before| before.waits_for.as_ref());
            let waits = waits.filter(|waits| waits.instance == instance);
            let counted = self.trial.waiting.filter(|waiting| waiting.instance == id);
            let waited = counted.map(|waiting| waiting.for_ms / 1000).unwrap_or_default();
            RolloutWait {
                since: waits.map_or(Time(now), |waits| waits.since.clone()),
                waited_seconds: i64::try_from(waited).unwrap_or(i64::MAX),
                instance,
            }
        });
        Some(RolloutStatus {
            state,
            template: self.mark.spec().to_owned(),
            proved: proved.iter().map(|id| names::pod(&name, id.0)).collect(),
            waits_for,
            given_up: self.given_up.clone(),
        })
    }
}

/// What a revision keeps. One that can't be read is none, as if it had never been kept.
fn kept(cluster: &MySQLCluster, revision: &ControllerRevision) -> Option<(Template, TemplateMark)> {
    match serde_json::from_value::<Template>(revision.data.0.clone()) {
        Ok(template) => {
            let mark = TemplateMark::of(&template.clone().in_place_of(cluster));
            Some((template, mark))
        }
        Err(error) => {
            tracing::warn!(revision = revision.name_any(), %error, "the template that was kept can't be read");
            None
        }
    }
}

fn trial(
    cluster: &MySQLCluster,
    mark: &TemplateMark,
    good: Option<&(Template, TemplateMark)>,
    waited: Option<(&Stopwatch, Instant)>,
) -> Trial {
    let name = cluster.name_any();
    let id = |pod: &str| names::ordinal(&name, pod).map(InstanceId);
    let status = cluster.status.as_ref().and_then(|status| status.rollout.as_ref());
    let status = status.filter(|status| status.template == mark.spec());
    let counted = status.and_then(|status| status.waits_for.as_ref()).and_then(|waits| {
        let seconds = u64::try_from(waits.waited_seconds).unwrap_or_default();
        Some(Waiting { instance: id(&waits.instance)?, for_ms: seconds.saturating_mul(1000) })
    });
    let watched = waited.filter(|(watch, _)| watch.template == mark.spec());
    let watched =
        watched.map(|(watch, now)| Waiting { instance: watch.instance, for_ms: watch.waited_ms(now) });
    Trial {
        fallback: match good {
            Some((_, good)) if good == mark => Fallback::None,
            Some((good, _)) if good.series() != Template::of(&cluster.spec).series() => Fallback::Barred,
            Some(_) => Fallback::There,
            None => Fallback::None,
        },
        proved: status.iter().flat_map(|status| &status.proved).filter_map(|pod| id(pod)).collect(),
        waiting: watched.or(counted),
        deadline_ms: cluster.spec.progress_deadline.seconds().saturating_mul(1000),
    }
}

#[cfg(test)]
mod tests;
