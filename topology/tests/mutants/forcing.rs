//! What a person's choice of a primary may lose, and what it may not.

mutants! {
    /// Nothing is forced while somebody who may well be fine has not been heard.
    a_primary_is_forced_before_all_are_heard in "decide/force.rs":
        "survey.members().any(may_be_heard)" => "false";

    /// A takeover that was begun earlier is not begun again.
    a_takeover_is_begun_again in "decide/force.rs":
        "begun.is_some_and(|begun| begun < begins)" => "false";

    /// The lost primary is not forced in its own place.
    the_lost_primary_is_forced in "decide/force.rs":
        "chosen.id == lost.id" => "false";

    /// An instance that takes writes is closed before it is forced.
    an_open_instance_is_forced in "decide/force.rs":
        "chosen.is_open()" => "false";

    /// An instance without data is not forced.
    an_empty_instance_is_forced in "decide/force.rs":
        "held.is_empty()" => "false";

    /// What may have been acknowledged before a forced takeover is no tail.
    what_was_left_behind_is_given_up in "decide/force.rs":
        "server.recorded_term < forced.since" => "false";

    /// Whoever answers is revoked before the chosen one takes over.
    the_chosen_one_takes_over_before_others_are_revoked in "decide/failover.rs":
        "untold.is_empty()" => "true";
}
