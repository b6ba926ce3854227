//! The spec that one member shall have: the template with the member's overrides.

use fleet_api::{
    reserved,
    v1::{MySQLClusterSpec, Overrides, StorageOverrides},
};

/// Overrides that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("overrides.mysqld: {0}: remove it")]
pub struct InvalidOverride(String);

/// The template with the overrides. What they do not name is the template's.
pub fn spec_for(
    template: &MySQLClusterSpec,
    overrides: &Overrides,
) -> Result<MySQLClusterSpec, InvalidOverride> {
    let Overrides { replicas, image, storage, resources, mysqld } = overrides;
    if let Some(refusal) = mysqld.keys().find_map(|key| reserved::refusal(key)) {
        return Err(InvalidOverride(refusal));
    }
    let mut spec = template.clone();
    if let Some(replicas) = replicas {
        spec.replicas = *replicas;
    }
    if image.is_some() {
        spec.image.clone_from(image);
    }
    if let Some(StorageOverrides { size, storage_class_name }) = storage {
        if let Some(size) = size {
            spec.storage.size.clone_from(size);
        }
        if storage_class_name.is_some() {
            spec.storage.storage_class_name.clone_from(storage_class_name);
        }
    }
    if resources.is_some() {
        spec.resources.clone_from(resources);
    }
    spec.mysqld.extend(mysqld.clone());
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> MySQLClusterSpec {
        let template = json!({
            "version": "9.7", "storage": {"size": "1Gi", "storageClassName": "fast"},
            "mysqld": {"max_connections": "100", "sql_mode": "ANSI"},
        });
        serde_json::from_value(template).unwrap()
    }

    fn overrides(fields: serde_json::Value) -> Overrides {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn without_overrides_the_spec_is_the_template() {
        assert_eq!(spec_for(&template(), &Overrides::default()).unwrap(), template());
    }

    #[test]
    fn what_is_overridden_is_another_and_the_rest_is_the_templates() {
        let overrides = overrides(json!({
            "replicas": 1, "image": "near/mysql:9.7", "storage": {"size": "2Gi"},
            "resources": {"limits": {"memory": "1Gi"}}, "mysqld": {"max_connections": "7", "long_query_time": "1"},
        }));
        let spec = serde_json::to_value(spec_for(&template(), &overrides).unwrap()).unwrap();
        let expected = json!({
            "replicas": 1, "version": "9.7", "image": "near/mysql:9.7",
            "storage": {"size": "2Gi", "storageClassName": "fast"},
            "resources": {"limits": {"memory": "1Gi"}},
            "mysqld": {"max_connections": "7", "sql_mode": "ANSI", "long_query_time": "1"},
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&spec[field], value, "{field}");
        }
    }

    #[test]
    fn a_key_that_the_operator_owns_is_named() {
        let text = spec_for(&template(), &overrides(json!({"mysqld": {"gtid_mode": "OFF"}})))
            .unwrap_err()
            .to_string();
        assert!(text.contains("overrides.mysqld") && text.contains("gtid_mode"), "{text}");
    }
}
