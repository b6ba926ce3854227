//! How another primary takes over from a lost one.

mutants! {
    /// A record has a higher term than the one before.
    a_term_does_not_rise in "observe.rs":
        "Self { term: self.term.next(), stage, ..self.clone() }" => "Self { stage, ..self.clone() }";

    /// Nobody takes over before a term is on record in which the ackers are revoked.
    the_record_of_the_fencing_is_skipped in "decide/loss.rs":
        "Some(survey.record().next(Stage::Fencing))" => "others.first().and_then(|other| {
            Some(survey.record().taken_over(other.id, other.server()?.held(), crate::observe::Takeover::Proved))
        })";

    /// R ackers are revoked before another primary is chosen.
    nobody_is_revoked in "decide/failover.rs":
        r#"(!revoked).then(|| "is not revoked yet".to_owned())"# => "None";

    /// A revoked acker refuses the orders of the lost term.
    a_revoked_acker_takes_orders_of_the_lost_term in "decide/failover.rs":
        "member.known().is_some_and(|facts| facts.persisted_term == survey.term())" => "true";

    /// A revoked acker receives nothing from the lost primary.
    a_revoked_acker_receives in "decide/failover.rs":
        "!member.may_receive_from(deposed)" => "true";

    /// A receiver that connects may receive as soon as it can.
    a_receiver_that_connects_is_stopped in "decide/survey.rs":
        "matches!(replication.receiver, ThreadState::Running | ThreadState::Connecting)"
        => "replication.receiver == ThreadState::Running";

    /// The lost primary is ended where it can be reached.
    the_lost_primary_is_not_ended in "decide/failover.rs":
        "orders.push((deposed.id, Action::Fence))" => "()";

    /// The lost primary is ended until it takes no more writes.
    the_lost_primary_goes_on_after_the_first_order in "decide/failover.rs":
        "!deposed.is_open()" => "true";

    /// A mysqld that misses a look is not ended for that.
    an_acker_that_misses_a_look_is_ended in "decide/failover.rs":
        "for_ms >= SUSPECT_AFTER_MS" => "true";

    /// Traffic to the lost primary ends with the fencing.
    a_primary_keeps_its_traffic_while_it_is_fenced in "decide/failover.rs":
        "Traffic { undecided_replicas: traffic::reads_that_may_stay(survey), ..Traffic::default() }"
        => "Traffic { undecided_primary: Some(deposed.id), ..Traffic::default() }";

    /// Only an acker that is faithful is chosen.
    one_that_is_not_faithful_is_chosen in "decide/failover.rs":
        "faithful_of(survey, &revoked)" => "revoked.clone()";

    /// Who takes over holds all that any revoked and faithful acker does.
    one_that_lacks_transactions_takes_over in "decide/failover.rs":
        "lacking.is_empty()" => "true";

    /// What was received counts as held.
    what_was_only_received_does_not_count in "observe.rs":
        "self.executed.union(&replication.retrieved)" => "self.executed.clone()";

    /// Errant transactions are no reason to choose an acker.
    errant_transactions_are_chosen in "decide/failover.rs":
        "errant.union(&tail(record, deposed, server)).union(&left_behind(survey, member))"
        => "tail(record, deposed, server).union(&left_behind(survey, member))";

    /// The tail of an earlier primary is no reason to choose an acker.
    a_tail_is_chosen in "decide/failover.rs":
        "errant.union(&tail(record, deposed, server)).union(&left_behind(survey, member))"
        => "errant.union(&left_behind(survey, member))";

    /// What a forced takeover has left behind is no reason to choose an acker.
    what_was_left_behind_is_chosen in "decide/failover.rs":
        "errant.union(&tail(record, deposed, server)).union(&left_behind(survey, member))"
        => "errant.union(&tail(record, deposed, server))";

    /// An errant acker neither takes over nor gives anything away.
    an_errant_acker_takes_over in "decide/failover.rs":
        "alien(*member, server).is_empty()" => "true";

    /// What is errant is no part of the promotion point.
    what_is_errant_is_promoted in "decide/failover.rs":
        "server.held().subtract(&alien(*member, server))" => "server.held()";

    /// Who takes over can be opened.
    one_that_is_ending_takes_over in "decide/failover.rs":
        "clean.iter().filter(|(member, _)| member.ready().is_some()).collect()" => "clean.iter().collect()";

    /// Only one that has not gone on to the reign of the lost primary holds a tail of the one before.
    one_that_has_gone_on_holds_a_tail in "decide/failover.rs":
        "server.recorded_term < record.primary_since" => "true";

    /// One that replicates from the lost primary has gone on to its reign.
    one_that_replicates_holds_a_tail in "decide/failover.rs":
        "!follows" => "true";

    /// Who gives others what they lack applies what it has received first.
    what_is_to_be_fetched_is_not_applied in "decide/failover.rs":
        "orders.extend(revoked.iter().find(idle).map(|member| (member.id, Action::Close)))" => "()";

    /// A revoked acker applies what it has received.
    a_revoked_acker_does_not_apply in "decide/failover.rs":
        "!member.leaves_unapplied()" => "true";

    /// An old primary that is back stays the primary where nobody else can prove or take over.
    an_old_primary_that_is_back_is_not_taken in "decide/failover.rs":
        "deposed.ready().is_some() && same_volume" => "false";

    /// An old primary that is back stays only with the volume that it had.
    an_old_primary_stays_with_another_volume in "observe.rs":
        "self.volume_id == facts.volume_id" => "true";

    /// With Relaxed, an old primary that is back stays only on the kernel that it had.
    an_old_primary_stays_on_another_kernel in "observe.rs":
        "self.boot_id == facts.boot_id" => "true";

    /// An instance that takes writes is closed while the lost primary is fenced.
    one_that_takes_writes_is_revoked in "decide/failover.rs":
        "!member.is_open()" => "true";

    /// What a primary takes over with is on record.
    the_promotion_point_is_not_recorded in "decide/failover.rs":
        "survey.record().taken_over(candidate.id, held, Takeover::Proved)"
        => "TermRecord { promotion_point: None, ..survey.record().taken_over(candidate.id, held, Takeover::Proved) }";

    /// Another primary begins another reign.
    a_reign_goes_on_with_another_primary in "decide/failover.rs":
        "survey.record().taken_over(candidate.id, held, Takeover::Proved)"
        => "TermRecord {
            primary_since: survey.record().primary_since,
            ..survey.record().taken_over(candidate.id, held, Takeover::Proved)
        }";

    /// Another primary has to prove its quorum anew.
    another_primary_is_proved_by_the_one_before in "decide/failover.rs":
        "survey.record().taken_over(candidate.id, held, Takeover::Proved)"
        => "TermRecord {
            quorum_since: survey.record().quorum_since,
            ..survey.record().taken_over(candidate.id, held, Takeover::Proved)
        }";
}
