//! When the primary may take writes.

use super::decision::Standing;
use super::followers::Follower;
use super::force::left_behind;
use super::join;
use super::survey::{Member, Survey};
use crate::observe::{PodState, ServerFacts};

/// How far a primary that answers is from taking writes for the current term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Primary {
    /// Takes writes for the term, with the quorum in force.
    Serves,
    /// Takes writes for an earlier term of its reign: the quorum is being changed.
    Moves,
    /// Takes writes for the term, but commits wait for a wrong number of acknowledgements.
    Misguarded,
    /// Takes writes, and the first transaction of its reign is not there: it is being opened.
    Opens,
    /// Closed, and was open in its reign before.
    Closed,
    /// Closed, and was never open in its reign.
    NeverOpened,
}

impl Primary {
    pub(super) fn of(survey: &Survey<'_>, server: &ServerFacts) -> Self {
        let record = survey.record();
        let recorded = server.recorded_term;
        let in_reign = recorded >= record.primary_since && !recorded.is_none();
        match (server.super_read_only, in_reign) {
            (true, true) => Self::Closed,
            (true, false) => Self::NeverOpened,
            (false, false) => Self::Opens,
            (false, true) if recorded < record.term => Self::Moves,
            (false, true) if server.effective_acks() != record.quorum.required_acks() => Self::Misguarded,
            (false, true) => Self::Serves,
        }
    }

    /// Whether it may have traffic.
    pub(super) const fn serves(self) -> bool {
        matches!(self, Self::Serves | Self::Moves)
    }
}

/// Why the data of a closed primary are not what its instances say they were, if so.
///
/// A primary that was open in its reign still holds the first transaction of it, and all transactions of its
/// own identity. One that was not holds whatever it was chosen for: all that was on record when it took over
/// from another one, or whatever any other instance does. Other transactions that it lacks are errant. One that
/// was seen open in its reign and looks as if it never was has another volume, and there may be nobody else who
/// knows what it held.
pub(super) fn gap(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<String> {
    if primary.is_open() {
        return None;
    }
    let opened = Primary::of(survey, server) == Primary::Closed;
    let held = server.held();
    let promotion_point = survey.record().promotion_point.as_ref();
    if let Some(lost) = promotion_point.map(|point| point.subtract(&held)).filter(|lost| !lost.is_empty()) {
        return Some(format!("it lacks transactions that it held when it was chosen: {lost}"));
    }
    // What others hold beyond the promotion point of one that was never open is the tail of the one before.
    let compared = followers.iter().filter(|_| opened || promotion_point.is_none());
    let lacks = compared.into_iter().find_map(|follower| {
        let other = follower.member.server()?;
        // What is of the time before a forced takeover no primary since has ever had.
        let extra = other.held().subtract(&held).subtract(&left_behind(survey, follower.member));
        let own = extra.of_source(server.server_uuid);
        let lost = if !opened || other.recorded_term > server.recorded_term { extra } else { own };
        (!lost.is_empty()).then(|| format!("it lacks transactions that {} holds: {lost}", follower.member.id))
    });
    let emptied = (!opened && survey.reign_was_opened()).then(|| {
        format!(
            "it has lost its data: it took writes in term {}, and the first transaction of that term is not there; \
             restore its volume, or delete the cluster and make it anew to go on without them",
            survey.record().primary_since
        )
    });
    lacks.or(emptied)
}

/// What stands in the way of opening the primary for the current term, if anything does.
pub(super) fn obstacle(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<String> {
    if primary.ready().is_none() {
        return Some(match primary.pod {
            PodState::Terminating => "its pod is being deleted".to_owned(),
            _ => format!("it {}", primary.why_silent()),
        });
    }
    if let Some(open) =
        followers.iter().find(|follower| follower.member.is_open() && !is_harmless(survey, follower.member))
    {
        return Some(format!("{} takes writes and has to be closed first", open.member.id));
    }
    let required = survey.record().quorum.required_acks();
    if required == 0 {
        return None;
    }
    too_few(survey, primary, required, followers).or_else(|| stranger(survey, primary, server, followers))
}

/// Whether an instance that takes writes gets none of them acknowledged: it was lost as primary, and too few
/// of its ackers are left. It is ended as well, but a process that hangs in its disk can't even be killed.
fn is_harmless(survey: &Survey<'_>, member: Member<'_>) -> bool {
    let record = survey.record();
    member.server().is_some_and(|server| {
        record.promotion_point.is_some()
            && server.recorded_term < record.primary_since
            && server.effective_acks() >= record.quorum.required_acks()
            && server.effective_acks() > 0
    })
}

/// The term's first transaction needs its acknowledgements: opening before they can come would only block.
fn too_few(
    survey: &Survey<'_>,
    primary: Member<'_>,
    required: u32,
    followers: &[Follower<'_>],
) -> Option<String> {
    let (ready, waiting): (Vec<_>, Vec<_>) = followers
        .iter()
        .filter(|follower| survey.record().counts_acks_of(follower.member.id))
        .partition(|follower| follower.is_counted(survey, primary.id));
    if u32::try_from(ready.len()).is_ok_and(|ready| ready >= required) {
        return None;
    }
    let why = join(waiting.iter().map(|follower| format!("{} {}", follower.member.id, follower.message)));
    Some(format!("{required} ackers have to follow it, {} do: {why}", ready.len()))
}

/// Who might acknowledge without being counted. A commit would then be acknowledged by fewer ackers than `W`,
/// and `R` of them would not prove it.
///
/// After the quorum has become smaller, one that can't be asked might do so. Before that it never was told to.
fn stranger(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<String> {
    let record = survey.record();
    let others = || followers.iter().filter(|follower| !record.counts_acks_of(follower.member.id));
    if let Some(stranger) = others().find(|follower| follower.member.acknowledges(primary.id)) {
        return Some(format!("{} has to stop acknowledging first", stranger.member.id));
    }
    if server.recorded_term >= record.term {
        return None;
    }
    let untold = others().find(|follower| {
        let tells = follower.member.known().filter(|_| follower.member.pod != PodState::Absent);
        let left_alone = matches!(follower.standing, Standing::Errant(_) | Standing::Blocked);
        tells.is_some_and(|facts| facts.persisted_term < record.term)
            && (!left_alone || follower.member.may_receive_from(primary.id))
    });
    if let Some(untold) = untold {
        return Some(format!("{} has to be told of term {} first", untold.member.id, record.term));
    }
    let silent = others()
        .find(|follower| follower.member.known().is_none() && follower.member.pod != PodState::Absent);
    if let Some(silent) = silent {
        let (id, why) = (silent.member.id, silent.member.why_silent());
        return Some(format!("{id} might still acknowledge and can't be told to stop: it {why}"));
    }
    let possible = followers.iter().filter(|follower| record.counts_acks_of(follower.member.id));
    let possible = possible
        .filter(|follower| follower.member.known().is_none() || follower.member.may_receive_from(primary.id));
    let ackers = u32::try_from(possible.count()).unwrap_or(u32::MAX);
    (server.semi_sync_clients > ackers).then(|| {
        let clients = server.semi_sync_clients;
        format!("{clients} replicas acknowledge to it, and only {ackers} are counted that can")
    })
}
