//! The link to the hub: dialled while this process leads, and again whenever it has ended.

use std::{convert::Infallible, time::Duration};

use fleet_runtime::{
    backoff,
    events::EventType,
    grpc::{GrpcError, channel_over},
    lease::LeaseState,
    tls::{CertificateFacts, Identity},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{
    Settings,
    credentials::{Credentials, CredentialsError},
    state::LinkBoard,
    stream,
    work::Work,
};

/// Delay before the hub is dialled again: doubled with each failure in a row, up to the longest.
const REDIAL: Duration = Duration::from_millis(500);
const LONGEST_REDIAL: Duration = Duration::from_secs(15);
/// A link that has lasted this long was a good one: the next failure is the first of a row. Longer than all that a
/// dial may take.
const STEADY: Duration = Duration::from_mins(1);
/// Limit of one question to the API server.
const READ: Duration = Duration::from_secs(10);
/// Limit of connecting to the hub, before TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// There is no link to the hub, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The Secret can't be read.
    #[error("can't read Secret {secret}: {message}")]
    Secret {
        /// The Secret.
        secret: String,
        /// Why not.
        message: String,
    },
    /// The Secret holds nothing that can be shown to the hub.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Nobody takes the connection.
    #[error("can't connect to {endpoint}: {message}")]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// Why not.
        message: String,
    },
    /// One side does not accept the other's certificate, or TLS has failed otherwise.
    #[error(transparent)]
    Tls(#[from] GrpcError),
    /// The hub does not take this member.
    #[error(
        "the hub refuses {identity}: {message}. See that the MemberCluster is there and allows the namespace, and \
         that the certificate is not revoked"
    )]
    Refused {
        /// Whom the certificate speaks for.
        identity: String,
        /// The hub's words.
        message: String,
    },
    /// The call has failed.
    #[error("the stream to the hub has failed: {message} ({code:?})")]
    Failed {
        /// The code of gRPC.
        code: Code,
        /// What happened.
        message: String,
    },
    /// The hub has ended the stream.
    #[error("the hub has ended the stream")]
    Ended,
    /// Nothing was heard.
    #[error("nothing was heard of the hub for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The hub does not keep to the contract.
    #[error("the hub does not keep to the contract: {0}")]
    Contract(String),
    /// The state of the namespace is too large for one message.
    #[error(
        "the report is {size} bytes, and a message has at most {limit}: spread the clusters over more namespaces"
    )]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The certificate that was shown is old: another one may be there.
    #[error("dialled again, since the certificate that was shown is due for renewal")]
    CertificateAged,
}

impl LinkError {
    /// The error's variant in one CamelCase word: a metric label.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "SecretUnreadable",
            Self::Credentials(_) => "SecretUnusable",
            Self::Unreachable { .. } => "Unreachable",
            Self::Tls(_) => "TlsFailed",
            Self::Refused { .. } => "Refused",
            Self::Failed { .. } => "StreamFailed",
            Self::Ended => "Ended",
            Self::Silent(_) => "Silent",
            Self::Contract(_) => "ContractBroken",
            Self::TooLarge { .. } => "ReportTooLarge",
            Self::CertificateAged => "CertificateAged",
        }
    }

    /// What a status of the hub means for `identity`.
    pub(super) fn of(status: &Status, identity: Option<&Identity>) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => {
                let identity = identity.map(ToString::to_string).unwrap_or_default();
                Self::Refused { identity, message }
            }
            code => Self::Failed { code, message },
        }
    }
}

/// A member's side of the federation: one link, held by the leader alone.
pub struct Federation {
    /// Where the hub is.
    pub settings: Settings,
    /// This pod, for the hub's people.
    pub pod: String,
    /// The Secrets of the namespace: the certificate is read past any cache.
    pub secrets: Api<Secret>,
    /// Does what the hub wants.
    pub work: Work,
    /// Shows what becomes of the link.
    pub board: LinkBoard,
}

impl Federation {
    /// Holds the link from the moment this process leads until it does no more, or the shutdown. Nothing that the hub
    /// wanted outlives it.
    pub async fn run(self, mut lease: watch::Receiver<LeaseState>, shutdown: CancellationToken) {
        if !LeaseState::leading(&mut lease, &shutdown).await {
            return;
        }
        self.board.begin();
        tokio::select! {
            () = self.keep() => {}
            // Whether it is lost or nobody tells of it any more.
            _over = lease.wait_for(|state| !matches!(state, LeaseState::Leader(_))) => {}
            () = shutdown.cancelled() => {}
        }
        self.board.end();
    }

    async fn keep(&self) {
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            let error = match self.hold().await {
                Err(error) => error,
                Ok(never) => match never {},
            };
            if begun.elapsed() >= STEADY {
                failures = 0;
            }
            failures = failures.saturating_add(1);
            self.tell(&error);
            sleep(backoff::exponential(failures, REDIAL, LONGEST_REDIAL)).await;
        }
    }

    /// Dials, and holds the stream until it ends.
    async fn hold(&self) -> Result<Infallible, LinkError> {
        let credentials = self.credentials().await?;
        let facts = &credentials.facts;
        self.board.certificate(facts.not_after);
        let now = Timestamp::now();
        if now >= facts.renewal() {
            let note = format!(
                "The certificate for the hub ends at {}: put a new one into the Secret, by `kubectl fleet member \
                 certificate` at the hub",
                facts.not_after
            );
            tracing::warn!(secret = self.settings.secret, note);
            self.event("FederationCertificateExpiring", &note);
        }
        let aged = Instant::now() + remaining(facts, now);
        let endpoint = &self.settings.endpoint;
        let unreachable =
            |message: String| LinkError::Unreachable { endpoint: endpoint.to_string(), message };
        let connection = match timeout(CONNECT, TcpStream::connect((endpoint.host(), endpoint.port()))).await
        {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(_) => return Err(unreachable(format!("no answer in {} s", CONNECT.as_secs()))),
        };
        // Without it small messages wait for the other side's delayed acknowledgement.
        let _best_effort = connection.set_nodelay(true);
        let channel =
            channel_over(connection, endpoint.host(), &credentials.identity, &Identity::Hub).await?;
        let link = stream::Link {
            pod: &self.pod,
            identity: facts.identity.as_ref(),
            work: &self.work,
            board: &self.board,
        };
        tokio::select! {
            ended = link.hold(channel) => ended,
            () = sleep_until(aged) => Err(LinkError::CertificateAged),
        }
    }

    async fn credentials(&self) -> Result<Credentials, LinkError> {
        let name = &self.settings.secret;
        let unreadable = |message: String| LinkError::Secret { secret: name.clone(), message };
        let found = match timeout(READ, self.secrets.get_opt(name)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(unreadable(error.to_string())),
            Err(_) => {
                return Err(unreadable(format!("no answer from the API server in {} s", READ.as_secs())));
            }
        };
        Ok(Credentials::read(name, &self.work.namespace, found.as_ref(), Timestamp::now())?)
    }

    fn tell(&self, error: &LinkError) {
        if self.board.failed(error) {
            let endpoint = self.settings.endpoint.to_string();
            tracing::warn!(%error, reason = error.reason(), endpoint, "no link to the hub; it is dialled again");
            if matches!(error, LinkError::Credentials(_)) {
                self.event("FederationSecretUnusable", &error.to_string());
            }
        }
    }

    /// Tells of the Secret, whether it is there or not.
    fn event(&self, reason: &str, note: &str) {
        let mut secret = Secret::default();
        secret.metadata.name = Some(self.settings.secret.clone());
        secret.metadata.namespace = Some(self.work.namespace.clone());
        self.work.events.tell(&secret, EventType::Warning, reason, note);
    }
}

/// How long a stream may last with this certificate: until it should have been exchanged, so that a new one is shown
/// before the old one ends; if that time is over, until its end.
fn remaining(facts: &CertificateFacts, now: Timestamp) -> Duration {
    let until = if now < facts.renewal() { facts.renewal() } else { facts.not_after };
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn a_stream_lasts_until_its_certificate_is_due_and_then_until_its_end() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let facts = CertificateFacts {
            identity: None,
            not_before: at("2026-01-01T00:00:00Z"),
            not_after: at("2026-01-31T00:00:00Z"),
        };
        assert_eq!(remaining(&facts, at("2026-01-02T00:00:00Z")), 19 * DAY);
        assert_eq!(remaining(&facts, at("2026-01-21T00:00:00Z")), 10 * DAY);
        assert_eq!(remaining(&facts, at("2026-02-01T00:00:00Z")), Duration::ZERO);
    }

    #[test]
    fn a_refusal_names_whom_it_is_about() {
        let member = Identity::member("east", "tenant-a");
        let error = LinkError::of(&Status::permission_denied("no"), Some(&member));
        assert_eq!(error.reason(), "Refused");
        assert!(error.to_string().contains("member/east/ns/tenant-a"), "{error}");
        assert_eq!(LinkError::of(&Status::unavailable("gone"), None).reason(), "StreamFailed");
    }
}
