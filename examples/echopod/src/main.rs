//! Entry point of the EchoPod controller.

use std::process::ExitCode;

use clap::Parser;
use echopod::{
    api::EchoPod,
    plan::{CREATED_BY, ECHOPOD},
    reconcile::Reconciler,
};
use fleet_runtime::{
    apply::Applier,
    controller::Changed,
    health::Health,
    process::{Process, ProcessArgs, ProcessError, exit_code, owner},
};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;

/// Manages the EchoPod objects of exactly one namespace.
#[derive(Debug, Parser)]
#[command(name = "echopod", version)]
struct Args {
    #[command(flatten)]
    process: ProcessArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse().process;
    exit_code("echopod", &args.telemetry, run(&args)).await
}

async fn run(args: &ProcessArgs) -> Result<(), ProcessError> {
    let mut process = Process::start(args, Health::new()).await?;
    if process.namespace_is_there("Apply examples/echopod/deploy, and run with its ServiceAccount").await? {
        let lease = process.lease("echopod")?;
        let changed = Changed::default();
        let ours = watcher::Config::default().labels(&format!("{CREATED_BY}={ECHOPOD}"));
        let pods = process.watch::<Pod>("watch of Pods", ours, &changed, owner::<EchoPod>);
        let reconciler = Reconciler {
            pods: pods.clone(),
            applier: Applier::new(process.client.clone(), lease.gate()).managed_by(ECHOPOD),
            events: process.events("examples.mysqlfleet.io/echopod", lease.gate()),
        };
        let filled = async move { pods.wait_until_ready().await };
        process.control::<EchoPod, _>("echopod", lease, filled, &changed, reconciler);
    }
    process.run().await
}
