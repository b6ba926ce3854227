//! A short fixed set of the faults of `cargo xtask chaos`: those that take a node for each instance, or that no
//! other test causes, so that none of them breaks unnoticed between long runs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use e2e::chaos::action::{Action, Kind, Step, Target};
use e2e::chaos::arena::Arena;
use e2e::chaos::{self, Settings};
use e2e::cluster::down;
use e2e::images::fleet::Profile;
use e2e::paths;
use e2e::progress::Progress;

/// A local cluster of its own: its nodes lose their networks, its API server its store.
const CLUSTER: &str = "t-chaos";

fn action(kind: Kind, target: Target, hold: u64) -> Action {
    Action { kind, target, hold }
}

fn alone(kind: Kind, hold: u64) -> Step {
    Step { pause: 200, first: action(kind, Target::Primary, hold), second: None }
}

#[tokio::test]
async fn a_fixed_set_of_faults_breaks_no_promise() {
    let steps = [
        alone(Kind::WaitingForce, 1_000),
        alone(Kind::WaitingDelete, 1_000),
        alone(Kind::KillSourceAndAcker, 0),
        Step {
            second: Some((1_000, action(Kind::KillShard, Target::Primary, 0))),
            ..alone(Kind::CutOutgoing, 12_000)
        },
        Step {
            second: Some((0, action(Kind::KillMysqld, Target::Primary, 0))),
            ..alone(Kind::StopApiServer, 5_000)
        },
        alone(Kind::KillShardAtEachStep, 0),
    ];
    let settings = Settings {
        cluster: CLUSTER.to_owned(),
        nodes: 3,
        clients: 8,
        seed: 0,
        time: std::time::Duration::MAX,
        kinds: Vec::new(),
        history: paths::target().join("chaos/fixed.jsonl"),
        profile: Profile::Quick,
    };
    let arena = Arena::set(CLUSTER, settings.nodes, "chaos", settings.profile).await.unwrap();
    let report = Box::pin(chaos::run_steps(&arena, &settings, steps)).await.unwrap();
    // Not before the verdict: a cluster that broke a promise is left to look at.
    assert!(report.is_clean(), "{report}");
    let judgement = report.judgement.unwrap();
    // The record of the terms has every takeover; clients may miss one whose reign was short.
    assert!(judgement.terms >= 6 && judgement.takeovers >= 3, "{judgement}");
    assert!(judgement.acknowledged > 100, "{judgement}");
    down::down(CLUSTER, false, &Progress::default()).await.unwrap();
}
