//! Entry point of `kubectl fleet`.

use std::process::ExitCode;

use clap::Parser;
use kubectl_fleet::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    fleet_runtime::tls::install_provider();
    match Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
