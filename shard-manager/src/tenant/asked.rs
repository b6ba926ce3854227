//! A person's request for another authority: `mysqlfleet.io/rotate-authority` of any MySQLCluster of the tenant. Pure.
//!
//! It is an annotation of a MySQLCluster and not of the authority's Secret since nobody but the shard may write Secrets:
//! who may read that one can sign for the tenant already, who may write it could sign for ever. The value says how long
//! clients have at each step. What is begun is written into it, as with every request.

use std::time::Duration;

use fleet_api::names;
use jiff::SignedDuration;

use super::rotation::Stage;
use crate::cluster::requests::shortened;

/// The shortest time for who can't be seen: longer than a kubelet needs to see a Secret, and a watch to be back.
const SHORTEST: Duration = Duration::from_mins(2);
/// The longest: a certificate that was issued by the old authority lives as long.
const LONGEST: Duration = Duration::from_hours(90 * 24);
/// What stands after the time once the request is taken up.
const BEGUN: &str = " begun";

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It can't be read.
    Refuse(String),
    /// Make another authority.
    Begin(Duration),
    /// An exchange goes on: it gets this time.
    SetWait(Duration),
    /// It is taken up: write that down, by this value.
    Mark(String),
    /// It goes on.
    Nothing,
    /// There is one authority again.
    Done,
}

/// What to do about a request with this value.
pub fn reply<N, P>(value: &str, stage: &Stage<N, P>) -> Reply {
    let (asked, begun) = value.strip_suffix(BEGUN).map_or((value, false), |asked| (asked, true));
    let wait = match time(asked) {
        Ok(wait) => wait,
        Err(problem) => return Reply::Refuse(problem),
    };
    let now = match stage {
        Stage::Steady if begun => return Reply::Done,
        Stage::Steady => return Reply::Begin(wait),
        Stage::Introducing { wait, .. } | Stage::Replacing { wait, .. } => *wait,
    };
    match begun {
        true => Reply::Nothing,
        false if now == wait => Reply::Mark(format!("{asked}{BEGUN}")),
        false => Reply::SetWait(wait),
    }
}

/// The time of a value, for people.
pub fn time_of(value: &str) -> String {
    shortened(value.strip_suffix(BEGUN).unwrap_or(value))
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = |problem: &str| {
        format!(
            "{} is {:?}, {problem}: say how long clients have at each step to learn of the new authority, such as 24h or \
             30m, at least {:#} and at most {:#}",
            names::ANNOTATION_ROTATE_AUTHORITY,
            shortened(text),
            friendly(SHORTEST),
            friendly(LONGEST),
        )
    };
    let parsed: SignedDuration = text.parse().map_err(|_| wrong("which is no time"))?;
    let wait = Duration::try_from(parsed).map_err(|_| wrong("which is less than nothing"))?;
    if wait < SHORTEST {
        return Err(wrong("which is too short"));
    }
    if wait > LONGEST {
        return Err(wrong("which is too long"));
    }
    Ok(wait)
}

/// A time as it is written in annotations.
pub fn friendly(time: Duration) -> SignedDuration {
    SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn under_way(wait: Duration) -> Stage<(), ()> {
        Stage::Introducing { next: (), wait, since: None }
    }

    #[test]
    fn a_request_is_begun_once_and_done_once_there_is_one_authority_again() {
        let steady = Stage::<(), ()>::Steady;
        assert_eq!(reply("1h", &steady), Reply::Begin(HOUR));
        assert_eq!(reply("1h", &under_way(HOUR)), Reply::Mark("1h begun".to_owned()));
        assert_eq!(reply("1h begun", &under_way(HOUR)), Reply::Nothing);
        assert_eq!(reply("1h begun", &steady), Reply::Done);
    }

    #[test]
    fn an_exchange_that_goes_on_gets_the_time_that_is_asked_for() {
        assert_eq!(reply("1h", &under_way(2 * HOUR)), Reply::SetWait(HOUR));
        assert_eq!(reply("1h begun", &under_way(2 * HOUR)), Reply::Nothing);
    }

    #[test]
    fn a_value_that_makes_no_sense_is_refused_with_what_to_write() {
        for value in ["", "yes", "30d", "1", "0s", "-1h", "1m", "2161h", " begun"] {
            let Reply::Refuse(text) = reply(value, &Stage::<(), ()>::Steady) else {
                panic!("{value} is taken")
            };
            assert!(text.starts_with("mysqlfleet.io/rotate-authority is ") && text.contains("24h"), "{text}");
            assert!(text.ends_with("at least 2m and at most 2160h"), "{text}");
        }
        for value in ["2m", "90m", "1h30m", "2160h"] {
            assert!(matches!(reply(value, &Stage::<(), ()>::Steady), Reply::Begin(_)), "{value} is refused");
        }
    }
}
