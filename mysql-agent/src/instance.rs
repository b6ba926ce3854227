//! What the parts of the agent share of the instance.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use fleet_proto::agent::v1::{CloneFacts, CloneState};
use tokio::sync::Notify;

use crate::{
    sql::Login,
    supervisor::{Handle, ProcessStatus},
};

/// The instance: its process, and what the agent did to it.
#[derive(Debug)]
pub struct Instance {
    /// Orders to the process.
    pub process: Handle,
    /// Asks for a look at mysqld now, since an order changed it.
    pub look: Notify,
    /// The start of mysqld that was opened, 0 for none. Every start boots closed, so an older number says
    /// that the running one is closed.
    opened: AtomicU64,
    /// The copy that the agent has begun and not seen the end of, or that failed before mysqld kept it.
    clone: Mutex<Option<CloneFacts>>,
}

impl Instance {
    /// An instance that is closed.
    pub fn new(process: Handle) -> Self {
        Self { process, look: Notify::new(), opened: AtomicU64::new(0), clone: Mutex::new(None) }
    }

    /// The process as it is now.
    pub fn now(&self) -> ProcessStatus {
        self.process.status().borrow().clone()
    }

    /// How to log in to the running mysqld.
    pub fn login(&self) -> Option<Login> {
        self.now().login
    }

    /// Whether the running mysqld may be open: set before it is opened, cleared once it is known to be closed.
    pub fn may_be_open(&self) -> bool {
        let status = self.now();
        status.login.is_some() && self.opened.load(Ordering::SeqCst) == status.generation
    }

    /// Notes that a start of mysqld is about to be opened.
    pub fn opening(&self, generation: u64) {
        self.opened.store(generation, Ordering::SeqCst);
    }

    /// Notes that the running mysqld was seen closed, with no commit waiting.
    pub fn closed(&self) {
        self.opened.store(0, Ordering::SeqCst);
    }

    /// The copy that overrules what mysqld says of copies.
    pub fn clone_override(&self) -> Option<CloneFacts> {
        self.clone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or clears it.
    pub fn set_clone_override(&self, facts: Option<CloneFacts>) {
        *self.clone.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// Whether a copy that the agent began still runs.
    pub fn cloning(&self) -> bool {
        self.clone_override().is_some_and(|clone| clone.state() == CloneState::Running)
    }
}
