use fleet_proto::federation::v1::{
    ClusterState, Condition, FederatedStatus, Field, MemberStatus, Outcome, PlacedStatus,
};

use super::*;

const NOW: i64 = 1_790_000_000_000;

fn at(seconds_ago: i64) -> i64 {
    NOW - seconds_ago * 1000
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        r#type: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn member(name: &str, zone: &str, connected: bool, last_contact_ms: i64) -> MemberStatus {
    let namespaces = vec!["tenant-a".to_owned(), "tenant-b".to_owned()];
    let reachable = if connected { "True" } else { "False" };
    MemberStatus {
        name: name.to_owned(),
        connected: if connected { namespaces.clone() } else { Vec::new() },
        conditions: vec![condition("Reachable", reachable, "Told", "")],
        namespaces,
        region: "eu".to_owned(),
        zone: zone.to_owned(),
        version: "0.1.0".to_owned(),
        last_contact_ms,
    }
}

fn seen(phase: &str, ready: u32) -> ClusterState {
    ClusterState {
        name: "orders".to_owned(),
        uid: "c-1".to_owned(),
        generation: 4,
        observed_generation: 4,
        phase: phase.to_owned(),
        primary: "orders-0".to_owned(),
        term: 7,
        ready,
        replicas: 3,
        ..ClusterState::default()
    }
}

fn placed(member: &str, result: &str, message: &str, fields: Vec<Field>) -> PlacedStatus {
    PlacedStatus {
        member: member.to_owned(),
        last_observed: Some(seen("Healthy", 3)),
        last_contact_ms: at(2),
        outcome: Some(Outcome { message: message.to_owned(), fields, ..Outcome::default() }),
        result: result.to_owned(),
        since_ms: at(3600),
        compared: true,
        ..PlacedStatus::default()
    }
}

fn field(path: &str, [agreed, hub, member, held_by]: [&str; 4], both_changed: bool) -> Field {
    Field {
        path: path.to_owned(),
        agreed_json: agreed.to_owned(),
        hub_json: hub.to_owned(),
        member_json: member.to_owned(),
        held_by: held_by.to_owned(),
        both_changed,
    }
}

fn cluster(namespace: &str, name: &str, members: Vec<PlacedStatus>) -> FederatedStatus {
    FederatedStatus {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        phase: "Ready".to_owned(),
        members,
        generation: 3,
        observed_generation: 3,
        members_ready: "1/1".to_owned(),
        conditions: vec![
            condition("Ready", "True", "Available", ""),
            condition("Distributed", "True", "Aligned", ""),
            condition("Stale", "False", "Heard", ""),
        ],
    }
}

fn state() -> FederationStatus {
    let kept = vec![
        field(".mysqld.max_connections", ["\"100\"", "\"200\"", "\"300\"", "tenant-a-team"], true),
        field(".resources.requests.memory", ["", "", "\"4Gi\"", "tenant-a-team"], false),
    ];
    let silent = PlacedStatus {
        stale: true,
        compared: false,
        last_contact_ms: at(7300),
        last_observed: Some(ClusterState {
            observed_generation: 3,
            conditions: vec![condition("Available", "Unknown", "NoQuorum", "2 of 3\ninstances are silent")],
            ..seen("Degraded", 1)
        }),
        ..placed("west", "Waiting", "it is silent", vec![field(".replicas", ["1", "3", "", ""], false)])
    };
    let taken = PlacedStatus {
        last_observed: None,
        last_contact_ms: 0,
        compared: false,
        ..placed(
            "north",
            "Conflict",
            "MySQLCluster orders (UID u-9) was made by helm, not by a hub",
            Vec::new(),
        )
    };
    let orders = FederatedStatus {
        phase: "Unknown".to_owned(),
        members_ready: "1/3".to_owned(),
        observed_generation: 2,
        conditions: vec![
            condition("Ready", "Unknown", "MemberSilent", "nothing is heard of west"),
            condition("Stale", "True", "MemberSilent", ""),
        ],
        ..cluster(
            "tenant-a",
            "orders",
            vec![placed("east", "Kept", "2 fields are kept", kept), taken, silent],
        )
    };
    let invoices = cluster("tenant-b", "invoices", vec![placed("east", "Aligned", "", Vec::new())]);
    FederationStatus {
        version: "0.1.0".to_owned(),
        members: vec![
            member("east", "eu-1", true, at(2)),
            member("north", "", false, 0),
            member("west", "eu-2", false, at(7300)),
        ],
        clusters: vec![orders, invoices],
        pod: "federation-controller-6f-x".to_owned(),
        leader: true,
        observed_at_ms: NOW,
    }
}

fn tree(status: &FederationStatus) -> String {
    tree::text(&FederationStatusView::from(status), "mysql-fleet-hub")
}

#[test]
fn the_tree() {
    insta::assert_snapshot!(tree(&state()));
}

#[test]
fn a_hub_that_has_nothing_says_so() {
    let empty = FederationStatus { members: Vec::new(), clusters: Vec::new(), leader: false, ..state() };
    insta::assert_snapshot!(tree(&empty));
}

#[test]
fn the_json() {
    insta::assert_json_snapshot!(FederationStatusView::from(&state()));
}

fn selected(namespace: Option<&str>, cluster: Option<&str>) -> Result<Vec<String>, FederationError> {
    let selection =
        Selection { namespace: namespace.map(str::to_owned), cluster: cluster.map(str::to_owned) };
    let chosen = select(&state(), &selection)?;
    let clusters = chosen.clusters.iter().map(|found| found.name.clone());
    Ok(clusters.chain(chosen.members.into_iter().map(|member| member.name)).collect())
}

#[test]
fn what_is_chosen_is_shown_with_its_members_alone() {
    assert_eq!(selected(None, None).unwrap(), ["orders", "invoices", "east", "north", "west"]);
    assert_eq!(selected(Some("tenant-b"), None).unwrap(), ["invoices", "east"]);
    assert_eq!(selected(None, Some("invoices")).unwrap(), ["invoices", "east"]);
    assert_eq!(selected(Some("tenant-a"), Some("orders")).unwrap(), ["orders", "east", "north", "west"]);
}

#[test]
fn a_cluster_that_is_not_there_is_a_wrong_argument_and_those_that_are_there_are_named() {
    for (namespace, cluster, wanted) in [
        (Some("tenant-b"), Some("orders"), "tenant-b/orders"),
        (None, Some("orderz"), "orderz"),
        (Some("tenant-z"), None, "in namespace tenant-z"),
    ] {
        let error = selected(namespace, cluster).unwrap_err();
        assert!(error.is_usage());
        let words = "it has tenant-a/orders, tenant-b/invoices";
        assert_eq!(error.to_string(), format!("the hub has no MySQLClusterFederated {wanted}; {words}"));
    }
}
