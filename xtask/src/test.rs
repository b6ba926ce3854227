//! Checks and tests, by tier: each tier needs more than the one before.
//!
//! | tier | what | needs |
//! |---|---|---|
//! | 1, 2 | tests of the crates; after tier 1, that they fail where a rule of `fleet-topology` is broken | nothing |
//! | 3 | a real API server without nodes | Go (first build) |
//! | 4 | real mysqld without Kubernetes | root, Debian packages |
//! | 5 | real clusters | root, Go, Debian packages |
//!
//! The targets of tiers 3 to 5 wait more than they work, and each keeps to its own API server, ports, namespaces or
//! clusters. So several run at a time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use e2e::images::fleet::PROGRAMS_VARIABLE;
use e2e::progress::Progress;
use e2e::{cluster, command, host, images, scenario, tools};
use futures::stream::{self, StreamExt as _};

use crate::codegen;

/// The crates, in the order in which they depend on each other.
const CRATES: [&str; 11] = [
    "fleet-api",
    "fleet-topology",
    "fleet-proto",
    "fleet-runtime",
    "mysql-agent",
    "federation-controller",
    "shard-manager",
    "kubectl-fleet",
    "echopod",
    "e2e",
    "xtask",
];

/// Features of the tests that need more than cargo. Always all: what is compiled for one tier serves the others.
const FEATURES: &str = "e2e/tier3,e2e/tier5,mysql-agent/real-mysqld";

/// A test that needs more than cargo. Always of the whole workspace, so that the features of dependencies, and with
/// them what is compiled already, are the same for every tier.
const TEST: [&str; 5] = ["test", "--locked", "--workspace", "--features", FEATURES];

/// The feature of the test target that breaks rules. Not one of [`FEATURES`]: with it, all that depends on that crate
/// would be compiled once more.
const MUTANTS: &str = "fleet-topology/mutants";

/// The test target with a real mysqld.
const REAL_MYSQLD: &str = "real_mysqld";

/// The targets that take longest, which are started first.
const LONGEST: [&str; 6] =
    ["tier5_failover", "tier5_rotation", "tier5_rest", REAL_MYSQLD, "tier5_chaos", "tier5_rollout"];

/// How many targets of tiers 3 to 5 run at a time.
const AT_A_TIME: usize = 3;

/// All tiers.
pub(crate) const TIERS: [u8; 4] = [1, 3, 4, 5];

/// Runs all checks and the tests of all tiers.
pub(crate) async fn everything() -> Result<()> {
    checks().await?;
    tiers(&TIERS).await
}

/// Runs the tests of some tiers, the weakest first; installs what they need.
pub(crate) async fn tiers(wanted: &[u8]) -> Result<()> {
    let has = |tier: u8| wanted.contains(&tier);
    if has(1) || has(2) {
        cargo(&["test", "--locked", "--workspace"]).await?;
    }
    if has(1) {
        let mutants = ["test", "--locked", "--workspace", "--features", MUTANTS, "--test", "mutants"];
        cargo(&[&mutants[..], &["--", "--test-threads=1", "--nocapture"]].concat()).await?;
    }
    if has(3) {
        tools::Tools::of(&tools::API_SERVER, &Progress::default()).await?;
        cargo(&["build", "--locked", "--workspace", "--bins"]).await?;
        several(&targets_of(3)?, &BTreeMap::new()).await?;
    }
    let mut targets = Vec::new();
    let mut environment = BTreeMap::new();
    if has(4) {
        host::require_root("the tests with a real mysqld")?;
        let rootfs = images::mysql::mysql_rootfs(&Progress::default()).await?;
        environment.insert("FLEET_MYSQLD_ROOTFS", rootfs.display().to_string());
        targets.push(REAL_MYSQLD.to_owned());
    }
    if has(5) {
        host::require_clusters()?;
        // Made before the tests, so that their times are those of the tests.
        let stage = scenario::Stage::set().await?;
        environment.insert(PROGRAMS_VARIABLE, stage.programs.programs.display().to_string());
        targets.extend(targets_of(5)?);
    }
    if targets.is_empty() {
        return Ok(());
    }
    let rank =
        |target: &String| LONGEST.iter().position(|longest| longest == target).unwrap_or(LONGEST.len());
    targets.sort_by_key(|target| (rank(target), target.clone()));
    let tested = several(&targets, &environment).await;
    if has(5) {
        tested.with_context(|| {
            let name = scenario::cluster_name();
            format!("the cluster {name} is left to look at (`cargo xtask kubeconfig {name}`, `cargo xtask down {name}`)")
        })?;
        return cluster::down::down(&scenario::cluster_name(), false, &Progress::default()).await;
    }
    tested
}

/// The test targets of a tier of real API servers or clusters, by the files that they are, in their order.
fn targets_of(tier: u8) -> Result<Vec<String>> {
    let prefix = format!("tier{tier}_");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tests");
    let listed = || format!("could not list {}", folder.display());
    let mut targets = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(listed)? {
        let file = entry.with_context(listed)?.path();
        let target = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| stem.starts_with(&prefix));
        targets.extend(target.map(str::to_owned));
    }
    targets.sort();
    Ok(targets)
}

/// Runs test targets, a few at a time; what each one says is shown once it has ended.
async fn several(targets: &[String], environment: &BTreeMap<&str, String>) -> Result<()> {
    let named: Vec<&str> = targets.iter().flat_map(|target| ["--test", target.as_str()]).collect();
    cargo(&[&TEST, named.as_slice(), &["--no-run"]].concat()).await?;
    let mut running = stream::iter(targets).map(|name| one(name, environment)).buffer_unordered(AT_A_TIME);
    let mut failed = Vec::new();
    while let Some((name, ended)) = running.next().await {
        failed.extend(ended?.map(|reasons| format!("{name}\n{reasons}")));
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {} test targets failed: {}", failed.len(), targets.len(), failed.join("\n"))
}

/// Runs one test target, which is compiled already. `Some` says why it failed.
async fn one<'t>(name: &'t str, environment: &BTreeMap<&str, String>) -> (&'t str, Result<Option<String>>) {
    let arguments = [&TEST, &["--test", name, "--", "--test-threads=1"][..]].concat();
    let shown = format!("cargo {}", arguments.join(" "));
    println!("$ {shown} (in the background)");
    let begun = Instant::now();
    let mut cargo = command::cargo();
    cargo.args(&arguments).envs(environment);
    let ended = cargo.output().await.with_context(|| format!("could not start `{shown}`"));
    let ended = ended.map(|output| {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        println!("{}", said.trim());
        println!("$ {shown}\n  ({}, {:.0} s)", output.status, begun.elapsed().as_secs_f64());
        (!output.status.success()).then(|| panics(&said))
    });
    (name, ended)
}

/// With what the tests of a target panicked, without the backtraces: what was said last is all that is left of a long log.
fn panics(said: &str) -> String {
    let mut reasons = Vec::new();
    let mut panics = false;
    for line in said.lines() {
        panics = match line {
            _ if line.starts_with("thread '") && line.contains("panicked at") => true,
            "" | "stack backtrace:" => false,
            _ => panics && !line.starts_with("note: "),
        };
        if panics {
            let cut: String = line.chars().take(400).collect();
            reasons.push(format!("  {cut}"));
        }
    }
    reasons.truncate(20);
    reasons.join("\n")
}

/// Format, lints, each crate alone, generated files.
async fn checks() -> Result<()> {
    ensure_component("rustfmt").await?;
    ensure_component("clippy").await?;
    cargo(&["fmt", "--all", "--check"]).await?;
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--features", FEATURES];
    cargo(&[&clippy[..], &["--features", MUTANTS, "--", "-D", "warnings"]].concat()).await?;
    for name in CRATES {
        cargo(&["check", "--locked", "--package", name]).await?;
    }
    println!("$ cargo xtask codegen --check");
    codegen::codegen(true)
}

/// Adds a part of the Rust toolchain where rustup can.
async fn ensure_component(name: &str) -> Result<()> {
    let program = if name == "clippy" { "cargo-clippy" } else { "cargo-fmt" };
    if command::run(program, ["--version"]).await.is_ok() {
        return Ok(());
    }
    if command::find("rustup").is_none() {
        bail!("{name} is missing: add it to the Rust toolchain");
    }
    command::run("rustup", ["component", "add", name]).await.map(drop)
}

/// Runs cargo with its output shown.
async fn cargo(arguments: &[&str]) -> Result<()> {
    let shown = format!("cargo {}", arguments.join(" "));
    println!("$ {shown}");
    let begun = Instant::now();
    let mut cargo = command::cargo();
    cargo.args(arguments);
    cargo.stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let status = cargo.status().await.with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    println!("  ({:.0} s)", begun.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_what_tests_panicked_with() {
        let said = "running 2 tests\ntest a ... FAILED\n\nthread 'a' (14) panicked at tests/x.rs:1:2:\n\
            assertion failed\n  left: 1\nstack backtrace:\n   0: begin_unwind\n\nthread 'b' panicked at tests/x.rs:9:2:\n\
            no pod\nnote: run with `RUST_BACKTRACE=1`\nok\n";
        let reasons = "  thread 'a' (14) panicked at tests/x.rs:1:2:\n  assertion failed\n    left: 1\n  \
            thread 'b' panicked at tests/x.rs:9:2:\n  no pod";
        assert_eq!(panics(said), reasons);
        let long = format!("thread 'a' panicked at x\n{}", format!("{}\n", "y".repeat(500)).repeat(30));
        assert!(panics(&long).lines().count() == 20 && panics(&long).lines().all(|line| line.len() <= 402));
    }
}
