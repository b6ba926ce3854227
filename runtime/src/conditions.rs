//! Conditions of a status (`meta/v1`).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// Nobody can say.
    Unknown,
}

impl Truth {
    /// The status as it stands in the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// A condition as it is now. Its transition time is the one in `before` as long as its status is the
/// same: a fresh time at each reconcile would be a change, which causes the next reconcile.
pub fn condition(
    before: &[Condition],
    type_: &str,
    status: impl Into<Truth>,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = status.into().as_str();
    let same = before.iter().find(|condition| condition.type_ == type_ && condition.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        // Kept in whole seconds: with parts of one it would differ from what comes back.
        last_transition_time: same
            .map_or_else(|| Time(whole_seconds(now)), |same| same.last_transition_time.clone()),
    }
}

/// The schema of a list of conditions: a map by type, so that server-side apply merges them one by one.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": generator.subschema_for::<Condition>(),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change_of_status() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let first = condition(&[], "Available", false, "PodsMissing", "0 of 1".to_owned(), Some(1), at(1500));
        assert_eq!(first.last_transition_time, Time(at(1000)));
        let before = [first];
        let same =
            condition(&before, "Available", false, "PodsMissing", "0 of 2".to_owned(), Some(2), at(9000));
        assert_eq!(same.last_transition_time, Time(at(1000)));
        assert_eq!((same.message.as_str(), same.observed_generation), ("0 of 2", Some(2)));
        let other = condition(&before, "Available", true, "AllReady", "2 of 2".to_owned(), Some(2), at(9000));
        assert_eq!((other.status.as_str(), other.last_transition_time), ("True", Time(at(9000))));
        let another = condition(&before, "Healthy", false, "Sick", String::new(), Some(2), at(9000));
        assert_eq!(another.last_transition_time, Time(at(9000)), "the time of another condition");
    }
}
