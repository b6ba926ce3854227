//! What a decision consists of.

use std::collections::BTreeSet;
use std::fmt;

use crate::decide::state::State;
use crate::gtid::GtidSet;
use crate::observe::{AckerIdentity, CatchingUp, InstanceId, TermRecord};
use crate::term::Term;

/// What is to be done about a cluster, and what can be said of it.
///
/// Has either a [`record`](Self::record) or [`orders`](Self::orders), never both: an order of a term may be
/// given only after the record of that term has been written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The state of the cluster.
    pub state: State,
    /// For a person: why it is in this state, and what it waits for.
    pub message: String,
    /// What can be said of each instance, by ordinal.
    pub instances: Vec<InstanceVerdict>,
    /// The record to write by compare-and-swap in place of the one in the view. Then decide again.
    pub record: Option<TermRecord>,
    /// Orders to give, at most one for each instance. They may be given in parallel. An order that an agent
    /// refused or that has not taken effect is part of the next decision again.
    pub orders: Vec<Order>,
    /// Where traffic may go.
    pub traffic: Traffic,
    /// The reign to remember as opened, in place of the one in the view, before traffic goes anywhere.
    pub opened: Term,
    /// Ackers to remember for the next decision, in place of those in the view. They have to outlive whoever
    /// decides: without them no lost primary can be replaced.
    pub ackers: Vec<AckerIdentity>,
    /// Ackers on their way to being remembered, in place of those in the view.
    pub catching_up: Vec<CatchingUp>,
    /// What becomes of the wish for another primary; absent where there is none.
    pub wish: Option<Fulfilment>,
    /// What becomes of the choice to rebuild an instance; absent where there is none.
    pub rebuilding: Option<Rebuilding>,
    /// What becomes of the choice to release an instance; absent where there is none.
    pub releasing: Option<Releasing>,
    /// What becomes of the choice to force a primary; absent where there is none.
    pub forcing: Option<Forcing>,
    /// The instance whose outdated pod may be replaced now. Only ever named in a cluster in which nothing else is
    /// going on, or of a template that was given up while it serves nobody; and never the primary where another
    /// instance could be it.
    pub replace: Option<InstanceId>,
    /// How the wanted template does.
    pub progress: Progress,
    /// How many instances, counted from ordinal 0, have to have a pod: more than wanted while the quorum in
    /// force counts on an instance that is to leave, none once an offline cluster is closed.
    pub pods: u32,
}

/// How the wanted template does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The instances to remember as proved, in place of those in the view.
    pub proved: Vec<InstanceId>,
    /// The instance that is waited for, in place of the one in the view.
    pub waits_for: Option<InstanceId>,
    /// Whether its time runs. It does not while nothing can be said of it, nor while it gets a copy.
    pub runs: bool,
    /// What can be said of the template.
    pub verdict: Verdict,
}

/// What can be said of the wanted template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing yet.
    #[default]
    Open,
    /// All instances are of it and in sync: it is what there is to go back to from now on.
    Works,
    /// The instance that is waited for has had its time, and the way back is barred: a person has to see to it.
    Overdue,
    /// The instance that is waited for has had its time: the template is given up, and the one before is wanted.
    GivenUp,
}

/// What becomes of a wish for another primary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fulfilment {
    /// It can't be said yet: it is asked again with the next decision.
    Waits,
    /// The handover for it has begun, or begins with the record of this decision. The wish has to be
    /// remembered as [`Wish::Begun`](crate::Wish::Begun) before that record is written, so that whoever decides
    /// next neither begins anew nor tries for ever.
    UnderWay {
        /// The instance that takes over.
        to: InstanceId,
        /// The term of the handover.
        term: Term,
    },
    /// That instance is the primary and takes writes. The wish is over.
    Done(InstanceId),
    /// It is not done, for this reason, and the primary stays as it is. The wish is over.
    Refused(String),
}

/// What becomes of the choice to rebuild an instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rebuilding {
    /// It can't be begun yet, for the reason that is said of the instance.
    Waits,
    /// The data are being replaced, or are with the orders of this decision. The choice has to be remembered as
    /// [begun](crate::Rebuild::begun) before those are given, so that an instance that is whole again is not taken
    /// for one that never had to be rebuilt.
    UnderWay,
    /// The instance is in sync. The choice is carried out.
    Done,
    /// Nothing is done, for this reason. The choice is over.
    Refused(String),
}

/// What becomes of the choice to release an instance. Each is told from what the instances hold alone, so whoever
/// decides next goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Releasing {
    /// It can't be begun or ended yet.
    Waits,
    /// The primary is told to commit what is lacking with the orders of this decision.
    UnderWay,
    /// The instance is in sync, with its transactions. The choice is carried out.
    Done,
    /// Nothing more is done, for this reason. The choice is over.
    Refused(String),
}

/// What becomes of the choice to force a primary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Forcing {
    /// It can't be said yet, since an instance has not been heard that may make it needless.
    Waits,
    /// The takeover has begun, or begins with the record or the orders of this decision. The choice has to be
    /// remembered as [begun](crate::Force::begun) in this term before those are written and given, so that whoever
    /// decides next goes on with it and does not begin anew.
    UnderWay {
        /// The term in which the instances that answer are revoked.
        begun: Term,
    },
    /// The instance has become the primary, with what is said of that. The choice is over.
    Done(String),
    /// It has not, for this reason. The choice is over.
    Refused(String),
}

/// What can be said of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceVerdict {
    /// Which instance.
    pub id: InstanceId,
    /// What it is there for.
    pub role: Role,
    /// How it does.
    pub standing: Standing,
    /// For a person: why, and what it waits for. Empty where the standing says it all.
    pub message: String,
}

/// What an instance is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The primary of the current term.
    Primary,
    /// Its acknowledgements count.
    Acker,
    /// Follows without being counted (yet).
    Replica,
    /// Not wanted any more.
    Leaving,
}

/// How an instance does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It can't be asked.
    Unknown,
    /// Its mysqld does not answer.
    Down,
    /// Answers, and takes no part in replication (yet).
    Closed,
    /// Takes writes.
    Open,
    /// Takes part in replication, and something is missing yet.
    CatchingUp,
    /// Follows the primary with all threads running, and acknowledges if its acknowledgements count.
    InSync,
    /// Its data is being replaced by a copy.
    Cloning,
    /// Holds these transactions, which the primary does not have. It is left alone, serves nobody and gives
    /// its data to nobody.
    Errant(GtidSet),
    /// Can't go on by itself: the message says why.
    Blocked,
}

/// An order for one instance, of one term.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    /// The instance it is for.
    pub instance: InstanceId,
    /// The term it is given for.
    pub term: Term,
    /// What to do.
    pub action: Action,
}

/// What an instance is to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Be a replica.
    Follow {
        /// Of this instance.
        source: InstanceId,
        /// Whether to acknowledge what it receives.
        acknowledge: bool,
    },
    /// Take writes.
    Open {
        /// Acknowledgements that each commit waits for; 0 for none.
        required_acks: u32,
    },
    /// Take no writes, and receive none. What was received goes on being applied.
    Close,
    /// End mysqld at once, which boots closed: for a primary whose commits can't be acknowledged any more, so
    /// that it can't be closed politely either.
    Fence,
    /// Commit an empty transaction by each of these names that it lacks: some now, the others by the next order.
    Adopt {
        /// The names.
        transactions: GtidSet,
    },
    /// Replace the data by a copy.
    Clone {
        /// Of this instance's data.
        donor: InstanceId,
        /// Transactions that may be lost by it: all those that the donor has, and the archived ones. An
        /// instance that holds any other one has to refuse.
        expendable: GtidSet,
        /// Transactions of it whose logs are kept aside: a lost primary committed them and nobody acknowledged
        /// them.
        archive: GtidSet,
    },
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, term, action } = self;
        match action {
            Action::Follow { source, acknowledge: true } => {
                write!(f, "{instance}: follow {source} and acknowledge")
            }
            Action::Follow { source, acknowledge: false } => write!(f, "{instance}: follow {source}"),
            Action::Open { required_acks } => {
                write!(f, "{instance}: open, each commit acknowledged by {required_acks}")
            }
            Action::Close => write!(f, "{instance}: close"),
            Action::Fence => write!(f, "{instance}: end mysqld"),
            Action::Adopt { transactions } => {
                write!(f, "{instance}: commit empty transactions {transactions}")
            }
            Action::Clone { donor, .. } => write!(f, "{instance}: copy the data of {donor}"),
        }?;
        write!(f, " (term {term})")
    }
}

/// Where traffic may go.
///
/// An instance that can't be asked keeps the traffic it has and gets none that it does not have: a controller
/// that has just started, or can't reach an agent, must not cut off an instance that may well be fine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// The instance that takes writes.
    pub primary: Option<InstanceId>,
    /// The instance that keeps the writes if it has them.
    pub undecided_primary: Option<InstanceId>,
    /// The instances that serve reads, by ordinal.
    pub replicas: Vec<InstanceId>,
    /// The instances that keep the reads that they have, by ordinal.
    pub undecided_replicas: Vec<InstanceId>,
}

impl Traffic {
    /// Where traffic goes from now on, if it goes to `primary` and `replicas` so far: the instance that takes
    /// writes, and those that serve reads by ordinal.
    pub fn after(
        &self,
        primary: Option<InstanceId>,
        replicas: &[InstanceId],
    ) -> (Option<InstanceId>, Vec<InstanceId>) {
        let kept = replicas.iter().filter(|id| self.undecided_replicas.contains(id));
        let reads: BTreeSet<InstanceId> = self.replicas.iter().chain(kept).copied().collect();
        let kept = primary.filter(|_| self.undecided_primary == primary);
        (self.primary.or(kept), reads.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_cannot_be_asked_keeps_its_traffic_and_gets_none() {
        let [zero, one, two] = [0, 1, 2].map(InstanceId);
        let traffic = Traffic {
            primary: None,
            undecided_primary: Some(zero),
            replicas: vec![two],
            undecided_replicas: vec![one],
        };
        assert_eq!(traffic.after(Some(zero), &[one, two]), (Some(zero), vec![one, two]));
        assert_eq!(traffic.after(None, &[]), (None, vec![two]));
        // The old primary is not the one that may keep the writes.
        assert_eq!(traffic.after(Some(one), &[zero]), (None, vec![two]));
    }
}
