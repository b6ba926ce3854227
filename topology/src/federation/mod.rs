//! The failover of one cluster between its members, as far as a hub decides it.
//!
//! ```text
//! Reign ─► active lost ─► record: term + 1, Fencing ─► R ackers revoked ─► record: CatchingUp, candidate, union
//!   ▲                                                                          │ the candidate has executed it
//!   └─ record: Reign, traffic ◄─ term row acknowledged ◄─ promote ◄─ record: Promoting
//! ```
//!
//! What holds for every decision:
//! - one with a record has no orders, so that a hub that lost the compare-and-swap has ordered nothing;
//! - all that the next step needs is in the record and in the reports, so another hub goes on where one ended;
//! - no order to promote is given before the union of R revoked ackers has been executed by the candidate;
//! - traffic moves with the record of a reign, which is written after the term's first transaction was acknowledged.

mod view;

use std::collections::BTreeSet;

pub use self::view::{
    FederationRecord, FederationView, MemberReport, MemberView, Mode, Phase, Preference, Sight,
};
use crate::gtid::GtidSet;
use crate::quorum::Quorum;
use crate::term::Term;

/// What a member is told. It refuses an order of a lower term than the highest that it has synced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MemberOrder {
    /// Sync the term, stop receiving, and give up the credentials of the term before.
    Revoke {
        /// Who is told.
        member: String,
        /// The term of the order.
        term: Term,
    },
    /// Take no writes, and drop the clients.
    Close {
        /// Who is told.
        member: String,
        /// The term of the order.
        term: Term,
    },
    /// Receive from that member.
    Follow {
        /// Who is told.
        member: String,
        /// Whom to receive from.
        source: String,
        /// The term of the order.
        term: Term,
    },
    /// Take writes, if all of `needs` has been executed, and write the row of the term first.
    Promote {
        /// Who is told.
        member: String,
        /// The term of the order.
        term: Term,
        /// What has to be executed before.
        needs: GtidSet,
        /// Whose acknowledgements its commits wait for.
        ackers: BTreeSet<String>,
        /// How many of them a commit waits for.
        required_acks: u32,
    },
}

/// How a federated cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FederationState {
    /// The active member stands.
    Stands,
    /// The active member is not heard, and not known to be lost.
    Suspect,
    /// Most members are silent, so the fault is looked for at the hub: nothing is done.
    Frozen,
    /// A failover goes on.
    FailingOver,
    /// A failover can't be proved safe before these members are back.
    FailoverBlocked {
        /// Whom it waits for.
        missing: BTreeSet<String>,
    },
    /// The hub moves nothing by itself in this mode or with this record.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What follows from a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FederationDecision {
    /// How the cluster is.
    pub state: FederationState,
    /// What has to be written by compare-and-swap first. There are no orders then.
    pub record: Option<FederationRecord>,
    /// What may be ordered now.
    pub orders: Vec<MemberOrder>,
    /// Where traffic has to go; absent: it stays where it is.
    pub traffic: Option<String>,
}

impl FederationDecision {
    fn waits(state: FederationState) -> Self {
        Self { state, record: None, orders: Vec::new(), traffic: None }
    }

    fn writes(record: FederationRecord) -> Self {
        Self { record: Some(record), ..Self::waits(FederationState::FailingOver) }
    }

    fn orders(state: FederationState, orders: Vec<MemberOrder>) -> Self {
        Self { orders, ..Self::waits(state) }
    }
}

/// Decides what a hub does next about one federated cluster. Equal views give equal decisions.
pub fn decide_federation(view: &FederationView) -> FederationDecision {
    if view.mode != Mode::AckQuorum {
        return refused("only acknowledgements of other members prove that a failover is safe".to_owned());
    }
    let ackers = u32::try_from(view.record.ackers.len()).unwrap_or(u32::MAX);
    let quorum = match Quorum::new(ackers, view.record.required_acks) {
        Ok(quorum) if ackers > 0 => quorum,
        Ok(_) => return refused("the active member has no acker in another failure domain".to_owned()),
        Err(error) => return refused(error.to_string()),
    };
    if view.heard().count() * 2 <= view.members.len() {
        return FederationDecision::waits(FederationState::Frozen);
    }
    match &view.record.phase {
        Phase::Reign => reign(view),
        Phase::Fencing => fencing(view, quorum),
        Phase::CatchingUp { candidate, needs } => catching_up(view, candidate, needs),
        Phase::Promoting { candidate, needs, ackers } => promoting(view, candidate, needs, ackers),
    }
}

fn refused(reason: String) -> FederationDecision {
    FederationDecision::waits(FederationState::Refused { reason })
}

fn reign(view: &FederationView) -> FederationDecision {
    let record = &view.record;
    let traffic = Some(record.active.clone());
    if view.report(&record.active).is_some() {
        return FederationDecision { traffic, ..FederationDecision::waits(FederationState::Stands) };
    }
    if view.active_is_lost() {
        let term = record.term.next();
        return FederationDecision::writes(FederationRecord {
            term,
            phase: Phase::Fencing,
            ..record.clone()
        });
    }
    FederationDecision { traffic, ..FederationDecision::waits(FederationState::Suspect) }
}

/// Only ackers of the lost term count: what others hold proves nothing about it.
fn fencing(view: &FederationView, quorum: Quorum) -> FederationDecision {
    let (record, term) = (&view.record, view.record.term);
    // One that was revoked for an earlier term may have received from a source of this one since.
    let proves = |report: &MemberReport| report.revoked == Some(term);
    let revoked: Vec<_> = record
        .ackers
        .iter()
        .filter_map(|name| Some((name, view.report(name)?)))
        .filter(|(_, report)| proves(report))
        .collect();
    let missing: BTreeSet<_> =
        record.ackers.iter().filter(|name| revoked.iter().all(|(it, _)| it != name)).cloned().collect();
    let proved_by =
        |ackers: usize| u32::try_from(ackers).is_ok_and(|count| count >= quorum.revocations_needed());
    let enough = proved_by(revoked.len());
    if enough {
        let union = revoked.iter().fold(GtidSet::new(), |union, (_, report)| union.union(&report.held));
        let fits = |name: &String| view.may_lead(name);
        let lacks = |report: &MemberReport| union.subtract(&report.executed).count();
        let best = revoked.iter().filter(|(name, _)| fits(name)).min_by_key(|(_, report)| lacks(report));
        if let Some((candidate, _)) = best {
            let phase = Phase::CatchingUp { candidate: (*candidate).clone(), needs: union };
            return FederationDecision::writes(FederationRecord { phase, ..record.clone() });
        }
    }
    let (heard, silent): (BTreeSet<_>, BTreeSet<_>) =
        missing.into_iter().partition(|name| view.report(name).is_some());
    if heard.is_empty() && silent.is_empty() {
        return refused("no acker of the lost term has data and enough ackers of its own".to_owned());
    }
    let those_heard_suffice = if enough {
        heard.iter().any(|name| view.may_lead(name))
    } else {
        proved_by(revoked.len() + heard.len())
    };
    let state = if silent.is_empty() || those_heard_suffice {
        FederationState::FailingOver
    } else {
        FederationState::FailoverBlocked { missing: silent }
    };
    let mut orders: Vec<_> = heard.into_iter().map(|member| MemberOrder::Revoke { member, term }).collect();
    if view.report(&record.active).is_some() {
        orders.push(MemberOrder::Close { member: record.active.clone(), term });
    }
    FederationDecision::orders(state, orders)
}

fn catching_up(view: &FederationView, candidate: &str, needs: &GtidSet) -> FederationDecision {
    let (record, term) = (&view.record, view.record.term);
    let Some(report) = view.report(candidate) else {
        if !view.is_suspect(candidate) {
            return FederationDecision::waits(FederationState::FailingOver);
        }
        // It was never ordered to take writes, so the ackers of the lost term still prove all.
        let again = FederationRecord { term: term.next(), phase: Phase::Fencing, ..record.clone() };
        return FederationDecision::writes(again);
    };
    if report.executed.contains(needs) {
        let ackers = view.ackers_of(candidate);
        let phase = Phase::Promoting { candidate: candidate.to_owned(), needs: needs.clone(), ackers };
        return FederationDecision::writes(FederationRecord { phase, ..record.clone() });
    }
    let lacks = needs.subtract(&report.held);
    let donor = view
        .heard()
        .filter(|(member, report)| member.name != candidate && report.revoked == Some(term))
        .max_by_key(|(_, report)| report.held.intersect(&lacks).count());
    let orders = donor.filter(|_| !lacks.is_empty()).map(|(donor, _)| MemberOrder::Follow {
        member: candidate.to_owned(),
        source: donor.name.clone(),
        term,
    });
    FederationDecision::orders(FederationState::FailingOver, orders.into_iter().collect())
}

/// The candidate may have taken writes: from here on no other one is chosen.
fn promoting(
    view: &FederationView,
    candidate: &str,
    needs: &GtidSet,
    ackers: &BTreeSet<String>,
) -> FederationDecision {
    let (record, term) = (&view.record, view.record.term);
    let Some(report) = view.report(candidate) else {
        let missing = BTreeSet::from([candidate.to_owned()]);
        return FederationDecision::waits(FederationState::FailoverBlocked { missing });
    };
    if report.proved == Some(term) {
        let active = candidate.to_owned();
        return FederationDecision::writes(FederationRecord {
            active,
            ackers: ackers.clone(),
            phase: Phase::Reign,
            ..record.clone()
        });
    }
    let mut orders: Vec<_> = view
        .heard()
        .filter(|(member, _)| ackers.contains(&member.name) && member.name != record.active)
        .map(|(member, _)| MemberOrder::Follow {
            member: member.name.clone(),
            source: candidate.to_owned(),
            term,
        })
        .collect();
    orders.push(MemberOrder::Promote {
        member: candidate.to_owned(),
        term,
        needs: needs.clone(),
        ackers: ackers.clone(),
        required_acks: record.required_acks,
    });
    FederationDecision::orders(FederationState::FailingOver, orders)
}

#[cfg(test)]
mod tests;
