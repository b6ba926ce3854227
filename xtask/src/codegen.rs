//! Generated files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use e2e::{paths, policies, roles};
use echopod::api::EchoPod;
use kube::CustomResourceExt as _;

/// Marks where the generated part of a page begins and ends.
const BEGIN: &str = "<!-- begin: made by `cargo xtask codegen` -->";
const END: &str = "<!-- end -->";

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
    let fleet = fleet_api::crds().into_iter().map(|crd| ("deploy/crds", crd));
    let mut files: Vec<(PathBuf, String)> = fleet
        .chain([("examples/echopod/deploy", EchoPod::crd())])
        .map(|(folder, crd)| {
            let file = PathBuf::from(format!("{folder}/{}_{}.yaml", crd.spec.group, crd.spec.names.plural));
            let yaml = serde_yaml_ng::to_string(&crd)
                .with_context(|| format!("could not write {}", file.display()))?;
            Ok((file, format!("# Made by `cargo xtask codegen`; do not edit.\n{yaml}")))
        })
        .collect::<Result<_>>()?;
    files.push(part("docs/tenancy.md", &roles::matrix(&roles::all()?)?)?);
    files.push(part("docs/policies.md", &policies::table()?)?);
    Ok(files)
}

/// A page of which the part between two marks is generated.
fn part(page: &str, generated: &str) -> Result<(PathBuf, String)> {
    let path = paths::checkout().join(page);
    let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    let text = replaced(&text, generated)
        .with_context(|| format!("{page} has no line {BEGIN:?} with a line {END:?} below it"))?;
    Ok((PathBuf::from(page), text))
}

/// The text with another part between the marks.
fn replaced(text: &str, generated: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{generated}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_generated() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let now = replaced(&page, "new\n").unwrap();
        assert_eq!(now, format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert_eq!(replaced(&now, "new\n").as_ref(), Some(&now));
        assert_eq!(replaced("no marks", "new\n"), None);
        assert_eq!(replaced(&format!("{END}\n{BEGIN}"), "new\n"), None);
    }
}
