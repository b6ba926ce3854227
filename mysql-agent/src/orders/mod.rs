//! Orders of the shard, one at a time.
//!
//! Each order is admitted by its term, which is on disk before anything is done for it. An order that was
//! admitted runs to its end even when its caller has gone; every statement in it has a deadline.

mod adopt;
mod clone;
mod close;
mod error;
mod fence;
mod follow;
mod open;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use fleet_proto::agent::v1::{Endpoint, ProcessState};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::task::AbortOnDropHandle;

pub use self::error::OrderError;
use self::open::Opening;
pub(crate) use self::{clone::ENOUGH_STARTS, close::close_politely};
use crate::{
    config::Config,
    instance::Instance,
    sql::{Session, SqlError},
    users::{self, Credentials, Role},
    volume::Volume,
};

/// Asks for a look at mysqld once an order has ended, however it did.
struct LookAfter<'a>(&'a Instance);

impl Drop for LookAfter<'_> {
    fn drop(&mut self) {
        self.0.look.notify_one();
    }
}

/// Everything that follows orders.
#[derive(Debug)]
pub struct Orders {
    config: Arc<Config>,
    volume: Arc<Volume>,
    instance: Arc<Instance>,
    state: Mutex<State>,
    /// The highest term of a fencing that was begun, whether it has had its turn or not.
    fencing: AtomicU64,
    /// The term that was fenced last; orders of lower ones have left nothing.
    fenced: AtomicU64,
    /// The last start of mysqld that an order has acted on, 0 for none.
    touched: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    retired: bool,
    /// The last opening; it may still wait for acknowledgements.
    opening: Option<Opening>,
    clone: Option<AbortOnDropHandle<()>>,
}

/// A mysqld that answers, and a session of its own with it.
struct Running {
    session: Session,
    generation: u64,
}

/// A source or donor, checked.
#[derive(Debug)]
struct Address {
    host: String,
    port: u16,
}

impl Orders {
    /// Orders for an instance.
    pub fn new(config: Arc<Config>, volume: Arc<Volume>, instance: Arc<Instance>) -> Arc<Self> {
        Arc::new(Self {
            config,
            volume,
            instance,
            state: Mutex::default(),
            fencing: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            touched: AtomicU64::new(0),
        })
    }

    /// Takes no order from here on and ends what still runs. Returns once nothing of it can reach mysqld.
    pub async fn retire(&self) {
        let mut state = self.state.lock().await;
        state.retired = true;
        state.abandon_opening().await;
        state.clone = None;
    }

    /// Waits for its turn, and checks and keeps the term.
    async fn admit(&self, term: u64) -> Result<MutexGuard<'_, State>, OrderError> {
        let state = self.state.lock().await;
        if state.retired {
            return Err(OrderError::Stopping);
        }
        let kept = self.not_of_the_past(term)?;
        if term > kept {
            let volume = Arc::clone(&self.volume);
            tokio::task::spawn_blocking(move || volume.keep_term(term))
                .await
                .map_err(|_| OrderError::Stopping)??;
            tracing::info!(term, "follows a new term");
        }
        Ok(state)
    }

    /// Refuses a term below the kept one, or below one that an instance is being fenced for: such an order
    /// need not wait for its turn. Returns the kept one.
    fn not_of_the_past(&self, term: u64) -> Result<u64, OrderError> {
        let kept = self.volume.term()?;
        let highest = kept.max(self.fencing.load(Ordering::SeqCst));
        if term < highest {
            return Err(OrderError::LowerTerm { given: term, kept: highest });
        }
        Ok(kept)
    }

    /// A session with a mysqld whose data are whole, and which counts as touched from here on.
    async fn running(&self) -> Result<Running, OrderError> {
        if self.instance.cloning() || self.volume.replacement()?.is_some() {
            return Err(OrderError::Cloning);
        }
        let status = self.instance.now();
        let not_running =
            || OrderError::NotRunning { state: status.state.as_str_name(), message: status.message.clone() };
        let login = status
            .login
            .as_ref()
            .filter(|_| status.state == ProcessState::Running)
            .ok_or_else(not_running)?;
        self.touched.store(status.generation, Ordering::SeqCst);
        Ok(Running { session: Session::open(login).await?, generation: status.generation })
    }

    fn replication_user(&self) -> Result<Credentials, OrderError> {
        Ok(users::read(&self.config.paths.users, Role::Replication)?)
    }
}

impl State {
    /// Ends an opening that still waits. Its mysqld stays as it is: whoever calls this closes it.
    async fn abandon_opening(&mut self) {
        if let Some(opening) = self.opening.take() {
            opening.abandon().await;
        }
    }
}

impl Address {
    fn check(endpoint: Option<Endpoint>, field: &'static str) -> Result<Self, OrderError> {
        let invalid = |problem: String| OrderError::Invalid { field, problem };
        let endpoint = endpoint.ok_or_else(|| invalid("is missing".to_owned()))?;
        let host = endpoint.host;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(fits) {
            return Err(invalid(format!("has the host {host:?}, which is no DNS name or address")));
        }
        let port = u16::try_from(endpoint.port)
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| invalid(format!("has the port {}, which is none", endpoint.port)))?;
        Ok(Self { host, port })
    }
}

/// Runs an order as a task of its own, so that it ends well though its caller gives up.
pub async fn to_the_end<T: Send + 'static>(
    order: impl Future<Output = Result<T, OrderError>> + Send + 'static,
) -> Result<T, OrderError> {
    tokio::spawn(order).await.unwrap_or(Err(OrderError::Stopping))
}

/// Whether a statement failed since mysqld went away, rather than by its answer.
fn lost(error: &SqlError) -> bool {
    // "Server shutdown in progress" and "Connection was killed".
    error.code().is_none_or(|code| [1053, 1927].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_they_reach_a_statement() {
        let endpoint = |host: &str, port| Some(Endpoint { host: host.to_owned(), port });
        assert!(Address::check(endpoint("orders-0.orders-instances.tenant-a.svc", 3306), "source").is_ok());
        for bad in [None, endpoint("", 1), endpoint("a'b", 1), endpoint("a", 0), endpoint("a", 70_000)] {
            let error = Address::check(bad, "source").unwrap_err();
            assert!(error.to_string().contains("source"), "{error}");
        }
    }
}
