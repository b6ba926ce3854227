//! One reconcile of a member cluster: its status says who is connected.

use std::{sync::Arc, time::Duration};

use fleet_api::v1::{MemberCluster, MemberClusterStatus};
use fleet_runtime::{
    apply::Applier,
    conditions::{Truth, condition},
    controller::Reconcile,
};
use jiff::Timestamp;
use kube::{ResourceExt as _, runtime::controller::Action};

use crate::{
    decide::time,
    federated::FederatedError,
    streams::{MemberContact, Streams},
};

/// Looked at after this time though nothing has changed.
const RESYNC: Duration = Duration::from_mins(1);

/// The controller of member clusters.
pub struct Reconciler {
    /// Their streams.
    pub streams: Streams,
    /// The only writer.
    pub applier: Applier,
}

impl Reconcile<MemberCluster> for Reconciler {
    type Error = FederatedError;

    async fn reconcile(&self, member: Arc<MemberCluster>) -> Result<Action, FederatedError> {
        if member.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let status = status(&member, self.streams.member(&member.name_any()), Timestamp::now());
        if member.status.as_ref() != Some(&status) {
            match self.applier.patch_status(member.as_ref(), &status).await {
                Err(error) if error.is_conflict() => return Ok(Action::await_change()),
                written => drop(written?),
            }
        }
        Ok(Action::requeue(RESYNC))
    }
}

/// The status. The time of the last contact moves with who is connected, not with each heartbeat.
fn status(member: &MemberCluster, contact: MemberContact, now: Timestamp) -> MemberClusterStatus {
    let before = member.status.clone().unwrap_or_default();
    let generation = member.metadata.generation;
    let MemberContact { connected, last, version } = contact;
    let same = before.connected == connected && before.last_contact.is_some();
    let last_contact = if same { before.last_contact } else { last.map(time).or(before.last_contact) };
    let joined = if last_contact.is_some() {
        (Truth::True, "Dialled", "a shard of the member has dialled".to_owned())
    } else {
        (
            Truth::False,
            "NeverDialled",
            "no shard of the member has dialled yet: give one a certificate of this hub, and the hub's address".to_owned(),
        )
    };
    let reachable = if connected.is_empty() {
        (Truth::False, "Silent", "no shard of the member is connected".to_owned())
    } else {
        (Truth::True, "Connected", format!("connected: {}", connected.join(", ")))
    };
    let make = |type_, (truth, reason, message): (Truth, &str, String)| {
        condition(&before.conditions, type_, truth, reason, message, generation, now)
    };
    let conditions = vec![make("Joined", joined), make("Reachable", reachable)];
    let version = version.or(before.version);
    MemberClusterStatus { observed_generation: generation, last_contact, version, connected, conditions }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_heartbeat_alone_changes_no_status_and_the_end_of_the_last_stream_does() {
        let object = json!({
            "metadata": {"name": "east", "generation": 2}, "spec": {"namespaces": ["tenant-a"]},
            "apiVersion": "mysqlfleet.io/v1", "kind": "MemberCluster",
        });
        let mut member: MemberCluster = serde_json::from_value(object).unwrap();
        let never = status(&member, MemberContact::default(), at(5));
        assert_eq!(never.conditions[0].reason, "NeverDialled");
        let contact = |connected: &[&str], second| MemberContact {
            connected: connected.iter().map(|namespace| (*namespace).to_owned()).collect(),
            last: Some(at(second)),
            version: Some("1".to_owned()),
        };
        let connected = status(&member, contact(&["tenant-a"], 10), at(10));
        assert_eq!(connected.conditions[1].status, "True");
        member.status = Some(connected.clone());
        assert_eq!(status(&member, contact(&["tenant-a"], 20), at(20)), connected);

        let silent = status(&member, contact(&[], 20), at(35));
        assert_eq!(silent.last_contact, Some(time(at(20))));
        assert_eq!(
            (silent.conditions[0].status.as_str(), silent.conditions[1].status.as_str()),
            ("True", "False")
        );
        member.status = Some(silent.clone());
        let restarted = status(&member, MemberContact::default(), at(50));
        assert_eq!(restarted, silent, "a hub that starts anew has forgotten nothing");
    }
}
