//! Spans of time in a spec.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A span of time in hours, minutes and seconds, such as `10m` or `1h30m`. It is kept as it was written.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub struct Span {
    text: String,
    seconds: u64,
}

impl Span {
    /// A span of whole minutes.
    pub fn minutes(minutes: u32) -> Self {
        Self { text: format!("{minutes}m"), seconds: u64::from(minutes) * 60 }
    }

    /// In whole seconds.
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let span = text.parse::<SignedDuration>().ok();
        let Some(seconds) = span.and_then(|span| u64::try_from(span.as_secs()).ok()) else {
            return Err(format!("{text:?} is no span of time: write it as in 10m or 1h30m"));
        };
        Ok(Self { text, seconds })
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.text
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_as_it_is_written_and_kept_so() {
        for (text, seconds) in [("10m", 600), ("1h30m", 5400), ("90s", 90), ("24h", 86400)] {
            let span: Span = serde_json::from_value(text.into()).unwrap();
            assert_eq!((span.seconds(), span.to_string()), (seconds, text.to_owned()));
        }
        assert_eq!(serde_json::to_value(Span::minutes(10)).unwrap(), "10m");
        for wrong in ["", "ten", "-10m", "10"] {
            let error = serde_json::from_value::<Span>(wrong.into()).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("10m"), "{error}");
        }
    }
}
