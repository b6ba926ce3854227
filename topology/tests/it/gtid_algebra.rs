//! The algebra of sets against a naive model: every transaction on its own.

use std::collections::BTreeSet;

use fleet_topology::{GtidSet, ServerUuid};
use proptest::prelude::*;

type Model = BTreeSet<(u8, u8, u64)>;

fn uuid(server: u8) -> ServerUuid {
    ServerUuid::from_u128(0x3e11_fa47_71ca_11e1_9e33_c80a_a942_9560 + u128::from(server))
}

const TAGS: [&str; 3] = ["", "Domain_1", "_2"];

/// The text of a model, each transaction on its own and in the order given.
fn text(model: impl IntoIterator<Item = (u8, u8, u64)>) -> String {
    let one = |(server, tag, number): (u8, u8, u64)| match TAGS[usize::from(tag)] {
        "" => format!("{}:{number}", uuid(server)),
        tag => format!("{}:{tag}:{number}", uuid(server)),
    };
    model.into_iter().map(one).collect::<Vec<_>>().join(",\n")
}

fn set(model: &Model) -> GtidSet {
    text(model.iter().copied()).parse().unwrap()
}

fn models() -> impl Strategy<Value = Model> {
    prop::collection::btree_set((0..3_u8, 0..3_u8, 1..12_u64), 0..40)
}

fn combined(a: &Model, b: &Model, f: impl Fn(bool, bool) -> bool) -> Model {
    a.union(b).filter(|one| f(a.contains(one), b.contains(one))).copied().collect()
}

proptest! {
    #[test]
    fn sets_behave_like_sets_of_single_transactions(a in models(), b in models()) {
        let (x, y) = (set(&a), set(&b));
        prop_assert_eq!(x.union(&y), set(&combined(&a, &b, |a, b| a || b)));
        prop_assert_eq!(x.intersect(&y), set(&combined(&a, &b, |a, b| a && b)));
        prop_assert_eq!(x.subtract(&y), set(&combined(&a, &b, |a, b| a && !b)));
        prop_assert_eq!(x.contains(&y), a.is_superset(&b));
        prop_assert_eq!(x == y, a == b);
        prop_assert_eq!(x.is_empty(), a.is_empty());
        prop_assert_eq!(x.count(), a.len() as u128);
        let of_first: Model = a.iter().filter(|one| one.0 == 0).copied().collect();
        prop_assert_eq!(x.of_source(uuid(0)), set(&of_first));
        prop_assert_eq!(x.without_source(uuid(0)), set(&combined(&a, &of_first, |_, b| !b)));
    }

    #[test]
    fn the_text_does_not_depend_on_the_order_of_the_parts(
        (model, shuffled) in models().prop_flat_map(|model| {
            let parts: Vec<_> = model.iter().copied().collect();
            (Just(model), Just(parts).prop_shuffle())
        })
    ) {
        let canonical = set(&model).to_string();
        let shuffled: GtidSet = text(shuffled).to_uppercase().parse().unwrap();
        prop_assert_eq!(shuffled.to_string(), canonical.clone());
        prop_assert_eq!(canonical.parse::<GtidSet>().unwrap(), set(&model));
        prop_assert!(!canonical.contains(char::is_whitespace));
    }

    #[test]
    fn no_text_makes_the_parser_fail_badly(text in "[0-9a-f:,\\- _G]{0,80}|\\PC{0,40}") {
        if let Ok(set) = text.parse::<GtidSet>() {
            prop_assert_eq!(set.to_string().parse::<GtidSet>().unwrap(), set);
        }
    }
}

#[test]
fn large_numbers_are_counted_and_compared_without_listing_them() {
    let all: GtidSet =
        format!("{0}:1-9223372036854775806,{1}:1-9223372036854775806", uuid(0), uuid(1)).parse().unwrap();
    let hole: GtidSet = format!("{}:1000000", uuid(0)).parse().unwrap();
    assert_eq!(all.count(), 2 * 9_223_372_036_854_775_806_u128);
    assert_eq!(
        all.subtract(&hole).of_source(uuid(0)).to_string(),
        format!("{}:1-999999:1000001-9223372036854775806", uuid(0))
    );
}
