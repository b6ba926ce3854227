//! When the quorum follows the wanted number of instances.
//!
//! Which ackers there are and how many are waited for is part of a term, so a change is a new term with the
//! same primary. More are waited for only once all of the new ackers are in sync, so growing never stalls
//! writes. Fewer are waited for before the instances that leave are gone, so shrinking does not either.

use super::decision::Standing;
use super::followers::{Follower, not_in_sync};
use super::join;
use super::survey::{Member, Survey};
use crate::observe::{ServerFacts, TermRecord};

/// A replica that applies no more than this behind the primary holds up nobody who waits for it.
const CAUGHT_UP_MS: u64 = 1000;

/// The record of the term with the wanted quorum, or what that waits for. Nothing if the quorum is the
/// wanted one.
pub(super) fn wanted(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<Result<TermRecord, String>> {
    let record = survey.record();
    if record.quorum == survey.wanted {
        return None;
    }
    let term = record.term.next();
    let change = TermRecord { term, quorum: survey.wanted, quorum_since: term, ..record.clone() };
    Some(obstacle(survey, primary, server, followers).map_or(Ok(change), Err))
}

fn obstacle(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<String> {
    let (now, wanted) = (survey.record().quorum, survey.wanted);
    let settled = |follower: &&Follower<'_>| {
        follower.standing == Standing::InSync && keeps_up(primary, server, follower)
    };
    let stay = || followers.iter().filter(|follower| survey.is_wanted(follower.member.id));
    let ready = u32::try_from(stay().filter(settled).count()).unwrap_or(u32::MAX);
    let needed = if wanted.ackers() > now.ackers() { wanted.ackers() } else { wanted.required_acks() };
    if ready >= needed {
        return None;
    }
    let behind = stay().filter(|follower| follower.standing == Standing::InSync && !settled(follower));
    let behind = behind.map(|follower| format!("{} is behind", follower.member.id));
    let why = join(not_in_sync(survey, followers).into_iter().chain(behind));
    Some(format!(
        "commits wait for {} acknowledgements instead of {} until {needed} of the new ackers are in sync, {ready} are: {why}",
        now.required_acks(),
        wanted.required_acks()
    ))
}

/// Whether an instance lacks nothing, or as little as nobody would notice.
pub(super) fn keeps_up(primary: Member<'_>, server: &ServerFacts, follower: &Follower<'_>) -> bool {
    follower.holds_all_of(&server.executed) || lags_little(primary, follower)
}

/// Whether an instance applies as little behind the primary as nobody would notice.
pub(super) fn lags_little(primary: Member<'_>, follower: &Follower<'_>) -> bool {
    let lag = follower.member.replication_from(primary.id).and_then(|replication| replication.lag_ms);
    lag.is_some_and(|lag| lag <= CAUGHT_UP_MS)
}
