//! What each instance other than the primary does, and what it needs.

use super::decision::{Role, Standing};
use super::force::left_behind;
use super::survey::{Member, Survey};
use crate::gtid::GtidSet;
use crate::observe::{
    CloneState, Forced, InstanceFacts, InstanceId, PodState, ReplicationFacts, ServerFacts, ThreadState,
};

/// For how long the mysqld of a follower has to be silent before it is ended and started again: a disk that is
/// slow for a while is no reason, and a process that hangs would be missed as an acker for ever.
const HANGS_AFTER_MS: u64 = 10_000;

/// An instance that is not the primary.
pub(super) struct Follower<'a> {
    pub(super) member: Member<'a>,
    pub(super) role: Role,
    pub(super) standing: Standing,
    /// Said of it: `instance 1 …`.
    pub(super) message: String,
    pub(super) need: Need,
}

/// What an instance needs to get in sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing that an order could give it.
    Nothing,
    /// To be closed.
    Close,
    /// To have its mysqld ended.
    Fence,
    /// To follow the primary.
    Follow { acknowledge: bool },
    /// A copy of the data, since the primary has dropped transactions that it lacks, or since it holds some
    /// that are given up.
    Copy {
        /// Those: what a lost primary committed and nobody acknowledged, or what a person gives up.
        tail: GtidSet,
    },
}

/// Looks at every instance but the primary, by ordinal.
pub(super) fn assess<'a>(survey: &Survey<'a>, primary: Member<'a>) -> Vec<Follower<'a>> {
    survey.others(primary.id).map(|member| assess_one(survey, primary, member)).collect()
}

fn assess_one<'a>(survey: &Survey<'a>, primary: Member<'a>, member: Member<'a>) -> Follower<'a> {
    let (standing, message, need) = judge(survey, primary, member);
    Follower { member, role: role(survey, member.id), standing, message, need }
}

/// What an instance other than the primary is there for.
pub(super) fn role(survey: &Survey<'_>, id: InstanceId) -> Role {
    if !survey.is_wanted(id) {
        Role::Leaving
    } else if survey.record().counts_acks_of(id) {
        Role::Acker
    } else {
        Role::Replica
    }
}

type Judgement = (Standing, String, Need);

fn judge(survey: &Survey<'_>, primary: Member<'_>, member: Member<'_>) -> Judgement {
    let Some(facts) = member.known() else {
        return (Standing::Unknown, member.why_silent(), Need::Nothing);
    };
    if let Some(copy) = member.copying() {
        let donor = copy.donor.map_or_else(|| "another instance".to_owned(), |donor| donor.to_string());
        let message = format!("copies the data of {donor}");
        return (Standing::Cloning, message, Need::Nothing);
    }
    if member.is_open() {
        return judge_open(survey, member, facts);
    }
    let Some(server) = member.ready() else {
        let hangs = member.silent_for_ms().is_some_and(|for_ms| for_ms >= HANGS_AFTER_MS);
        let can_be_told = facts.persisted_term <= survey.term() && member.pod != PodState::Terminating;
        let need = if hangs && can_be_told { Need::Fence } else { Need::Nothing };
        return (Standing::Down, member.why_silent(), need);
    };
    if member.highest_term() > survey.term() {
        let message = format!(
            "knows of term {}, higher than term {} of the cluster, and takes no order of that one",
            member.highest_term(),
            survey.term()
        );
        return (Standing::Blocked, message, Need::Nothing);
    }
    match primary.server() {
        Some(source) => extra(survey, primary, source, member, server)
            .unwrap_or_else(|| judge_closed(survey, primary.id, source, member, facts, server)),
        None => judge_without_primary(primary.id, server),
    }
}

/// An instance that takes writes and is not the primary.
fn judge_open(survey: &Survey<'_>, member: Member<'_>, facts: &InstanceFacts) -> Judgement {
    if facts.persisted_term > survey.term() {
        let message =
            format!("takes writes for term {}, higher than that of the cluster", facts.persisted_term);
        return (Standing::Open, message, Need::Nothing);
    }
    if member.server().is_some_and(|server| server.semi_sync_source) {
        // Its commits may wait for acknowledgements that never come, and then it can't be closed politely.
        return (
            Standing::Open,
            "takes writes without being the primary, and is ended".to_owned(),
            Need::Fence,
        );
    }
    (Standing::Open, "takes writes without being the primary, and is closed".to_owned(), Need::Close)
}

/// Nothing can be compared: what runs is left to run.
fn judge_without_primary(primary: InstanceId, server: &ServerFacts) -> Judgement {
    match &server.replication {
        Some(replication) if replication.source == Some(primary) && replication.runs() => {
            (Standing::InSync, String::new(), Need::Nothing)
        }
        _ => (Standing::Closed, format!("waits for {primary}, which does not answer"), Need::Nothing),
    }
}

/// Transactions of an instance that its primary does not have.
///
/// Where the primary takes writes, its own transactions are no evidence: the two were not asked at the same
/// instant, and what looks like one too many is only newer. Nobody but a server itself makes transactions of
/// its own identity, so all others are.
///
/// An instance that has not yet executed the first transaction of this reign may hold the tail of the primary
/// before: what that one committed and nobody acknowledged, since all that was acknowledged was on record when
/// the present primary took over. No client was ever told of it. After a takeover that a person forced that is not so:
/// what an instance holds of the time before may have been acknowledged.
fn extra(
    survey: &Survey<'_>,
    primary: Member<'_>,
    source: &ServerFacts,
    member: Member<'_>,
    server: &ServerFacts,
) -> Option<Judgement> {
    let record = survey.record();
    let left_behind = left_behind(survey, member);
    let extra = server.held().subtract(&source.held());
    let own = extra.of_source(source.server_uuid).subtract(&left_behind);
    if !primary.is_open() && !own.is_empty() {
        let message = format!(
            "holds transactions of {} that it has lost, or had not made yet when it was asked: {own}",
            primary.id
        );
        return Some((Standing::Blocked, message, Need::Nothing));
    }
    let errant = extra.subtract(&own).union(&left_behind);
    if errant.is_empty() {
        return None;
    }
    // A primary that has lost what it was chosen for proves nothing of what others hold.
    let whole = |point: &GtidSet| source.held().contains(point);
    let promoted_whole = record.promotion_point.as_ref().is_some_and(whole);
    let tail = match server.recorded_by {
        Some(before) if promoted_whole && server.recorded_term < record.primary_since => {
            errant.of_source(before).subtract(&left_behind)
        }
        _ => GtidSet::new(),
    };
    if errant == tail {
        let message = format!(
            "holds transactions that nobody acknowledged to the primary before, which are archived: {tail}"
        );
        return Some((Standing::CatchingUp, message, Need::Copy { tail }));
    }
    if survey.is_to_be_rebuilt(member.id) && record.promotion_point.as_ref().is_none_or(whole) {
        return Some(give_up(primary.id, member, server, errant));
    }
    let message = match record.forced.as_ref().filter(|_| !left_behind.is_empty()) {
        Some(Forced { since, .. }) => format!(
            "holds transactions that may have been acknowledged before a primary without them was forced in term \
             {since}, and is left alone until a person has it rebuilt: {errant}"
        ),
        None => {
            format!("holds transactions that {} does not have, and is left alone: {errant}", primary.id)
        }
    };
    Some((Standing::Errant(errant), message, Need::Nothing))
}

/// A person gives up what an instance holds. It is kept aside as binary logs, so all of it has to be executed first.
fn give_up(primary: InstanceId, member: Member<'_>, server: &ServerFacts, errant: GtidSet) -> Judgement {
    let message = format!("holds transactions that {primary} does not have, and is to be rebuilt: {errant}");
    if server.executed.contains(&errant) {
        return (Standing::Errant(errant.clone()), message, Need::Copy { tail: errant });
    }
    let error = server.replication.as_ref().map_or("", |replication| &replication.applier_error);
    let message = with_error(format!("{message}; it applies what it has received first"), error);
    let need = if member.leaves_unapplied() { Need::Close } else { Need::Nothing };
    (Standing::Errant(errant), message, need)
}

fn judge_closed(
    survey: &Survey<'_>,
    primary: InstanceId,
    source: &ServerFacts,
    member: Member<'_>,
    facts: &InstanceFacts,
    server: &ServerFacts,
) -> Judgement {
    let acknowledge = survey.record().counts_acks_of(member.id);
    let replication = member.replication_from(primary);
    if !survey.is_wanted(member.id) && !acknowledge {
        // It goes as soon as nobody counts on it. Until then only its acknowledgements matter: they would
        // count in the eyes of the primary's mysqld. Where no commit shall wait any more they harm nobody,
        // and those that wait already would wait for ever without them.
        let may_acknowledge = member.acknowledges(primary) || facts.persisted_term < survey.term();
        if survey.record().quorum.required_acks() > 0 && may_acknowledge {
            let message = "is leaving, and is told to acknowledge no more".to_owned();
            return (Standing::CatchingUp, message, Need::Follow { acknowledge });
        }
        return (Standing::Closed, "is leaving".to_owned(), Need::Nothing);
    }
    if let Some(other) = receives_from_another(survey, primary, server) {
        let message = format!("is told to receive nothing more from {other}");
        return (Standing::CatchingUp, message, Need::Close);
    }
    if !member.receives_from(primary) {
        let missing = missing_for_ever(source, server, replication);
        if !missing.is_empty() {
            let mut message = format!("lacks transactions whose logs {primary} has dropped: {missing}");
            if let Some(CloneState::Failed(error)) = facts.clone.as_ref().map(|clone| &clone.state) {
                message = format!("{message}; the last copy failed: {error}");
            }
            return (Standing::CatchingUp, message, Need::Copy { tail: GtidSet::new() });
        }
    }
    if let Some(reason) = reason_to_follow(primary, replication, server, acknowledge) {
        return (Standing::CatchingUp, reason, Need::Follow { acknowledge });
    }
    if facts.persisted_term < survey.term() {
        let message = format!("is told of term {}", survey.term());
        return (Standing::CatchingUp, message, Need::Follow { acknowledge });
    }
    match replication {
        Some(replication) if replication.receiver == ThreadState::Connecting => {
            let message = with_error(format!("connects to {primary}"), &replication.receiver_error);
            (Standing::CatchingUp, message, Need::Nothing)
        }
        Some(replication) if replication.applier == ThreadState::Connecting => {
            (Standing::CatchingUp, "starts to apply".to_owned(), Need::Nothing)
        }
        _ => (Standing::InSync, String::new(), Need::Nothing),
    }
}

/// The lost primary, or any other, that an instance may still receive from. What it got from there by the time
/// it is told to follow the present primary could be a tail that nobody has seen.
fn receives_from_another(
    survey: &Survey<'_>,
    primary: InstanceId,
    server: &ServerFacts,
) -> Option<InstanceId> {
    let record = survey.record();
    let replication =
        server.replication.as_ref().filter(|_| record.promotion_point.is_some() && !record.planned)?;
    let runs = matches!(replication.receiver, ThreadState::Running | ThreadState::Connecting);
    replication.source.filter(|source| *source != primary && runs)
}

/// What an instance lacks and the primary can't send it any more.
///
/// Relay logs count only while they are those of the primary: pointing an instance at another source drops
/// them.
fn missing_for_ever(
    source: &ServerFacts,
    server: &ServerFacts,
    from_primary: Option<&ReplicationFacts>,
) -> GtidSet {
    match from_primary {
        Some(_) => source.purged.subtract(&server.held()),
        None => source.purged.subtract(&server.executed),
    }
}

/// Why an instance has to be told to follow the primary, if it has to.
fn reason_to_follow(
    primary: InstanceId,
    from_primary: Option<&ReplicationFacts>,
    server: &ServerFacts,
    acknowledge: bool,
) -> Option<String> {
    let Some(replication) = from_primary else {
        return Some(format!("is told to follow {primary}"));
    };
    let ReplicationFacts { receiver, applier, .. } = replication;
    match (receiver, applier) {
        (ThreadState::Failed, _) => {
            Some(with_error(format!("can't receive from {primary}"), &replication.receiver_error))
        }
        (_, ThreadState::Failed) => {
            Some(with_error(format!("can't apply what {primary} sent"), &replication.applier_error))
        }
        (ThreadState::Stopped, _) | (_, ThreadState::Stopped) => {
            Some(format!("is told to go on following {primary}"))
        }
        (ThreadState::Running, _) if server.semi_sync_replica != acknowledge => {
            let what = if acknowledge { "acknowledge" } else { "acknowledge no more" };
            Some(format!("is told to {what}"))
        }
        (ThreadState::Running | ThreadState::Connecting, _) => None,
    }
}

fn with_error(what: String, error: &str) -> String {
    if error.is_empty() { what } else { format!("{what}: {error}") }
}

impl Follower<'_> {
    /// Whether its acknowledgements count, it gives them, and it refuses the orders of earlier terms.
    pub(super) fn is_counted(&self, survey: &Survey<'_>, primary: InstanceId) -> bool {
        survey.record().counts_acks_of(self.member.id)
            && self.member.acknowledges(primary)
            && !self.member.is_open()
            && self.member.known().is_some_and(|facts| facts.persisted_term == survey.term())
            && !matches!(self.standing, Standing::Errant(_) | Standing::Blocked)
    }

    /// Whether it holds all of these transactions.
    pub(super) fn holds_all_of(&self, transactions: &GtidSet) -> bool {
        self.member.server().is_some_and(|server| server.held().contains(transactions))
    }
}

/// The wanted instances that are not in sync, each with the reason.
pub(super) fn not_in_sync(survey: &Survey<'_>, followers: &[Follower<'_>]) -> Vec<String> {
    let wanted = followers.iter().filter(|follower| survey.is_wanted(follower.member.id));
    wanted
        .filter(|follower| follower.standing != Standing::InSync)
        .map(|follower| format!("{} {}", follower.member.id, follower.message))
        .collect()
}
