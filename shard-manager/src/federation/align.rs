//! What a member's spec becomes, decided per field from three specs: what hub and member last agreed on, what the
//! hub wants now, and what the member has now. Pure.
//!
//! | changed since they agreed | held by another's server-side apply | what becomes of the field |
//! |---|---|---|
//! | by the hub alone | – | the hub's value |
//! | by the member, or by both | no | the hub's value: drift is reverted, and told |
//! | by the member, or by both | yes | the member's value: its owner declares it, and it is told |
//!
//! Before they have agreed on anything every field that differs counts as changed by both. A field that the member
//! lacks is held by nobody.

use std::collections::BTreeSet;

use fleet_api::fields::{FieldPath, leaves, object_of};
use serde_json::Value;

/// The three specs.
#[derive(Clone, Copy, Debug)]
pub struct Specs<'a> {
    /// What hub and member last agreed on, if they ever did.
    pub agreed: Option<&'a Value>,
    /// What the hub wants.
    pub hub: &'a Value,
    /// What the member has.
    pub member: &'a Value,
}

/// A field that the member has changed, and the hub wants otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The field.
    pub path: FieldPath,
    /// What was agreed; `None` for nothing.
    pub agreed: Option<Value>,
    /// What the hub wants; `None` for nothing.
    pub hub: Option<Value>,
    /// What the member has; `None` for nothing.
    pub member: Option<Value>,
    /// The owner that keeps it; `None` where the hub's value is applied.
    pub held_by: Option<String>,
    /// Whether the hub has changed it, too.
    pub both_changed: bool,
}

/// What is to be done to the member's spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// The spec as it is afterwards.
    pub spec: Value,
    /// The hub's fields, but those that their owners keep: what the federation declares.
    pub declared: Value,
    /// Fields of the member that go.
    pub removed: Vec<FieldPath>,
    /// Whether the member's spec is something else now.
    pub changes: bool,
    /// What the member has changed.
    pub differences: Vec<Difference>,
}

impl Alignment {
    /// Whether an owner in the member keeps a field.
    pub fn keeps(&self) -> bool {
        self.differences.iter().any(|difference| difference.held_by.is_some())
    }
}

/// Aligns the member's spec. `held_by` names the manager, other than the federation, that declares a field of the
/// member by server-side apply.
pub fn align(specs: Specs<'_>, held_by: impl Fn(&FieldPath) -> Option<String>) -> Alignment {
    let agreed = specs.agreed.map(leaves);
    let (hub, member) = (leaves(specs.hub), leaves(specs.member));
    let mut differences = Vec::new();
    for path in hub.keys().chain(member.keys()).collect::<BTreeSet<_>>() {
        let (wanted, present) = (hub.get(path).copied(), member.get(path).copied());
        let before = agreed.as_ref().map(|agreed| agreed.get(path).copied());
        let member_changed = before.is_none_or(|before| before != present);
        if wanted == present || !member_changed {
            continue;
        }
        differences.push(Difference {
            path: path.clone(),
            agreed: before.flatten().cloned(),
            hub: wanted.cloned(),
            member: present.cloned(),
            held_by: present.and_then(|_| held_by(path)),
            both_changed: before.is_none_or(|before| before != wanted),
        });
    }
    let mut declared = object_of(hub.iter().map(|(path, value)| (path, *value)));
    let mut spec = declared.clone();
    for kept in differences.iter().filter(|difference| difference.held_by.is_some()) {
        kept.path.remove(&mut declared);
        kept.path.set(&mut spec, kept.member.clone().unwrap_or_default());
    }
    let after = leaves(&spec);
    let removed = member.keys().filter(|path| !after.contains_key(path)).cloned().collect();
    let changes = after != member;
    let declared = object_of(leaves(&declared).iter().map(|(path, value)| (path, *value)));
    Alignment { spec, declared, removed, changes, differences }
}

#[cfg(test)]
mod tests;
