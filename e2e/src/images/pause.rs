//! The image of the container that holds a pod's namespaces.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::archive::{self, Layer, Settings};
use crate::progress::Progress;
use crate::{command, paths, tools};

/// Its name in every node.
pub const PAUSE_IMAGE: &str = "localhost/pause:1";

/// The archive of the pause image, made if it is not in the cache.
pub async fn archive(progress: &Progress) -> Result<PathBuf> {
    let source = paths::checkout().join("images/pause.c");
    let text = fs::read(&source).with_context(|| format!("could not read {}", source.display()))?;
    let key: String = hex::encode(Sha256::digest(&text)).chars().take(16).collect();
    let folder = paths::cache()?.join("images");
    let file = folder.join(format!("pause-{key}.tar"));
    if file.is_file() {
        return Ok(file);
    }
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let step = progress.step("make the pause image");
    let lock = tools::exclusive(&folder.join("pause.lock")).await?;
    let draft = tempfile::tempdir_in(&folder)?;
    let program = draft.path().join("pause");
    let mut compile = command::command("gcc");
    compile.args(["-static", "-Os", "-s", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
    command::finish(&mut compile).await?;
    let layer = draft.path().join("layer.tar");
    let mut writer = Layer::new(File::create(&layer)?);
    writer.file("pause", 0o755, fs::metadata(&program)?.len(), File::open(&program)?)?;
    let (digest, size) = writer.finish()?;
    let settings =
        Settings { user: "65535:65535".into(), entrypoint: vec!["/pause".into()], environment: Vec::new() };
    archive::write(&file, PAUSE_IMAGE, &settings, &layer, &digest, size)?;
    drop(lock);
    step.done();
    Ok(file)
}
