//! Error classes: what the queue does with a failed reconcile.

use std::{fmt, time::Duration};

/// What happens after a reconcile has failed.
///
/// | class | meaning | what happens |
/// |---|---|---|
/// | `Transient` | network, 409/429/5xx, a server that starts | backoff with jitter per key, capped |
/// | `Invalid` | the user's spec can't be done | nothing until the object, or what it names, changes |
/// | `Blocked` | progress needs something named | woken by its change, and by a slow safety timer |
/// | `Fatal` | a bug, an undecodable object, a lost invariant | the object is set aside, others go on |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorClass {
    /// It may work when it is tried again.
    Transient,
    /// It can't work until the user changes something.
    Invalid,
    /// It can't work until something else changes, which the error names.
    Blocked,
    /// It must not be tried again by itself.
    Fatal,
}

impl ErrorClass {
    /// The class as a metric label: `transient`, `invalid`, `blocked`, `fatal`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Invalid => "invalid",
            Self::Blocked => "blocked",
            Self::Fatal => "fatal",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error that knows its class.
pub trait Classified: std::error::Error {
    /// What to do about it.
    fn class(&self) -> ErrorClass;

    /// The error's variant in one CamelCase word: the metric label and the reason of conditions and events.
    fn reason(&self) -> &'static str;

    /// How long the other side asked to wait before the next try, where it did.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

impl Classified for kube::Error {
    fn class(&self) -> ErrorClass {
        let Self::Api(status) = self else {
            return match self {
                Self::SerdeError(_) | Self::BuildRequest(_) | Self::HttpError(_) => ErrorClass::Fatal,
                _ => ErrorClass::Transient,
            };
        };
        match status.code {
            400 | 404 | 405 | 415 | 422 => ErrorClass::Fatal,
            401 | 403 => ErrorClass::Blocked,
            _ => ErrorClass::Transient,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Api(status) => match status.code {
                401 => "Unauthorized",
                403 => "Forbidden",
                404 => "NotFound",
                409 => "Conflict",
                429 => "TooManyRequests",
                400 | 405 | 415 | 422 => "Rejected",
                _ => "ApiServerError",
            },
            Self::SerdeError(_) => "Undecodable",
            Self::BuildRequest(_) | Self::HttpError(_) => "BadRequest",
            _ => "ApiUnreachable",
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(status) => status
                .details
                .as_ref()
                .map(|details| details.retry_after_seconds)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
            _ => None,
        }
    }
}

/// The text of a panic, where it has one.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn api(code: u16, retry_after: u32) -> kube::Error {
        let status = json!({
            "status": "Failure", "message": "no", "reason": "Scripted", "code": code,
            "details": {"retryAfterSeconds": retry_after},
        });
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn answers_of_the_api_server_are_classed_by_who_can_change_something() {
        use ErrorClass::{Blocked, Fatal, Transient};
        for (code, class, reason) in [
            (400, Fatal, "Rejected"),
            (401, Blocked, "Unauthorized"),
            (403, Blocked, "Forbidden"),
            (404, Fatal, "NotFound"),
            (405, Fatal, "Rejected"),
            (409, Transient, "Conflict"),
            (410, Transient, "ApiServerError"),
            (415, Fatal, "Rejected"),
            (422, Fatal, "Rejected"),
            (429, Transient, "TooManyRequests"),
            (500, Transient, "ApiServerError"),
            (503, Transient, "ApiServerError"),
        ] {
            let error = api(code, 0);
            assert_eq!((error.class(), error.reason(), error.retry_after()), (class, reason, None), "{code}");
        }
        let lost = kube::Error::Service("connection reset".into());
        assert_eq!((lost.class(), lost.reason()), (Transient, "ApiUnreachable"));
        let text = kube::Error::SerdeError(serde_json::from_str::<u8>("x").unwrap_err());
        assert_eq!((text.class(), text.reason()), (Fatal, "Undecodable"));
    }

    #[test]
    fn the_time_that_the_api_server_asks_for_is_told() {
        assert_eq!(api(429, 7).retry_after(), Some(Duration::from_secs(7)));
    }
}
