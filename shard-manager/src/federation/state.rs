//! What is known of the link to the hub, for people and for dashboards.

use fleet_runtime::metrics::Metrics;
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use tokio::sync::watch;

use super::link::LinkError;

/// The state of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// The hub's address as it was configured.
    pub endpoint: String,
    /// Whether the hub has taken the stream and is heard.
    pub connected: bool,
    /// Since when it is, or is not.
    pub since: Option<Timestamp>,
    /// Why there was no connection the last time; empty if there never was a failure.
    pub last_error: String,
    /// End of the life of the certificate that was last used.
    pub certificate_expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    reason: &'static str,
}

/// Takes what happens to the link. Clones share it.
#[derive(Clone, Debug)]
pub struct LinkBoard {
    state: watch::Sender<Option<LinkState>>,
    endpoint: String,
    connected: Gauge,
    certificate: Gauge,
    failures: Family<FailureLabels, Counter>,
}

impl LinkBoard {
    /// A board of a link that is not there yet; nothing is shown before [`Self::begin`].
    pub fn new(endpoint: String, metrics: &Metrics) -> Self {
        let (connected, certificate, failures) = (Gauge::default(), Gauge::default(), Family::default());
        metrics.register(|registry| {
            registry.register(
                "mysqlfleet_federation_connected",
                "Whether this process is connected to its hub: 1 or 0",
                connected.clone(),
            );
            registry.register(
                "mysqlfleet_federation_certificate_expiry_timestamp_seconds",
                "End of the life of the certificate that was last shown to the hub, in seconds since 1970",
                certificate.clone(),
            );
            registry.register(
                "mysqlfleet_federation_link_failures",
                "Connections to the hub that failed or ended, by reason",
                failures.clone(),
            );
        });
        Self { state: watch::Sender::new(None), endpoint, connected, certificate, failures }
    }

    /// The state, and its changes; `None` where this process does not lead.
    pub fn watch(&self) -> watch::Receiver<Option<LinkState>> {
        self.state.subscribe()
    }

    /// This process leads: from now on there should be a link.
    pub(super) fn begin(&self) {
        let endpoint = self.endpoint.clone();
        let since = Some(Timestamp::now());
        self.state.send_replace(Some(LinkState { endpoint, since, ..LinkState::default() }));
    }

    /// This process leads no more.
    pub(super) fn end(&self) {
        self.connected.set(0);
        self.state.send_replace(None);
    }

    pub(super) fn certificate(&self, expires_at: Timestamp) {
        self.certificate.set(expires_at.as_second());
        self.change(|state| state.certificate_expires_at = Some(expires_at));
    }

    pub(super) fn connected(&self) {
        self.connected.set(1);
        self.change(|state| {
            state.connected = true;
            state.since = Some(Timestamp::now());
        });
    }

    /// Takes a failure, and tells whether it is another one than the last.
    pub(super) fn failed(&self, error: &LinkError) -> bool {
        self.connected.set(0);
        self.failures.get_or_create(&FailureLabels { reason: error.reason() }).inc();
        let text = error.to_string();
        let mut news = false;
        self.change(|state| {
            news = state.connected || state.last_error != text;
            if state.connected {
                state.connected = false;
                state.since = Some(Timestamp::now());
            }
            state.last_error = text;
        });
        news
    }

    fn change(&self, change: impl FnOnce(&mut LinkState)) {
        self.state.send_if_modified(|state| {
            let Some(state) = state else {
                return false;
            };
            let before = state.clone();
            change(state);
            *state != before
        });
    }
}
