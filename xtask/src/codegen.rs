//! Generated files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use e2e::paths;

/// Writes every generated file, or with `check` fails where one differs from what would be written.
pub(crate) fn codegen(check: bool) -> Result<()> {
    let mut differing = Vec::new();
    for (file, text) in files()? {
        let path = paths::checkout().join(&file);
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            continue;
        }
        if check {
            differing.push(file.display().to_string());
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        println!("wrote {}", file.display());
    }
    if !differing.is_empty() {
        bail!("generated files are out of date: {}; run `cargo xtask codegen`", differing.join(", "));
    }
    Ok(())
}

/// The generated files, relative to the checkout, and their content.
fn files() -> Result<Vec<(PathBuf, String)>> {
    fleet_api::crds()
        .iter()
        .map(|crd| {
            let file =
                PathBuf::from(format!("deploy/crds/{}_{}.yaml", crd.spec.group, crd.spec.names.plural));
            let yaml = serde_yaml_ng::to_string(crd)
                .with_context(|| format!("could not write {}", file.display()))?;
            Ok((file, format!("# Made by `cargo xtask codegen`; do not edit.\n{yaml}")))
        })
        .collect()
}
