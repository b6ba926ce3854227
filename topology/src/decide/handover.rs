//! Another primary in place of one that works.
//!
//! ```text
//! record: term + 1, Handover ─► the primary is closed ─► the other one has executed all of it
//!                                 │                        └─► record: term + 2, primary: the other one
//!                                 ├─ the other one can't any more ─► record: term + 2, primary: the same
//!                                 │     and the primary is ending ─► record: term + 2, Handover to a third one
//!                                 └─ the primary is lost ─► failover
//! ```
//!
//! A closed primary commits nothing more, and no order of the term before can open it again. So what it holds
//! is all that it ever acknowledged, and no acker has to prove anything.
//!
//! A primary whose pod is being deleted hands over as well. Its agent goes on until then, but not for ever: where no
//! other instance is able, nothing is begun, and the primary is lost when it ends.
//!
//! A primary with an outdated pod hands over once all others are up to date ([`rollout`]).

use super::decision::{Action, Decision, Fulfilment, Standing};
use super::followers::Follower;
use super::loss;
use super::quorum_change::lags_little;
use super::reign::Reign;
use super::rollout;
use super::state::State;
use super::survey::{Member, Survey};
use super::wish;
use crate::observe::{InstanceId, PodState, ServerFacts, Stage, Takeover, TermRecord, ThreadState, Wish};

/// Whether the primary is to be another one.
#[derive(Default)]
pub(super) struct Intent {
    /// The record that begins the handover.
    pub(super) record: Option<TermRecord>,
    /// What a handover that has to come waits for.
    pub(super) waits_for: Option<String>,
    /// What becomes of a wish that no handover was begun for.
    pub(super) wish: Option<Fulfilment>,
}

/// Says whether a primary that takes writes has to hand over, or is asked to.
pub(super) fn intent(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Intent {
    let candidates = Candidates { survey, primary, server, followers };
    let wish = wish::unbegun(survey).map(|wish| candidates.answer(wish));
    let begin = |to| Some(survey.record().next(Stage::Handover { to }));
    if let Some(Fulfilment::UnderWay { to, .. }) = wish {
        return Intent { record: begin(to), wish, ..Intent::default() };
    }
    // One that takes no more orders is lost once it has closed itself.
    let ends = primary.leaves() && primary.closable().is_some() && survey.record().quorum.required_acks() > 0;
    if survey.is_wanted(primary.id) && !ends {
        if wish.is_none() && rollout::reaches_primary(survey, primary, followers) {
            return Intent { record: candidates.best(|_| true).and_then(begin), ..Intent::default() };
        }
        return Intent { wish, ..Intent::default() };
    }
    if let Some(to) = candidates.best(|_| true) {
        return Intent { record: begin(to), wish, ..Intent::default() };
    }
    let waits_for = format!("{} is the primary and leaves once another one can take over", primary.id);
    Intent { waits_for: Some(waits_for), wish, ..Intent::default() }
}

/// The instances that may take over from a primary that takes writes.
struct Candidates<'v, 's, 'a> {
    survey: &'v Survey<'a>,
    primary: Member<'a>,
    server: &'v ServerFacts,
    followers: &'s [Follower<'a>],
}

impl<'a> Candidates<'_, '_, 'a> {
    /// Of those that can take over, one that lacks the least, then the lowest ordinal.
    fn best(&self, fits: impl Fn(&Follower<'a>) -> bool) -> Option<InstanceId> {
        self.least_lacking(|follower| fits(follower) && self.obstacle(follower).is_none())
    }

    /// The same for a handover that has begun: one that follows and gets what it lacks will do.
    fn third(&self, than: InstanceId, closed: bool) -> Option<InstanceId> {
        self.least_lacking(|follower| {
            let id = follower.member.id;
            let counts = self.survey.is_wanted(id) && self.survey.record().counts_acks_of(id);
            id != than && counts && unable(follower, self.primary.id, closed).is_none()
        })
    }

    fn least_lacking(&self, fits: impl Fn(&Follower<'a>) -> bool) -> Option<InstanceId> {
        let lacks = |follower: &Follower<'a>| {
            let executed = follower.member.server().map(|server| &server.executed);
            executed.map_or(u128::MAX, |executed| self.server.executed.subtract(executed).count())
        };
        let able = self.followers.iter().filter(|follower| fits(follower));
        able.min_by_key(|follower| (lacks(follower), follower.member.id)).map(|follower| follower.member.id)
    }

    /// What becomes of a wish.
    fn answer(&self, wish: Wish) -> Fulfilment {
        let to = match wish {
            Wish::Any => None,
            Wish::To(to) | Wish::Begun { to, .. } => Some(to),
        };
        if to == Some(self.primary.id) {
            return Fulfilment::Done(self.primary.id);
        }
        if self.survey.view.replicas == 1 {
            return Fulfilment::Refused(
                "one instance is wanted, and nobody else can be the primary".to_owned(),
            );
        }
        let fits = |follower: &Follower<'_>| to.is_none_or(|to| to == follower.member.id);
        if let Some(to) = self.best(fits) {
            return Fulfilment::UnderWay { to, term: self.survey.term().next() };
        }
        let asked: Vec<_> = self.followers.iter().filter(|follower| fits(follower)).collect();
        if asked.iter().any(|follower| wish::is_unheard(follower.member)) {
            return Fulfilment::Waits;
        }
        let why = super::join(asked.iter().filter_map(|follower| self.obstacle(follower)));
        Fulfilment::Refused(match to {
            Some(to) if why.is_empty() => format!("{to} can't become the primary: there is no such instance"),
            Some(to) => format!("{to} can't become the primary: {why}"),
            None => format!("no other instance can become the primary: {why}"),
        })
    }

    /// Whether an instance lacks nothing, or as little as clients would wait for without complaint: what it has
    /// received and not applied is waited for while nobody can write.
    fn keeps_up(&self, follower: &Follower<'_>) -> bool {
        let executed = follower.member.server().map(|server| &server.executed);
        executed.is_some_and(|executed| executed.contains(&self.server.executed))
            || lags_little(self.primary, follower)
    }

    /// Why an instance can't take over now, said of it.
    fn obstacle(&self, follower: &Follower<'_>) -> Option<String> {
        let Follower { member, standing, message, .. } = follower;
        let id = member.id;
        if !self.survey.is_wanted(id) {
            return Some(format!("{id} is leaving"));
        }
        if !self.survey.record().counts_acks_of(id) {
            return Some(format!("the acknowledgements of {id} do not count yet"));
        }
        if member.pod != PodState::Running || member.ready().is_none() {
            return Some(format!("{id} {}", member.why_not_ready()));
        }
        if *standing != Standing::InSync {
            return Some(format!("{id} {message}"));
        }
        (!self.keeps_up(follower)).then(|| format!("{id} is behind"))
    }
}

/// Decides about a cluster whose primary hands over to another instance.
///
/// `orders` are those that bring the followers back to the primary: the one that takes over may need one, too.
pub(super) fn decide(
    reign: Reign<'_, '_>,
    to: InstanceId,
    mut orders: Vec<(InstanceId, Action)>,
) -> Decision {
    let (survey, primary) = (reign.survey(), reign.primary());
    let Some(server) = primary.server() else {
        let judgement = loss::judge(survey, primary, reign.followers());
        return reign.replaced(judgement, Vec::new());
    };
    let from = primary.id;
    let closed =
        primary.known().is_some_and(|facts| facts.persisted_term == survey.term()) && !primary.is_open();
    let other = reign.followers().iter().find(|follower| follower.member.id == to);
    if let Some(reason) = other.and_then(|follower| unable(follower, from, closed)) {
        // One that is ending can't be opened again, and its last transactions are lost to the others with it.
        let candidates = Candidates { survey, primary, server, followers: reign.followers() };
        if let Some(third) = candidates.third(to, closed).filter(|_| primary.leaves()) {
            let message = format!("{from} hands over to {third}: {to} can't take over, {reason}");
            let record = survey.record().next(Stage::Handover { to: third });
            return reign.recorded(State::SwitchoverRequested, message, record);
        }
        let message = format!("{from} stays the primary: {to} can't take over, {reason}");
        let record = survey.record().next(Stage::Reign);
        return reign.recorded(State::SwitchoverRequested, message, record);
    }
    if !closed {
        let message = format!("{from} is closed, to hand over to {to}");
        let hears = primary.known().is_some_and(|facts| facts.persisted_term <= survey.term());
        orders.extend(primary.closable().filter(|_| hears).map(|_| (from, Action::Close)));
        return reign.decision(State::SwitchoverRequested, message, orders);
    }
    let held = server.held();
    if !survey.member(to).server().is_some_and(|other| other.executed.contains(&held)) {
        let message = format!("{from} is closed, {to} gets its last transactions");
        return reign.decision(State::SwitchoverRequested, message, orders);
    }
    let record = survey.record().taken_over(to, held, Takeover::Planned);
    let message = format!("{to} has executed all that {from} has, and takes over");
    reign.recorded(State::SwitchoverRequested, message, record)
}

/// Why an instance can't go on taking over, said of it. Once the primary is closed nobody writes, so one that
/// can't get or apply the last transactions is not waited for.
fn unable(follower: &Follower<'_>, from: InstanceId, closed: bool) -> Option<String> {
    if follower.member.ready().is_none() {
        return Some(follower.member.why_not_ready());
    }
    let unreachable = follower.member.replication_from(from).is_some_and(|replication| {
        replication.receiver == ThreadState::Connecting && !replication.receiver_error.is_empty()
    });
    if closed && (unreachable || follower.member.fails_to_follow(from)) {
        return Some(follower.message.clone());
    }
    matches!(
        follower.standing,
        Standing::Errant(_) | Standing::Blocked | Standing::Open | Standing::Cloning | Standing::Down
    )
    .then(|| follower.message.clone())
}
