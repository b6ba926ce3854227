//! One leader: a Kubernetes Lease, taken and kept by client-go's algorithm, and the [`Gate`] that every
//! write asks.
//!
//! What it guarantees, as long as no monotonic clock stops, or differs from another's by more than 3 % in
//! either direction:
//!
//! - Another's Lease is taken only after its record has stayed unchanged for a full lease duration on the
//!   local monotonic clock. What clocks of other machines wrote in it plays no part.
//! - Every change of the record is conditional on its resourceVersion, so of two that try one wins.
//! - The gate is open from a renewal's *sending* for the renew deadline, and is closed after it by the
//!   clock alone, even if no task runs. The lease duration is longer than that by at least the time that
//!   a write may take ([`Gate::write_timeout`]): no write of the old holder meets the new one's.
//! - The Lease is given up only after the caller has said that its work has ended.
//!
//! Source of the algorithm: `k8s.io/client-go/tools/leaderelection`.

mod election;
mod gate;
mod record;

use std::time::Duration;

pub use election::Lease;
pub use gate::{Gate, GateClosed};
use jiff::Timestamp;
use record::Record;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Share of the retry period that is added at random, as in client-go.
const JITTER: f64 = 0.2;

/// Which Lease is wanted, by whom, and its times.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who wants it, unique among all that do: the pod's name.
    pub identity: String,
    /// How long a record must stay unchanged before another takes the Lease.
    pub lease_duration: Duration,
    /// How long after its last renewal a holder goes on working.
    pub renew_deadline: Duration,
    /// Time between two renewals, or two looks at another's Lease.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// The times of the fleet: 30, 20 and 10 seconds.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(30),
            renew_deadline: Duration::from_secs(20),
            retry_period: Duration::from_secs(10),
        }
    }

    /// The same with another lease duration: the renew deadline is two thirds of it, the retry period one third.
    #[must_use]
    pub fn lasting(self, lease_duration: Duration) -> Self {
        let retry_period = lease_duration / 3;
        Self { lease_duration, renew_deadline: 2 * retry_period, retry_period, ..self }
    }

    fn check(&self) -> Result<(), LeaseError> {
        let wrong = |message: &str| Err(LeaseError::Config(message.to_owned()));
        if self.namespace.is_empty() || self.name.is_empty() || self.identity.is_empty() {
            return wrong("namespace, name and identity must not be empty");
        }
        if self.lease_duration < Duration::from_secs(1) || self.lease_duration.subsec_nanos() != 0 {
            return wrong("the lease duration must be whole seconds, 1 or more");
        }
        if i32::try_from(self.lease_duration.as_secs()).is_err() {
            return wrong("the lease duration is too long");
        }
        if self.renew_deadline >= self.lease_duration {
            return wrong("the renew deadline must be below the lease duration");
        }
        if self.retry_period.is_zero() || self.retry_period.mul_f64(1.0 + JITTER) >= self.renew_deadline {
            return wrong("the retry period must be above zero, and 1.2 times it below the renew deadline");
        }
        Ok(())
    }

    /// Limit of a write that has passed the gate. A fifth of the time between the gate's closing and the
    /// Lease's expiry is left over, for clocks of different rates: with the times of [`Self::new`] and
    /// [`Self::lasting`], 3 % in both directions.
    fn write_timeout(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline) * 4 / 5
    }

    /// Limit of one call.
    fn call_timeout(&self) -> Duration {
        self.retry_period / 2
    }
}

/// What is known of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it.
    pub holder: Option<String>,
    /// Number of changes of holder.
    pub transitions: u32,
    /// When the holder took it, by the holder's clock.
    pub acquired_at: Option<Timestamp>,
    /// When the holder last renewed it, by the holder's clock.
    pub renewed_at: Option<Timestamp>,
}

/// Where this process stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Another holds the Lease, or nobody does yet.
    Follower(LeaseView),
    /// This process holds the Lease.
    Leader(LeaseView),
    /// This process held the Lease and does not any more. It never will again: it has to end.
    Lost,
}

impl LeaseState {
    /// Waits until this process leads. False if the shutdown comes before, or if it never will.
    pub async fn leading(state: &mut watch::Receiver<Self>, shutdown: &CancellationToken) -> bool {
        tokio::select! {
            leading = state.wait_for(|state| matches!(state, Self::Leader(_))) => leading.is_ok(),
            () = shutdown.cancelled() => false,
        }
    }
}

/// The Lease can't be had, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The configuration makes no sense.
    #[error("the Lease can't be configured so: {0}")]
    Config(String),
    /// The Lease was held and is no more.
    #[error("lost Lease {namespace}/{name}: {cause}")]
    Lost {
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
        /// What happened.
        cause: String,
    },
}

#[cfg(test)]
mod tests;
