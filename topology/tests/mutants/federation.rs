//! The failover between members.

mutants! {
    /// N - W + 1 ackers are revoked before another member is chosen.
    one_revocation_less_is_enough in "federation/mod.rs":
        "count >= quorum.revocations_needed()" => "count + 1 >= quorum.revocations_needed()";

    /// A revocation is for the term of the failover.
    a_revocation_of_an_earlier_term_counts in "federation/mod.rs":
        "proves(report)" => "report.revoked.is_some()";

    /// A candidate has executed the union before it is promoted.
    a_candidate_is_promoted_before_it_has_the_union in "federation/mod.rs":
        "report.executed.contains(needs)" => "true";

    /// What was only received is not enough either.
    a_candidate_is_promoted_by_what_it_received in "federation/mod.rs":
        "report.executed.contains(needs)" => "report.held.contains(needs)";

    /// Traffic waits for the row of the term.
    traffic_comes_before_the_term_row in "federation/mod.rs":
        "report.proved == Some(term)" => "true";

    /// No acker is in the primary's own failure domain.
    an_acker_in_the_own_failure_domain_counts in "federation/view.rs":
        "Some(member.domain.as_str()) != domain" => "true";

    /// A hub that hears few members looks for the fault at itself.
    a_hub_that_is_cut_off_decides in "federation/mod.rs":
        "view.heard().count() * 2 <= view.members.len()" => "false";

    /// Silence towards the hub alone is no loss.
    silence_is_a_loss in "federation/view.rs":
        "member.sight == Sight::Missed" => "true";
}
