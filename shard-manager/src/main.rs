//! Entry point of the shard manager.

use std::process::ExitCode;

use clap::Parser as _;
use fleet_runtime::{telemetry, tls};
use shard_manager::{
    config::{Args, Config},
    run::run,
};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tls::install_provider();
    let telemetry = match telemetry::init("shard-manager", &args.telemetry) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let ended = run(Config::from(args)).await;
    let code = match &ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the shard manager ends");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    };
    telemetry.flush();
    code
}
