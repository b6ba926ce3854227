//! What all comparisons of instances rest on.

mutants! {
    /// A set contains only what is in it.
    a_server_that_is_not_in_a_set_is_contained in "gtid/mod.rs":
        "self.origins.get(origin).is_some_and(|ours| ours.contains(theirs))"
        => "self.origins.get(origin).is_none_or(|ours| ours.contains(theirs))";

    /// A difference has nothing that is in both sets.
    nothing_is_subtracted in "gtid/mod.rs":
        "ours.subtract(theirs)" => "ours.clone()";

    /// A part of an interval does not make the whole contained.
    the_beginning_of_an_interval_contains_all_of_it in "gtid/intervals.rs":
        "theirs.last <= i.last" => "true";
}
