//! In which fields a member is not as wanted: a pure function.
//!
//! | the member's spec | what is compared with the wanted spec |
//! |---|---|
//! | known, by the last report of its stream | that spec |
//! | not known: it is silent, or has none of ours | what was last agreed on; where nothing was, nothing is |

use std::collections::{BTreeMap, BTreeSet};

use fleet_api::fields::{FieldPath, leaves};
use fleet_proto::federation::v1::Field;
use serde_json::Value;

/// The most fields that are told.
const MAX_FIELDS: usize = 64;

/// What is known of the specs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Specs<'a> {
    /// What the hub wants now.
    pub(super) wanted: &'a Value,
    /// What hub and member last agreed on.
    pub(super) agreed: Option<&'a Value>,
    /// What the member has, if that is known.
    pub(super) member: Option<&'a Value>,
}

/// The fields that differ, ordered by path. `told` is what the member has said of fields: who holds them.
pub(super) fn drift(specs: Specs<'_>, told: &[Field]) -> Vec<Field> {
    let Some(other) = specs.member.or(specs.agreed) else {
        return Vec::new();
    };
    let (wanted, other) = (leaves(specs.wanted), leaves(other));
    let paths: BTreeSet<&FieldPath> = wanted.keys().chain(other.keys()).collect();
    let differing = paths.into_iter().filter(|path| wanted.get(*path) != other.get(*path));
    let held: BTreeMap<&str, &Field> = told.iter().map(|field| (field.path.as_str(), field)).collect();
    let json = |value: Option<&Value>| value.map(ToString::to_string).unwrap_or_default();
    let field = |path: &FieldPath| {
        let name = path.to_string();
        let told = held.get(name.as_str());
        let agreed = specs.agreed.and_then(|agreed| path.get(agreed));
        let both_changed =
            specs.member.is_some_and(|member| path.get(member) != agreed) && path.get(specs.wanted) != agreed;
        Field {
            agreed_json: json(agreed),
            hub_json: json(path.get(specs.wanted)),
            member_json: json(specs.member.and_then(|member| path.get(member))),
            held_by: told.map(|field| field.held_by.clone()).unwrap_or_default(),
            both_changed,
            path: name,
        }
    };
    differing.take(MAX_FIELDS).map(field).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(specs: Specs<'_>, told: &[Field]) -> Vec<[String; 5]> {
        let row = |field: Field| {
            assert_eq!(field.both_changed, field.path == ".both", "{field:?}");
            [field.path, field.agreed_json, field.hub_json, field.member_json, field.held_by]
        };
        drift(specs, told).into_iter().map(row).collect()
    }

    #[test]
    fn the_member_s_spec_is_compared_where_it_is_known_and_else_what_was_agreed() {
        let agreed = json!({"same": 1, "hub": {"size": "1Gi"}, "member": 1, "both": 1, "gone": 1});
        let wanted = json!({"same": 1, "hub": {"size": "2Gi"}, "member": 1, "both": 2});
        let member = json!({"same": 1, "hub": {"size": "1Gi"}, "member": 5, "both": 3, "gone": 1});
        let told = [
            Field { path: ".both".to_owned(), held_by: "team".to_owned(), ..Field::default() },
            Field { path: ".same".to_owned(), held_by: "nobody asks".to_owned(), ..Field::default() },
        ];
        let all = Specs { wanted: &wanted, agreed: Some(&agreed), member: Some(&member) };
        assert_eq!(
            found(all, &told),
            [
                [".both", "1", "2", "3", "team"],
                [".gone", "1", "", "1", ""],
                [".hub.size", "\"1Gi\"", "\"2Gi\"", "\"1Gi\"", ""],
                [".member", "1", "1", "5", ""],
            ]
        );
        let silent = Specs { member: None, ..all };
        let paths: Vec<String> = drift(silent, &told).into_iter().map(|field| field.path).collect();
        assert_eq!(paths, [".both", ".gone", ".hub.size"]);
        assert!(drift(silent, &[]).iter().all(|field| field.member_json.is_empty()));
        assert!(drift(Specs { agreed: None, ..silent }, &[]).is_empty());
    }
}
