//! What a hub knows of one federated cluster.

use std::collections::BTreeSet;

use crate::gtid::GtidSet;
use crate::term::Term;

/// What proves that another member may take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Acknowledgements of members in other failure domains.
    AckQuorum,
    /// A lease on the active member's monotonic clock.
    WriteLease,
    /// A person.
    Manual,
}

/// What a member is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Preference {
    /// It has the data, and may become active.
    Data,
    /// It keeps binary logs and acknowledges, and never becomes active.
    Witness,
}

/// Whether a member's receiver reaches the active member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sight {
    /// It does.
    Reached,
    /// It does not.
    Missed,
    /// Nobody can tell.
    Unknown,
}

/// How far a failover has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Phase {
    /// None goes on.
    Reign,
    /// The ackers of the lost term are being revoked.
    Fencing,
    /// The candidate gets what the revoked ackers hold between them.
    CatchingUp {
        /// Who is to become active.
        candidate: String,
        /// What has to be executed before.
        needs: GtidSet,
    },
    /// The candidate has executed all of it, and may be ordered to take writes.
    Promoting {
        /// Who is to become active.
        candidate: String,
        /// What has to be executed before.
        needs: GtidSet,
        /// Whose acknowledgements its commits wait for, in place of the record's.
        ackers: BTreeSet<String>,
    },
}

/// What is in the status, and changes only by compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FederationRecord {
    /// The term.
    pub term: Term,
    /// The member that was last proved to take writes.
    pub active: String,
    /// The members whose acknowledgements its commits wait for: none in its own failure domain.
    pub ackers: BTreeSet<String>,
    /// How many of them a commit waits for.
    pub required_acks: u32,
    /// How far a failover has come.
    pub phase: Phase,
}

/// What a member says now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// The term for which it has synced its revocation, and received nothing since.
    pub revoked: Option<Term>,
    /// What it has executed.
    pub executed: GtidSet,
    /// What it has executed or received.
    pub held: GtidSet,
    /// The term whose first transaction it committed and was acknowledged.
    pub proved: Option<Term>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// What fails with it.
    pub domain: String,
    /// What it is there for.
    pub preference: Preference,
    /// New consecutive failures to hear it; errors of the hub's own count as nothing.
    pub failures: u32,
    /// Whether its receiver reaches the active member.
    pub sight: Sight,
    /// What it says; absent: it is not heard now.
    pub report: Option<MemberReport>,
}

/// Everything that a decision is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FederationView {
    /// What proves that another member may take over.
    pub mode: Mode,
    /// Failures after which a member is suspect.
    pub suspect_after: u32,
    /// What is in the status.
    pub record: FederationRecord,
    /// All members.
    pub members: Vec<MemberView>,
}

impl FederationView {
    /// The members that are heard.
    pub(super) fn heard(&self) -> impl Iterator<Item = (&MemberView, &MemberReport)> {
        self.members.iter().filter_map(|member| Some((member, member.report.as_ref()?)))
    }

    fn member(&self, name: &str) -> Option<&MemberView> {
        self.members.iter().find(|member| member.name == name)
    }

    /// What that member says, if it is heard.
    pub(super) fn report(&self, name: &str) -> Option<&MemberReport> {
        self.member(name)?.report.as_ref()
    }

    /// Whether that member has not been heard for long enough.
    pub(super) fn is_suspect(&self, name: &str) -> bool {
        self.member(name).is_none_or(|member| member.failures >= self.suspect_after)
    }

    /// Silence alone may be a fault between the hub and the member: those that receive from it have to miss it too.
    pub(super) fn active_is_lost(&self) -> bool {
        self.is_suspect(&self.record.active) && self.heard().all(|(member, _)| member.sight == Sight::Missed)
    }

    /// The members outside of the failure domain of that one: others would be lost with it.
    pub(super) fn ackers_of(&self, name: &str) -> BTreeSet<String> {
        let domain = self.member(name).map(|member| member.domain.as_str());
        let others = self.members.iter().filter(|member| Some(member.domain.as_str()) != domain);
        others.map(|member| member.name.clone()).collect()
    }

    /// Whether that member has data, and enough ackers for its commits to be answered.
    pub(super) fn may_lead(&self, name: &str) -> bool {
        let has_data = self.member(name).is_some_and(|member| member.preference == Preference::Data);
        let ackers = u32::try_from(self.ackers_of(name).len()).unwrap_or(u32::MAX);
        has_data && ackers >= self.record.required_acks
    }
}
