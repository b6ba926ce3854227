use proptest::{collection::btree_map, prelude::*};
use serde_json::{Map, json};

use super::*;

fn path(text: &str) -> FieldPath {
    text.split('.').collect()
}

fn nobody(_: &FieldPath) -> Option<String> {
    None
}

fn gitops(held: &'static [&'static str]) -> impl Fn(&FieldPath) -> Option<String> {
    move |asked| held.iter().any(|one| path(one) == *asked).then(|| "gitops".to_owned())
}

/// What the writes do to the member: fields are taken away, then the declared ones are applied.
fn written(member: &Value, alignment: &Alignment) -> Value {
    let mut after = member.clone();
    for path in &alignment.removed {
        path.remove(&mut after);
    }
    for (path, value) in leaves(&alignment.declared) {
        path.set(&mut after, value.clone());
    }
    after
}

fn told(alignment: &Alignment) -> Vec<(String, Option<&str>, bool)> {
    let told = alignment.differences.iter();
    told.map(|one| (one.path.to_string(), one.held_by.as_deref(), one.both_changed)).collect()
}

/// One case: agreed, hub now, member now, the fields that others hold; the spec afterwards, and what is told of it.
struct Case {
    name: &'static str,
    agreed: Option<Value>,
    hub: Value,
    member: Value,
    held: &'static [&'static str],
    spec: Value,
    told: &'static [(&'static str, Option<&'static str>, bool)],
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table of cases")]
fn each_case_of_a_field() {
    let was = || Some(json!({"replicas": 3, "storage": {"size": "1Gi"}}));
    let spec = |replicas: u8, size: &str| json!({"replicas": replicas, "storage": {"size": size}});
    for case in [
        Case {
            name: "nobody has changed anything",
            agreed: was(),
            hub: spec(3, "1Gi"),
            member: spec(3, "1Gi"),
            held: &["replicas"],
            spec: spec(3, "1Gi"),
            told: &[],
        },
        Case {
            name: "the hub alone, also where somebody holds the field",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(3, "1Gi"),
            held: &["replicas"],
            spec: spec(5, "1Gi"),
            told: &[],
        },
        Case {
            name: "the member alone: drift",
            agreed: was(),
            hub: spec(3, "1Gi"),
            member: spec(5, "1Gi"),
            held: &[],
            spec: spec(3, "1Gi"),
            told: &[(".replicas", None, false)],
        },
        Case {
            name: "the member alone, by its owner",
            agreed: was(),
            hub: spec(3, "1Gi"),
            member: spec(5, "1Gi"),
            held: &["replicas"],
            spec: spec(5, "1Gi"),
            told: &[(".replicas", Some("gitops"), false)],
        },
        Case {
            name: "both the same field",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(1, "1Gi"),
            held: &[],
            spec: spec(5, "1Gi"),
            told: &[(".replicas", None, true)],
        },
        Case {
            name: "both the same field, the member's by its owner",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(1, "1Gi"),
            held: &["replicas"],
            spec: spec(1, "1Gi"),
            told: &[(".replicas", Some("gitops"), true)],
        },
        Case {
            name: "both the same field to the same value",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(5, "1Gi"),
            held: &[],
            spec: spec(5, "1Gi"),
            told: &[],
        },
        Case {
            name: "both, different fields",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(3, "2Gi"),
            held: &[],
            spec: spec(5, "1Gi"),
            told: &[(".storage.size", None, false)],
        },
        Case {
            name: "both, different fields, the member's by its owner",
            agreed: was(),
            hub: spec(5, "1Gi"),
            member: spec(3, "2Gi"),
            held: &["storage.size"],
            spec: spec(5, "2Gi"),
            told: &[(".storage.size", Some("gitops"), false)],
        },
        Case {
            name: "deleted on the hub",
            agreed: was(),
            hub: json!({"replicas": 3}),
            member: spec(3, "1Gi"),
            held: &["storage.size"],
            spec: json!({"replicas": 3}),
            told: &[],
        },
        Case {
            name: "deleted in the member: nobody declares what is not there",
            agreed: was(),
            hub: spec(3, "1Gi"),
            member: json!({"replicas": 3}),
            held: &["storage.size"],
            spec: spec(3, "1Gi"),
            told: &[(".storage.size", None, false)],
        },
        Case {
            name: "deleted on the hub, changed in the member",
            agreed: was(),
            hub: json!({"replicas": 3}),
            member: spec(3, "2Gi"),
            held: &[],
            spec: json!({"replicas": 3}),
            told: &[(".storage.size", None, true)],
        },
        Case {
            name: "deleted on the hub, changed in the member by its owner",
            agreed: was(),
            hub: json!({"replicas": 3}),
            member: spec(3, "2Gi"),
            held: &["storage.size"],
            spec: spec(3, "2Gi"),
            told: &[(".storage.size", Some("gitops"), true)],
        },
        Case {
            name: "changed on the hub, deleted in the member",
            agreed: was(),
            hub: spec(3, "2Gi"),
            member: json!({"replicas": 3}),
            held: &[],
            spec: spec(3, "2Gi"),
            told: &[(".storage.size", None, true)],
        },
        Case {
            name: "added in the member",
            agreed: was(),
            hub: spec(3, "1Gi"),
            member: json!({"replicas": 3, "storage": {"size": "1Gi"}, "image": "mine"}),
            held: &[],
            spec: spec(3, "1Gi"),
            told: &[(".image", None, false)],
        },
        Case {
            name: "lists are one value",
            agreed: Some(json!({"list": [1, 2]})),
            hub: json!({"list": [1, 2, 3]}),
            member: json!({"list": [0, 1, 2]}),
            held: &[],
            spec: json!({"list": [1, 2, 3]}),
            told: &[(".list", None, true)],
        },
        Case {
            name: "nothing agreed yet: what differs counts as changed by both",
            agreed: None,
            hub: spec(3, "1Gi"),
            member: spec(5, "2Gi"),
            held: &["storage.size"],
            spec: spec(3, "2Gi"),
            told: &[(".replicas", None, true), (".storage.size", Some("gitops"), true)],
        },
    ] {
        let specs = Specs { agreed: case.agreed.as_ref(), hub: &case.hub, member: &case.member };
        let aligned = align(specs, gitops(case.held));
        assert_eq!(aligned.spec, case.spec, "{}", case.name);
        let expected: Vec<_> =
            case.told.iter().map(|(path, by, both)| ((*path).to_owned(), *by, *both)).collect();
        assert_eq!(told(&aligned), expected, "{}", case.name);
        assert_eq!(leaves(&written(&case.member, &aligned)), leaves(&case.spec), "{}", case.name);
        assert_eq!(aligned.changes, case.member != case.spec, "{}", case.name);
    }
}

#[test]
fn what_an_owner_keeps_is_not_declared() {
    let (hub, member) = (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 7, "c": 8}}));
    let aligned = align(Specs { agreed: Some(&hub), hub: &hub, member: &member }, gitops(&["a.b"]));
    assert_eq!(aligned.declared, json!({"a": {"c": 2}}));
    assert!(aligned.keeps() && aligned.changes && aligned.removed.is_empty());
}

#[test]
fn an_object_that_holds_nothing_is_no_difference() {
    let (hub, member) = (json!({"resources": {}}), json!({"mysqld": {}}));
    let aligned = align(Specs { agreed: None, hub: &hub, member: &member }, nobody);
    assert!(!aligned.changes && aligned.differences.is_empty() && aligned.removed.is_empty());
}

/// Objects in which one's field may be an object where another's is a plain value.
fn spec() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![(0..3_u8).prop_map(Value::from), Just(json!([1])), Just(json!([2])), Just(json!({})),];
    let tree = leaf.prop_recursive(2, 12, 3, |inner| {
        btree_map("[abc]", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
    });
    btree_map("[abc]", tree, 0..4).prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

proptest! {
    #[test]
    fn without_other_owners_the_member_gets_what_the_hub_wants(
        agreed in proptest::option::of(spec()), hub in spec(), member in spec(),
    ) {
        let aligned = align(Specs { agreed: agreed.as_ref(), hub: &hub, member: &member }, nobody);
        prop_assert_eq!(leaves(&aligned.spec), leaves(&hub));
        let after = written(&member, &aligned);
        prop_assert_eq!(leaves(&after), leaves(&hub));
        prop_assert_eq!(aligned.changes, leaves(&member) != leaves(&hub));
    }

    #[test]
    fn what_is_written_is_what_was_decided_and_a_second_time_changes_nothing(
        agreed in proptest::option::of(spec()), hub in spec(), member in spec(),
        held in proptest::collection::btree_set("[abc](\\.[abc])?", 0..4),
    ) {
        let owner = |asked: &FieldPath| held.iter().any(|one| path(one) == *asked).then(|| "gitops".to_owned());
        let first = align(Specs { agreed: agreed.as_ref(), hub: &hub, member: &member }, owner);
        let after = written(&member, &first);
        prop_assert_eq!(leaves(&after), leaves(&first.spec));
        let second = align(Specs { agreed: agreed.as_ref(), hub: &hub, member: &after }, owner);
        prop_assert!(!second.changes, "{:?} then {:?}", first, second);
        prop_assert_eq!(second.keeps(), first.keeps());
    }

    #[test]
    fn what_an_owner_has_changed_stays(agreed in spec(), hub in spec(), member in spec()) {
        let all = |_: &FieldPath| Some("gitops".to_owned());
        let aligned = align(Specs { agreed: Some(&agreed), hub: &hub, member: &member }, all);
        let (before, after) = (leaves(&agreed), leaves(&aligned.spec));
        for (path, value) in leaves(&member) {
            if before.get(&path) != Some(&value) {
                prop_assert_eq!(after.get(&path), Some(&value), "{}", path);
            }
        }
    }
}
