//! Where traffic goes.

mutants! {
    /// Writes go to a primary that takes them.
    a_closed_primary_gets_writes in "decide/traffic.rs":
        "Some(primary.id).filter(|_| serves)" => "Some(primary.id)";

    /// A primary that answers and takes no writes does not keep them.
    a_closed_primary_keeps_the_writes in "decide/traffic.rs":
        "Some(primary.id).filter(|_| primary.may_be_fine())" => "Some(primary.id)";

    /// A primary that is to hand over gets no more writes.
    a_primary_that_hands_over_gets_writes in "decide/reign.rs":
        "handover::decide(reign, to, orders)" => "handover::decide(Reign { serves: true, ..reign }, to, orders)";

    /// An instance that was the primary does not keep the writes.
    an_old_primary_keeps_the_writes in "decide/decision.rs":
        "self.undecided_primary == primary" => "true";

    /// An instance without a pod keeps no traffic.
    an_instance_without_a_pod_keeps_its_traffic in "decide/survey.rs":
        "matches!(self.pod, PodState::Running | PodState::Terminating)" => "true";

    /// Reads go to instances in sync.
    an_errant_instance_gets_reads in "decide/traffic.rs":
        "follower.standing == Standing::InSync && follower.member.pod == PodState::Running"
        => "follower.member.pod == PodState::Running";

    /// A pod that goes gets no reads.
    a_pod_that_goes_gets_reads in "decide/traffic.rs":
        "follower.standing == Standing::InSync && follower.member.pod == PodState::Running"
        => "matches!(follower.standing, Standing::InSync | Standing::Down)";

    /// No instance gets reads while there is no primary to compare it with.
    an_instance_gets_reads_that_nobody_can_compare in "decide/traffic.rs":
        "primary.server().is_some()" => "true";
}
