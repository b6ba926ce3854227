//! Entry point of the shard manager.

use std::process::ExitCode;

use clap::Parser as _;
use fleet_runtime::process::exit_code;
use shard_manager::{
    config::{Args, Config},
    run::run,
};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.process.telemetry.clone();
    exit_code("shard-manager", &telemetry, run(Config::from(args))).await
}
