//! Who gives its data to whom.

use std::collections::BTreeSet;

use super::decision::{Action, Standing};
use super::followers::{Follower, Need};
use super::survey::{Member, Survey};
use crate::gtid::GtidSet;
use crate::observe::{InstanceId, PodState, ServerFacts};

/// The instances that may give their data away, and those that are doing so.
pub(super) struct Donors<'a> {
    /// In the order in which they are asked. The primary is the last.
    available: Vec<(InstanceId, &'a ServerFacts)>,
    busy: BTreeSet<InstanceId>,
    primary: InstanceId,
}

impl<'a> Donors<'a> {
    /// Replicas in sync may give their data, and the primary. One that already does is busy; a copy whose
    /// donor can't be told makes all of them busy.
    pub(super) fn new(survey: &Survey<'a>, primary: Member<'a>, followers: &[Follower<'a>]) -> Self {
        let replicas = followers.iter().filter(|follower| {
            follower.standing == Standing::InSync
                && survey.is_wanted(follower.member.id)
                && follower.member.pod == PodState::Running
        });
        let available: Vec<_> = replicas
            .map(|follower| follower.member)
            .chain([primary])
            .filter_map(|member| Some((member.id, member.ready()?)))
            .collect();
        let copies: Vec<_> = survey.members().filter_map(Member::copying).collect();
        let busy = if copies.iter().any(|copy| copy.donor.is_none()) {
            available.iter().map(|(id, _)| *id).collect()
        } else {
            copies.iter().filter_map(|copy| copy.donor).collect()
        };
        Self { available, busy, primary: primary.id }
    }

    /// The order that gives an instance the data it lacks, or why it has to wait.
    ///
    /// The donor holds all that the instance does but for the tail of a lost primary, so the copy loses nothing
    /// else; and all that the primary has dropped, so the instance can follow the primary after it. The
    /// primary, whose work is to take writes, is asked only if nobody else could do it, now or later.
    pub(super) fn order(
        &mut self,
        instance: &ServerFacts,
        tail: &GtidSet,
        dropped: &GtidSet,
    ) -> Result<Action, String> {
        let held = instance.held().subtract(tail);
        let fitting = |(_, donor): &&(InstanceId, &ServerFacts)| {
            donor.executed.contains(&held) && donor.executed.contains(dropped)
        };
        let able: Vec<_> = self.available.iter().filter(fitting).collect();
        let Some((first, _)) = able.first() else {
            return Err("no instance holds all that it holds and can give it a copy".to_owned());
        };
        let replicas_only = *first != self.primary;
        let free = able
            .iter()
            .filter(|(id, _)| !replicas_only || *id != self.primary)
            .find(|(id, _)| !self.busy.contains(id));
        let Some((donor, server)) = free else {
            return Err(format!("{first} gives its data to another instance first"));
        };
        self.busy.insert(*donor);
        let expendable = server.executed.union(tail);
        Ok(Action::Clone { donor: *donor, expendable, archive: tail.clone() })
    }
}

/// Orders for the followers, at most one for each. Those that have to wait for a copy say so from then on.
pub(super) fn orders_for_followers<'a>(
    survey: &Survey<'a>,
    primary: Member<'a>,
    followers: &mut [Follower<'a>],
) -> Vec<(InstanceId, Action)> {
    let mut donors = Donors::new(survey, primary, followers);
    let mut orders = Vec::new();
    let acknowledges = |follower: &Follower<'a>| follower.member.acknowledges(primary.id);
    let acknowledging = followers.iter().filter(|follower| acknowledges(follower)).count();
    for follower in followers {
        // Whether commits get their acknowledgements from others, errant or not: what one holds beyond the primary
        // takes nothing from what it acknowledges.
        let others = acknowledging - usize::from(acknowledges(follower));
        let suffices =
            u32::try_from(others).is_ok_and(|others| others >= survey.record().quorum.required_acks());
        let action = match &follower.need {
            Need::Nothing => continue,
            Need::Close => Action::Close,
            Need::Fence => Action::Fence,
            Need::Follow { acknowledge } => Action::Follow { source: primary.id, acknowledge: *acknowledge },
            // One that acknowledges nothing takes no acknowledgement away.
            Need::Copy { .. }
                if matches!(follower.standing, Standing::Errant(_))
                    && !suffices
                    && acknowledges(follower) =>
            {
                follower.message = format!("{}, and waits until enough others acknowledge", follower.message);
                continue;
            }
            Need::Copy { tail } => {
                let (Some(server), Some(source)) = (follower.member.ready(), primary.server()) else {
                    continue;
                };
                match donors.order(server, tail, &source.purged) {
                    Ok(action) => {
                        follower.standing = Standing::Cloning;
                        action
                    }
                    Err(reason) => {
                        follower.message = format!("{}, and waits: {reason}", follower.message);
                        continue;
                    }
                }
            }
        };
        orders.push((follower.member.id, action));
    }
    orders
}
