//! What a person has to say before a primary is forced: that commits may be lost by it, and of which cluster.
//!
//! | flags | at a terminal | elsewhere |
//! |---|---|---|
//! | none | refused | refused |
//! | `--accept-data-loss` | the state is shown, and the name of the cluster has to be typed | refused |
//! | `--accept-data-loss --confirm CLUSTER` | taken | taken |

use std::io::{self, BufRead, Write};

use fleet_proto::shard::v1::ClusterStatus;
use jiff::Timestamp;

use crate::{
    request::RequestError,
    status::{
        self, ShardOptions, StatusError, client,
        table::{age, one_line},
        view::time,
    },
};

/// That a person accepts the loss of data, by the name of the cluster that may lose them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    confirm: String,
}

impl Consent {
    /// The name, as it was given.
    pub fn confirm(&self) -> &str {
        &self.confirm
    }
}

/// There is no consent.
#[derive(Debug, thiserror::Error)]
pub enum ForceError {
    /// The loss was not accepted.
    #[error(
        "--accept-data-loss is missing: commits that were acknowledged to clients and {pod} does not hold are lost to \
         {cluster} by what is asked for. Bring a lost instance back instead if that can be done; else give \
         --accept-data-loss"
    )]
    NotAccepted {
        /// The cluster.
        cluster: String,
        /// The pod that is to be the primary.
        pod: String,
    },
    /// Another cluster was named.
    #[error("--confirm is {given:?}, which is not the name of the cluster that may lose data: {cluster:?}")]
    AnotherName {
        /// What was given.
        given: String,
        /// The cluster.
        cluster: String,
    },
    /// Nobody can be asked.
    #[error(
        "there is no terminal at which the name of the cluster could be typed: give --confirm {0} to say that it is the \
         one that may lose data"
    )]
    NobodyToAsk(String),
    /// Something else was typed.
    #[error("{given:?} is not {cluster:?}: nothing was asked for")]
    NotTyped {
        /// What was typed.
        given: String,
        /// The cluster.
        cluster: String,
    },
    /// The cluster can't be shown.
    #[error(transparent)]
    NotShown(#[from] RequestError),
    /// The person can't be asked.
    #[error("can't ask for the name of the cluster: {0}")]
    Terminal(#[from] io::Error),
}

impl From<StatusError> for ForceError {
    fn from(error: StatusError) -> Self {
        Self::NotShown(error.into())
    }
}

impl ForceError {
    /// Whether an argument has to be changed.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::NotAccepted { .. } | Self::AnotherName { .. } | Self::NobodyToAsk(_) => true,
            Self::NotShown(error) => error.is_usage(),
            Self::NotTyped { .. } | Self::Terminal(_) => false,
        }
    }
}

/// The consent that the arguments give; `None` where the person at the terminal has to be asked.
pub fn consent(
    cluster: &str,
    pod: &str,
    accept_data_loss: bool,
    confirm: Option<&str>,
    at_terminal: bool,
) -> Result<Option<Consent>, ForceError> {
    let cluster = cluster.to_owned();
    if !accept_data_loss {
        return Err(ForceError::NotAccepted { cluster, pod: pod.to_owned() });
    }
    match confirm.map(str::to_owned) {
        Some(confirm) if confirm == cluster => Ok(Some(Consent { confirm })),
        Some(given) => Err(ForceError::AnotherName { given, cluster }),
        None if at_terminal => Ok(None),
        None => Err(ForceError::NobodyToAsk(cluster)),
    }
}

/// Shows the state of the cluster to the person at the terminal, and asks for its name.
pub async fn ask(
    shard: &ShardOptions,
    cluster: &str,
    pod: &str,
    input: &mut impl BufRead,
    terminal: &mut impl Write,
) -> Result<Consent, ForceError> {
    let (client, namespace) = client(shard).await?;
    let state = status::ask(&client, &namespace).await?;
    let named =
        |found: &&ClusterStatus| found.summary.as_ref().is_some_and(|summary| summary.name == cluster);
    let Some(found) = state.clusters.iter().find(named) else {
        return Err(RequestError::NoCluster { cluster: cluster.to_owned(), namespace }.into());
    };
    terminal.write_all(question(found, cluster, pod, Timestamp::now()).as_bytes())?;
    terminal.flush()?;
    typed(cluster, input)
}

/// What a person has to know to decide: who is missing and since when, what the chosen one holds, what may be lost.
fn question(found: &ClusterStatus, cluster: &str, pod: &str, now: Timestamp) -> String {
    let phase = found.summary.as_ref().map(|summary| summary.phase.clone()).unwrap_or_default();
    let blocked = found.conditions.iter().find(|condition| condition.r#type == "FailoverBlocked");
    let mut text = match blocked.filter(|condition| condition.status == "True") {
        Some(condition) => {
            let since = time(condition.last_transition_time);
            let since = since.map_or_else(
                || "for an unknown time".to_owned(),
                |since| format!("since {since:.0}, {} ago", age(since, now)),
            );
            format!("{cluster} is {phase} {since}: {}\n", one_line(&condition.message))
        }
        None => format!("{cluster} is {phase}, and its failover is not blocked\n"),
    };
    for instance in &found.instances {
        text = format!("{text}  {}: {}, {}\n", instance.name, instance.role, one_line(&instance.message));
    }
    let chosen = found.instances.iter().find(|instance| instance.name == pod);
    let held = chosen.map(|chosen| one_line(&chosen.gtid_executed)).unwrap_or_default();
    let held = if held.is_empty() { "nothing that is known" } else { &held };
    format!(
        "{text}\
         {pod} has executed {held}\n\
         Every commit that was acknowledged to a client and {pod} does not hold is lost to {cluster} once {pod} is the \
         primary.\nAn instance that comes back with some is left alone until it is rebuilt. Make sure that none goes on \
         running where the shard can't reach it.\n\
         Type the name of the cluster to go on: "
    )
}

fn typed(cluster: &str, input: &mut impl BufRead) -> Result<Consent, ForceError> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let given = line.trim_end_matches(['\r', '\n']).to_owned();
    if given == cluster {
        return Ok(Consent { confirm: given });
    }
    Err(ForceError::NotTyped { given, cluster: cluster.to_owned() })
}

#[cfg(test)]
mod tests {
    use fleet_proto::shard::v1::{ClusterSummary, Condition, InstanceStatus};

    use super::*;

    #[test]
    fn only_who_accepts_the_loss_and_names_the_cluster_gives_consent() {
        let given =
            |accept, confirm, at_terminal| consent("orders", "orders-2", accept, confirm, at_terminal);
        let taken = given(true, Some("orders"), false).unwrap().unwrap();
        assert_eq!(taken.confirm(), "orders");
        assert_eq!(given(true, Some("orders"), true).unwrap(), Some(taken));
        assert_eq!(given(true, None, true).unwrap(), None, "the person is asked");
        for (accept, confirm, at_terminal, part) in [
            (false, None, true, "--accept-data-loss is missing: commits that were acknowledged"),
            (false, Some("orders"), false, "orders-2 does not hold are lost to orders"),
            (true, None, false, "give --confirm orders"),
            (true, Some(""), false, "--confirm is \"\""),
            (true, Some("Orders"), true, "--confirm is \"Orders\""),
            (true, Some("orders "), false, "not the name of the cluster that may lose data: \"orders\""),
        ] {
            let refused = given(accept, confirm, at_terminal).unwrap_err();
            assert!(refused.is_usage() && refused.to_string().contains(part), "{refused}");
        }
    }

    #[test]
    fn only_the_name_of_the_cluster_is_taken_for_consent() {
        for line in ["orders\n", "orders\r\n", "orders"] {
            assert_eq!(typed("orders", &mut line.as_bytes()).unwrap().confirm(), "orders");
        }
        for line in ["", "\n", "yes\n", "y\n", "Orders\n", "orders2\n", " orders\n", "\norders\n"] {
            let refused = typed("orders", &mut line.as_bytes()).unwrap_err();
            assert!(
                !refused.is_usage() && refused.to_string().contains("nothing was asked for"),
                "{refused}"
            );
        }
    }

    fn blocked() -> ClusterStatus {
        let instance = |name: &str, role: &str, message: &str, executed: &str| InstanceStatus {
            name: name.to_owned(),
            role: role.to_owned(),
            message: message.to_owned(),
            gtid_executed: executed.to_owned(),
            ..InstanceStatus::default()
        };
        ClusterStatus {
            summary: Some(ClusterSummary {
                name: "orders".to_owned(),
                phase: "FailoverBlocked".to_owned(),
                ..ClusterSummary::default()
            }),
            conditions: vec![Condition {
                r#type: "FailoverBlocked".to_owned(),
                status: "True".to_owned(),
                message: "orders-0 has no pod; orders-1\x1b[2J has no pod".to_owned(),
                last_transition_time: Some(prost_types::Timestamp { seconds: 1_767_225_600, nanos: 0 }),
                ..Condition::default()
            }],
            instances: vec![
                instance("orders-0", "Unknown", "has no pod", ""),
                instance("orders-2", "Joining", "waits for orders-0", "3e11fa47:1-7"),
            ],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn a_person_is_shown_who_is_missing_since_when_and_what_the_chosen_one_holds() {
        let now = Timestamp::from_second(1_767_225_600 + 7200).unwrap();
        let text = question(&blocked(), "orders", "orders-2", now);
        for part in [
            "orders is FailoverBlocked since 2026-01-01T00:00:00Z, 2h ago: orders-0 has no pod; orders-1 [2J has no pod",
            "  orders-0: Unknown, has no pod\n",
            "orders-2 has executed 3e11fa47:1-7\n",
            "acknowledged to a client and orders-2 does not hold is lost to orders",
            "Type the name of the cluster to go on: ",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        let mut healthy = blocked();
        healthy.conditions.clear();
        let text = question(&healthy, "orders", "orders-7", now);
        assert!(text.contains("its failover is not blocked"), "{text}");
        assert!(text.contains("orders-7 has executed nothing that is known"), "{text}");
    }
}
