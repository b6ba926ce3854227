//! Entry point of the federation controller.

use std::process::ExitCode;

use clap::Parser as _;
use federation_controller::{
    config::{Args, Config},
    run::run,
};
use fleet_runtime::process::exit_code;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.process.telemetry.clone();
    exit_code("federation-controller", &telemetry, run(Config::from(args))).await
}
