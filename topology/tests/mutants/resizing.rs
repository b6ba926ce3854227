//! How the quorum follows the number of instances.

mutants! {
    /// More acknowledgements are waited for once the new ackers are in sync.
    more_are_waited_for_before_anybody_is_in_sync in "decide/quorum_change.rs":
        "ready >= needed" => "true";

    /// More acknowledgements are waited for once all of the new ackers are in sync.
    more_are_waited_for_before_all_are_in_sync in "decide/quorum_change.rs":
        "if wanted.ackers() > now.ackers() { wanted.ackers() } else { wanted.required_acks() }" => "wanted.required_acks()";

    /// The quorum becomes smaller only where enough of those that stay are in sync.
    fewer_are_waited_for_though_those_that_stay_are_away in "decide/quorum_change.rs":
        "if wanted.ackers() > now.ackers() { wanted.ackers() } else { wanted.required_acks() }"
        => "if wanted.ackers() > now.ackers() { wanted.ackers() } else { 0 }";

    /// A new acker counts for a larger quorum once it has caught up.
    a_new_acker_that_is_behind_is_waited_for in "decide/quorum_change.rs":
        "follower.standing == Standing::InSync && keeps_up(primary, server, follower)" => "follower.standing == Standing::InSync";

    /// Another quorum has to be proved anew.
    another_quorum_is_proved_by_the_one_before in "decide/quorum_change.rs":
        "TermRecord { term, quorum: survey.wanted, quorum_since: term, ..record.clone() }"
        => "TermRecord { term, quorum: survey.wanted, ..record.clone() }";

    /// The quorum is not changed while another instance takes writes.
    the_quorum_changes_while_another_instance_is_open in "decide/reign.rs":
        "Some(record).filter(|_| !closes_first)" => "Some(record)";

    /// An acker keeps its pod as long as the quorum counts on it.
    an_acker_goes_before_the_quorum_is_smaller in "decide/reign.rs":
        "record.quorum.ackers().saturating_add(1)" => "0";

    /// No pod goes before the primary takes writes with the quorum that does without it.
    pods_go_before_the_quorum_is_proved in "decide/reign.rs":
        "if self.proved { 0 } else { survey.pods_there_are() }" => "0";

    /// An instance that does not count does not acknowledge.
    one_that_does_not_count_acknowledges in "decide/followers.rs":
        "survey.record().counts_acks_of(member.id)" => "true";

    /// An instance that leaves is told to acknowledge no more.
    one_that_leaves_goes_on_acknowledging in "decide/followers.rs":
        "survey.record().quorum.required_acks() > 0 && may_acknowledge" => "false";

    /// A primary does not open while one that does not count acknowledges.
    a_primary_opens_while_one_acknowledges_that_does_not_count in "decide/opening.rs":
        "follower.member.acknowledges(primary.id)" => "false";

    /// A primary does not open before those that do not count refuse the orders of earlier terms.
    a_primary_opens_before_others_are_told in "decide/opening.rs":
        "facts.persisted_term < record.term" => "false";

    /// A primary does not open while one that can't be asked might acknowledge.
    a_primary_opens_while_a_silent_one_might_acknowledge in "decide/opening.rs":
        "follower.member.known().is_none() && follower.member.pod != PodState::Absent" => "false";

    /// A primary does not open while more acknowledge to it than are counted.
    a_primary_opens_while_somebody_unknown_acknowledges in "decide/opening.rs":
        "server.semi_sync_clients > ackers" => "false";
}
