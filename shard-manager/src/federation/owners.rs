//! Who declares a field of an object, by what the API server notes of field managers.

use fleet_api::{fields::FieldPath, names::FEDERATION_MANAGER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// The manager, other than the federation, that declares a field of the spec by server-side apply. Who has only
/// written it (an edit, a patch) declares nothing.
pub fn declarer(managed: &[ManagedFieldsEntry], path: &FieldPath) -> Option<String> {
    managed
        .iter()
        .filter(|entry| entry.operation.as_deref() == Some("Apply"))
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .filter(|entry| entry.manager.as_deref() != Some(FEDERATION_MANAGER))
        .find(|entry| entry.fields_v1.as_ref().is_some_and(|fields| covers(&fields.0, path)))
        .map(|entry| entry.manager.clone().unwrap_or_else(|| "an unnamed manager".to_owned()))
}

/// Everybody but the federation that has set anything of the spec, for people.
pub fn authors(managed: &[ManagedFieldsEntry]) -> Vec<&str> {
    let mut authors: Vec<&str> = managed
        .iter()
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some()))
        .filter_map(|entry| entry.manager.as_deref())
        .filter(|manager| *manager != FEDERATION_MANAGER)
        .collect();
    authors.sort_unstable();
    authors.dedup();
    authors
}

/// Whether the set has the field, or one above it as a whole: a set ends at an atomic value.
fn covers(fields: &Value, path: &FieldPath) -> bool {
    let Some(mut set) = fields.get("f:spec") else {
        return false;
    };
    for key in path.keys() {
        match set.get(format!("f:{key}")) {
            Some(inner) => set = inner,
            None => return set.as_object().is_some_and(serde_json::Map::is_empty),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, spec: &Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            subresource: subresource.map(ToOwned::to_owned),
            fields_v1: Some(FieldsV1(json!({ "f:spec": spec }))),
            ..ManagedFieldsEntry::default()
        }
    }

    fn path(text: &str) -> FieldPath {
        text.split('.').collect()
    }

    #[test]
    fn who_applies_a_field_declares_it_and_who_edits_it_does_not() {
        let size = json!({"f:storage": {"f:size": {}}, "f:list": {}});
        let managed = [
            entry("kubectl-edit", "Update", None, &size),
            entry(FEDERATION_MANAGER, "Apply", None, &size),
            entry("autoscaler", "Apply", Some("scale"), &json!({"f:replicas": {}})),
            entry("gitops", "Apply", None, &size),
        ];
        assert_eq!(declarer(&managed, &path("storage.size")).as_deref(), Some("gitops"));
        assert_eq!(declarer(&managed, &path("list")).as_deref(), Some("gitops"));
        assert_eq!(declarer(&managed, &path("storage.storageClassName")), None);
        assert_eq!(declarer(&managed, &path("replicas")), None);
        assert_eq!(declarer(&managed[..2], &path("storage.size")), None);
        assert_eq!(authors(&managed), ["autoscaler", "gitops", "kubectl-edit"]);
    }

    #[test]
    fn a_whole_that_is_declared_has_its_parts_declared() {
        let managed =
            [entry("gitops", "Apply", None, &json!({"f:resources": {}, "f:limits": {"f:cpu": {}}}))];
        assert_eq!(declarer(&managed, &path("resources.limits.cpu")).as_deref(), Some("gitops"));
        assert_eq!(declarer(&managed, &path("limits.memory")), None);
        assert_eq!(declarer(&[], &path("resources")), None);
    }
}
