//! What becomes of a person's choice to rebuild an instance.
//!
//! An instance that holds transactions that its primary does not have is left alone: whether they matter is for a
//! person to say. Who chooses to rebuild it gives them up. Their logs are kept aside, and the data are replaced by a
//! copy. Nothing else can be rebuilt: an instance that lacks something gets it without being asked for.

use super::decision::{Decision, InstanceVerdict, Rebuilding, Role, Standing};
use super::state::State;
use super::survey::Survey;
use super::wish::is_unheard;
use crate::observe::Rebuild;

/// Answers the choice, if there is one.
pub(super) fn outcome(survey: &Survey<'_>, decision: &Decision) -> Option<Rebuilding> {
    let Rebuild { instance, begun } = survey.view.rebuild?;
    let Some(verdict) = decision.instances.iter().find(|verdict| verdict.id == instance) else {
        return Some(Rebuilding::Refused(format!("there is no {instance}")));
    };
    if matches!(decision.state, State::Offline | State::Paused) && !begun {
        let Decision { state, message, .. } = decision;
        return Some(Rebuilding::Refused(format!("the cluster is {state}: {message}")));
    }
    Some(match of_standing(verdict, begun) {
        Rebuilding::Refused(_) if begun => Rebuilding::UnderWay,
        Rebuilding::Refused(_) if is_unheard(survey.member(instance)) => Rebuilding::Waits,
        outcome => outcome,
    })
}

fn of_standing(verdict: &InstanceVerdict, begun: bool) -> Rebuilding {
    let InstanceVerdict { id, role, standing, message } = verdict;
    if *role == Role::Primary {
        if begun {
            return Rebuilding::Done;
        }
        return Rebuilding::Refused(format!(
            "{id} is the primary, whose transactions are those of the cluster: make another instance the primary first"
        ));
    }
    match standing {
        Standing::Cloning => Rebuilding::UnderWay,
        Standing::Errant(_) => Rebuilding::Waits,
        Standing::InSync if begun => Rebuilding::Done,
        Standing::InSync => {
            Rebuilding::Refused(format!("{id} is in sync: it holds nothing that the primary does not have"))
        }
        Standing::Unknown
        | Standing::Down
        | Standing::Closed
        | Standing::Open
        | Standing::CatchingUp
        | Standing::Blocked => Rebuilding::Refused(format!(
            "{id} {message}: it can be rebuilt once it is found to hold what the primary does not have"
        )),
    }
}
