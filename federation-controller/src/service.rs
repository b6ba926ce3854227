//! FederationService: the streams of members, and what people can ask a hub.

mod drift;
mod state;

use std::pin::Pin;

use fleet_proto::federation::v1::{
    ConnectRequest, ConnectResponse, GetFederationStatusRequest, GetFederationStatusResponse, Hello,
    WatchFederationStatusRequest, WatchFederationStatusResponse, Welcome, connect_request::Message,
    federation_service_server::FederationService,
};
use fleet_runtime::{grpc::Peer, tls::Identity};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming};

pub use state::HubState;

use crate::{
    config::Pace,
    streams::{self, Outbox, Shard},
};

/// Answers for one pod of a hub.
#[derive(Clone)]
pub struct Service {
    /// What is told.
    pub state: HubState,
    /// What members have to keep to.
    pub pace: Pace,
    /// The tasks of the streams, which end with the shutdown.
    pub tasks: TaskTracker,
    /// Ends the streams.
    pub shutdown: CancellationToken,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl FederationService for Service {
    type ConnectStream = Responses<ConnectResponse>;

    async fn connect(
        &self,
        request: Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let shard = match identity(&request) {
            Some(Identity::Member { member, namespace }) => Shard { member, namespace },
            Some(Identity::Tenant { .. } | Identity::Hub | Identity::Viewer) | None => return Err(denied()),
        };
        self.admit(&shard)?;
        let mut inbound = request.into_inner();
        let hello = self.hello(&mut inbound).await?;
        let millis = |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval_ms: millis(self.pace.heartbeat),
            silence_ms: millis(self.pace.silence),
        };
        tracing::info!(
            member = shard.member,
            tenant = shard.namespace,
            pod = hello.pod,
            "a shard has connected"
        );
        let stream = self.state.streams.begin(shard.clone(), &hello, welcome, Timestamp::now());
        let outbox = std::sync::Arc::clone(&stream.outbox);
        // Its own task: a shard that does not read what it is told is listened to all the same.
        let (service, ends) = (self.clone(), EndOnDrop(std::sync::Arc::clone(&outbox)));
        self.tasks.spawn(async move {
            let status = service.listen(&stream, &shard, inbound).await;
            tracing::info!(
                member = shard.member,
                tenant = shard.namespace,
                reason = status.message(),
                "a stream is over"
            );
            stream.outbox.end(status);
        });
        let responses = stream::unfold((outbox, ends), |(outbox, ends)| async move {
            let next = outbox.next().await?;
            Some((next, (outbox, ends)))
        });
        Ok(Response::new(responses.boxed()))
    }

    async fn get_federation_status(
        &self,
        request: Request<GetFederationStatusRequest>,
    ) -> Result<Response<GetFederationStatusResponse>, Status> {
        require_viewer(&request)?;
        Ok(Response::new(GetFederationStatusResponse { status: Some(self.state.status()) }))
    }

    type WatchFederationStatusStream = Responses<WatchFederationStatusResponse>;

    async fn watch_federation_status(
        &self,
        request: Request<WatchFederationStatusRequest>,
    ) -> Result<Response<Self::WatchFederationStatusStream>, Status> {
        require_viewer(&request)?;
        // The next state is taken when the reader asks for it: one that is slow gets the latest.
        let states = stream::unfold(self.state.changes(), |mut changes| async move {
            let status = changes.next().await?;
            Some((Ok(WatchFederationStatusResponse { status: Some(status) }), changes))
        });
        Ok(Response::new(states.take_until(self.shutdown.clone().cancelled_owned()).boxed()))
    }
}

/// The shard's side of the stream is gone, so its task has nobody to speak to.
struct EndOnDrop(std::sync::Arc<Outbox>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(Status::cancelled("the shard has ended the stream"));
    }
}

impl Service {
    /// Whether a shard is listened to now: only by the pod that leads. What is missing is in the log alone.
    fn admit(&self, shard: &Shard) -> Result<(), Status> {
        if !self.state.gate.is_open() {
            return Err(Status::unavailable("this pod of the hub does not lead: dial again"));
        }
        self.state.stores.allows(&shard.member, &shard.namespace).map_err(|reason| {
            tracing::warn!(member = shard.member, tenant = shard.namespace, reason, "a shard is turned away");
            denied()
        })
    }

    async fn hello(&self, inbound: &mut Streaming<ConnectRequest>) -> Result<Hello, Status> {
        match timeout(self.pace.silence, inbound.message()).await {
            Err(_) => Err(Status::deadline_exceeded("there was no hello")),
            Ok(message) => match message?.and_then(|request| request.message) {
                Some(Message::Hello(hello)) => Ok(hello),
                _ => Err(Status::invalid_argument("the first message must be a hello")),
            },
        }
    }

    /// Listens to a shard until its stream is over; returns why.
    async fn listen(
        &self,
        stream: &streams::Stream,
        shard: &Shard,
        mut inbound: Streaming<ConnectRequest>,
    ) -> Status {
        loop {
            let message = tokio::select! {
                message = timeout(self.pace.silence, inbound.message()) => message,
                () = stream.outbox.ended() => return Status::cancelled("the stream has been ended"),
                () = self.shutdown.cancelled() => return Status::unavailable("the hub ends: dial again"),
            };
            // Also that the member is still allowed: it may have changed.
            let heard = self.admit(shard).and_then(|()| match message {
                Err(_) => {
                    Err(Status::deadline_exceeded(format!("nothing was heard for {:?}", self.pace.silence)))
                }
                Ok(Err(status)) => Err(status),
                Ok(Ok(None)) => Err(Status::cancelled("the shard has ended the stream")),
                Ok(Ok(Some(request))) => take(stream, request),
            });
            if let Err(status) = heard {
                return status;
            }
        }
    }
}

/// Takes what a shard has said.
fn take(stream: &streams::Stream, request: ConnectRequest) -> Result<(), Status> {
    let now = Timestamp::now();
    match request.message {
        Some(Message::Heartbeat(heartbeat)) => {
            stream.heard(now);
            stream.outbox.heartbeat(heartbeat.sequence);
            Ok(())
        }
        Some(Message::Report(report)) => stream.report(report, now),
        Some(Message::Hello(_)) => Err(Status::invalid_argument("a hello is the first message alone")),
        // A kind of message that this version does not know.
        None => Ok(()),
    }
}

fn identity<T>(request: &Request<T>) -> Option<Identity> {
    request.extensions().get::<Peer>().and_then(|peer| peer.identity.clone())
}

fn require_viewer<T>(request: &Request<T>) -> Result<(), Status> {
    match identity(request) {
        Some(Identity::Viewer) => Ok(()),
        Some(Identity::Tenant { .. } | Identity::Member { .. } | Identity::Hub) | None => Err(denied()),
    }
}

fn denied() -> Status {
    Status::permission_denied("permission denied")
}
