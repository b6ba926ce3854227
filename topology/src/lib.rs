//! Every safety decision of mysql-fleet, as pure functions of what was observed.
//!
//! The crate holds no clock, no socket and no thread: [`decide()`] is given everything that is known of one
//! cluster as a [`ClusterView`] and answers with one [`Decision`]: the [`State`] the cluster is in, the one
//! record that has to be written or the orders that may be given, and where traffic may go. Equal views give
//! equal decisions, so a decision can be replayed, searched and tested without a MySQL server.
//!
//! | module | what it is |
//! |---|---|
//! | [`gtid`] | sets of transaction identifiers and their algebra |
//! | [`quorum`] | how many acknowledgements make a commit durable, and how many ackers prove it |
//! | [`term`] | the count of primaries |
//! | [`observe`] | what is known of a cluster, and what is not |
//! | [`decide`](mod@decide) | from a view to a decision |
//! | [`federation`] | the failover between members of a federated cluster |

pub mod decide;
pub mod federation;
pub mod gtid;
pub mod observe;
pub mod quorum;
pub mod term;

pub use decide::decide;
pub use decide::decision::{
    Action, Decision, Forcing, Fulfilment, InstanceVerdict, Order, Progress, Rebuilding, Releasing, Role,
    Standing, Traffic, Verdict,
};
pub use decide::state::State;
pub use gtid::{GtidSet, ParseGtidSetError, ServerUuid};
pub use observe::{
    AckerIdentity, CatchingUp, CloneProgress, CloneState, ClusterView, Durability, Fallback, Force, Forced,
    InstanceFacts, InstanceId, InstanceView, Observed, PodState, ProcessState, Rebuild, Release,
    ReplicationFacts, ServerFacts, Stage, Takeover, TermRecord, ThreadState, Trial, Waiting, Wish,
};
pub use quorum::{Quorum, QuorumError};
pub use term::Term;
