//! Behaviour of the public API: one binary, one module for each subject.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that goes wrong has to end")]

mod choosing;
mod convergence;
mod forcing;
mod gtid_algebra;
mod joining;
mod losing;
mod opening;
mod properties;
mod rebuilding;
mod releasing;
mod resizing;
mod rollout;
mod states_page;
mod taking_over;
mod traffic;
mod trials;
mod views;
mod wishes;
#[expect(dead_code, reason = "shared with the model, which alone has people who change replicas")]
mod world;

/// How many cases a property is tried with: `PROPTEST_CASES` if that is set, for a long run.
fn cases(default: u32) -> proptest::test_runner::Config {
    let config = proptest::test_runner::Config::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => proptest::test_runner::Config { cases: default, ..config },
    }
}
