//! Fields of a JSON object.

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value};

/// Path of a field: the keys from the root to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<String>);

impl FieldPath {
    /// The keys from the root.
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    /// The value at this path.
    pub fn get<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(root, |value, key| value.get(key))
    }

    /// Sets the value at this path; what stands in the way is replaced.
    pub fn set(&self, root: &mut Value, value: Value) {
        let place = self.0.iter().fold(root, |place, key| {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            &mut place[key.as_str()]
        });
        *place = value;
    }

    /// Takes away what is at this path. Where a plain value stands in the way, that is taken away.
    pub fn remove(&self, root: &mut Value) {
        let mut place = root;
        for (index, key) in self.0.iter().enumerate() {
            let Some(map) = place.as_object_mut() else {
                return;
            };
            let last = index + 1 == self.0.len();
            match map.get(key) {
                Some(Value::Object(_)) if !last => {}
                Some(_) => {
                    map.remove(key);
                    return;
                }
                None => return,
            }
            let Some(next) = map.get_mut(key) else {
                return;
            };
            place = next;
        }
    }
}

impl<K: Into<String>> FromIterator<K> for FieldPath {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        Self(keys.into_iter().map(Into::into).collect())
    }
}

/// As in `.storage.size`; a key that is no identifier is quoted, as in `.limits["hugepages-2Mi"]`.
impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.0 {
            let plain = !key.is_empty()
                && !key.starts_with(|c: char| c.is_ascii_digit())
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if plain { write!(f, ".{key}")? } else { write!(f, "[{}]", Value::from(key.as_str()))? }
        }
        Ok(())
    }
}

/// The fields of an object that hold a value: plain ones and lists, which count as one value. An object without
/// fields, and null, hold none.
pub fn leaves(root: &Value) -> BTreeMap<FieldPath, &Value> {
    fn walk<'a>(value: &'a Value, keys: &mut Vec<String>, found: &mut BTreeMap<FieldPath, &'a Value>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    keys.push(key.clone());
                    walk(value, keys, found);
                    keys.pop();
                }
            }
            Value::Null => {}
            _ => drop(found.insert(FieldPath(keys.clone()), value)),
        }
    }
    let mut found = BTreeMap::new();
    walk(root, &mut Vec::new(), &mut found);
    found
}

/// The object with these fields alone.
pub fn object_of<'a>(leaves: impl IntoIterator<Item = (&'a FieldPath, &'a Value)>) -> Value {
    let mut object = Value::Object(Map::new());
    for (path, value) in leaves {
        path.set(&mut object, value.clone());
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_the_sum_of_its_leaves() {
        let object = json!({"a": {"b": 1, "c": [{"d": 2}]}, "e": "f"});
        let found = leaves(&object);
        let paths: Vec<String> = found.keys().map(ToString::to_string).collect();
        assert_eq!(paths, [".a.b", ".a.c", ".e"]);
        assert_eq!(object_of(found.iter().map(|(path, value)| (path, *value))), object);
    }

    #[test]
    fn nothing_is_no_leaf() {
        assert!(leaves(&json!({"a": {}, "b": null, "c": {"d": {}}})).is_empty());
        assert!(leaves(&json!({})).is_empty());
    }

    #[test]
    fn a_key_that_is_no_identifier_is_quoted() {
        let path: FieldPath = ["resources", "limits", "hugepages-2Mi", "0", ""].into_iter().collect();
        assert_eq!(path.to_string(), r#".resources.limits["hugepages-2Mi"]["0"][""]"#);
    }

    #[test]
    fn a_field_is_set_and_removed_through_what_stands_in_the_way() {
        let path: FieldPath = ["a", "b"].into_iter().collect();
        let mut object = json!({"a": 1, "c": 2});
        path.set(&mut object, json!(3));
        assert_eq!(object, json!({"a": {"b": 3}, "c": 2}));
        path.remove(&mut object);
        assert_eq!(object, json!({"a": {}, "c": 2}));
        path.remove(&mut object);
        assert_eq!(object, json!({"a": {}, "c": 2}));
        let mut scalar = json!({"a": 1, "c": 2});
        path.remove(&mut scalar);
        assert_eq!(scalar, json!({"c": 2}));
    }
}
