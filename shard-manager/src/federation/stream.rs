//! One stream to the hub, from its hello to its end.
//!
//! The report goes out before anything of the hub but its welcome is read: nothing can be applied or deleted before
//! the hub could know what is there. All buffers are bounded: what waits to be said is a flag, not a message, and is
//! put together when there is room for it, from the state of that moment.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleet_proto::federation::v1::{
    ClusterState, ConnectRequest, ConnectResponse, Heartbeat, Hello, Report, Welcome, connect_request,
    connect_response, federation_service_client::FederationServiceClient,
};
use fleet_runtime::{grpc::MAX_MESSAGE_BYTES, tls::Identity};
use futures::stream;
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout},
};
use tonic::{Streaming, transport::Channel};

use super::{
    link::LinkError,
    report::cluster_state,
    state::LinkBoard,
    work::{Answer, Latest, Work},
};

/// Messages that wait to be sent.
const OUTBOUND: usize = 2;
/// Limit of the hub's welcome.
const WELCOME: Duration = Duration::from_secs(10);
/// Limits of what a welcome may ask for.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_mins(10);

type Outbound = mpsc::Sender<ConnectRequest>;

/// What a stream is held with.
pub(super) struct Link<'a> {
    pub(super) pod: &'a str,
    pub(super) identity: Option<&'a Identity>,
    pub(super) work: &'a Work,
    pub(super) board: &'a LinkBoard,
}

/// What the welcome has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    heartbeat: Duration,
    silence: Duration,
}

impl Pace {
    fn of(welcome: &Welcome) -> Result<Self, LinkError> {
        let heartbeat = Duration::from_millis(welcome.heartbeat_interval_ms.into());
        let silence = Duration::from_millis(welcome.silence_ms.into());
        if heartbeat < SHORTEST || silence <= heartbeat || silence > LONGEST {
            return Err(LinkError::Contract(format!(
                "its welcome has heartbeat_interval_ms {} and silence_ms {}: the first has to be at least {}, the \
                 second greater and at most {}",
                welcome.heartbeat_interval_ms,
                welcome.silence_ms,
                SHORTEST.as_millis(),
                LONGEST.as_millis()
            )));
        }
        Ok(Self { heartbeat, silence })
    }
}

/// What was last reported.
#[derive(Default)]
struct Reported {
    sequence: u64,
    clusters: Vec<ClusterState>,
    answer: Answer,
}

impl Link<'_> {
    /// Holds the stream until it ends.
    pub(super) async fn hold(&self, channel: Channel) -> Result<Infallible, LinkError> {
        let (outbound, mut queue) = mpsc::channel(OUTBOUND);
        let requests = stream::poll_fn(move |context| queue.poll_recv(context));
        let hello = Hello { version: env!("CARGO_PKG_VERSION").to_owned(), pod: self.pod.to_owned() };
        say(&outbound, connect_request::Message::Hello(hello)).await?;
        let mut client = FederationServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let welcomed = timeout(WELCOME, async {
            let mut inbound =
                client.connect(requests).await.map_err(|status| self.failed(&status))?.into_inner();
            match self.next(&mut inbound).await? {
                connect_response::Message::Welcome(welcome) => Ok((inbound, Pace::of(&welcome)?)),
                _ => Err(LinkError::Contract("its first message is no welcome".to_owned())),
            }
        });
        let (inbound, pace) = welcomed.await.map_err(|_| LinkError::Silent(WELCOME))??;
        let mut reported = Reported::default();
        let nothing = Answer::default();
        let first = timeout(pace.silence, self.report(&outbound, &nothing, &mut reported));
        first.await.map_err(|_| LinkError::Silent(pace.silence))??;
        self.board.connected();
        tracing::info!(?pace, "the hub has taken the stream");

        let (desired, wanted) = watch::channel::<Latest>(None);
        let (answers, answered) = watch::channel(Answer::default());
        tokio::select! {
            ended = self.exchange(inbound, outbound, pace, (desired, answered), reported) => ended,
            () = self.work.run(wanted, &answers) => Err(LinkError::Ended),
        }
    }

    async fn exchange(
        &self,
        mut inbound: Streaming<ConnectResponse>,
        outbound: Outbound,
        pace: Pace,
        (desired, mut answered): (watch::Sender<Latest>, watch::Receiver<Answer>),
        mut reported: Reported,
    ) -> Result<Infallible, LinkError> {
        let mut clusters = self.work.changed.clone();
        // What has changed since the first report was put together is looked at once more.
        clusters.mark_changed();
        let mut heartbeats = interval_at(Instant::now() + pace.heartbeat, pace.heartbeat);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut heartbeat_due, mut report_due, mut sequence) = (false, false, 0_u64);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                room = outbound.reserve(), if heartbeat_due || report_due => {
                    drop(room.map_err(|_| LinkError::Ended)?);
                    if heartbeat_due {
                        heartbeat_due = false;
                        sequence += 1;
                        let heartbeat = Heartbeat { sequence };
                        say(&outbound, connect_request::Message::Heartbeat(heartbeat)).await?;
                    } else {
                        report_due = false;
                        let answer = answered.borrow_and_update().clone();
                        self.report(&outbound, &answer, &mut reported).await?;
                    }
                }
                message = self.next(&mut inbound) => {
                    heard = Instant::now();
                    match message? {
                        connect_response::Message::Heartbeat(_) => {}
                        connect_response::Message::Desired(new) => drop(desired.send_replace(Some(Arc::new(new)))),
                        connect_response::Message::Welcome(_) => {
                            return Err(LinkError::Contract("it welcomes twice".to_owned()));
                        }
                    }
                }
                news = clusters.changed() => {
                    news.map_err(|_| LinkError::Ended)?;
                    report_due = true;
                }
                news = answered.changed() => {
                    news.map_err(|_| LinkError::Ended)?;
                    report_due = true;
                }
                _ = heartbeats.tick() => heartbeat_due = true,
                () = sleep_until(heard + pace.silence) => return Err(LinkError::Silent(pace.silence)),
            }
        }
    }

    /// Reports all clusters as they are now, unless the hub knows that already.
    async fn report(
        &self,
        outbound: &Outbound,
        answer: &Answer,
        reported: &mut Reported,
    ) -> Result<(), LinkError> {
        let mut clusters: Vec<ClusterState> =
            self.work.seen.state().iter().map(|cluster| cluster_state(cluster)).collect();
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        if reported.sequence != 0 && reported.clusters == clusters && reported.answer == *answer {
            return Ok(());
        }
        *reported =
            Reported { sequence: reported.sequence + 1, clusters: clusters.clone(), answer: answer.clone() };
        let report = Report {
            sequence: reported.sequence,
            clusters,
            answered: answer.sequence,
            outcomes: answer.outcomes.clone(),
        };
        let size = report.encoded_len();
        if size > MAX_MESSAGE_BYTES {
            return Err(LinkError::TooLarge { size, limit: MAX_MESSAGE_BYTES });
        }
        say(outbound, connect_request::Message::Report(report)).await
    }

    /// Cancel safe: a message that was not returned is returned by the next call.
    async fn next(
        &self,
        inbound: &mut Streaming<ConnectResponse>,
    ) -> Result<connect_response::Message, LinkError> {
        match inbound.message().await {
            Ok(Some(ConnectResponse { message: Some(message) })) => Ok(message),
            Ok(Some(ConnectResponse { message: None })) => Err(LinkError::Contract(
                "a message of it is of a kind that this version does not know".to_owned(),
            )),
            Ok(None) => Err(LinkError::Ended),
            Err(status) => Err(self.failed(&status)),
        }
    }

    fn failed(&self, status: &tonic::Status) -> LinkError {
        LinkError::of(status, self.identity)
    }
}

async fn say(outbound: &Outbound, message: connect_request::Message) -> Result<(), LinkError> {
    let request = ConnectRequest { message: Some(message) };
    outbound.send(request).await.map_err(|_| LinkError::Ended)
}
