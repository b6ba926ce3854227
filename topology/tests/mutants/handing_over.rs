//! How a primary that works hands over.

mutants! {
    /// A primary is closed before another one takes over.
    one_takes_over_from_an_open_primary in "decide/handover.rs":
        "primary.known().is_some_and(|facts| facts.persisted_term == survey.term()) && !primary.is_open()"
        => "primary.known().is_some_and(|facts| facts.persisted_term == survey.term())";

    /// A closed primary refuses the orders of the term in which it was open.
    a_closed_primary_takes_orders_of_the_term_before in "decide/handover.rs":
        "primary.known().is_some_and(|facts| facts.persisted_term == survey.term()) && !primary.is_open()"
        => "!primary.is_open()";

    /// Who takes over has all that the closed primary has.
    one_takes_over_without_the_last_transactions in "decide/handover.rs":
        "other.executed.contains(&held)" => "true";

    /// Who takes over has executed all that the closed primary has.
    one_takes_over_that_has_only_received in "decide/handover.rs":
        "other.executed.contains(&held)" => "other.held().contains(&held)";

    /// A handover begins only to an instance in sync.
    a_handover_begins_to_one_that_is_not_in_sync in "decide/handover.rs":
        "*standing != Standing::InSync" => "false";

    /// A handover begins only to an instance that nobody has to wait for.
    a_handover_begins_to_one_that_is_behind in "decide/handover.rs":
        "!self.keeps_up(follower)" => "false";

    /// A handover begins only to an instance that stays.
    a_handover_begins_to_one_that_leaves in "decide/handover.rs":
        "!self.survey.is_wanted(id)" => "false";

    /// A handover begins only to an acker.
    a_handover_begins_to_one_that_does_not_count in "decide/handover.rs":
        "!self.survey.record().counts_acks_of(id)" => "false";

    /// A handover to one that turns out to be errant is given up.
    a_handover_goes_on_to_one_that_is_errant in "decide/handover.rs":
        "matches!(
        follower.standing,
        Standing::Errant(_) | Standing::Blocked | Standing::Open | Standing::Cloning | Standing::Down
    )" => "matches!(follower.standing, Standing::Blocked | Standing::Open | Standing::Cloning | Standing::Down)";

    /// A handover to one that fails is given up.
    a_handover_goes_on_to_one_that_fails in "decide/handover.rs":
        "other.and_then(|follower| unable(follower, from, closed))" => "None::<String>";

    /// A primary that is ending hands over to a third one where the other fails.
    a_primary_that_is_ending_is_to_be_opened_again in "decide/handover.rs":
        "candidates.third(to, closed).filter(|_| primary.leaves())" => "None::<InstanceId>";

    /// A primary gets no order of a term that it refuses.
    a_primary_is_told_to_close_in_an_earlier_term in "decide/handover.rs":
        "facts.persisted_term <= survey.term()" => "true";

    /// A wish is carried out once.
    a_handover_is_begun_again_for_the_same_wish in "decide/wish.rs":
        "survey.term() < *term" => "true";
}
