//! A fixed set of faults under load on a cluster with a node for each instance: nothing acknowledged is lost, and
//! all is in sync again without a person. `cargo xtask chaos` draws from all of them, for as long as wanted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use e2e::chaos::action::{Action, Kind, Step, Target};
use e2e::chaos::arena::{self, Arena};
use e2e::chaos::{self, Settings};
use e2e::cluster::down;
use e2e::images::fleet::Profile;
use e2e::progress::Progress;
use e2e::scenario;

fn step(kind: Kind, target: Target, hold: u64) -> Step {
    Step { pause: 0, first: Action { kind, target, hold }, second: None }
}

fn with(first: Step, after: u64, second: Step) -> Step {
    Step { second: Some((after, second.first)), ..first }
}

#[tokio::test]
async fn nothing_is_lost_by_partitions_full_volumes_and_a_lost_control_plane() {
    // Beside the cluster of the other tests, which has one node.
    let name = format!("{}-chaos", scenario::cluster_name());
    let place = Arena::set(&name, 3, "chaos", Profile::Quick).await.unwrap();
    let settings = Settings {
        cluster: name.clone(),
        nodes: 3,
        clients: 8,
        seed: 0,
        time: Duration::ZERO,
        kinds: vec![],
        history: place.machine().home().join("chaos.jsonl"),
        profile: Profile::Quick,
    };
    let steps = [
        // The old primary fences itself (10 s) while another one has taken over.
        step(Kind::CutNode, Target::Primary, 14_000),
        step(Kind::CutOutgoing, Target::Primary, 8_000),
        // Nobody can record a failover until the API server answers again.
        with(
            step(Kind::StopApiServer, Target::Primary, 5_000),
            500,
            step(Kind::KillMysqld, Target::Primary, 0),
        ),
        step(Kind::FillVolume, Target::FirstReplica, 4_000),
        step(Kind::WaitingForce, Target::Primary, 0),
    ];
    let report = chaos::run_steps(&place, &settings, steps).await.unwrap();
    let verdict = report.judgement.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(report.is_clean(), "{:?}\n{verdict}", report.ended_early);
    assert_eq!(report.taken.len(), steps.len());
    println!("{verdict}");
    drop(place);
    down::down(&name, false, &Progress::default()).await.unwrap();
}

#[tokio::test]
async fn a_run_that_was_killed_leaves_nothing_that_the_next_does_not_end() {
    // There is nothing to calm, and no error.
    arena::calm("t-nowhere").await.unwrap();
}
