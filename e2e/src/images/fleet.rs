//! The image with all our own programs, static and alone.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Image;
use super::archive::{self, Layer, Settings};
use crate::progress::Progress;
use crate::{command, paths, wait};

/// The programs in the image, which are also the names of their crates.
pub const PROGRAMS: [&str; 4] = ["federation-controller", "kubectl-fleet", "mysql-agent", "shard-manager"];

/// The user the image runs as.
const USER: &str = "65532:65532";

/// What runs where a pod names no other program.
const ENTRYPOINT: &str = "/shard-manager";

/// Where programs are found that are named without a folder.
const SEARCH_PATH: &str = "PATH=/";

/// How the programs are compiled: an image of nothing else has no libraries.
const FLAGS: &str = "-C target-feature=+crt-static";

/// How the programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Soon built, for tests.
    Quick,
    /// Small and fast, for releases.
    Release,
}

impl Profile {
    /// The name of the cargo profile and of its folder in `target`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Release => "release",
        }
    }
}

/// Names a folder of programs that were compiled before: tests then compile nothing.
pub const PROGRAMS_VARIABLE: &str = "FLEET_PROGRAMS";

/// What was made.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The image.
    pub image: Image,
    /// The folder of the same programs.
    pub programs: PathBuf,
}

impl Fleet {
    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }
}

/// Compiles the static programs, unless [`PROGRAMS_VARIABLE`] names some; returns the folder they are in.
async fn programs(profile: Profile, progress: &Progress) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(PROGRAMS_VARIABLE).filter(|folder| !folder.is_empty()) {
        return Ok(folder.into());
    }
    let step = progress.step(format!("compile {} ({})", PROGRAMS.join(", "), profile.name()));
    let log = output_folder()?.join("build.log");
    step.detail(format!("cargo writes to {}", log.display()));
    let mut cargo = command::cargo();
    cargo.args(["build", "--locked", "--profile", profile.name(), "--target", &target()]);
    for program in PROGRAMS {
        cargo.args(["--package", program]);
    }
    cargo.env("RUSTFLAGS", FLAGS);
    let output = File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
    cargo.stdout(output.try_clone()?).stderr(output);
    let shown = command::show(&cargo);
    let status = cargo.status().await.with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}); {}", wait::tail(&log, 40));
    }
    step.done();
    Ok(folder(profile))
}

/// The folder of the programs that [`programs`] compiles.
pub fn folder(profile: Profile) -> PathBuf {
    paths::target().join(target()).join(profile.name())
}

fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Makes the image. Its tag is the hash of its content: a changed program is a changed image, so pods roll.
pub async fn fleet(profile: Profile, progress: &Progress) -> Result<Fleet> {
    let programs = programs(profile, progress).await?;
    Ok(Fleet { image: pack(&programs, &output_folder()?)?, programs })
}

fn pack(programs: &Path, folder: &Path) -> Result<Image> {
    let draft = tempfile::tempdir_in(folder)?;
    let layer = draft.path().join("layer.tar");
    let mut writer = Layer::new(BufWriter::new(File::create(&layer)?));
    for name in PROGRAMS {
        let program = programs.join(name);
        let file = File::open(&program).with_context(|| format!("could not read {}", program.display()))?;
        writer.file(name, 0o755, file.metadata()?.len(), file)?;
    }
    let (digest, size) = writer.finish()?;
    let tag: String = digest.chars().take(12).collect();
    let reference = format!("localhost/mysql-fleet:{tag}");
    let settings = Settings {
        user: USER.into(),
        entrypoint: vec![ENTRYPOINT.into()],
        environment: vec![SEARCH_PATH.into()],
    };
    let archive = folder.join(format!("mysql-fleet-{tag}.tar"));
    if !archive.is_file() {
        remove_older(folder)?;
        archive::write(&archive, &reference, &settings, &layer, &digest, size)?;
    }
    Ok(Image { reference, archive })
}

/// Keeps the folder from growing with every build.
fn remove_older(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("mysql-fleet-") && name.ends_with(".tar") {
            fs::remove_file(entry.path())
                .with_context(|| format!("could not remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

fn output_folder() -> Result<PathBuf> {
    let folder = paths::target().join("images");
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_makes_the_same_image() {
        let text = fs::read_to_string(paths::checkout().join("images/Containerfile")).unwrap();
        let (build, image) = text.split_once("\nFROM scratch\n").unwrap();
        let entrypoint = format!("ENTRYPOINT [\"{ENTRYPOINT}\"]");
        let expected = [
            "COPY --from=build /out/ /",
            &format!("ENV {SEARCH_PATH}"),
            "WORKDIR /",
            &format!("USER {USER}"),
            &entrypoint,
        ];
        assert_eq!(image.lines().collect::<Vec<_>>(), expected);
        assert!(build.contains(&format!("RUSTFLAGS=\"{FLAGS}\"")), "{build}");
        for program in PROGRAMS {
            assert!(build.contains(&format!("-p {program}")), "{program} is not compiled");
            assert!(build.contains(&format!("/release/{program}")), "{program} is not copied");
        }
    }

    #[test]
    fn the_same_programs_give_the_same_image() {
        let (programs, one, two) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in PROGRAMS {
            fs::write(programs.path().join(name), name).unwrap();
        }
        let first = pack(programs.path(), one.path()).unwrap();
        let second = pack(programs.path(), two.path()).unwrap();
        assert_eq!(first.reference, second.reference);
        assert_eq!(fs::read(first.archive).unwrap(), fs::read(second.archive).unwrap());

        fs::write(programs.path().join("mysql-agent"), "another").unwrap();
        let changed = pack(programs.path(), one.path()).unwrap();
        assert_ne!(changed.reference, second.reference, "pods would not roll");
    }
}
