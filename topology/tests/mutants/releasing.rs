//! What a person's choice keeps.

mutants! {
    /// Nothing is kept that the person has not named.
    what_is_not_named_is_kept in "decide/release.rs":
        "!unnamed.is_empty()" => "false";

    /// Nothing is kept that a primary may have acknowledged before one without it was forced.
    what_was_left_behind_is_kept in "decide/release.rs":
        "!left_behind.is_empty()" => "false";

    /// What was received and not executed may fail to be.
    what_was_not_executed_is_kept in "decide/release.rs":
        "server.executed.contains(errant)" => "true";

    /// A primary that lacks what it was chosen for proves nothing.
    a_primary_that_lost_data_commits_them in "decide/release.rs":
        "source.held().contains(point)" => "true";

    /// What is given up is not kept.
    an_instance_that_is_rebuilt_is_released in "decide/release.rs":
        "survey.is_to_be_rebuilt(id)" => "false";

    /// A release is over only once the primary holds what is kept.
    a_release_is_done_before_it_is in "decide/release.rs":
        "source.executed.contains(&release.transactions)" => "true";
}
