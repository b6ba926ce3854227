//! In which order pods are replaced.

mutants! {
    /// Nobody is replaced before the last one is in sync again.
    two_are_replaced_at_once in "decide/rollout.rs":
        "!is_quiet(survey, primary, followers, None)" => "false";

    /// Nobody is replaced before the last one has what it missed.
    the_next_one_goes_before_the_last_has_caught_up in "decide/rollout.rs":
        "follower.standing == Standing::InSync && current" => "follower.standing == Standing::InSync";

    /// The primary is the last to be replaced.
    the_primary_is_replaced_first in "decide/rollout.rs":
        "outdated.map(|member| member.id).max()" => "Some(primary.id).filter(|_| primary.outdated)";

    /// A primary hands over before it is replaced, wherever another instance could be it.
    the_primary_is_replaced_without_a_handover in "decide/rollout.rs":
        "survey.view.replicas == 1" => "true";

    /// The primary hands over once all others are up to date.
    the_primary_hands_over_before_the_others_are_replaced in "decide/rollout.rs":
        "!followers.iter().any(|follower| follower.member.outdated)" => "true";

    /// No pod is replaced while something else goes on.
    a_pod_is_replaced_while_something_else_goes_on in "decide/reign.rs":
        "state == State::Healthy && change.is_none() && orders.is_empty()" => "true";

    /// A pod of a template that was given up is replaced out of turn only while it is not in sync.
    one_in_sync_is_replaced_out_of_turn in "decide/rollout.rs":
        "!matches!(follower.standing, Standing::InSync | Standing::Cloning)" => "true";

    /// A template that is known to work is no reason to replace an instance that is not in sync.
    one_of_a_good_template_is_replaced_out_of_turn in "decide/rollout.rs":
        "follower.member.abandoned" => "follower.member.outdated";

    /// One that may be needed is replaced out of turn only while all others are as for any replacement.
    one_is_replaced_out_of_turn_while_others_are_away in "decide/rollout.rs":
        "is_quiet(survey, primary, followers, Some(*id))" => "true";
}
