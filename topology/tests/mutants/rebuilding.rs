//! What a person's choice gives up.

mutants! {
    /// Errant transactions are given up only where a person chooses so.
    an_errant_instance_is_rebuilt_unasked in "decide/followers.rs":
        "survey.is_to_be_rebuilt(member.id)" => "true";

    /// Nothing is given up for a primary that does not hold all that was acknowledged.
    an_instance_is_rebuilt_for_a_primary_that_lost_data in "decide/followers.rs":
        "record.promotion_point.as_ref().is_none_or(whole)" => "true";

    /// An errant instance is rebuilt once commits get their acknowledgements from others.
    an_acker_that_is_needed_is_rebuilt in "decide/donors.rs":
        "!suffices" => "false";

    /// What an errant instance acknowledges counts while another one is rebuilt.
    of_two_errant_instances_none_is_rebuilt in "decide/donors.rs":
        "followers.iter().filter(|follower| acknowledges(follower)).count()"
        => "followers.iter().filter(|follower| follower.is_counted(survey, primary.id)).count()";

    /// One that is rebuilt does not acknowledge meanwhile.
    an_instance_counts_while_it_is_rebuilt in "decide/donors.rs":
        "acknowledging - usize::from(acknowledges(follower))" => "acknowledging";

    /// An instance that holds nothing errant is not rebuilt.
    an_instance_in_sync_is_rebuilt in "decide/followers.rs":
        "errant.is_empty()" => "errant.is_empty() && !survey.is_to_be_rebuilt(member.id)";

    /// A rebuild of the primary is refused.
    the_primary_is_rebuilt in "decide/rebuild.rs":
        "*role == Role::Primary" => "false";
}
