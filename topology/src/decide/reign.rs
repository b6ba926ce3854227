//! A cluster whose record names a primary.

use super::decision::{Action, Decision, InstanceVerdict, Order, Progress, Role, Standing};
use super::donors::orders_for_followers;
use super::followers::{self, Follower, not_in_sync};
use super::loss::Unreached;
use super::opening::{self, Primary};
use super::state::State;
use super::survey::{Member, Survey};
use super::{handover, join, loss, quorum_change, release, rollout, traffic};
use crate::gtid::GtidSet;
use crate::observe::{AckerIdentity, CatchingUp, InstanceId, ServerFacts, Stage, TermRecord};

/// Decides about a cluster whose primary is `primary`.
pub(super) fn decide(survey: &Survey<'_>, primary: InstanceId) -> Decision {
    let primary = survey.member(primary);
    let mut followers = followers::assess(survey, primary);
    let mut orders = orders_for_followers(survey, primary, &mut followers);
    if let Stage::Handover { to } = survey.record().stage {
        let reign = Reign { survey, primary, followers, serves: false, proved: false };
        return handover::decide(reign, to, orders);
    }
    let Some(server) = primary.server() else {
        let judgement = loss::judge(survey, primary, &followers);
        return Reign { survey, primary, followers, serves: false, proved: false }
            .replaced(judgement, orders);
    };
    let condition = Primary::of(survey, server);
    let reign = Reign {
        survey,
        primary,
        serves: condition.serves(),
        proved: condition == Primary::Serves,
        followers,
    };
    let blocked = primary.is_open() && !acknowledging(survey, primary, server).enough;
    match blocked.then(|| loss::unreached(survey, primary)).flatten() {
        Some(Unreached::Replaced(judgement)) => return reign.replaced(judgement, orders),
        Some(Unreached::StartedAnew(message)) => {
            return reign.decision(State::WritesBlocked, message, vec![(primary.id, Action::Fence)]);
        }
        None => {}
    }
    if reign.proved {
        return reign.proved_decision(server, orders);
    }
    if primary.stops_closed() && survey.record().quorum.required_acks() > 0 {
        let lost = format!("{} {}", primary.id, primary.why_silent());
        let judgement = loss::replace(survey, primary, &lost);
        return reign.replaced(judgement, orders);
    }
    if let Some(gap) = opening::gap(survey, primary, server, &reign.followers) {
        let lost = format!("{} is kept closed: {gap}", primary.id);
        let judgement = loss::replace(survey, primary, &lost);
        // What others hold is not compared with data that are not there.
        orders.retain(|(_, action)| matches!(action, Action::Close | Action::Fence));
        return reign.replaced(judgement, orders);
    }
    let (state, message, action) = reign.bring_to_serve(server, condition);
    orders.extend(action.map(|action| (primary.id, action)));
    reign.decision(state, message, orders)
}

/// Whether the record is older than what instances know, so that the primary has to be found anew.
///
/// A primary that works is kept all the same: one instance with the volume of another cluster must not stop
/// it.
pub(super) fn is_outdated(survey: &Survey<'_>, primary: InstanceId) -> bool {
    let primary = survey.member(primary);
    let works = primary.server().is_some_and(|server| {
        Primary::of(survey, server) == Primary::Serves && acknowledging(survey, primary, server).enough
    });
    survey.highest_term() > survey.term() && !works
}

pub(super) struct Reign<'s, 'a> {
    survey: &'s Survey<'a>,
    primary: Member<'a>,
    followers: Vec<Follower<'a>>,
    /// Whether the primary takes writes that count.
    serves: bool,
    /// Whether it does so for the current term and quorum.
    proved: bool,
}

/// What is known of the acknowledgements that the primary's mysqld gets now.
struct Acknowledging {
    known: u32,
    needed: u32,
    /// Whether a commit gets those that it needs.
    enough: bool,
}

/// Counts what the mysqld of the primary counts: everybody who acknowledges, wanted or not.
///
/// An instance that can't be asked is taken to acknowledge if the primary counts more than the ones known.
fn acknowledging(survey: &Survey<'_>, primary: Member<'_>, server: &ServerFacts) -> Acknowledging {
    let count = |f: &dyn Fn(Member<'_>) -> bool| {
        u32::try_from(survey.others(primary.id).filter(|member| f(*member)).count()).unwrap_or(u32::MAX)
    };
    let known = count(&|member| member.acknowledges(primary.id));
    let unknown = count(&|member| member.known().is_none());
    let presumed = unknown.min(server.semi_sync_clients.saturating_sub(known));
    let needed = server.effective_acks();
    Acknowledging { known, needed, enough: known.saturating_add(presumed) >= needed }
}

impl<'s, 'a> Reign<'s, 'a> {
    pub(super) const fn survey(&self) -> &'s Survey<'a> {
        self.survey
    }

    pub(super) const fn primary(&self) -> Member<'a> {
        self.primary
    }

    pub(super) fn followers(&self) -> &[Follower<'a>] {
        &self.followers
    }

    /// The primary is open for the current term.
    fn proved_decision(self, server: &ServerFacts, mut orders: Vec<(InstanceId, Action)>) -> Decision {
        let Self { survey, primary, ref followers, .. } = self;
        let closes_first =
            orders.iter().any(|(id, action)| *action == Action::Close && survey.member(*id).is_open());
        let handover::Intent { record, mut waits_for, wish } =
            handover::intent(survey, primary, server, followers);
        if let Some(record) = record {
            let message = format!("{} hands over", primary.id);
            return Decision { wish, ..self.recorded(State::SwitchoverRequested, message, record) };
        }
        orders.extend(release::order(survey, primary, server, followers));
        let mut change = None;
        if survey.is_wanted(primary.id) {
            match quorum_change::wanted(survey, primary, server, followers) {
                None => {}
                Some(Ok(record)) => {
                    change = Some(record).filter(|_| !closes_first);
                    waits_for = waits_for.or_else(|| Some("changes its quorum".to_owned()));
                }
                Some(Err(reason)) => waits_for = waits_for.or(Some(reason)),
            }
        }
        let (state, message) = self.state_while_serving(server, waits_for);
        let replace = rollout::next(survey, primary, followers)
            .filter(|_| state == State::Healthy && change.is_none() && orders.is_empty())
            .or_else(|| rollout::left_over(survey, primary, followers).filter(|_| change.is_none()));
        let decision = match change {
            Some(record) => self.recorded(state, message, record),
            None => self.decision(state, message, orders),
        };
        Decision { wish, replace, ..decision }
    }

    /// The primary takes writes, for this term or for the one before it.
    fn state_while_serving(&self, server: &ServerFacts, waits_for: Option<String>) -> (State, String) {
        let id = self.primary.id;
        let acks = acknowledging(self.survey, self.primary, server);
        let mut troubles = not_in_sync(self.survey, &self.followers);
        let (_, catching_up) = self.remembered();
        troubles.extend(
            catching_up.iter().filter(|known| self.survey.is_wanted(known.acker.instance)).map(|known| {
                format!("{} gets what was acknowledged before it was there", known.acker.instance)
            }),
        );
        if !acks.enough {
            let Acknowledging { known, needed, .. } = acks;
            let waits =
                format!("each commit on {id} waits for {needed} acknowledgements, {known} can be given");
            // Where no other instance is wanted any more, none is in trouble.
            let message = if troubles.is_empty() { waits } else { format!("{waits}: {}", join(troubles)) };
            return (State::WritesBlocked, message);
        }
        let copies = self.followers.iter().any(|follower| {
            follower.standing == Standing::Cloning && self.survey.is_wanted(follower.member.id)
        });
        if troubles.is_empty() && waits_for.is_none() && self.proved {
            let message = match self.survey.view.replicas {
                1 => format!("{id} takes writes"),
                replicas => format!("{id} takes writes, all {replicas} instances are in sync"),
            };
            return (State::Healthy, message);
        }
        let state = if copies { State::Cloning } else { State::Degraded };
        (state, format!("{id} takes writes; {}", join(troubles.into_iter().chain(waits_for))))
    }

    /// The primary answers and is not open for the current term.
    fn bring_to_serve(&self, server: &ServerFacts, condition: Primary) -> (State, String, Option<Action>) {
        let Self { survey, primary, followers, .. } = self;
        let (id, term) = (primary.id, survey.term());
        let required_acks = survey.record().quorum.required_acks();
        let (action, waits_for) = match opening::obstacle(survey, *primary, server, followers) {
            None => (Some(Action::Open { required_acks }), format!("{id} is opened for term {term}")),
            Some(obstacle) => {
                // Commits that wait for too few would be lost with the primary: better none.
                let unguarded = condition == Primary::Misguarded && server.effective_acks() < required_acks;
                (
                    Some(Action::Close).filter(|_| unguarded),
                    format!("{id} is not opened for term {term} yet: {obstacle}"),
                )
            }
        };
        match condition {
            Primary::Serves | Primary::Moves => {
                let (state, message) = self.state_while_serving(server, Some(waits_for));
                (state, message, action)
            }
            Primary::Misguarded => {
                let has = server.effective_acks();
                let message = format!(
                    "commits on {id} wait for {has} acknowledgements instead of {required_acks}; {waits_for}"
                );
                (State::WritesBlocked, message, action)
            }
            Primary::Opens | Primary::NeverOpened => {
                let state = match survey.record() {
                    TermRecord { promotion_point: None, .. } => State::Bootstrapping,
                    TermRecord { planned: true, .. } => State::SwitchoverRequested,
                    TermRecord { planned: false, .. } => State::PrimaryLost,
                };
                (state, waits_for, action)
            }
            Primary::Closed => (State::WritesBlocked, waits_for, action),
        }
    }

    /// The primary is lost or not, and its ackers are revoked if so.
    pub(super) fn replaced(self, judgement: loss::Judgement, actions: Vec<(InstanceId, Action)>) -> Decision {
        let loss::Judgement { state, message, record, forcing } = judgement;
        let decision = match record {
            Some(record) => self.recorded(state, message, record),
            None => self.decision(state, message, actions),
        };
        Decision { forcing, ..decision }
    }

    /// A record is to be written, and nothing ordered before it is.
    pub(super) fn recorded(self, state: State, message: String, record: TermRecord) -> Decision {
        Decision { record: Some(record), ..self.decision(state, message, Vec::new()) }
    }

    pub(super) fn decision(
        self,
        state: State,
        message: String,
        actions: Vec<(InstanceId, Action)>,
    ) -> Decision {
        let Self { survey, primary, ref followers, serves, .. } = self;
        let record = survey.record();
        let pods = survey
            .view
            .replicas
            .max(record.quorum.ackers().saturating_add(1))
            .max(primary.id.0.saturating_add(1))
            .max(if self.proved { 0 } else { survey.pods_there_are() });
        let orders: Vec<_> = actions
            .into_iter()
            .map(|(instance, action)| Order { instance, term: record.term, action })
            .collect();
        let (ackers, catching_up) = self.remembered();
        Decision {
            state,
            message,
            instances: self.verdicts(),
            record: None,
            orders: closes_first(survey, orders),
            traffic: traffic::of_term(survey, primary, serves, followers),
            opened: if serves { survey.view.opened.max(record.primary_since) } else { survey.view.opened },
            ackers,
            catching_up,
            wish: None,
            rebuilding: None,
            releasing: None,
            forcing: None,
            replace: None,
            progress: Progress::default(),
            pods,
        }
    }

    fn verdicts(&self) -> Vec<InstanceVerdict> {
        let mut verdicts: Vec<_> = self
            .followers
            .iter()
            .map(|follower| InstanceVerdict {
                id: follower.member.id,
                role: follower.role,
                standing: follower.standing.clone(),
                message: follower.message.clone(),
            })
            .collect();
        let primary = self.primary;
        let (standing, message) = match (primary.known(), primary.server()) {
            (None, _) => (Standing::Unknown, primary.why_silent()),
            (Some(_), None) => (Standing::Down, primary.why_silent()),
            (Some(_), Some(server)) if server.super_read_only => (Standing::Closed, String::new()),
            (Some(_), Some(_)) => (Standing::Open, String::new()),
        };
        verdicts.push(InstanceVerdict { id: primary.id, role: Role::Primary, standing, message });
        verdicts.sort_by_key(|verdict| verdict.id);
        verdicts
    }

    /// Whether the primary holds what it was forced to take over with, and was not opened since. It need not have been
    /// in sync before, and what it holds is all that counts now: if it is lost for a while, it has to be known again.
    fn is_as_it_was_forced(&self) -> bool {
        let Self { survey, primary, .. } = self;
        let record = survey.record();
        let point = record.forced.as_ref().filter(|_| record.is_forced() && !survey.reign_was_opened());
        point.zip(primary.server()).is_some_and(|(forced, server)| server.held().contains(&forced.point))
    }

    /// The primary, the ackers that are known to hold all that it has committed, and those remembered before;
    /// and the ackers on their way there.
    fn remembered(&self) -> (Vec<AckerIdentity>, Vec<CatchingUp>) {
        let Self { survey, primary, followers, proved, .. } = self;
        let view = survey.view;
        let before = |id: InstanceId| view.ackers.iter().find(|known| known.instance == id).cloned();
        let itself = || identity(*primary).or_else(|| before(primary.id)).into_iter();
        let Some(source) = primary.server().filter(|_| *proved) else {
            if !self.is_as_it_was_forced() {
                return (view.ackers.clone(), Vec::new());
            }
            let others = view.ackers.iter().filter(|known| known.instance != primary.id).cloned();
            let mut ackers: Vec<_> = others.chain(itself()).collect();
            ackers.sort_by_key(|known| known.instance);
            return (ackers, Vec::new());
        };
        let mut ackers: Vec<_> = itself().collect();
        let mut catching_up = Vec::new();
        let still_holds = |known: &AckerIdentity, follower: &Follower<'_>| {
            follower.member.known().is_some_and(|facts| known.still_holds(facts, view.durability))
        };
        for follower in followers.iter().filter(|follower| survey.record().counts_acks_of(follower.member.id))
        {
            let id = follower.member.id;
            let now = identity(follower.member).filter(|_| follower.is_counted(survey, primary.id));
            let known = match (&follower.standing, now) {
                (Standing::Errant(errant), _) => {
                    before(id).map(|known| AckerIdentity { errant: errant.clone(), ..known })
                }
                (_, None) => before(id),
                (_, Some(now)) if before(id).is_some_and(|known| still_holds(&known, follower)) => Some(now),
                (_, Some(now)) => {
                    let goal = view
                        .catching_up
                        .iter()
                        .find(|known| known.acker == now && known.term == survey.term())
                        .map_or(&source.executed, |known| &known.goal);
                    if follower.holds_all_of(goal) {
                        Some(now)
                    } else {
                        let (term, goal) = (survey.term(), goal.clone());
                        catching_up.push(CatchingUp { acker: now, term, goal });
                        before(id)
                    }
                }
            };
            ackers.extend(known);
        }
        ackers.sort_by_key(|known| known.instance);
        (ackers, catching_up)
    }
}

fn identity(member: Member<'_>) -> Option<AckerIdentity> {
    let facts = member.known()?;
    Some(AckerIdentity {
        instance: member.id,
        volume_id: facts.volume_id.clone(),
        boot_id: facts.boot_id.clone(),
        errant: GtidSet::new(),
    })
}

/// While an instance that takes writes has to be closed nothing else is ordered.
fn closes_first(survey: &Survey<'_>, mut orders: Vec<Order>) -> Vec<Order> {
    let closes = |order: &Order| order.action == Action::Close && survey.member(order.instance).is_open();
    if orders.iter().any(closes) {
        orders.retain(closes);
    }
    orders
}
