//! `kubectl fleet switchover`, `instance rebuild`, `instance release` and `force-primary`: ask a shard for something, and
//! wait for what becomes of it.
//!
//! What was asked for is on the cluster's object, so it goes on though this program, or the shard's pod that it talks to,
//! ends.

use std::{
    io::{self, Write},
    time::Duration,
};

use fleet_proto::shard::v1::{
    AnsweredRequest, ClusterStatus, RequestForcePrimaryRequest, RequestRebuildRequest, RequestReleaseRequest,
    RequestSwitchoverRequest, WatchShardStatusRequest, WatchShardStatusResponse,
    shard_service_client::ShardServiceClient,
};
use fleet_runtime::grpc::MAX_MESSAGE_BYTES;
use kube::Client;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    force::Consent,
    status::{
        ShardOptions, StatusError, client,
        find::{self, Connection, Server},
    },
};

/// Pause before a shard that could not be asked is asked again: its pods are being exchanged.
const AGAIN: Duration = Duration::from_millis(500);
/// The outcome of an answer, in the words of the wire.
const DONE: &str = "Done";

/// What can be asked for.
#[derive(Clone, Debug)]
pub enum What {
    /// Another primary.
    Switchover {
        /// The pod that is to be the primary; any that can without it.
        to: Option<String>,
    },
    /// A copy in place of an instance's data, which hold what the primary does not.
    Rebuild {
        /// Its pod.
        pod: String,
    },
    /// The cluster counts as its own what an instance holds and the primary does not.
    Release {
        /// Its pod.
        pod: String,
        /// Those transactions.
        gtids: String,
    },
    /// Another primary where the failover is blocked, at the price of data.
    ForcePrimary {
        /// The pod that is to be the primary.
        pod: String,
        /// That data may be lost.
        consent: Consent,
    },
}

impl What {
    /// The kind of the answer, in the words of the wire.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Switchover { .. } => "Switchover",
            Self::Rebuild { .. } => "Rebuild",
            Self::Release { .. } => "Release",
            Self::ForcePrimary { .. } => "ForcePrimary",
        }
    }

    /// What was asked for, for people.
    fn told(&self, primary: &str) -> String {
        match self {
            Self::Switchover { to } => {
                let to = to.as_deref().unwrap_or("any other instance");
                format!("asked for {to}; the primary is {primary}")
            }
            Self::Rebuild { pod } => format!("asked for {pod} to be rebuilt; the primary is {primary}"),
            Self::Release { pod, gtids } => {
                format!("asked for {pod} to be released with {gtids}; the primary is {primary}")
            }
            Self::ForcePrimary { pod, .. } => {
                format!("asked for {pod}, whatever is lost by it; the primary is {primary}")
            }
        }
    }

    async fn ask(&self, service: &mut ShardServiceClient<Channel>, cluster: &str) -> Result<(), Status> {
        let cluster = cluster.to_owned();
        match self {
            Self::Switchover { to } => {
                let request = RequestSwitchoverRequest { cluster, to: to.clone().unwrap_or_default() };
                service.request_switchover(request).await.map(drop)
            }
            Self::Rebuild { pod } => {
                let request = RequestRebuildRequest { cluster, pod: pod.clone() };
                service.request_rebuild(request).await.map(drop)
            }
            Self::Release { pod, gtids } => {
                let request = RequestReleaseRequest { cluster, pod: pod.clone(), gtids: gtids.clone() };
                service.request_release(request).await.map(drop)
            }
            Self::ForcePrimary { pod, consent } => {
                let confirm = consent.confirm().to_owned();
                let (pod, accept_data_loss) = (pod.clone(), true);
                let request = RequestForcePrimaryRequest { cluster, pod, accept_data_loss, confirm };
                service.request_force_primary(request).await.map(drop)
            }
        }
    }
}

/// What to ask for, and of which shard.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// The cluster.
    pub cluster: String,
    /// What.
    pub what: What,
    /// Which shard.
    pub shard: ShardOptions,
    /// How long to wait.
    pub timeout: Duration,
}

/// What was asked for was not done.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The shard can't be asked.
    #[error(transparent)]
    Shard(#[from] StatusError),
    /// There is no such cluster.
    #[error("there is no MySQLCluster {cluster} in namespace {namespace}")]
    NoCluster {
        /// The cluster.
        cluster: String,
        /// The namespace.
        namespace: String,
    },
    /// The request was not taken.
    #[error("the shard takes no such request: {0}")]
    NotTaken(String),
    /// The request was refused.
    #[error("refused, and nothing was changed: {0}")]
    Refused(String),
    /// There was no answer in time.
    #[error("no answer within {limit:?}: {last}. The request goes on; see `kubectl fleet status`")]
    NoAnswer {
        /// How long was waited.
        limit: Duration,
        /// The last thing that was seen.
        last: String,
    },
    /// A step can't be printed.
    #[error("can't print: {0}")]
    Output(#[from] io::Error),
}

impl RequestError {
    /// Whether an argument has to be changed.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Shard(error) if error.is_usage())
    }
}

/// Asks, and prints each step with the time since the request.
pub async fn run(options: &RequestOptions, output: &mut impl Write) -> Result<(), RequestError> {
    let (client, namespace) = client(&options.shard).await?;
    let mut progress =
        Progress { options, namespace, since: Instant::now(), asked: false, before: None, last: None };
    let deadline = Instant::now() + options.timeout;
    loop {
        match timeout_at(deadline, progress.follow(&client, output)).await {
            Ok(Ok(())) => return Ok(()),
            // Once the shard was found, it is asked again: what was asked for is not lost with one of its pods.
            Ok(Err(RequestError::Shard(error))) if progress.last.is_some() && error.may_pass() => {
                eprintln!("{error}; trying again");
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(progress.no_answer()),
        }
        if timeout_at(deadline, sleep(AGAIN)).await.is_err() {
            return Err(progress.no_answer());
        }
    }
}

struct Progress<'a> {
    options: &'a RequestOptions,
    namespace: String,
    since: Instant,
    /// Whether it was asked for.
    asked: bool,
    /// The answer to the request before.
    before: Option<AnsweredRequest>,
    /// The step that was printed last.
    last: Option<String>,
}

impl Progress<'_> {
    /// Asks if that was not done yet, and waits for the answer or until the connection ends.
    async fn follow(&mut self, client: &Client, output: &mut impl Write) -> Result<(), RequestError> {
        let shard = find::connect(client, &self.namespace, Server::Shard).await?;
        let mut service =
            ShardServiceClient::new(shard.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let states = service.watch_shard_status(WatchShardStatusRequest {}).await;
        let mut states = states.map_err(|status| shard.call_failed(&status))?.into_inner();
        let mut cluster = self.next(&shard, &mut states).await?;
        if !self.asked {
            self.before = self.answer(&cluster);
            self.last = Some(step(&cluster));
            let primary = cluster.summary.unwrap_or_default().primary;
            self.since = Instant::now();
            let RequestOptions { what, cluster: name, .. } = self.options;
            what.ask(&mut service, name).await.map_err(|status| not_taken(&shard, &status))?;
            self.asked = true;
            self.print(output, &what.told(&primary))?;
            cluster = self.next(&shard, &mut states).await?;
        }
        loop {
            let now = step(&cluster);
            if self.last.as_ref() != Some(&now) {
                self.print(output, &now)?;
                self.last = Some(now);
            }
            if let Some(answer) = self.answer(&cluster).filter(|answer| self.is_new(answer)) {
                return self.end(output, answer);
            }
            cluster = self.next(&shard, &mut states).await?;
        }
    }

    /// The last answered request of this kind.
    fn answer(&self, cluster: &ClusterStatus) -> Option<AnsweredRequest> {
        let kind = self.options.what.kind();
        cluster.answered_requests.iter().find(|answered| answered.kind == kind).cloned()
    }

    fn is_new(&self, answer: &AnsweredRequest) -> bool {
        self.asked && self.before.as_ref() != Some(answer)
    }

    fn end(&self, output: &mut impl Write, answer: AnsweredRequest) -> Result<(), RequestError> {
        if answer.outcome != DONE {
            return Err(RequestError::Refused(answer.message));
        }
        Ok(self.print(output, &answer.message)?)
    }

    /// The next state of the cluster.
    async fn next(
        &self,
        shard: &Connection,
        states: &mut Streaming<WatchShardStatusResponse>,
    ) -> Result<ClusterStatus, RequestError> {
        loop {
            let message = states.message().await.map_err(|status| shard.call_failed(&status))?;
            let message = message.ok_or_else(|| StatusError::Call {
                pod: shard.pod.clone(),
                message: "it has ended the stream".to_owned(),
            })?;
            let Some(state) = message.status else { continue };
            let named = |cluster: &ClusterStatus| {
                cluster.summary.as_ref().is_some_and(|summary| summary.name == self.options.cluster)
            };
            return state.clusters.into_iter().find(named).ok_or_else(|| RequestError::NoCluster {
                cluster: self.options.cluster.clone(),
                namespace: self.namespace.clone(),
            });
        }
    }

    fn print(&self, output: &mut impl Write, text: &str) -> io::Result<()> {
        writeln!(output, "{:>7.3} s  {text}", self.since.elapsed().as_secs_f64())?;
        output.flush()
    }

    fn no_answer(&self) -> RequestError {
        let last = self.last.clone().unwrap_or_else(|| "the shard was not found".to_owned());
        RequestError::NoAnswer { limit: self.options.timeout, last }
    }
}

/// What a cluster is at, in one line.
fn step(cluster: &ClusterStatus) -> String {
    let summary = cluster.summary.clone().unwrap_or_default();
    let said = cluster.conditions.iter().find(|condition| condition.r#type == "Progressing");
    let said = said.map_or("", |condition| condition.message.as_str());
    format!("term {}, {}: {said}", summary.term, summary.phase)
}

/// A pod that does not lead, or ends, is another one's turn; anything else is an answer.
fn not_taken(shard: &Connection, status: &Status) -> RequestError {
    match status.code() {
        Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition => {
            RequestError::NotTaken(status.message().to_owned())
        }
        Code::Unimplemented => {
            RequestError::NotTaken("it is older than this program; deploy the shard anew".to_owned())
        }
        Code::Unavailable => {
            StatusError::Call { pod: shard.pod.clone(), message: status.message().to_owned() }.into()
        }
        _ => shard.call_failed(status).into(),
    }
}

#[cfg(test)]
mod tests {
    use fleet_proto::shard::v1::{ClusterSummary, Condition};
    use prost_types::Timestamp;

    use super::*;

    fn answered(outcome: &str, seconds: i64) -> AnsweredRequest {
        AnsweredRequest {
            kind: "Switchover".to_owned(),
            outcome: outcome.to_owned(),
            message: "orders-2 is behind".to_owned(),
            answered_at: Some(Timestamp { seconds, nanos: 0 }),
            ..AnsweredRequest::default()
        }
    }

    fn options() -> RequestOptions {
        RequestOptions {
            cluster: "orders".to_owned(),
            what: What::Switchover { to: None },
            shard: ShardOptions::default(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_answer_to_an_earlier_request_is_none_to_this_one() {
        let options = options();
        let progress = |asked, before| Progress {
            options: &options,
            namespace: "tenant-a".to_owned(),
            since: Instant::now(),
            asked,
            before,
            last: None,
        };
        let same = answered(DONE, 1);
        assert!(!progress(false, None).is_new(&same), "nothing was asked for yet");
        assert!(!progress(true, Some(same.clone())).is_new(&same));
        assert!(progress(true, Some(same)).is_new(&answered(DONE, 2)));
        assert!(progress(true, None).is_new(&answered(DONE, 1)));
    }

    #[test]
    fn a_refusal_ends_with_its_reason() {
        let options = options();
        let progress = Progress {
            options: &options,
            namespace: "tenant-a".to_owned(),
            since: Instant::now(),
            asked: true,
            before: None,
            last: None,
        };
        let mut printed = Vec::new();
        let refused = progress.end(&mut printed, answered("Refused", 1)).unwrap_err();
        assert_eq!(refused.to_string(), "refused, and nothing was changed: orders-2 is behind");
        progress.end(&mut printed, answered(DONE, 1)).unwrap();
        assert!(String::from_utf8(printed).unwrap().ends_with(" s  orders-2 is behind\n"));
    }

    #[test]
    fn a_step_says_the_term_the_phase_and_what_is_done() {
        let cluster = ClusterStatus {
            summary: Some(ClusterSummary {
                phase: "Healthy".to_owned(),
                term: 3,
                ..ClusterSummary::default()
            }),
            conditions: vec![Condition {
                r#type: "Progressing".to_owned(),
                message: "orders-0 takes writes".to_owned(),
                ..Condition::default()
            }],
            ..ClusterStatus::default()
        };
        assert_eq!(step(&cluster), "term 3, Healthy: orders-0 takes writes");
    }
}
