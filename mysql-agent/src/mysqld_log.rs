//! mysqld's log, line by line, as the agent's own JSON log.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tracing::Level;

/// Longer lines are cut: one line of the log must not take the memory of the container.
const LONGEST: usize = 16 * 1024;

/// One line of MySQL's error log, which reads
/// `2026-01-02T03:04:05.678901Z 0 [Warning] [MY-010068] [Server] CA certificate ca.pem is self signed.`
#[derive(Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// Severity.
    pub level: Level,
    /// Thread of mysqld, absent in free text.
    pub thread: Option<&'a str>,
    /// Error code such as MY-010068.
    pub code: Option<&'a str>,
    /// Subsystem such as InnoDB.
    pub subsystem: Option<&'a str>,
    /// The rest.
    pub message: &'a str,
}

impl<'a> LogLine<'a> {
    /// Reads a line. One that has another form, such as those of a crash, is taken as it is.
    pub fn parse(line: &'a str) -> Self {
        Self::structured(line).unwrap_or(Self {
            level: Level::INFO,
            thread: None,
            code: None,
            subsystem: None,
            message: line,
        })
    }

    fn structured(line: &'a str) -> Option<Self> {
        let (time, rest) = line.split_once(' ')?;
        if !(time.ends_with('Z') && time.contains('T')) {
            return None;
        }
        let (thread, rest) = rest.split_once(' ')?;
        let (severity, rest) = bracketed(rest)?;
        let level = match severity {
            "ERROR" => Level::ERROR,
            "Warning" => Level::WARN,
            "System" | "Note" => Level::INFO,
            _ => return None,
        };
        let (code, rest) = bracketed(rest)?;
        let (subsystem, message) = bracketed(rest)?;
        Some(Self { level, thread: Some(thread), code: Some(code), subsystem: Some(subsystem), message })
    }

    fn write(&self) {
        let Self { level, thread, code, subsystem, message } = *self;
        match level {
            Level::ERROR => tracing::error!(target: "mysqld", thread, code, subsystem, "{message}"),
            Level::WARN => tracing::warn!(target: "mysqld", thread, code, subsystem, "{message}"),
            _ => tracing::info!(target: "mysqld", thread, code, subsystem, "{message}"),
        }
    }
}

fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((inner, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// Forwards a stream of mysqld until it ends; returns the last error in it, which mostly says why mysqld
/// ended.
pub async fn forward(stream: impl AsyncRead + Unpin) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut last_error = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        if !read_line(&mut reader, &mut line).await {
            return last_error;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        let parsed = LogLine::parse(text);
        // The last line before the end, "Aborting", says nothing.
        if parsed.level == Level::ERROR && parsed.code != Some("MY-010119") {
            last_error = Some(parsed.message.to_owned());
        }
        parsed.write();
    }
}

/// Reads up to a line break, keeping the first part of a long line; false at the end of the stream.
async fn read_line(reader: &mut (impl AsyncBufReadExt + Unpin), line: &mut Vec<u8>) -> bool {
    loop {
        let Ok(buffer) = reader.fill_buf().await else {
            return !line.is_empty();
        };
        if buffer.is_empty() {
            return !line.is_empty();
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let piece = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or(buffer);
        let used = end.map_or(buffer.len(), |index| index + 1);
        line.extend(piece.iter().take(LONGEST.saturating_sub(line.len())));
        reader.consume(used);
        if end.is_some() {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_log_format_of_mysql() {
        let line = "2026-11-30T16:30:07.362500Z 7 [Warning] [MY-010068] [Server] CA certificate ca.pem is self signed.";
        assert_eq!(
            LogLine::parse(line),
            LogLine {
                level: Level::WARN,
                thread: Some("7"),
                code: Some("MY-010068"),
                subsystem: Some("Server"),
                message: "CA certificate ca.pem is self signed.",
            }
        );
        assert_eq!(LogLine::parse("2026-11-30T16:30:07.3Z 0 [ERROR] [MY-1] [InnoDB] [x] y").message, "[x] y");
    }

    #[test]
    fn other_text_is_kept_whole() {
        for line in ["mysqld got signal 11 ;", "", "x [ERROR] y", "2026-11-30T16:30:07Z 0 [Odd] [MY-1] [X] y"]
        {
            let parsed = LogLine::parse(line);
            assert_eq!((parsed.message, parsed.level, parsed.code), (line, Level::INFO, None));
        }
    }

    #[tokio::test]
    async fn last_error_before_aborting_is_returned() {
        let log = "2026-11-30T16:30:07.3Z 0 [ERROR] [MY-000067] [Server] unknown variable 'x=1'.\n\
                   2026-11-30T16:30:07.4Z 0 [ERROR] [MY-010119] [Server] Aborting\n";
        assert_eq!(forward(log.as_bytes()).await.as_deref(), Some("unknown variable 'x=1'."));
    }

    #[tokio::test]
    async fn long_line_is_cut_and_the_next_one_is_whole() {
        let text = format!("{}\nshort\n", "x".repeat(LONGEST * 3));
        let mut reader = BufReader::new(text.as_bytes());
        let mut line = Vec::new();
        assert!(read_line(&mut reader, &mut line).await);
        assert_eq!(line.len(), LONGEST);
        line.clear();
        assert!(read_line(&mut reader, &mut line).await);
        assert_eq!(line, b"short");
        line.clear();
        assert!(!read_line(&mut reader, &mut line).await);
    }
}
