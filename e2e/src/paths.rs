//! Where things are: the checkout and the cache outside it.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the checkout this program was built from.
#[must_use]
pub fn checkout() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The folder that cargo builds into.
#[must_use]
pub fn target() -> PathBuf {
    set("CARGO_TARGET_DIR").unwrap_or_else(|| checkout().join("target"))
}

/// One of our programs as `cargo build --workspace --bins` has made it.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// The cache folder: `$FLEET_CACHE_DIR`, else `$XDG_CACHE_HOME/mysql-fleet`, else `~/.cache/mysql-fleet`.
///
/// It is outside the checkout, so that `git clean` costs no rebuild of Kubernetes.
pub fn cache() -> Result<PathBuf> {
    if let Some(folder) = set("FLEET_CACHE_DIR") {
        return std::path::absolute(&folder)
            .with_context(|| format!("FLEET_CACHE_DIR={} is not usable as a path", folder.display()));
    }
    if let Some(folder) = set("XDG_CACHE_HOME") {
        return Ok(folder.join("mysql-fleet"));
    }
    let home = set("HOME").context("no cache folder: set FLEET_CACHE_DIR, XDG_CACHE_HOME or HOME")?;
    Ok(home.join(".cache/mysql-fleet"))
}

fn set(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
