//! Checks and tests, by tier: each tier needs more than the one before.
//!
//! | tier | what | needs |
//! |---|---|---|
//! | 1, 2 | tests of the crates | nothing |
//! | 3 | a real API server without nodes | Go (first build) |
//! | 4 | real mysqld without Kubernetes | root, Debian packages |
//! | 5 | real clusters | root, Go, Debian packages |

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use e2e::images::fleet::{PROGRAMS_VARIABLE, Profile};
use e2e::progress::Progress;
use e2e::{cluster, command, host, images, scenario, tools};

use crate::codegen;

/// The crates, in the order in which they depend on each other.
const CRATES: [&str; 9] = [
    "fleet-api",
    "fleet-topology",
    "fleet-proto",
    "fleet-runtime",
    "mysql-agent",
    "shard-manager",
    "kubectl-fleet",
    "e2e",
    "xtask",
];

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
        cargo(&["test", "--locked", "--workspace"], &[]).await?;
    }
    if has(3) {
        tools::Tools::of(&tools::API_SERVER, &Progress::default()).await?;
        cargo(&["build", "--locked", "--workspace", "--bins"], &[]).await?;
        targets("e2e/tier3", "tier3_*", &[]).await?;
    }
    if has(4) {
        host::require_root("the tests with a real mysqld")?;
        let rootfs = images::mysql::mysql_rootfs(&Progress::default()).await?;
        let rootfs = [("FLEET_MYSQLD_ROOTFS", rootfs.display().to_string())];
        targets("mysql-agent/real-mysqld", "real_mysqld", &rootfs).await?;
    }
    if has(5) {
        host::require_clusters()?;
        // Made before the tests, so that their times are those of the tests.
        images::mysql::mysql(&Progress::default()).await?;
        let fleet = images::fleet::fleet(Profile::Quick, &Progress::default()).await?;
        let programs = [(PROGRAMS_VARIABLE, fleet.programs.display().to_string())];
        let tested = targets("e2e/tier5", "tier5_*", &programs).await;
        tested.with_context(|| {
            let name = scenario::cluster_name();
            format!("the cluster {name} is left to look at (`cargo xtask kubeconfig {name}`, `cargo xtask down {name}`)")
        })?;
        cluster::down::down(&scenario::cluster_name(), false, &Progress::default()).await?;
    }
    Ok(())
}

/// Runs the test targets of a tier. Always with the whole workspace, so that the features of dependencies,
/// and with them what is compiled already, are the same for every tier.
async fn targets(feature: &str, pattern: &str, environment: &[(&str, String)]) -> Result<()> {
    let arguments = ["test", "--locked", "--workspace", "--features", feature, "--test", pattern];
    let arguments: Vec<&str> = arguments.into_iter().chain(["--", "--test-threads=1"]).collect();
    cargo(&arguments, environment).await
}

/// Format, lints, each crate alone, generated files.
async fn checks() -> Result<()> {
    ensure_component("rustfmt").await?;
    ensure_component("clippy").await?;
    cargo(&["fmt", "--all", "--check"], &[]).await?;
    let features = "e2e/tier3,e2e/tier5,mysql-agent/real-mysqld";
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--features", features];
    let clippy: Vec<&str> = clippy.into_iter().chain(["--", "-D", "warnings"]).collect();
    cargo(&clippy, &[]).await?;
    for name in CRATES {
        cargo(&["check", "--locked", "--package", name], &[]).await?;
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
async fn cargo(arguments: &[&str], environment: &[(&str, String)]) -> Result<()> {
    let shown = format!("cargo {}", arguments.join(" "));
    println!("$ {shown}");
    let begun = Instant::now();
    let mut cargo = command::cargo();
    cargo.args(arguments);
    cargo.envs(environment.iter().map(|(key, value)| (key, value)));
    cargo.stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let status = cargo.status().await.with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    println!("  ({:.0} s)", begun.elapsed().as_secs_f64());
    Ok(())
}
