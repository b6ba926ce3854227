//! What the parts of the agent share of the instance.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fleet_proto::agent::v1::{CloneFacts, CloneState, TlsFacts};
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
    /// The start of mysqld that was opened last. Every start boots closed, so that of an older one says that
    /// the running one is closed.
    opened: Mutex<Option<Opened>>,
    /// For how long the instance has been isolated.
    isolated: Mutex<Option<Duration>>,
    /// The copy that the agent has begun and not seen the end of, or that failed before mysqld kept it.
    clone: Mutex<Option<CloneFacts>>,
    /// The certificates that the agent serves.
    agent_tls: Mutex<Option<TlsFacts>>,
    /// The certificates that a start of mysqld was seen to load.
    mysqld_tls: Mutex<Option<(u64, TlsFacts)>>,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    generation: u64,
    acks: u32,
}

impl Instance {
    /// An instance that is closed.
    pub fn new(process: Handle) -> Self {
        Self {
            process,
            look: Notify::new(),
            opened: Mutex::default(),
            isolated: Mutex::default(),
            clone: Mutex::default(),
            agent_tls: Mutex::default(),
            mysqld_tls: Mutex::default(),
        }
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
        self.required_acks().is_some()
    }

    /// Acknowledgements that the commits of an open mysqld wait for; `None` where none may be open.
    pub fn required_acks(&self) -> Option<u32> {
        let status = self.now();
        let opened = *self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened
            .filter(|opened| status.login.is_some() && opened.generation == status.generation)
            .map(|opened| opened.acks)
    }

    /// Notes that a start of mysqld is about to be opened.
    pub fn opening(&self, generation: u64, acks: u32) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Opened { generation, acks });
    }

    /// Notes that the running mysqld was seen closed, with no commit waiting.
    pub fn closed(&self) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// For how long the instance has been isolated; `None` while it is not.
    pub fn isolated_for(&self) -> Option<Duration> {
        *self.isolated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets it.
    pub fn set_isolated_for(&self, isolated: Option<Duration>) {
        *self.isolated.lock().unwrap_or_else(PoisonError::into_inner) = isolated;
    }

    /// The copy that overrules what mysqld says of copies.
    pub fn clone_override(&self) -> Option<CloneFacts> {
        self.clone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or clears it.
    pub fn set_clone_override(&self, facts: Option<CloneFacts>) {
        *self.clone.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// The certificates that the agent serves and trusts.
    pub fn agent_tls(&self) -> Option<TlsFacts> {
        self.agent_tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificates that this start of mysqld has loaded; `None` where that is not known.
    pub fn mysqld_tls(&self, generation: u64) -> Option<TlsFacts> {
        let loaded = self.mysqld_tls.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().filter(|(of, _)| *of == generation).map(|(_, facts)| facts.clone())
    }

    /// Notes what the agent serves and trusts from now on.
    pub fn agent_loaded(&self, facts: TlsFacts) {
        *self.agent_tls.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
    }

    /// Notes what a start of mysqld has loaded.
    pub fn mysqld_loaded(&self, generation: u64, facts: TlsFacts) {
        *self.mysqld_tls.lock().unwrap_or_else(PoisonError::into_inner) = Some((generation, facts));
    }

    /// Whether a copy that the agent began still runs.
    pub fn cloning(&self) -> bool {
        self.clone_override().is_some_and(|clone| clone.state() == CloneState::Running)
    }
}
