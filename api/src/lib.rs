//! The resources of mysql-fleet: types, defaults and validations. Plain data, no I/O.
//!
//! What the API server can check by itself is in the schema of the resource (limits, patterns, CEL
//! rules); what it can't is checked by the shard and reported as a condition.

pub mod fields;
pub mod names;
pub mod reserved;
pub mod v1;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// All CustomResourceDefinitions of the project, in the order in which they are installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![v1::MySQLCluster::crd(), v1::MemberCluster::crd(), v1::MySQLClusterFederated::crd()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_field_of_the_resources_is_described() {
        fn walk(path: &str, schema: &serde_json::Value, missing: &mut Vec<String>) {
            for (name, field) in schema.get("properties").and_then(|p| p.as_object()).into_iter().flatten() {
                let path = format!("{path}.{name}");
                if field.get("description").is_none() {
                    missing.push(path.clone());
                }
                walk(&path, field, missing);
                if let Some(items) = field.get("items") {
                    walk(&path, items, missing);
                }
            }
        }
        let mut missing = Vec::new();
        for crd in crate::crds() {
            for version in &crd.spec.versions {
                let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
                let properties = &schema["openAPIV3Schema"]["properties"];
                for top in ["spec", "status"] {
                    walk(top, &properties[top], &mut missing);
                }
            }
        }
        assert!(missing.is_empty(), "no description: {missing:?}");
    }
}
