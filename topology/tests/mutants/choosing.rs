//! How the first primary is chosen.

mutants! {
    /// Nobody is chosen before every instance is heard.
    one_is_chosen_before_all_are_heard in "decide/bootstrap.rs":
        "!silent.is_empty()" => "false";

    /// Nobody is chosen before every volume is heard, wanted or not.
    one_is_chosen_before_all_volumes_are_heard in "decide/bootstrap.rs":
        "survey.is_wanted(member.id) || member.pod != PodState::Absent || member.has_volume"
        => "survey.is_wanted(member.id) || member.pod != PodState::Absent";

    /// A volume gets a pod until a primary is chosen.
    a_volume_gets_no_pod in "decide/bootstrap.rs":
        "survey.pods_of_volumes()" => "0";

    /// Who is chosen holds all that any instance does.
    one_is_chosen_that_lacks_transactions in "decide/bootstrap.rs":
        "server.held().contains(&all)" => "true";

    /// An instance that is not wanted is not chosen.
    one_is_chosen_that_is_not_wanted in "decide/bootstrap.rs":
        r#"Err(format!(
            "only {} holds every transaction there is, and it is not wanted: raise the number of instances",
            member.id
        ))"# => "best.copied().ok_or_else(String::new)";

    /// An instance that takes writes is never passed over.
    one_that_takes_writes_is_passed_over in "decide/bootstrap.rs":
        "the_open_one(heard)?" => "the_open_one(heard)?.filter(|_| false)";

    /// An instance that takes writes goes on only if it lacks nothing that another one holds.
    one_that_takes_writes_and_lacks_transactions_goes_on in "decide/bootstrap.rs":
        "!lacking.is_empty()" => "false";

    /// Of two that take writes neither goes on.
    one_of_two_that_take_writes_goes_on in "decide/bootstrap.rs":
        r#"Err(format!("{} and {} both take writes for term {newest}: stop one of them", a.id, b.id))"#
        => "Ok(open().next().copied())";

    /// The first primary has a higher term than any that an instance knows.
    a_term_begins_that_somebody_knows in "decide/bootstrap.rs":
        "survey.highest_term().max(survey.term())" => "survey.term()";

    /// A record that is older than what instances know is not relied on.
    a_record_older_than_the_data_is_relied_on in "decide/reign.rs":
        "survey.highest_term() > survey.term()" => "false";

    /// One instance of a higher term does not stop a primary that works.
    a_stray_instance_stops_a_primary in "decide/reign.rs":
        "!works" => "true";

    /// A number of instances without a quorum touches nothing.
    a_number_without_a_quorum_takes_pods_away in "decide/mod.rs":
        "instance.pod != PodState::Absent || instance.id.0 < view.replicas" => "instance.id.0 < view.replicas";
}
