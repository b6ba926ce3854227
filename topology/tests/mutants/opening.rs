//! When a primary takes writes.

mutants! {
    /// A primary is opened once W ackers follow it.
    a_primary_opens_before_enough_acknowledge in "decide/opening.rs":
        "u32::try_from(ready.len()).is_ok_and(|ready| ready >= required)" => "true";

    /// The primary of five instances waits for two acknowledgements.
    a_majority_of_five_is_two in "quorum.rs":
        "Ok(Self { ackers: 4, required_acks: 2 })" => "Ok(Self { ackers: 4, required_acks: 1 })";

    /// A primary opens with the acknowledgements of the record.
    a_primary_opens_with_fewer_acknowledgements in "decide/reign.rs":
        "Action::Open { required_acks }" => "Action::Open { required_acks: required_acks.min(1) }";

    /// An acker counts once it refuses the orders of earlier terms.
    an_acker_counts_that_takes_orders_of_earlier_terms in "decide/followers.rs":
        "self.member.known().is_some_and(|facts| facts.persisted_term == survey.term())" => "true";

    /// An errant acker does not count.
    an_errant_acker_counts in "decide/followers.rs":
        "!matches!(self.standing, Standing::Errant(_) | Standing::Blocked)" => "true";

    /// An acker counts while it acknowledges.
    an_acker_counts_that_does_not_acknowledge in "decide/followers.rs":
        "self.member.acknowledges(primary)" => "true";

    /// No primary is opened while another instance takes writes.
    another_instance_takes_writes in "decide/opening.rs":
        "follower.member.is_open() && !is_harmless(survey, follower.member)" => "false";

    /// A lost primary that takes writes is harmless only as long as it waits for as many acknowledgements.
    a_lost_primary_with_fewer_acknowledgements_is_harmless in "decide/opening.rs":
        "server.effective_acks() >= record.quorum.required_acks()" => "true";

    /// Only the primary of an earlier reign can be harmless while it takes writes.
    one_that_takes_writes_in_this_reign_is_harmless in "decide/opening.rs":
        "server.recorded_term < record.primary_since" => "true";

    /// Only a primary whose ackers were revoked can be harmless while it takes writes.
    one_whose_ackers_were_not_revoked_is_harmless in "decide/opening.rs":
        "record.promotion_point.is_some()" => "true";

    /// One that is ending is not opened.
    one_that_is_ending_opens in "decide/opening.rs":
        "primary.ready().is_none()" => "false";

    /// A primary whose data are not what they were is kept closed.
    a_primary_that_lost_data_opens in "decide/reign.rs":
        "opening::gap(survey, primary, server, &reign.followers)" => "None::<String>";

    /// A primary without what it took over with is kept closed.
    a_primary_opens_without_its_promotion_point in "decide/opening.rs":
        "promotion_point.map(|point| point.subtract(&held))" => "None::<crate::gtid::GtidSet>";

    /// A primary that was open in its reign and looks as if it never was is kept closed.
    an_emptied_primary_opens in "decide/opening.rs":
        "!opened && survey.reign_was_opened()" => "false";

    /// That a reign was opened is remembered.
    an_opened_reign_is_forgotten in "decide/reign.rs":
        "survey.view.opened.max(record.primary_since)" => "survey.view.opened";

    /// A primary that lacks a transaction of its own is kept closed.
    a_primary_opens_without_its_own_transactions in "decide/opening.rs":
        "extra.of_source(server.server_uuid)" => "extra.subtract(&extra)";

    /// A primary that was never open is kept closed if it lacks what another instance holds.
    a_primary_that_was_never_open_lacks_transactions in "decide/opening.rs":
        "!opened || other.recorded_term > server.recorded_term" => "other.recorded_term > server.recorded_term";

    /// A primary with the data of an earlier term is kept closed.
    a_primary_opens_with_the_data_of_an_earlier_term in "decide/opening.rs":
        "!opened || other.recorded_term > server.recorded_term" => "!opened";

    /// Nothing is compared with the data of a primary that has lost some.
    data_that_are_not_there_are_compared in "decide/reign.rs":
        "orders.retain(|(_, action)| matches!(action, Action::Close | Action::Fence))" => "()";

    /// A commit waits for acknowledgements only while its primary is a source of them.
    acknowledgements_count_that_nobody_waits_for in "observe.rs":
        "if self.semi_sync_source { self.required_acks } else { 0 }" => "self.required_acks";

    /// A primary whose commits wait for too few does not serve.
    commits_that_wait_for_too_few_are_served in "decide/opening.rs":
        "server.effective_acks() != record.quorum.required_acks()" => "false";

    /// A primary whose commits wait for too few is closed where it can't be made to wait.
    commits_that_wait_for_too_few_go_on in "decide/reign.rs":
        "Some(Action::Close).filter(|_| unguarded)" => "None";

    /// A primary gets traffic once the first transaction of its reign is there.
    traffic_comes_before_the_first_transaction in "decide/opening.rs":
        "recorded >= record.primary_since && !recorded.is_none()" => "true";
}
