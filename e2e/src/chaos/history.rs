//! The file that a run leaves: one JSON object per line, with the time since its start in microseconds.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::workload::{Outcome, Told};

/// A history that is being written.
pub struct History {
    file: PathBuf,
    writer: BufWriter<File>,
    start: Instant,
}

impl History {
    /// Begins a history in a file, whose folder is made. One that is there is replaced.
    pub fn begin(file: PathBuf) -> Result<Self> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
        }
        let open = File::create(&file).with_context(|| format!("could not write {}", file.display()))?;
        Ok(Self { file, writer: BufWriter::new(open), start: Instant::now() })
    }

    /// When it began.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Adds an event, which reaches the file at once: the run may be killed.
    pub fn event(&mut self, what: &str, fields: Value) -> Result<()> {
        let at = self.micros(Instant::now());
        let mut line = json!({"at": at, "event": what});
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        self.line(&line)?;
        self.writer.flush().with_context(|| format!("could not write {}", self.file.display()))
    }

    /// Adds what clients were told, and completes the file.
    pub fn end(mut self, told: &Told) -> Result<PathBuf> {
        for write in &told.writes {
            let outcome = match write.outcome {
                Outcome::Acknowledged => "acknowledged",
                Outcome::Refused => "refused",
                Outcome::Unknown => "unknown",
            };
            let (sent, ended) = (self.micros(write.sent), self.micros(write.ended));
            self.line(&json!({
                "write": [write.client, write.number], "sent": sent, "ended": ended,
                "outcome": outcome, "server": write.server.to_string(), "id": write.id,
            }))?;
        }
        for read in &told.reads {
            let (sent, ended) = (self.micros(read.sent), self.micros(read.ended));
            self.line(&json!({
                "read": read.reader, "sent": sent, "ended": ended,
                "highest": read.highest, "server": read.server.to_string(),
            }))?;
        }
        self.writer.flush().with_context(|| format!("could not write {}", self.file.display()))?;
        Ok(self.file)
    }

    fn line(&mut self, line: &Value) -> Result<()> {
        writeln!(self.writer, "{line}").with_context(|| format!("could not write {}", self.file.display()))
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }
}
