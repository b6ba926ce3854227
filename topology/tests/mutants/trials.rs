//! Whether a new template works, and what becomes of one that does not.

mutants! {
    /// A template works once all instances are of it.
    a_template_works_that_not_all_have in "decide/trial.rs":
        "wanted().all(|member| !member.outdated && in_sync(&member))" => "wanted().all(|member| in_sync(&member))";

    /// Of another template an instance proves nothing about the wanted one.
    an_outdated_instance_proves_the_wanted_template in "decide/trial.rs":
        "!member.outdated && (in_sync(member) || trial.proved.contains(&member.id))" =>
        "in_sync(member) || trial.proved.contains(&member.id)";

    /// What was proved is not forgotten.
    what_was_proved_is_forgotten in "decide/trial.rs":
        "!member.outdated && (in_sync(member) || trial.proved.contains(&member.id))" =>
        "!member.outdated && in_sync(member)";

    /// A template is given up only where there is another one to go back to.
    a_template_is_given_up_for_nothing in "decide/trial.rs":
        "trial.fallback == Fallback::None || matches!(decision.state, State::Offline | State::Paused)" =>
        "matches!(decision.state, State::Offline | State::Paused)";

    /// The time of one instance is not that of another.
    the_time_of_another_instance_counts in "decide/trial.rs":
        "unproved().any(|member| member.id == waiting.instance)" => "true";

    /// A template has its time.
    a_template_is_given_up_at_once in "decide/trial.rs":
        "runs && waited_ms >= trial.deadline_ms" => "runs";

    /// Time that does not run counts for nothing.
    a_template_is_given_up_while_its_time_does_not_run in "decide/trial.rs":
        "runs && waited_ms >= trial.deadline_ms" => "waited_ms >= trial.deadline_ms";

    /// A mysqld that may not read the data is not gone back to.
    the_way_back_is_taken_though_it_is_barred in "decide/trial.rs":
        "trial.fallback == Fallback::Barred" => "false";

    /// A copy is no failure, however long it takes.
    a_copy_counts_as_a_failure in "decide/trial.rs":
        "member.copying().is_none() && (heard || decision.state != State::Incomplete)" =>
        "heard || decision.state != State::Incomplete";

    /// Who hears nobody gives nothing up.
    nobody_heard_counts_as_a_failure in "decide/trial.rs":
        "member.copying().is_none() && (heard || decision.state != State::Incomplete)" =>
        "member.copying().is_none()";

    /// A pod that serves nobody is replaced only if its template was given up.
    one_that_is_only_outdated_is_replaced_whatever_goes_on in "decide/trial.rs":
        "member.abandoned && survey.is_wanted(member.id)" => "member.outdated && survey.is_wanted(member.id)";

    /// Nothing is replaced in a cluster that is left alone or stopped.
    a_pod_is_replaced_in_a_cluster_that_is_left_alone in "decide/trial.rs":
        "!left_alone && decision.record.is_none()" => "decision.record.is_none()";

    /// The pod of a lost primary is left to the failover.
    the_pod_of_a_lost_primary_is_replaced in "decide/trial.rs":
        "survey.view.replicas > 1 && survey.record().primary == Some(member.id)" => "false";

    /// A mysqld that misses a look serves its clients.
    one_that_misses_a_look_is_replaced in "decide/trial.rs":
        "facts.server.is_none() && !member.misses_a_look()" => "facts.server.is_none()";

    /// An instance that can't be asked may serve well.
    one_that_can_not_be_asked_is_replaced in "decide/trial.rs":
        "survey.view.replicas == 1 && silent" => "silent";
}
