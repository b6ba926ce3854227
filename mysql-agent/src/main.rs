//! Entry point.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use fleet_runtime::{telemetry, tls};
use mysql_agent::{
    config::{Config, RunArgs},
    install,
    run::run,
};

/// Supervisor of one mysqld.
#[derive(Debug, Parser)]
#[command(name = "mysql-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy this executable into a folder, for the mysqld container to start it from there.
    Install {
        /// The folder.
        dir: PathBuf,
    },
    /// Run mysqld, until a signal.
    Run(Box<RunArgs>),
    /// Print the version.
    Version,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Install { dir } => match install::install(Path::new("/proc/self/exe"), &dir) {
            Ok(target) => {
                println!("installed {}", target.display());
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error, 1),
        },
        Command::Run(args) => supervise(&args),
        Command::Version => {
            println!("mysql-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}

fn supervise(args: &RunArgs) -> ExitCode {
    let config = match Config::new(args) {
        Ok(config) => config,
        Err(error) => Cli::command().error(ErrorKind::ValueValidation, error).exit(),
    };
    tls::install_provider();
    // The agent mostly waits: a thread per core would only take the memory that mysqld has a use for.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    runtime.block_on(async {
        let telemetry = match telemetry::init("mysql-agent", &args.telemetry) {
            Ok(telemetry) => telemetry,
            Err(error) => return fail(&error, 2),
        };
        let code = match run(config, args).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error}");
                fail(&error, error.exit_code())
            }
        };
        telemetry.flush();
        code
    })
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("mysql-agent: {error}");
    ExitCode::from(code)
}
