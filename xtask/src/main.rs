//! The project's tasks: `cargo xtask --help`.

use std::process::ExitCode;

use clap::Parser;

mod arguments;
mod bench;
mod chaos;
mod clusters;
mod codegen;
mod interrupt;
mod test;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: could not start the asynchronous runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(arguments.run()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
