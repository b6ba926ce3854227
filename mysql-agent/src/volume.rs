//! What the agent keeps on the data volume: the volume's identity and the highest term.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::sys::statvfs::statvfs;

/// A state file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Reading or writing failed.
    #[error("cannot {action} {path}: {source}; check the data volume")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The term can't be read.
    #[error(
        "{path} holds {found:?}, which is no term: the volume is damaged or was edited. Acting without the term could give two primaries, so this instance waits; restore the file, or delete the instance's volume claim to have it rebuilt"
    )]
    Term {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
}

/// The agent's folder on the data volume.
#[derive(Debug)]
pub struct Volume {
    dir: PathBuf,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
enum ReplacementKnown {
    #[default]
    Unread,
    Read(Option<Replacement>),
}

/// What was read, so that a stuck disk does not stop the ones who ask.
#[derive(Debug, Default)]
struct Known {
    id: String,
    term: Option<u64>,
    replacement: ReplacementKnown,
}

impl Volume {
    /// Opens the folder, and makes it and the volume's identity at first use.
    pub fn open(dir: &Path) -> Result<Self, VolumeError> {
        fs::create_dir_all(dir).map_err(io_error("make the folder", dir))?;
        let path = dir.join("volume-id");
        let id = match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
            Ok(_) => make_id(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_id(&path)?,
            Err(source) => return Err(io_error("read", &path)(source)),
        };
        Ok(Self { dir: dir.to_owned(), known: Mutex::new(Known { id, ..Known::default() }) })
    }

    /// Random identity of the volume and of the data on it.
    pub fn id(&self) -> String {
        self.known().id.clone()
    }

    /// Gives the volume another identity, to be called before any of its data are given up: the shard takes the
    /// same identity for a proof that the instance still holds all that it acknowledged. When this returns, the
    /// old one is gone even after a crash of the machine.
    pub fn renew_id(&self) -> Result<(), VolumeError> {
        let id = make_id(&self.dir.join("volume-id"))?;
        tracing::info!(id, "the data are given up, and the volume gets another identity");
        self.known().id = id;
        Ok(())
    }

    /// The highest term that was kept, 0 when there was none. One that can't be read is read again.
    pub fn term(&self) -> Result<u64, VolumeError> {
        let mut known = self.known();
        match known.term {
            Some(term) => Ok(term),
            None => Ok(*known.term.insert(self.read_term()?)),
        }
    }

    fn read_term(&self) -> Result<u64, VolumeError> {
        let path = self.dir.join("term");
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(io_error("read", &path)(source)),
        };
        text.strip_suffix('\n')
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .ok_or(VolumeError::Term { path, found: text.chars().take(40).collect() })
    }

    /// Keeps a term. When this returns, the term survives a crash of the machine.
    pub fn keep_term(&self, term: u64) -> Result<(), VolumeError> {
        write_synced(&self.dir.join("term"), format!("{term}\n").as_bytes())?;
        self.known().term = Some(term);
        Ok(())
    }

    /// Whether the data are in the middle of being replaced.
    pub fn replacement(&self) -> Result<Option<Replacement>, VolumeError> {
        let mut known = self.known();
        if let ReplacementKnown::Read(replacement) = known.replacement {
            return Ok(replacement);
        }
        let replacement = self.read_replacement()?;
        known.replacement = ReplacementKnown::Read(replacement);
        Ok(replacement)
    }

    fn read_replacement(&self) -> Result<Option<Replacement>, VolumeError> {
        let path = self.dir.join("replacement");
        match fs::read_to_string(&path) {
            Ok(text) if text == CLONING => Ok(Some(Replacement::Cloning)),
            // Also a torn one: it was only ever written for data that may be lost.
            Ok(_) => Ok(Some(Replacement::Discard)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error("read", &path)(source)),
        }
    }

    /// Keeps how far the replacement of the data is; `None` when the data are whole.
    pub fn keep_replacement(&self, replacement: Option<Replacement>) -> Result<(), VolumeError> {
        let path = self.dir.join("replacement");
        match replacement {
            Some(Replacement::Cloning) => write_synced(&path, CLONING.as_bytes())?,
            Some(Replacement::Discard) => write_synced(&path, b"discard\n")?,
            None => {
                let remove = || {
                    fs::remove_file(&path).or_else(|error| match error.kind() {
                        io::ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    })?;
                    sync_dir(&self.dir)
                };
                remove().map_err(io_error("remove", &path))?;
            }
        }
        self.known().replacement = ReplacementKnown::Read(replacement);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const CLONING: &str = "cloning\n";

/// The data of the instance are being replaced, by an order that named them as expendable.
///
/// CLONE drops the users' schemas first. When it is interrupted after that, mysqld still says that it has
/// executed their transactions: such data must not be served or followed up, so they are made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// CLONE was begun, and its end was not seen.
    Cloning,
    /// It did not end well: the data directory is made anew before mysqld starts.
    Discard,
}

fn make_id(path: &Path) -> Result<String, VolumeError> {
    let id = uuid::Uuid::new_v4().to_string();
    write_synced(path, format!("{id}\n").as_bytes())?;
    Ok(id)
}

/// Replaces a file so that after a crash either the old or the new content is there, complete.
fn write_synced(path: &Path, content: &[u8]) -> Result<(), VolumeError> {
    let write = || {
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_dir(path.parent().unwrap_or(Path::new("/")))
    };
    write().map_err(io_error("write", path))
}

/// Makes the names in a folder survive a crash of the machine.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Total and free bytes of the file system that holds `path`; zeros when it can't be asked.
pub fn disk_space(path: &Path) -> (u64, u64) {
    statvfs(path).map_or((0, 0), |stat| {
        let unit = stat.fragment_size();
        (stat.blocks().saturating_mul(unit), stat.blocks_available().saturating_mul(unit))
    })
}

/// The kernel's boot id: the same value means that the page cache survived. Empty when unreadable.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_stays_with_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let first = Volume::open(&dir.path().join("fleet")).unwrap().id();
        let second = Volume::open(&dir.path().join("fleet")).unwrap().id();
        assert_eq!(first, second);
        assert_eq!(first.len(), 36);
    }

    #[test]
    fn renewed_identity_is_another_and_stays_and_the_term_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open(dir.path()).unwrap();
        volume.keep_term(7).unwrap();
        let first = volume.id();
        volume.renew_id().unwrap();
        assert_ne!(volume.id(), first);
        let again = Volume::open(dir.path()).unwrap();
        assert_eq!((again.id(), again.term().unwrap()), (volume.id(), 7));
    }

    #[test]
    fn term_is_zero_on_a_fresh_volume_and_kept_after() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open(dir.path()).unwrap();
        assert_eq!(volume.term().unwrap(), 0);
        volume.keep_term(7).unwrap();
        assert_eq!(Volume::open(dir.path()).unwrap().term().unwrap(), 7);
    }

    #[test]
    fn damaged_term_is_never_taken_for_zero() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open(dir.path()).unwrap();
        for damaged in
            ["", "\n", "7", "-1\n", "+7\n", " 7\n", "99999999999999999999999\n", "seven\n", "\0\0\0"]
        {
            fs::write(dir.path().join("term"), damaged).unwrap();
            assert!(matches!(volume.term(), Err(VolumeError::Term { .. })), "{damaged:?}");
        }
        fs::write(dir.path().join("term"), [0xff, 0xfe]).unwrap();
        assert!(volume.term().is_err());
        fs::write(dir.path().join("term"), "8\n").unwrap();
        assert_eq!(volume.term().unwrap(), 8, "a restored file is taken without a restart");
    }

    #[test]
    fn replacement_is_kept_until_the_data_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open(dir.path()).unwrap();
        assert_eq!(volume.replacement().unwrap(), None);
        for step in [Some(Replacement::Cloning), Some(Replacement::Discard), None, None] {
            volume.keep_replacement(step).unwrap();
            assert_eq!(volume.replacement().unwrap(), step);
            assert_eq!(Volume::open(dir.path()).unwrap().replacement().unwrap(), step);
        }
    }

    #[test]
    fn disk_space_is_known_for_a_mounted_path() {
        let (total, free) = disk_space(Path::new("/"));
        assert!(total > 0 && free <= total);
    }
}
