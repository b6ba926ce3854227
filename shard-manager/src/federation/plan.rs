//! What is to be done about one desired cluster, from the member's present state alone. Pure.

use fleet_api::{
    names::ANNOTATION_FEDERATED_UID,
    v1::{MySQLCluster, MySQLClusterSpec},
};
use fleet_proto::federation::v1::DesiredCluster;
use kube::ResourceExt as _;
use serde_json::Value;

use super::{
    align::{Alignment, Specs, align},
    owners,
};

/// A desired cluster, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Name of the MySQLCluster.
    pub name: String,
    /// UID of the MySQLClusterFederated.
    pub federated_uid: String,
    /// What the hub wants of it.
    pub wish: Wish,
}

/// What the hub wants of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// It shall be there.
    There {
        /// With this spec.
        spec: Box<MySQLClusterSpec>,
        /// The spec that was last agreed on.
        agreed: Option<Value>,
        /// UID of an object of somebody else that may be taken over.
        adopt: Option<String>,
    },
    /// The object of this UID shall be gone.
    Gone(String),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// The object is made.
    Create,
    /// The object is deleted.
    Delete,
    /// What was to be deleted is not there.
    Gone(String),
    /// The object is on its way out: nothing can be done before it is gone.
    Wait(String),
    /// Somebody else's object has the name.
    Conflict(String),
    /// The spec is brought to what it should be.
    Align(Box<Alignment>),
}

/// The annotation that says which MySQLClusterFederated an object belongs to.
pub fn federated_uid(cluster: &MySQLCluster) -> Option<&str> {
    cluster.annotations().get(ANNOTATION_FEDERATED_UID).map(String::as_str).filter(|uid| !uid.is_empty())
}

/// A spec in the form in which specs are compared: with its defaults, and without what says nothing.
pub fn normal(spec: &MySQLClusterSpec) -> Result<Value, serde_json::Error> {
    serde_json::to_value(spec)
}

impl Wanted {
    /// Reads a desired cluster; the error says what is wrong with it.
    pub fn read(desired: &DesiredCluster) -> Result<Self, String> {
        let DesiredCluster { name, federated_uid, spec_json, agreed_json, adopt_uid, delete_uid } = desired;
        // It becomes a part of a URL.
        if !is_object_name(name) {
            return Err(format!("{name:?} is no name of a MySQLCluster"));
        }
        if federated_uid.is_empty() {
            return Err(
                "federated_uid is empty: it has to be the UID of the MySQLClusterFederated".to_owned()
            );
        }
        let wish = if delete_uid.is_empty() {
            let spec = serde_json::from_str(spec_json)
                .map_err(|error| format!("spec_json is no spec of a MySQLCluster: {error}"))?;
            Wish::There {
                spec: Box::new(spec),
                agreed: agreed(agreed_json)?,
                adopt: Some(adopt_uid.clone()).filter(|uid| !uid.is_empty()),
            }
        } else {
            Wish::Gone(delete_uid.clone())
        };
        Ok(Self { name: name.clone(), federated_uid: federated_uid.clone(), wish })
    }

    /// What is to be done, by the object as it is now.
    pub fn plan(&self, live: Option<&MySQLCluster>) -> Result<Plan, serde_json::Error> {
        match &self.wish {
            Wish::Gone(uid) => Ok(plan_deletion(uid, live)),
            Wish::There { spec, agreed, adopt } => {
                let Some(live) = live else {
                    return Ok(Plan::Create);
                };
                let ours = federated_uid(live) == Some(&self.federated_uid);
                if !ours && (adopt.is_none() || live.uid() != *adopt) {
                    return Ok(Plan::Conflict(conflict(live)));
                }
                if live.metadata.deletion_timestamp.is_some() {
                    let message = "it is being deleted in the member; it is made anew when it is gone";
                    return Ok(Plan::Wait(message.to_owned()));
                }
                let (hub, member) = (normal(spec)?, normal(&live.spec)?);
                let specs = Specs { agreed: agreed.as_ref(), hub: &hub, member: &member };
                let managed = live.metadata.managed_fields.as_deref().unwrap_or_default();
                Ok(Plan::Align(Box::new(align(specs, |path| owners::declarer(managed, path)))))
            }
        }
    }
}

fn plan_deletion(uid: &str, live: Option<&MySQLCluster>) -> Plan {
    let Some(live) = live else {
        return Plan::Gone(String::new());
    };
    let present = live.uid().unwrap_or_default();
    if present != uid {
        return Plan::Gone(format!(
            "the object of UID {uid} is gone; the one that has the name now ({present}) is left alone"
        ));
    }
    match live.metadata.deletion_timestamp {
        Some(_) => Plan::Wait("it is being deleted in the member, and not gone yet".to_owned()),
        None => Plan::Delete,
    }
}

/// What was agreed, in the form in which specs are compared. One that this version can't read is compared as it is.
fn agreed(json: &str) -> Result<Option<Value>, String> {
    if json.is_empty() {
        return Ok(None);
    }
    let value: Value =
        serde_json::from_str(json).map_err(|error| format!("agreed_json is no JSON: {error}"))?;
    let read = serde_json::from_value::<MySQLClusterSpec>(value.clone()).and_then(|spec| normal(&spec));
    Ok(Some(read.unwrap_or(value)))
}

fn conflict(live: &MySQLCluster) -> String {
    let uid = live.uid().unwrap_or_default();
    if let Some(other) = federated_uid(live) {
        return format!(
            "MySQLCluster {} (UID {uid}) belongs to the MySQLClusterFederated of UID {other}",
            live.name_any()
        );
    }
    let managed = live.metadata.managed_fields.as_deref().unwrap_or_default();
    let authors = match owners::authors(managed).as_slice() {
        [] => "somebody else".to_owned(),
        authors => authors.join(", "),
    };
    format!(
        "MySQLCluster {} (UID {uid}) was made by {authors}, not by a hub: have it adopted, or delete or rename one of both",
        live.name_any()
    )
}

fn is_object_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};
    use serde_json::json;

    use super::*;

    const SPEC: &str = r#"{"version": "9.7", "storage": {"size": "1Gi"}}"#;

    fn desired() -> DesiredCluster {
        DesiredCluster {
            name: "orders".to_owned(),
            federated_uid: "f1".to_owned(),
            spec_json: SPEC.to_owned(),
            ..DesiredCluster::default()
        }
    }

    fn live(federated: Option<&str>) -> MySQLCluster {
        let mut live = MySQLCluster::new("orders", serde_json::from_str(SPEC).unwrap());
        live.metadata.uid = Some("u1".to_owned());
        if let Some(uid) = federated {
            live.annotations_mut().insert(ANNOTATION_FEDERATED_UID.to_owned(), uid.to_owned());
        }
        live
    }

    fn plan(desired: &DesiredCluster, live: Option<&MySQLCluster>) -> Plan {
        Wanted::read(desired).unwrap().plan(live).unwrap()
    }

    #[test]
    fn what_is_not_there_is_made_and_what_is_ours_is_aligned() {
        assert_eq!(plan(&desired(), None), Plan::Create);
        let Plan::Align(alignment) = plan(&desired(), Some(&live(Some("f1")))) else { panic!("not aligned") };
        assert!(!alignment.changes, "{alignment:?}");
    }

    #[test]
    fn defaults_are_no_difference() {
        let mut written_out = live(Some("f1"));
        written_out.spec.replicas = 3;
        let short = DesiredCluster { agreed_json: SPEC.to_owned(), ..desired() };
        let Plan::Align(alignment) = plan(&short, Some(&written_out)) else { panic!("not aligned") };
        assert!(!alignment.changes && alignment.differences.is_empty(), "{alignment:?}");
    }

    #[test]
    fn an_object_of_somebody_else_is_a_conflict_that_names_the_owner() {
        let Plan::Conflict(message) = plan(&desired(), Some(&live(Some("f2")))) else {
            panic!("no conflict")
        };
        assert!(message.contains("UID f2"), "{message}");
        let mut applied = live(None);
        applied.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            manager: Some("kubectl-create".to_owned()),
            fields_v1: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1(json!({"f:spec": {}}))),
            ..ManagedFieldsEntry::default()
        }]);
        let Plan::Conflict(message) = plan(&desired(), Some(&applied)) else { panic!("no conflict") };
        assert!(message.contains("kubectl-create") && message.contains("UID u1"), "{message}");
    }

    #[test]
    fn an_object_is_adopted_by_its_uid_alone() {
        for (adopt, federated, adopted) in
            [("u1", None, true), ("u1", Some("f2"), true), ("u2", None, false), ("", None, false)]
        {
            let wanted = DesiredCluster { adopt_uid: adopt.to_owned(), ..desired() };
            let plan = plan(&wanted, Some(&live(federated)));
            assert_eq!(matches!(plan, Plan::Align(_)), adopted, "{adopt}: {plan:?}");
        }
    }

    #[test]
    fn only_the_object_of_the_uid_is_deleted() {
        let gone = DesiredCluster { delete_uid: "u1".to_owned(), spec_json: String::new(), ..desired() };
        assert_eq!(plan(&gone, Some(&live(Some("f1")))), Plan::Delete);
        assert_eq!(plan(&gone, None), Plan::Gone(String::new()));
        let mut other = live(Some("f1"));
        other.metadata.uid = Some("u2".to_owned());
        let Plan::Gone(message) = plan(&gone, Some(&other)) else { panic!("it is not left alone") };
        assert!(message.contains("u1") && message.contains("u2"), "{message}");
    }

    #[test]
    fn what_is_being_deleted_is_waited_for() {
        let mut leaving = live(Some("f1"));
        leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(matches!(plan(&desired(), Some(&leaving)), Plan::Wait(_)));
        let gone = DesiredCluster { delete_uid: "u1".to_owned(), ..desired() };
        assert!(matches!(plan(&gone, Some(&leaving)), Plan::Wait(_)));
    }

    #[test]
    fn what_can_t_be_read_is_named() {
        for (wrong, words) in [
            (DesiredCluster { name: "a/status".to_owned(), ..desired() }, "\"a/status\""),
            (DesiredCluster { federated_uid: String::new(), ..desired() }, "federated_uid"),
            (DesiredCluster { spec_json: "{".to_owned(), ..desired() }, "spec_json"),
            (DesiredCluster { spec_json: SPEC.replacen('{', r#"{"shiny": 1, "#, 1), ..desired() }, "`shiny`"),
            (DesiredCluster { agreed_json: "{".to_owned(), ..desired() }, "agreed_json"),
        ] {
            let error = Wanted::read(&wrong).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_agreed_spec_of_another_version_is_compared_as_it_is() {
        let odd = DesiredCluster { agreed_json: r#"{"shiny": 1}"#.to_owned(), ..desired() };
        let Wish::There { agreed, .. } = Wanted::read(&odd).unwrap().wish else { panic!("it is to be gone") };
        assert_eq!(agreed, Some(json!({"shiny": 1})));
    }
}
