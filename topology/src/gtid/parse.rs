//! From MySQL's text form.
//!
//! `uuid:1-5:7:tag:1-3,uuid:…` with white space anywhere between the parts, in any order, with intervals that
//! overlap, and with nothing between two commas: all of which MySQL takes. Unlike MySQL it refuses intervals
//! that end before they begin, since a server never prints one and leaving it out would make a set smaller
//! than somebody meant.

use thiserror::Error;

use super::intervals::HIGHEST;
use super::{GtidSet, ServerUuid};

/// The longest tag.
const LONGEST_TAG: usize = 32;

/// Why a text is no set of transaction identifiers. Each message quotes the piece that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseGtidSetError {
    /// No server identity.
    #[error("`{0}` is no server UUID: write 32 hexadecimal digits as 8-4-4-4-12")]
    Uuid(String),
    /// No tag.
    #[error(
        "`{piece}` in `{part}` is neither an interval nor a tag: write numbers as 7 or 1-5, and tags as up to 32 \
         letters, digits and underscores that begin with a letter or an underscore"
    )]
    Tag {
        /// The piece between two colons.
        piece: String,
        /// The part between two commas.
        part: String,
    },
    /// No interval.
    #[error(
        "`{piece}` in `{part}` is no interval: write 7 or 1-5, with numbers from 1 to 9223372036854775806"
    )]
    Interval {
        /// The piece between two colons.
        piece: String,
        /// The part between two commas.
        part: String,
    },
    /// A server or a tag without a number.
    #[error("`{piece}` in `{part}` has no interval after it: write at least one, such as {piece}:1-5")]
    NoInterval {
        /// The server or tag.
        piece: String,
        /// The part between two commas.
        part: String,
    },
}

pub(super) fn gtid_set(text: &str) -> Result<GtidSet, ParseGtidSetError> {
    let mut set = GtidSet::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        add_part(&mut set, part)?;
    }
    set.normalize();
    Ok(set)
}

/// Adds what stands between two commas: a server, and its intervals without and with tags.
fn add_part(set: &mut GtidSet, part: &str) -> Result<(), ParseGtidSetError> {
    let no_interval =
        |piece: &str| ParseGtidSetError::NoInterval { piece: piece.to_owned(), part: part.to_owned() };
    let mut pieces = part.split(':').map(str::trim);
    let mut heading = pieces.next().unwrap_or_default();
    let uuid = server_uuid(heading)?;
    let mut tag = String::new();
    let mut numbers = 0_usize;
    for piece in pieces {
        if piece.starts_with(|c: char| c.is_ascii_digit()) {
            let (first, last) = interval(piece).ok_or_else(|| ParseGtidSetError::Interval {
                piece: piece.to_owned(),
                part: part.to_owned(),
            })?;
            set.insert(uuid, &tag, first, last);
            numbers += 1;
        } else if is_tag(piece) {
            // A server may be followed by a tag at once; a tag has to be followed by a number.
            if numbers == 0 && !tag.is_empty() {
                return Err(no_interval(heading));
            }
            (heading, tag, numbers) = (piece, piece.to_ascii_lowercase(), 0);
        } else {
            return Err(ParseGtidSetError::Tag { piece: piece.to_owned(), part: part.to_owned() });
        }
    }
    if numbers == 0 { Err(no_interval(heading)) } else { Ok(()) }
}

fn is_tag(piece: &str) -> bool {
    piece.len() <= LONGEST_TAG
        && piece.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && piece.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn interval(piece: &str) -> Option<(u64, u64)> {
    let (first, last) = match piece.split_once('-') {
        Some((first, last)) => (number(first.trim())?, number(last.trim())?),
        None => (number(piece)?, number(piece)?),
    };
    (first <= last).then_some((first, last))
}

fn number(digits: &str) -> Option<u64> {
    // Checked here because parse() would take a sign.
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|n| plain && (1..=HIGHEST).contains(n))
}

pub(super) fn server_uuid(text: &str) -> Result<ServerUuid, ParseGtidSetError> {
    let trimmed = text.trim();
    let dashes_and_digits = trimmed.char_indices().all(|(at, c)| match at {
        8 | 13 | 18 | 23 => c == '-',
        _ => c.is_ascii_hexdigit(),
    });
    let bits = u128::from_str_radix(&trimmed.replace('-', ""), 16).ok();
    bits.filter(|_| dashes_and_digits && trimmed.len() == 36)
        .map(ServerUuid)
        .ok_or_else(|| ParseGtidSetError::Uuid(trimmed.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "ffffffff-0000-0000-0000-000000000001";

    fn printed(text: &str) -> String {
        gtid_set(text).map_or_else(|error| error.to_string(), |set| set.to_string())
    }

    #[test]
    fn sets_are_printed_as_mysql_prints_them() {
        assert_eq!(printed(""), "");
        assert_eq!(printed(" , \n ,"), "");
        assert_eq!(printed(&format!("{A}:1-5:7")), format!("{A}:1-5:7"));
        assert_eq!(printed(&format!("{B}:3,\n{A}:1-5:6-7:9:2-3")), format!("{A}:1-7:9,{B}:3"));
        assert_eq!(printed(&format!(" {} : 1 - 5 ", A.to_uppercase())), format!("{A}:1-5"));
    }

    #[test]
    fn tags_follow_their_server_in_one_part() {
        // What MySQL 9.1 answered for this gtid_purged (bug #116789).
        assert_eq!(
            printed(&format!("{A}:Domain_1:1-3:15-21, {A}:Domain_2:8-52")),
            format!("{A}:domain_1:1-3:15-21:domain_2:8-52")
        );
        assert_eq!(printed(&format!("{A}:b:1:a:2,{A}:7,{B}:1")), format!("{A}:7:a:2:b:1,{B}:1"));
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        assert!(printed("3e11fa47:1").starts_with("`3e11fa47` is no server UUID"));
        assert!(printed(&format!("{A}0:1")).contains("is no server UUID"));
        for interval in
            ["5-3", "0", "0-1", "1-", "1-+2", "9223372036854775807", "1-2-3", "99999999999999999999"]
        {
            let message = printed(&format!("{A}:1:{interval}"));
            assert!(
                message.starts_with(&format!("`{interval}` in `{A}:1:{interval}` is no interval")),
                "{message}"
            );
        }
        for tag in ["", "-", "ta-g", "ä", "a23456789012345678901234567890123"] {
            let message = printed(&format!("{A}:{tag}:1"));
            assert!(message.starts_with(&format!("`{tag}` in `{A}:{tag}:1` is neither")), "{message}");
        }
        assert!(printed(A).starts_with(&format!("`{A}` in `{A}` has no interval")));
        assert!(printed(&format!("{A}:tag")).starts_with("`tag` in"));
        assert!(printed(&format!("{A}:one:two:1")).starts_with("`one` in"));
    }

    #[test]
    fn a_server_uuid_is_printed_as_it_is_parsed() {
        for text in [A, B, "00000000-0000-0000-0000-000000000000"] {
            assert_eq!(server_uuid(text).unwrap().to_string(), text);
        }
        assert!(server_uuid("3e11fa47-71ca-11e1-9e33c-80aa9429562").is_err());
        assert!(server_uuid("3e11fa4771ca11e19e33c80aa9429562").is_err());
    }
}
