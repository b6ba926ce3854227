//! Copies the running executable to where the mysqld container finds it.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// File name of the installed agent.
pub const NAME: &str = "mysql-agent";

/// A copy that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install the agent as {target}: {source}; is the folder mounted and writable for this user?")]
pub struct InstallError {
    target: PathBuf,
    source: io::Error,
}

/// Copies `executable` to `dir/mysql-agent`, mode 0755.
///
/// Atomic: a container that starts meanwhile sees the old file or the new one, never half of it.
pub fn install(executable: &Path, dir: &Path) -> Result<PathBuf, InstallError> {
    let target = dir.join(NAME);
    let copy = || {
        let temporary = dir.join(format!(".{NAME}.{}", std::process::id()));
        fs::copy(executable, &temporary)?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o755))?;
        File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, &target)
    };
    match copy() {
        Ok(()) => Ok(target),
        Err(source) => Err(InstallError { target, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_an_older_agent_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let executable = dir.path().join("source");
        fs::write(&executable, "new").unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join(NAME), "old").unwrap();
        let target = install(&executable, &bin).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(&bin).unwrap().count(), 1);
    }

    #[test]
    fn missing_folder_is_named() {
        let error = install(Path::new("/proc/self/exe"), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/mysql-agent"));
    }
}
