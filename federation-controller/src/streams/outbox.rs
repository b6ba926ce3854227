//! What one stream has to send: at most one message of each kind, so that a slow reader costs no memory and gets the
//! latest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_proto::federation::v1::{
    ConnectResponse, Desired, DesiredCluster, Heartbeat, Welcome, connect_response::Message,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// The messages that wait.
pub struct Outbox {
    pending: Mutex<Pending>,
    news: Notify,
    ended: CancellationToken,
}

struct Pending {
    welcome: Option<Welcome>,
    heartbeat: Option<u64>,
    desired: Option<Arc<[DesiredCluster]>>,
    sequence: u64,
    sent: Option<Arc<[DesiredCluster]>>,
    end: Option<Status>,
    over: bool,
}

impl Outbox {
    /// One that begins with the welcome.
    pub fn new(welcome: Welcome) -> Self {
        let pending = Pending {
            welcome: Some(welcome),
            heartbeat: None,
            desired: None,
            sequence: 0,
            sent: None,
            end: None,
            over: false,
        };
        Self { pending: Mutex::new(pending), news: Notify::new(), ended: CancellationToken::new() }
    }

    /// Answers a heartbeat. An answer that has not been sent yet gives way.
    pub fn heartbeat(&self, sequence: u64) {
        self.lock().heartbeat = Some(sequence);
        self.news.notify_one();
    }

    /// Sends a desired state. One that has not been sent yet gives way.
    pub fn desire(&self, clusters: Arc<[DesiredCluster]>) {
        self.lock().desired = Some(clusters);
        self.news.notify_one();
    }

    /// Ends the stream with this status, before anything else that waits. The first status counts.
    pub fn end(&self, status: Status) {
        self.lock().end.get_or_insert(status);
        self.ended.cancel();
        self.news.notify_one();
    }

    /// Waits until [`Self::end`] was called.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The desired state of this number, if it is the newest that was sent.
    pub fn sent(&self, sequence: u64) -> Option<Arc<[DesiredCluster]>> {
        let pending = self.lock();
        (sequence == pending.sequence).then(|| pending.sent.clone()).flatten()
    }

    /// The next message, or the status that ends the stream; then nothing. Cancel safe.
    pub async fn next(&self) -> Option<Result<ConnectResponse, Status>> {
        loop {
            match self.lock().take() {
                Next::Send(message) => return Some(message),
                Next::Over => return None,
                Next::Wait => {}
            }
            self.news.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the stream has to do next.
enum Next {
    Send(Result<ConnectResponse, Status>),
    /// Nothing is sent any more.
    Over,
    /// Nothing waits.
    Wait,
}

impl Pending {
    fn take(&mut self) -> Next {
        let send = |message| Next::Send(Ok(ConnectResponse { message: Some(message) }));
        if self.over {
            return Next::Over;
        }
        if let Some(status) = self.end.take() {
            self.over = true;
            return Next::Send(Err(status));
        }
        if let Some(welcome) = self.welcome.take() {
            return send(Message::Welcome(welcome));
        }
        if let Some(sequence) = self.heartbeat.take() {
            return send(Message::Heartbeat(Heartbeat { sequence }));
        }
        let Some(clusters) = self.desired.take() else {
            return Next::Wait;
        };
        self.sequence += 1;
        self.sent = Some(Arc::clone(&clusters));
        send(Message::Desired(Desired { sequence: self.sequence, clusters: clusters.to_vec() }))
    }
}
