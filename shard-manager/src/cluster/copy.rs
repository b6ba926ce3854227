//! How far the copy of another instance's data is, for people.

use fleet_api::v1::CopyStatus;
use fleet_proto::agent::v1::{CloneState, InstanceFacts};

/// The progress of the copy that the instance is getting; `None` where none runs.
///
/// What is left of one that has ended says nothing any more, nor does the speed of a stage that has.
pub fn progress(facts: &InstanceFacts) -> Option<CopyStatus> {
    let copy = facts.clone.as_ref().filter(|copy| copy.state() == CloneState::Running)?;
    let percent = (u128::from(copy.bytes_copied) * 100)
        .checked_div(u128::from(copy.bytes_estimated))
        .map_or(0, |percent| percent.min(100));
    let left = copy.bytes_estimated.saturating_sub(copy.bytes_copied);
    let remaining = (left > 0).then(|| left.checked_div(copy.bytes_per_second)).flatten();
    Some(CopyStatus {
        percent: i32::try_from(percent).unwrap_or(100),
        bytes_per_second: (copy.bytes_per_second > 0).then(|| signed(copy.bytes_per_second)),
        remaining_seconds: remaining.map(signed),
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use fleet_proto::agent::v1::CloneFacts;

    use super::*;

    fn of(state: CloneState, estimated: u64, copied: u64, speed: u64) -> Option<CopyStatus> {
        progress(&InstanceFacts {
            clone: Some(CloneFacts {
                state: state.into(),
                bytes_estimated: estimated,
                bytes_copied: copied,
                bytes_per_second: speed,
                ..CloneFacts::default()
            }),
            ..InstanceFacts::default()
        })
    }

    #[test]
    fn a_copy_says_how_far_it_is_how_fast_and_for_how_long() {
        let expected = CopyStatus { percent: 25, bytes_per_second: Some(50), remaining_seconds: Some(15) };
        assert_eq!(of(CloneState::Running, 1000, 250, 50), Some(expected));
    }

    #[test]
    fn between_stages_there_is_neither_speed_nor_remaining_time() {
        let between = CopyStatus { percent: 25, ..CopyStatus::default() };
        assert_eq!(of(CloneState::Running, 1000, 250, 0), Some(between));
        let all = of(CloneState::Running, 1000, 1000, 50).unwrap();
        assert_eq!((all.percent, all.remaining_seconds), (100, None));
        assert_eq!(of(CloneState::Running, 0, 0, 0), Some(CopyStatus::default()), "nothing is known yet");
        assert_eq!(of(CloneState::Running, 10, u64::MAX, 0).unwrap().percent, 100, "an estimate is one");
    }

    #[test]
    fn nothing_is_left_over_of_a_copy_that_has_ended() {
        assert_eq!(of(CloneState::Completed, 1000, 1000, 50), None);
        assert_eq!(of(CloneState::Failed, 1000, 250, 50), None);
        assert_eq!(progress(&InstanceFacts::default()), None);
    }
}
