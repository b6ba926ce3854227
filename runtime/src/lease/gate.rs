//! What every write asks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::error::{Classified, ErrorClass};

/// Limit of a write where no Lease sets one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The Lease is not held, or was not renewed in time: nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing may be written: this process does not hold the Lease")]
pub struct GateClosed;

impl Classified for GateClosed {
    fn class(&self) -> ErrorClass {
        ErrorClass::Transient
    }

    fn reason(&self) -> &'static str {
        "LeaseNotHeld"
    }
}

/// Says whether this process may write now. Cheap to clone and to ask; clones share their state.
#[derive(Clone, Debug)]
pub struct Gate {
    origin: Instant,
    /// Milliseconds after `origin` at which it closes; 0 is closed.
    closes: Arc<AtomicU64>,
    write_timeout: Duration,
}

impl Gate {
    pub(crate) fn closed(write_timeout: Duration) -> Self {
        Self { origin: Instant::now(), closes: Arc::new(AtomicU64::new(0)), write_timeout }
    }

    /// A gate without a Lease, for programs that run once.
    pub fn always_open() -> Self {
        Self {
            origin: Instant::now(),
            closes: Arc::new(AtomicU64::new(u64::MAX)),
            write_timeout: WRITE_TIMEOUT,
        }
    }

    /// Fails unless this process holds the Lease, and has renewed it within the renew deadline.
    ///
    /// Ask right before each write, and give the write no longer than [`Self::write_timeout`].
    pub fn check(&self) -> Result<(), GateClosed> {
        if self.is_open() { Ok(()) } else { Err(GateClosed) }
    }

    /// Whether [`Self::check`] would succeed.
    pub fn is_open(&self) -> bool {
        // One more than the elapsed time: part of a millisecond counts as all of it.
        let elapsed = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        elapsed < self.closes.load(Ordering::SeqCst)
    }

    /// How long a write that has passed the gate may take, so that it has ended before another can hold
    /// the Lease.
    pub const fn write_timeout(&self) -> Duration {
        self.write_timeout
    }

    pub(super) fn open_until(&self, deadline: Instant) {
        let open_for = deadline.saturating_duration_since(self.origin).as_millis();
        self.closes.store(u64::try_from(open_for).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    pub(super) fn close(&self) {
        self.closes.store(0, Ordering::SeqCst);
    }
}
