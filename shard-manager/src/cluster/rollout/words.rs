//! What is said of a rolling update.

use std::collections::BTreeMap;

use fleet_api::{
    names,
    v1::{ConditionType, MySQLCluster, RolloutState, RolloutStatus},
};
use fleet_topology::{Decision, State, Verdict};
use kube::ResourceExt as _;

use crate::cluster::observe::Detail;

/// Reason of `Progressing` while pods are replaced one by one because the spec has changed.
pub const ROLLING_UPDATE: &str = "RollingUpdate";
/// Reason of `Progressing` while they go back to what was wanted before.
pub const ROLLING_BACK: &str = "RollingBack";
/// Reason of `RolledBack`.
pub const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

/// How many of the wanted instances have a pod of another template than the one in force.
pub fn outdated(cluster: &MySQLCluster, details: &BTreeMap<u32, Detail>) -> usize {
    let wanted = u32::try_from(cluster.spec.replicas).unwrap_or_default();
    details.range(..wanted).filter(|(_, detail)| detail.outdated).count()
}

/// How far a rolling update is; it ends once the last pod that was replaced is in sync.
pub fn progress(
    cluster: &MySQLCluster,
    decision: &Decision,
    details: &BTreeMap<u32, Detail>,
    goes_back: bool,
) -> Option<String> {
    if matches!(decision.state, State::Offline | State::Paused | State::Bootstrapping) {
        return None;
    }
    let reason = if goes_back { ROLLING_BACK } else { ROLLING_UPDATE };
    let began = cluster
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .any(|condition| condition.type_ == ConditionType::Progressing && condition.reason == reason);
    let outdated = outdated(cluster, details);
    if outdated == 0 && (!began || decision.state == State::Healthy) {
        return None;
    }
    let wanted = usize::try_from(cluster.spec.replicas).unwrap_or_default();
    let updated = wanted.saturating_sub(outdated);
    let of = if goes_back { "as they were before the spec changed" } else { "of the present spec" };
    let progress = format!("{updated} of {wanted} pods are {of}");
    Some(match (decision.replace, decision.progress.verdict) {
        (Some(next), _) => format!("{progress}, {} is next", names::pod(&cluster.name_any(), next.0)),
        (None, Verdict::Overdue) => format!(
            "{progress}, and it goes no further: an instance was not in sync within {}, and mysqld of the version before \
             may not be able to read what the new one has written; correct the spec",
            cluster.spec.progress_deadline
        ),
        (None, Verdict::Open | Verdict::Works | Verdict::GivenUp) => progress,
    })
}

/// What was given up, why, and what is to be done.
pub fn given_up(rollout: &RolloutStatus) -> Option<String> {
    let given_up = rollout.given_up.as_ref()?;
    let now = match rollout.state {
        RolloutState::RolledBack => "all pods are as they were before",
        RolloutState::Updating | RolloutState::Stopped | RolloutState::RollingBack => {
            "the pods go back to what they were before"
        }
    };
    Some(format!(
        "{} given up, since {} was not in sync within {} of {}: {}; {now}, until the spec is changed",
        given_up.fields.join(", "),
        given_up.instance,
        given_up.progress_deadline,
        given_up.since.0,
        given_up.reason
    ))
}
