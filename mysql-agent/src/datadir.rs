//! The data directory: made once, never touched again.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::process::{Ended, Mysqld};

/// Present in every data directory of MySQL 8 and later.
const MARKER: &str = "mysql.ibd";

/// A data directory that can't be made or used.
#[derive(Debug, thiserror::Error)]
pub enum DatadirError {
    /// The file system refused.
    #[error("cannot {action} {path}: {source}; check that the volume is writable for this user and not full")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There are other files in its place.
    #[error(
        "{path} holds files but no {MARKER}, so it is no data directory of MySQL; it is left as it is. Use another volume, or empty the folder"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// mysqld could not make it.
    #[error("mysqld --initialize-insecure failed for {path}: {ended}")]
    Initialize {
        /// The folder.
        path: PathBuf,
        /// How it ended.
        ended: Ended,
    },
}

/// What is in place of the data directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Data of MySQL.
    Data,
    /// Nothing.
    Nothing,
}

/// Looks for data, which are then used as they are.
pub fn look(datadir: &Path) -> Result<Found, DatadirError> {
    let mut entries = match fs::read_dir(datadir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(source) => return Err(io_error("read", datadir)(source)),
    };
    if datadir.join(MARKER).exists() {
        return Ok(Found::Data);
    }
    if entries.next().is_some() {
        return Err(DatadirError::Foreign { path: datadir.to_owned() });
    }
    Ok(Found::Nothing)
}

/// Makes the data directory, in a folder beside it that gets its name only once it is complete and synced: a
/// half-made one is never used. Cancel safe: what is left of a cancelled run is removed by the next.
pub async fn initialize(mysqld: &Path, datadir: &Path, options: &[String]) -> Result<(), DatadirError> {
    let making = datadir.with_extension("initializing");
    match fs::remove_dir_all(&making) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove the half-made", &making)(error));
        }
        _ => {}
    }
    let mut arguments = vec![
        "--no-defaults".to_owned(),
        "--initialize-insecure".to_owned(),
        format!("--datadir={}", making.display()),
        "--loose-innodb-numa-interleave=OFF".to_owned(),
        "--secure-file-priv=NULL".to_owned(),
        // "root@localhost is created with an empty password": the init file drops it before any connection.
        "--log-error-suppression-list=MY-010453".to_owned(),
    ];
    arguments.extend_from_slice(options);
    let mut child = Mysqld::spawn(mysqld, &arguments).map_err(io_error("start", mysqld))?;
    let guard = KillOnDrop(&mut child);
    let ended = guard.0.wait().await.map_err(io_error("wait for", mysqld))?;
    if !ended.success() {
        return Err(DatadirError::Initialize { path: making, ended });
    }
    let datadir = datadir.to_owned();
    blocking(move || adopt(&making, &datadir)).await
}

/// Removes the data directory, of which an order said that it is expendable. It gives up its name first, so
/// that a half-removed one is never used.
pub async fn discard(datadir: &Path) -> Result<(), DatadirError> {
    let (datadir, doomed) = (datadir.to_owned(), datadir.with_extension("discarded"));
    blocking(move || {
        let absent = |error: io::Error| {
            if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
        };
        fs::remove_dir_all(&doomed).or_else(absent).map_err(io_error("remove", &doomed))?;
        fs::rename(&datadir, &doomed).or_else(absent).map_err(io_error("rename", &datadir))?;
        fs::remove_dir_all(&doomed).or_else(absent).map_err(io_error("remove", &doomed))
    })
    .await
}

/// Runs what may take long on a slow disk aside.
async fn blocking(
    work: impl FnOnce() -> Result<(), DatadirError> + Send + 'static,
) -> Result<(), DatadirError> {
    let failed =
        |error: tokio::task::JoinError| io_error("work on", Path::new("the data directory"))(error.into());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// A cancelled initialisation must not go on writing beside the next one.
struct KillOnDrop<'a>(&'a mut Mysqld);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

fn adopt(made: &Path, datadir: &Path) -> Result<(), DatadirError> {
    let folder = File::open(made).map_err(io_error("open", made))?;
    nix::unistd::syncfs(&folder).map_err(|errno| io_error("sync", made)(errno.into()))?;
    // Replaces an empty folder, and fails on any other.
    fs::rename(made, datadir).map_err(io_error("rename to", datadir))?;
    let parent = datadir.parent().unwrap_or(Path::new("/"));
    crate::volume::sync_dir(parent).map_err(io_error("sync", parent))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DatadirError {
    let path = path.to_owned();
    move |source| DatadirError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_and_empty_volumes_have_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(dir.path()).unwrap(), Found::Nothing);
        assert_eq!(look(&dir.path().join("data")).unwrap(), Found::Nothing);
    }

    #[test]
    fn existing_data_are_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MARKER), "").unwrap();
        assert_eq!(look(dir.path()).unwrap(), Found::Data);
    }

    #[tokio::test]
    async fn foreign_files_are_neither_used_nor_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("precious"), "x").unwrap();
        assert!(matches!(look(&data), Err(DatadirError::Foreign { .. })));
        assert!(initialize(Path::new("/bin/true"), &data, &[]).await.is_err());
        assert_eq!(fs::read_to_string(data.join("precious")).unwrap(), "x");
    }

    #[tokio::test]
    async fn failed_initialisation_leaves_no_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let error = initialize(Path::new("/bin/false"), &data, &[]).await.unwrap_err();
        assert!(error.to_string().contains("exit code 1"), "{error}");
        assert!(!data.exists());
    }
}
