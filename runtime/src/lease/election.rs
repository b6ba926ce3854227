//! Taking the Lease, keeping it, giving it up.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Gate, JITTER, LeaseConfig, LeaseError, LeaseState, LeaseView, Record, record::created};
use crate::backoff::jitter;

/// A Lease that this process wants.
#[derive(Debug)]
pub struct Lease {
    api: Api<Object>,
    config: LeaseConfig,
    gate: Gate,
    state: watch::Sender<LeaseState>,
    record: Option<Record>,
}

/// How one try has ended.
enum Try {
    /// The Lease is held by us; the call that made it so was sent at the instant.
    Held(Instant),
    /// Another holds it.
    Other,
    /// It is not known.
    Failed(String),
}

impl Lease {
    /// A Lease that is not yet tried for.
    pub fn new(client: Client, config: LeaseConfig) -> Result<Self, LeaseError> {
        config.check()?;
        Ok(Self {
            api: Api::namespaced(client, &config.namespace),
            gate: Gate::closed(config.write_timeout()),
            state: watch::Sender::new(LeaseState::Follower(LeaseView::default())),
            record: None,
            config,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The gate that is open while this process holds the Lease.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Where this process stands, and its changes. Each renewal is one, by its time.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.subscribe()
    }

    /// Takes the Lease when it is free, and keeps it until it is lost or `work_stopped` is cancelled.
    ///
    /// Cancel `work_stopped` after the last task that writes has ended: the Lease is then free for
    /// another at once. On an error the Lease is lost, the gate is closed, and the process must end: its
    /// caches and plans are those of a leader that it is no more.
    ///
    /// Dropping the future closes the gate at the renew deadline, and leaves the Lease to expire.
    pub async fn run(mut self, work_stopped: CancellationToken) -> Result<(), LeaseError> {
        let Some(renewed) = self.acquire(&work_stopped).await else {
            return Ok(());
        };
        tracing::info!(lease = %self.config.name, "took the Lease");
        match self.keep(renewed, &work_stopped).await {
            Ok(()) => {
                self.gate.close();
                self.release().await;
                self.publish(LeaseState::Follower);
                Ok(())
            }
            Err(cause) => {
                self.gate.close();
                self.state.send_replace(LeaseState::Lost);
                Err(LeaseError::Lost {
                    namespace: self.config.namespace.clone(),
                    name: self.config.name.clone(),
                    cause,
                })
            }
        }
    }

    /// Tries until it is held. Returns nothing if the work has stopped before.
    async fn acquire(&mut self, work_stopped: &CancellationToken) -> Option<Instant> {
        let mut complaint = String::new();
        loop {
            // A call under way is not dropped: it may have taken the Lease, which then has to be released.
            let outcome = self.attempt(self.config.call_timeout()).await;
            let now = Instant::now();
            match outcome {
                Try::Held(sent) if sent + self.config.renew_deadline > now => {
                    self.gate.open_until(sent + self.config.renew_deadline);
                    self.publish(LeaseState::Leader);
                    return Some(sent);
                }
                Try::Held(_) => {}
                Try::Other => {
                    complaint.clear();
                    self.publish(LeaseState::Follower);
                }
                Try::Failed(cause) => {
                    if cause != complaint {
                        tracing::warn!(lease = %self.config.name, %cause, "can't try for the Lease");
                    }
                    complaint = cause;
                }
            }
            let mut next = now + jitter(self.config.retry_period, JITTER);
            if let Some(record) = &self.record {
                let expires = record.expires(self.config.lease_duration);
                if expires > now {
                    next = next.min(expires);
                }
            }
            tokio::select! {
                () = sleep_until(next) => {}
                () = work_stopped.cancelled() => return None,
            }
        }
    }

    /// Renews until the work has stopped (fine) or the Lease is lost (why).
    async fn keep(&mut self, mut renewed: Instant, work_stopped: &CancellationToken) -> Result<(), String> {
        let mut next = renewed + self.config.retry_period;
        let mut last = String::from("no renewal was tried");
        loop {
            let deadline = renewed + self.config.renew_deadline;
            tokio::select! {
                () = sleep_until(next.min(deadline)) => {}
                () = work_stopped.cancelled() => return Ok(()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.config.renew_deadline.as_secs_f64();
                return Err(format!("it could not be renewed for {seconds} s: {last}"));
            }
            // Half of what is left at most: a call that hangs leaves time for another, as long as that is
            // worth it.
            let limit =
                (left / 2).max(self.config.retry_period / 10).min(self.config.call_timeout()).min(left);
            match self.attempt(limit).await {
                Try::Held(sent) if Instant::now() < deadline => {
                    renewed = sent;
                    next = renewed + self.config.retry_period;
                    self.gate.open_until(renewed + self.config.renew_deadline);
                    self.publish(LeaseState::Leader);
                }
                Try::Held(_) => "the answer came too late".clone_into(&mut last),
                Try::Other => {
                    let holder = self.record.as_ref().and_then(Record::holder).unwrap_or("nobody");
                    return Err(format!("it is held by {holder}"));
                }
                Try::Failed(cause) => {
                    tracing::warn!(lease = %self.config.name, %cause, "can't renew the Lease");
                    last = cause;
                    next = Instant::now() + jitter(self.config.retry_period / 20, 1.0);
                }
            }
        }
    }

    async fn attempt(&mut self, limit: Duration) -> Try {
        match timeout(limit, self.try_once()).await {
            Ok(outcome) => outcome,
            Err(_) => Try::Failed(format!("no answer from the API server in {} s", limit.as_secs_f64())),
        }
    }

    /// One try: renew what we hold without reading it first; else read, and take what is free.
    async fn try_once(&mut self) -> Try {
        let sent = Instant::now();
        if let Some(record) = &self.record
            && record.holder() == Some(self.config.identity.as_str())
        {
            let lease = record.held(&self.config, Timestamp::now());
            match self.api.replace(&self.config.name, &PostParams::default(), &lease).await {
                Ok(lease) => return self.held(lease, sent),
                // Somebody has changed it, or it is gone: look.
                Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
                Err(error) => return Try::Failed(error.to_string()),
            }
        }
        match self.api.get_opt(&self.config.name).await {
            Ok(Some(lease)) => self.record = Some(Record::observe(self.record.take(), lease, Instant::now())),
            Ok(None) => return self.create().await,
            Err(error) => return Try::Failed(error.to_string()),
        }
        let Some(record) = &self.record else {
            return Try::Other;
        };
        if self.is_anothers(record) {
            return Try::Other;
        }
        let sent = Instant::now();
        let lease = record.held(&self.config, Timestamp::now());
        match self.api.replace(&self.config.name, &PostParams::default(), &lease).await {
            Ok(lease) => self.held(lease, sent),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Try::Failed("another has changed it at the same time".to_owned())
            }
            Err(error) => Try::Failed(error.to_string()),
        }
    }

    /// Makes a Lease that does not exist. One that was seen held, and then was deleted, still counts as
    /// held until it would have expired: its holder works on.
    async fn create(&mut self) -> Try {
        if self.record.as_ref().is_some_and(|record| self.is_anothers(record)) {
            return Try::Other;
        }
        let sent = Instant::now();
        let lease = created(&self.config, Timestamp::now());
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(lease) => self.held(lease, sent),
            Err(error) => Try::Failed(error.to_string()),
        }
    }

    fn is_anothers(&self, record: &Record) -> bool {
        record.holder().is_some_and(|holder| holder != self.config.identity)
            && Instant::now() < record.expires(self.config.lease_duration)
    }

    fn held(&mut self, lease: Object, sent: Instant) -> Try {
        self.record = Some(Record::new(lease, Instant::now()));
        Try::Held(sent)
    }

    /// Frees the Lease. When that fails it expires by itself, so the failure is only told.
    async fn release(&mut self) {
        let Some(record) = &self.record else { return };
        let lease = record.released(Timestamp::now());
        let params = PostParams::default();
        let replace = self.api.replace(&self.config.name, &params, &lease);
        match timeout(self.config.call_timeout(), replace).await {
            Ok(Ok(lease)) => {
                self.record = Some(Record::new(lease, Instant::now()));
                tracing::info!(lease = %self.config.name, "released the Lease");
            }
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.config.name, %error, "can't release the Lease, it will expire");
            }
            Err(_) => {
                tracing::warn!(lease = %self.config.name, "can't release the Lease in time, it will expire");
            }
        }
    }

    fn publish(&self, state: fn(LeaseView) -> LeaseState) {
        let view = self.record.as_ref().map(Record::view).unwrap_or_default();
        self.state.send_if_modified(|current| {
            let next = state(view);
            let changed = *current != next;
            *current = next;
            changed
        });
    }
}
