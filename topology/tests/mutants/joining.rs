//! What instances other than the primary are told, and who gives its data to whom.

mutants! {
    /// An instance that holds what no primary made is left alone.
    an_errant_instance_follows in "decide/followers.rs":
        "errant.is_empty()" => "true";

    /// What is errant besides a tail is not given up with it.
    errant_transactions_are_given_up_with_a_tail in "decide/followers.rs":
        "errant == tail" => "!tail.is_empty()";

    /// Only what the primary before committed can be its tail.
    transactions_of_anybody_are_a_tail in "decide/followers.rs":
        "errant.of_source(before)" => "errant.clone()";

    /// A tail is given up only for a primary that holds all that was acknowledged.
    a_tail_is_given_up_for_a_primary_that_lost_data in "decide/followers.rs":
        "record.promotion_point.as_ref().is_some_and(whole)" => "record.promotion_point.is_some()";

    /// One that has gone on to the present reign has no tail.
    one_that_has_gone_on_has_a_tail in "decide/followers.rs":
        "server.recorded_term < record.primary_since" => "true";

    /// A tail is kept in the archive.
    a_tail_is_not_archived in "decide/donors.rs":
        "tail.clone()" => "GtidSet::new()";

    /// An instance that holds transactions which its closed primary has lost is left alone.
    what_a_closed_primary_has_lost_is_ignored in "decide/followers.rs":
        "!own.is_empty()" => "false";

    /// The own transactions of a primary that takes writes are newer than its facts, and not errant.
    what_is_newer_than_the_facts_is_errant in "decide/followers.rs":
        "extra.subtract(&own)" => "extra.clone()";

    /// An instance stops receiving from another one before it follows its primary.
    one_follows_while_it_receives_from_another in "decide/followers.rs":
        "receives_from_another(survey, primary, server)" => "None::<InstanceId>";

    /// An instance that takes writes and is not the primary is closed.
    another_open_instance_stays_open in "decide/followers.rs":
        "judge_open(survey, member, facts)" => r#"(Standing::Closed, "is left open".to_owned(), Need::Nothing)"#;

    /// An instance that takes writes which wait for acknowledgements is ended, since it can't be closed.
    an_open_source_is_closed_politely in "decide/followers.rs":
        "member.server().is_some_and(|server| server.semi_sync_source)" => "false";

    /// Nothing else is ordered while an instance that takes writes has to be closed.
    orders_are_given_before_an_open_instance_is_closed in "decide/reign.rs":
        "orders.iter().any(closes)" => "false";

    /// An instance that is ending gets no order that would have to be undone.
    an_instance_that_is_ending_is_ordered in "decide/survey.rs":
        "facts.process == ProcessState::Running" => "true";

    /// An instance whose pod is being deleted gets no order that would have to be undone.
    an_instance_whose_pod_goes_is_ordered in "decide/survey.rs":
        "self.pod != PodState::Terminating && self.copying().is_none()" => "self.copying().is_none()";

    /// A mysqld that misses a look is not ended for that.
    a_mysqld_that_misses_a_look_is_ended in "decide/followers.rs":
        "for_ms >= HANGS_AFTER_MS" => "true";

    /// An instance that knows of a higher term gets no order.
    an_instance_of_a_higher_term_is_ordered in "decide/followers.rs":
        "member.highest_term() > survey.term()" => "false";

    /// An instance is told of each term.
    an_instance_is_not_told_of_a_term in "decide/followers.rs":
        r#"format!("is told of term {}", survey.term())"# => "return (Standing::InSync, String::new(), Need::Nothing)";

    /// Relay logs count only while they are those of the primary.
    relay_logs_of_another_source_count in "decide/followers.rs":
        "source.purged.subtract(&server.executed)" => "source.purged.subtract(&server.held())";

    /// Only an instance in sync gives its data away.
    an_errant_instance_gives_its_data in "decide/donors.rs":
        "follower.standing == Standing::InSync" => "true";

    /// A donor holds all that the instance does.
    a_copy_loses_what_the_instance_holds in "decide/donors.rs":
        "donor.executed.contains(&held)" => "true";

    /// A donor holds all that the primary has dropped.
    a_copy_lacks_what_the_primary_has_dropped in "decide/donors.rs":
        "donor.executed.contains(dropped)" => "true";

    /// A donor gives its data to one instance at a time.
    a_donor_gives_its_data_to_two in "decide/donors.rs":
        "!self.busy.contains(id)" => "true";

    /// While a copy is made of data that nobody knows whose they are, no other one is.
    a_donor_that_is_unknown_is_not_busy in "decide/donors.rs":
        "copies.iter().any(|copy| copy.donor.is_none())" => "false";

    /// The primary gives its data only if nobody else can.
    the_primary_gives_its_data_first in "decide/donors.rs":
        "*first != self.primary" => "false";

    /// Nothing is ordered together with a record.
    orders_come_with_a_record in "decide/reign.rs":
        "match change {
            Some(record) => self.recorded(state, message, record),
            None => self.decision(state, message, orders),
        }" => "Decision { record: change, ..self.decision(state, message, orders) }";

    /// A paused cluster gets no orders.
    a_paused_cluster_is_ordered in "decide/mod.rs":
        "paused(decision)" => "Decision { state: State::Paused, record: None, ..decision }";

    /// An offline cluster is closed before its pods go.
    pods_go_before_an_offline_cluster_is_closed in "decide/mod.rs":
        "open.is_empty()" => "true";
}
