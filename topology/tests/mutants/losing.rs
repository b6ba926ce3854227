//! When a primary is lost, and what proves what it acknowledged.

mutants! {
    /// A primary that is silent is suspected after 3 s.
    silence_is_evidence_at_once in "decide/loss.rs":
        "for_ms < SUSPECT_AFTER_MS" => "false";

    /// A primary that another instance receives from is not lost.
    a_witness_is_ignored in "decide/loss.rs":
        "follower.member.receives_from(primary.id)" => "false";

    /// A mysqld that does not answer its agent just now is silent, and has not ended.
    a_mysqld_that_misses_a_look_has_ended in "decide/survey.rs":
        "self.misses_a_look().then(|| facts.silent_for_ms.unwrap_or_default())" => "None";

    /// A primary whose agent says that mysqld has ended is lost at once.
    a_mysqld_that_has_ended_is_waited_for in "decide/loss.rs":
        "primary.silent_for_ms()" => "Some(0)";

    /// A primary whose pod is gone is lost at once.
    a_pod_that_is_gone_is_waited_for in "decide/loss.rs":
        "primary.known().is_none()" => "false";

    /// A primary that is being stopped and has closed itself is lost.
    a_primary_that_stops_is_waited_for in "decide/reign.rs":
        "primary.stops_closed()" => "false";

    /// A single instance is never replaced.
    a_single_instance_is_replaced in "decide/failover.rs":
        r#"Some("it alone holds all that was committed, and is waited for".to_owned())"# => "None::<String>";

    /// A primary that its ackers do not get in to is replaced only after some time.
    ackers_that_have_just_begun_to_connect_are_locked_out in "decide/loss.rs":
        "connecting_for_ms.is_some_and(|for_ms| for_ms >= UNREACHED_AFTER_MS)" => "connecting_for_ms.is_some()";

    /// It is replaced only if no commit can be acknowledged.
    one_acker_that_is_locked_out_is_enough in "decide/loss.rs":
        "u32::try_from(in_vain.len()).unwrap_or(u32::MAX) < quorum.revocations_needed()" => "in_vain.is_empty()";

    /// One in whose place nobody can be proved to hold everything is not deposed.
    a_primary_is_deposed_by_ackers_that_are_not_faithful in "decide/loss.rs":
        "Proof::of(survey, &in_vain).missing().is_none()" => "true";

    /// What an acker gets in to is not ended.
    a_primary_is_ended_though_commits_are_acknowledged in "decide/reign.rs":
        "primary.is_open() && !acknowledging(survey, primary, server).enough" => "primary.is_open()";

    /// A primary is deposed only once R faithful ackers answer.
    a_primary_is_deposed_without_proof in "decide/loss.rs":
        "proof.missing()" => "None::<String>";

    /// R = N - W + 1 ackers prove what was acknowledged, and W - 1 are too few to go on.
    one_acker_less_than_r_proves in "quorum.rs":
        "self.ackers - self.required_acks + 1" => "self.ackers - self.required_acks";

    /// A primary does not acknowledge to itself.
    a_primary_is_its_own_acker in "observe.rs":
        "primary != instance" => "true";

    /// The ackers are the other instances of the lowest N + 1 ordinals.
    an_instance_beyond_the_quorum_is_an_acker in "observe.rs":
        "instance.0 <= self.quorum.ackers()" => "true";

    /// An acker with another volume is not faithful.
    an_acker_with_another_volume_is_faithful in "decide/failover.rs":
        "remembered.volume_id != facts.volume_id" => "false";

    /// With Relaxed, an acker on another kernel is not faithful.
    an_acker_on_another_kernel_is_faithful in "decide/failover.rs":
        "remembered.boot_id != facts.boot_id" => "false";

    /// An acker that was never in sync is not faithful.
    an_acker_that_was_never_in_sync_is_faithful in "decide/failover.rs":
        r#"Some("was not in sync with the primary before".to_owned())"# => "None";

    /// An acker whose data are being replaced is not faithful.
    an_acker_that_is_being_copied_over_is_faithful in "decide/failover.rs":
        "acker.copying().is_some()" => "false";

    /// An acker that takes writes is not faithful.
    an_acker_that_takes_writes_is_faithful in "decide/failover.rs":
        "acker.is_open()" => "false";

    /// A term proves nothing before its first transaction is there.
    a_term_proves_without_its_first_transaction in "decide/failover.rs":
        "is_term_proved(record, &faithful_of(survey, heard))" => "true";

    /// Only one that is faithful proves that the first transaction of a term is there.
    one_that_is_not_faithful_proves_a_term in "decide/failover.rs":
        "is_term_proved(record, &faithful_of(survey, heard))" => "is_term_proved(record, heard)";

    /// What a primary took over with proves the quorum that it began with, and no later one.
    a_promotion_point_proves_a_later_quorum in "decide/failover.rs":
        "record.quorum_since == record.primary_since" => "true";

    /// An acker with a new volume counts once it has what was acknowledged before.
    an_acker_counts_before_it_has_caught_up in "decide/reign.rs":
        "follower.holds_all_of(goal)" => "true";

    /// What it has to catch up with is what its primary had when it was first seen.
    an_acker_chases_its_primary in "decide/reign.rs":
        "&known.goal" => "&source.executed";

    /// That is seen anew for another volume.
    an_acker_counts_by_a_look_for_another_volume in "decide/reign.rs":
        "known.acker == now && known.term == survey.term()"
        => "known.acker.instance == now.instance && known.term == survey.term()";

    /// That is seen anew in another term.
    an_acker_counts_by_a_look_of_another_term in "decide/reign.rs":
        "known.acker == now && known.term == survey.term()" => "known.acker == now";

    /// Ackers are remembered only of a term whose first transaction is there.
    ackers_are_remembered_of_a_term_without_proof in "decide/reign.rs":
        "primary.server().filter(|_| *proved)" => "primary.server()";

    /// An errant acker is remembered with what is errant.
    what_is_errant_is_not_remembered in "decide/reign.rs":
        "AckerIdentity { errant: errant.clone(), ..known }" => "known";
}
