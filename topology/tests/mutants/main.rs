//! Breaking any one rule makes a check fail: each test here breaks one in a copy of this crate, and fails unless a
//! test of the copy does.
//!
//! A mutant that survives is a hole in the tests: what is missing is a test in `tests/it` that fails for it. All
//! mutants are compiled together, each behind a switch ([`copy`]), so one more costs the time of a few tests.
#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test that goes wrong has to end")]

/// Mutants, and a test for each: `/// the rule`, then `name in "file in src": "old" => "new";`.
///
/// `old` and `new` are expressions of the same type. `old` is in the file exactly once; several mutants may replace
/// the same one.
macro_rules! mutants {
    ($($(#[doc = $rule:literal])+ $name:ident in $file:literal: $old:literal => $new:literal;)+) => {
        pub(crate) const ALL: &[crate::Mutant] = &[$(crate::Mutant {
            name: concat!(module_path!(), "::", stringify!($name)),
            rule: concat!($($rule),+),
            file: $file,
            old: $old,
            new: $new,
        }),+];

        $(#[test]
        fn $name() {
            crate::is_killed(concat!(module_path!(), "::", stringify!($name)));
        })+
    };
}

mod choosing;
mod copy;
mod federation;
mod forcing;
mod gtid_algebra;
mod handing_over;
mod joining;
mod losing;
mod opening;
mod rebuilding;
mod releasing;
mod resizing;
mod rollout;
mod taking_over;
mod traffic;
mod trials;

use crate::copy::{Outcome, checked};

/// One rule, and a change of the code that breaks it.
#[derive(Clone, Copy)]
struct Mutant {
    name: &'static str,
    /// What holds in the crate as it is, and not in the mutant.
    rule: &'static str,
    /// The file in `src`.
    file: &'static str,
    /// An expression in it.
    old: &'static str,
    /// What takes its place.
    new: &'static str,
}

/// Those of all modules.
const MUTANTS: [&[Mutant]; 15] = [
    choosing::ALL,
    federation::ALL,
    forcing::ALL,
    gtid_algebra::ALL,
    handing_over::ALL,
    joining::ALL,
    losing::ALL,
    opening::ALL,
    rebuilding::ALL,
    releasing::ALL,
    resizing::ALL,
    rollout::ALL,
    taking_over::ALL,
    traffic::ALL,
    trials::ALL,
];

/// Fails unless a check fails for the mutant.
fn is_killed(name: &str) {
    let Some(Mutant { rule, .. }) = MUTANTS.concat().into_iter().find(|mutant| mutant.name == name) else {
        panic!("{name} is in a module that is not in MUTANTS");
    };
    match checked(name) {
        (Outcome::Failed(tests), took) => {
            let others = match tests.len() {
                1 => String::new(),
                many => format!(" and {} more", many - 1),
            };
            println!("killed by {}{others} in {:.1} s", tests[0], took.as_secs_f64());
        }
        (Outcome::Passed, _) => panic!(
            "{name} survives: no check fails though this rule is broken:{rule}\n\
             Write the test in topology/tests/it that fails for it."
        ),
        (Outcome::Ended(said), _) => panic!("{name} ends its tests without a result:\n{said}"),
    }
}
