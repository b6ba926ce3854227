//! Running programs to their end, with errors that say what ran and what it answered.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Folders that a root shell may lack in its `PATH` but where the programs we need are.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];

/// A process that is killed, and waited for, when this is dropped.
#[derive(Debug)]
pub struct Owned(pub std::process::Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A command with no standard input, killed when its future is dropped.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let program = program.as_ref();
    let mut command = match program.to_str().and_then(find) {
        Some(path) => Command::new(path),
        None => Command::new(program),
    };
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The cargo that runs us, as if it was called from a shell.
///
/// What `cargo run` and `cargo test` tell their program about its package is taken out: some build scripts
/// (ring's) ask to be run anew where it differs, and most of the workspace would be compiled again.
pub fn cargo() -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let about_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if about_package.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(crate::paths::checkout());
    cargo
}

/// The path of a program: as given if it has a slash, else from `PATH` or the system folders.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Runs a program and returns its standard output.
pub async fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let mut command = command(program);
    command.args(arguments);
    finish(&mut command).await
}

/// Runs a prepared command and returns its standard output; its standard error is in the error.
pub async fn finish(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().await.with_context(|| format!("could not start `{shown}`"))?;
    checked(&shown, &output)
}

/// Runs a program with `input` as its standard input.
pub async fn run_with_input<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
    input: &[u8],
) -> Result<String> {
    let mut command = command(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = show(&command);
    let mut child = command.spawn().with_context(|| format!("could not start `{shown}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input).await.with_context(|| format!("could not write to `{shown}`"))?;
    }
    let output = child.wait_with_output().await.with_context(|| format!("could not wait for `{shown}`"))?;
    checked(&shown, &output)
}

fn checked(shown: &str, output: &Output) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = if said.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { said };
    bail!("`{shown}` ended with {}: {}", output.status, said.trim());
}

/// The command as a person would type it.
#[must_use]
pub fn show(command: &Command) -> String {
    let command = command.as_std();
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
