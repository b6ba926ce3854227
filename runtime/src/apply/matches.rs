//! Whether a live object has all that is wanted of it.

use serde_json::{Map, Value};

/// Lists whose elements the API server merges by a key, and the key. In them a live object may have
/// elements of other parties (an injected sidecar), which server-side apply would leave in place.
///
/// A key may have several fields; an element without them is compared by position.
const KEYED: [(&str, &[&str]); 11] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("env", &["name"]),
    ("volumes", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("imagePullSecrets", &["name"]),
    ("ownerReferences", &["uid"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("conditions", &["type"]),
];

/// `ports` is keyed in containers and Services, and a plain list in EndpointSlices, whose elements have
/// neither of the telling fields.
const PORTS: [(&str, &[&str]); 2] = [("containerPort", &["containerPort"]), ("targetPort", &["port"])];

/// Maps whose values are quantities, of which `1Gi` and `1024Mi` are the same one.
const QUANTITIES: [&str; 4] = ["requests", "limits", "capacity", "hard"];

/// Whether `live` has everything that `wanted` has.
///
/// - Maps: every wanted key, whatever else is there. A wanted zero value (`null`, `false`, `0`, `""`,
///   `[]`) is also satisfied by absence, since the API server leaves such fields out.
/// - Lists: the same length, element by element; lists that the API server merges by key: every wanted
///   key, whatever else is there.
/// - Scalars: equal; quantities in resource lists by their amount.
///
/// Secrets have to be given with `data`: `stringData` is never returned.
pub fn satisfied_by(wanted: &Value, live: &Value) -> bool {
    satisfied("", "", wanted, live)
}

/// `list` is the name of the field that holds the value, `outer` the name of the one around it.
fn satisfied(outer: &str, field: &str, wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.iter().all(|(key, wanted)| match live.get(key) {
                Some(live) => satisfied(field, key, wanted, live),
                None => is_zero(wanted),
            })
        }
        (Value::Array(wanted), Value::Array(live)) => match list_key(field, wanted) {
            Some(key) => wanted.iter().all(|wanted| {
                let same = |live: &&Value| key.iter().all(|part| live.get(part) == wanted.get(part));
                live.iter().find(same).is_some_and(|live| satisfied(field, "", wanted, live))
            }),
            None => {
                wanted.len() == live.len()
                    && wanted.iter().zip(live).all(|(wanted, live)| satisfied(field, "", wanted, live))
            }
        },
        (Value::String(wanted), Value::String(live)) => {
            wanted == live || (holds_quantity(outer, field) && same_quantity(wanted, live))
        }
        (Value::Null, _) => true,
        (wanted, live) => wanted == live,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(true) | Value::Object(_) => false,
    }
}

/// The key of a list, if it is merged by one and each wanted element has it.
fn list_key(field: &str, wanted: &[Value]) -> Option<&'static [&'static str]> {
    let maps: Vec<&Map<String, Value>> = wanted.iter().filter_map(Value::as_object).collect();
    let key = if field == "ports" {
        PORTS.iter().find(|(telling, _)| maps.iter().all(|map| map.contains_key(*telling)))?.1
    } else {
        KEYED.iter().find(|(name, _)| *name == field)?.1
    };
    let complete =
        maps.len() == wanted.len() && maps.iter().all(|map| key.iter().all(|part| map.contains_key(*part)));
    complete.then_some(key)
}

fn holds_quantity(outer: &str, field: &str) -> bool {
    QUANTITIES.contains(&outer) || field == "sizeLimit" || field == "divisor"
}

fn same_quantity(one: &str, other: &str) -> bool {
    matches!((amount(one), amount(other)), (Some(one), Some(other)) if one == other)
}

/// A quantity as a whole number of billionths. Sources: the grammar of `resource.Quantity`.
pub fn amount(text: &str) -> Option<i128> {
    let split = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (digits, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scaled: i128 = format!("{digits}{fraction}").parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?;
    let numerator = scaled.checked_mul(nanos(suffix)?)?;
    let divisor = 10_i128.checked_pow(places)?;
    (numerator % divisor == 0).then_some(numerator / divisor)
}

/// How many billionths one of a unit is.
fn nanos(suffix: &str) -> Option<i128> {
    const UNIT: i128 = 1_000_000_000;
    let power = |base: i128, exponent: u32| Some(base.pow(exponent) * UNIT);
    match suffix {
        "n" => Some(1),
        "u" => Some(1_000),
        "m" => Some(1_000_000),
        "" => Some(UNIT),
        "k" => power(1000, 1),
        "M" => power(1000, 2),
        "G" => power(1000, 3),
        "T" => power(1000, 4),
        "P" => power(1000, 5),
        "E" => power(1000, 6),
        "Ki" => power(1024, 1),
        "Mi" => power(1024, 2),
        "Gi" => power(1024, 3),
        "Ti" => power(1024, 4),
        "Pi" => power(1024, 5),
        "Ei" => power(1024, 6),
        exponent => {
            let exponent: u32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            UNIT.checked_mul(10_i128.checked_pow(exponent)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_no_difference() {
        let wanted = json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"type": "ClusterIP"}});
        let live = json!({
            "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}, "uid": "u"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1"}, "status": {},
        });
        assert!(satisfied_by(&wanted, &live));
        assert!(!satisfied_by(&live, &wanted));
    }

    #[test]
    fn containers_are_found_by_name_and_may_have_company() {
        let wanted =
            json!({"containers": [{"name": "mysqld", "image": "m", "env": [{"name": "A", "value": "1"}]}]});
        let live = json!({"containers": [
            {"name": "sidecar", "image": "s"},
            {"name": "mysqld", "image": "m", "env": [{"name": "B"}, {"name": "A", "value": "1"}], "tty": true},
        ]});
        assert!(satisfied_by(&wanted, &live));
        let other = json!({"containers": [{"name": "mysqld", "image": "n", "env": []}]});
        assert!(!satisfied_by(&wanted, &other));
    }

    #[test]
    fn plain_lists_must_be_the_same() {
        let wanted = json!({"command": ["a", "b"]});
        assert!(satisfied_by(&wanted, &json!({"command": ["a", "b"]})));
        assert!(!satisfied_by(&wanted, &json!({"command": ["a", "b", "c"]})));
        assert!(!satisfied_by(&wanted, &json!({"command": ["b", "a"]})));
        let slice = json!({"ports": [{"name": "mysql", "port": 3306}]});
        assert!(!satisfied_by(
            &slice,
            &json!({"ports": [{"name": "mysql", "port": 3306}, {"name": "x", "port": 1}]})
        ));
    }

    #[test]
    fn one_volume_may_be_mounted_twice() {
        let wanted = json!({"volumeMounts": [
            {"name": "run", "mountPath": "/run"}, {"name": "run", "mountPath": "/tmp", "readOnly": false},
        ]});
        let live = json!({"volumeMounts": [
            {"name": "run", "mountPath": "/tmp"}, {"name": "run", "mountPath": "/run"},
        ]});
        assert!(satisfied_by(&wanted, &live));
        let one = json!({"volumeMounts": [{"name": "run", "mountPath": "/run"}]});
        assert!(!satisfied_by(&wanted, &one));
    }

    #[test]
    fn quantities_are_compared_only_where_they_are_quantities() {
        let cpu = |text: &str| json!({"resources": {"requests": {"cpu": text}}});
        assert!(satisfied_by(&cpu("1000m"), &cpu("1")));
        assert!(satisfied_by(&cpu("0.5"), &cpu("500m")));
        assert!(!satisfied_by(&cpu("1001m"), &cpu("1")));
        let data = |text: &str| json!({"data": {"cpu": text}});
        assert!(!satisfied_by(&data("1000m"), &data("1")));
    }

    #[test]
    fn amounts_are_exact() {
        for (one, other) in
            [("1Gi", "1024Mi"), ("1e3", "1k"), ("1.5Gi", "1536Mi"), ("100m", "0.1"), ("0", "0Gi")]
        {
            assert_eq!(amount(one), amount(other), "{one} {other}");
            assert!(amount(one).is_some(), "{one}");
        }
        for text in ["", "Gi", "1Qi", "1.2.3", "abc", "1e", "--1"] {
            assert_eq!(amount(text), None, "{text}");
        }
        assert_ne!(amount("1G"), amount("1Gi"));
    }

    #[test]
    fn a_zero_value_may_be_absent_and_an_empty_map_may_not() {
        assert!(satisfied_by(&json!({"readOnly": false, "items": [], "text": "", "n": 0}), &json!({})));
        let wanted = json!({"volumes": [{"name": "tmp", "emptyDir": {}}]});
        let replaced = json!({"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]});
        assert!(!satisfied_by(&wanted, &replaced));
    }
}
