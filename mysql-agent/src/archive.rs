//! Binary logs that are kept though the data they belong to are discarded.
//!
//! An old primary may hold transactions that nobody acknowledged. It is rebuilt, and what it held that the others
//! do not is kept for a person to look at: the binary logs with it, hard-linked into a folder of the agent, which
//! costs nothing until mysqld's own names are gone.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    sql::{Session, SqlError, text},
    users::quoted,
    volume::sync_dir,
};

const STATEMENT: Duration = Duration::from_secs(5);
/// How long an archive is kept.
const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Time between two searches for old archives.
const SEARCH: Duration = Duration::from_hours(24);
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// Binary logs that could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}; the binary logs are to be kept before the data are discarded")]
pub struct ArchiveError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// What is to be kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Tail {
    server_uuid: String,
    /// The transactions that binary logs hold.
    gtids: String,
    /// Those whose binary logs mysqld has removed already.
    purged: String,
    /// The binary logs, by their names in the data directory, newest first.
    files: Vec<String>,
}

/// Finds the binary logs with transactions of `wanted`; `None` where the instance holds none of them.
pub async fn find(session: &mut Session, wanted: &str) -> Result<Option<Tail>, SqlError> {
    let held = format!(
        "SELECT @@server_uuid AS server_uuid, GTID_SUBTRACT(w.s, GTID_SUBTRACT(w.s, @@GLOBAL.gtid_purged)) AS purged, \
         GTID_SUBTRACT(GTID_SUBTRACT(w.s, GTID_SUBTRACT(w.s, @@GLOBAL.gtid_executed)), @@GLOBAL.gtid_purged) AS held \
         FROM (SELECT {} AS s) AS w",
        quoted(wanted)
    );
    let row = session.row(STATEMENT, &held).await?.ok_or(SqlError::NotRunning)?;
    let gtids = one_line(&text(&row, "held"));
    if gtids.is_empty() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for log in session.rows(STATEMENT, "SHOW BINARY LOGS").await?.into_iter().rev() {
        let file = text(&log, "Log_name");
        let before = previous_gtids(session, &file).await?;
        let later = format!("SELECT GTID_SUBTRACT({}, {}) AS later", quoted(&gtids), quoted(&before));
        let row = session.row(STATEMENT, &later).await?.ok_or(SqlError::NotRunning)?;
        let later = one_line(&text(&row, "later"));
        // All of them are in older ones.
        if later.is_empty() {
            continue;
        }
        files.push(file);
        // None of them is in an older one.
        if later == gtids {
            break;
        }
    }
    let (server_uuid, purged) = (text(&row, "server_uuid"), one_line(&text(&row, "purged")));
    Ok(Some(Tail { server_uuid, gtids, purged, files }))
}

/// The transactions in all binary logs before a file, which its first events say.
async fn previous_gtids(session: &mut Session, file: &str) -> Result<String, SqlError> {
    let events = format!("SHOW BINLOG EVENTS IN {} LIMIT 3", quoted(file));
    let events = session.rows(STATEMENT, &events).await?;
    let previous = events.iter().find(|event| text(event, "Event_type") == "Previous_gtids");
    // Without that event nothing is known to be before it, so it is taken for one that may hold all.
    Ok(previous.map(|event| one_line(&text(event, "Info"))).unwrap_or_default())
}

fn one_line(set: &str) -> String {
    set.split_whitespace().collect()
}

/// Links the binary logs into a folder of their own below `root`, and returns that. When this returns, it survives
/// a crash of the machine. `data` and `root` are of one file system.
pub fn keep(tail: &Tail, data: &Path, root: &Path, now: Timestamp) -> Result<PathBuf, ArchiveError> {
    let folder = root.join(format!("{}-{}", now.strftime(TIME), tail.server_uuid));
    let making = folder.with_extension("making");
    fs::create_dir_all(&making).map_err(failed("make the folder", &making))?;
    let kept = fill(tail, data, &making).and_then(|()| {
        fs::rename(&making, &folder).map_err(failed("rename to", &folder))?;
        let parents = [Some(root), root.parent()];
        parents.into_iter().flatten().try_for_each(|dir| sync_dir(dir).map_err(failed("sync", dir)))
    });
    if kept.is_err() {
        // The error says what went wrong; what is left of it expires.
        let _ = fs::remove_dir_all(&making);
    }
    kept.map(|()| folder)
}

fn fill(tail: &Tail, data: &Path, folder: &Path) -> Result<(), ArchiveError> {
    for name in &tail.files {
        let (from, to) = (data.join(name), folder.join(name));
        fs::hard_link(&from, &to).map_err(failed("link", &from))?;
        // mysqld does not sync them where durability is relaxed.
        File::open(&to).and_then(|file| file.sync_all()).map_err(failed("sync", &to))?;
    }
    let path = folder.join("gtids");
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(describe(tail).as_bytes())?;
        file.sync_all()?;
        sync_dir(folder)
    };
    write().map_err(failed("write", &path))
}

fn describe(tail: &Tail) -> String {
    let mut text = format!(
        "# Transactions that this instance gave up when its data were replaced. Read them with\n\
         #   mysqlbinlog --verbose --include-gtids=SET FILE...\n\
         # mysql-agent removes this folder after {} days.\n{}\n",
        KEPT.as_hours() / 24,
        tail.gtids
    );
    if !tail.purged.is_empty() {
        text.push_str("# Without the following, whose binary logs mysqld had removed before:\n# ");
        text.push_str(&tail.purged);
        text.push('\n');
    }
    text
}

/// Removes old archives, at once and then daily.
pub async fn expire(root: PathBuf, shutdown: CancellationToken) {
    let mut days = interval(SEARCH);
    days.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = days.tick() => {}
        }
        let root = root.clone();
        let removed = tokio::task::spawn_blocking(move || remove_old(&root, Timestamp::now())).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!("an archive of binary logs stays beyond its time: {error}");
        }
    }
}

fn remove_old(root: &Path, now: Timestamp) -> Result<(), ArchiveError> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("read", root))?,
    };
    for entry in entries {
        let path = entry.map_err(failed("read", root))?.path();
        let old = made_at(&path).is_some_and(|made| now.duration_since(made) > KEPT);
        if old {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
            tracing::info!("removed the archive of binary logs {}", path.display());
        }
    }
    Ok(())
}

/// When an archive was made, by its name; `None` for what is no archive.
fn made_at(path: &Path) -> Option<Timestamp> {
    let (time, _) = path.file_name()?.to_str()?.split_once('-')?;
    let time = DateTime::strptime(TIME, time).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |source| ArchiveError { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(files: &[&str]) -> Tail {
        Tail {
            server_uuid: "3e11fa47-71ca-11e1-9e33-c80aa9429562".to_owned(),
            gtids: "3e11fa47-71ca-11e1-9e33-c80aa9429562:7-9".to_owned(),
            purged: String::new(),
            files: files.iter().map(ToString::to_string).collect(),
        }
    }

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn kept_files_outlive_their_data_directory() {
        let volume = tempfile::tempdir().unwrap();
        let (data, root) = (volume.path().join("data"), volume.path().join("archive"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("binlog.000002"), "tail").unwrap();
        let kept = keep(&tail(&["binlog.000002"]), &data, &root, at("2026-05-06T07:08:09Z")).unwrap();
        fs::remove_dir_all(&data).unwrap();
        assert_eq!(kept, root.join("20260506T070809Z-3e11fa47-71ca-11e1-9e33-c80aa9429562"));
        assert_eq!(fs::read_to_string(kept.join("binlog.000002")).unwrap(), "tail");
        assert!(fs::read_to_string(kept.join("gtids")).unwrap().contains(":7-9\n"));
    }

    #[test]
    fn file_that_is_missing_fails_and_leaves_no_archive() {
        let volume = tempfile::tempdir().unwrap();
        let root = volume.path().join("archive");
        let error = keep(&tail(&["binlog.000002"]), volume.path(), &root, at("2026-05-06T07:08:09Z"));
        assert!(error.unwrap_err().to_string().contains("binlog.000002"));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    }

    #[test]
    fn archives_are_removed_after_a_week_and_other_files_never() {
        let volume = tempfile::tempdir().unwrap();
        let made = at("2026-05-06T07:08:09Z");
        let kept = keep(&tail(&[]), volume.path(), volume.path(), made).unwrap();
        fs::create_dir(volume.path().join("notes-of-a-person")).unwrap();
        remove_old(volume.path(), made + KEPT).unwrap();
        assert!(kept.exists());
        remove_old(volume.path(), made + KEPT + SignedDuration::from_secs(1)).unwrap();
        assert!(!kept.exists());
        assert!(volume.path().join("notes-of-a-person").exists());
        remove_old(&volume.path().join("absent"), made).unwrap();
    }
}
