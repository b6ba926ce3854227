//! NetworkPolicies of a tenant: who reaches its MySQL pods and its shard, and whom these reach.
//!
//! A pod that a policy selects takes and makes no other connection. Addresses of nodes and of the API server are no
//! labels, so what concerns them is said by ports alone.

use std::collections::BTreeMap;

use fleet_api::names::{
    PORT_AGENT, PORT_AGENT_HEALTH, PORT_MYSQL, PORT_SHARD_GRPC, PORT_SHARD_HEALTH, PORT_SHARD_METRICS,
};
use serde_json::{Value, json};

/// Port of DNS.
const PORT_DNS: u16 = 53;
/// Ports of the API server: of its Service, and those that it usually listens on, which an enforcer may see in place.
const PORTS_API_SERVER: [u16; 2] = [443, 6443];

/// Labels of the pods of every cluster.
const INSTANCES: (&str, &str) = ("app.kubernetes.io/name", "mysql");

/// The policy of the MySQL pods and that of the shard's, which have the labels `shard` and reach their hub at the port
/// `hub`.
pub(crate) fn policies(
    shard: &BTreeMap<&'static str, String>,
    hub: Option<u16>,
    metadata: impl Fn(&str) -> Value,
) -> [Value; 2] {
    let instances = json!({"podSelector": {"matchLabels": {INSTANCES.0: INSTANCES.1}}});
    let shards = json!({"podSelector": {"matchLabels": shard}});
    let tenant = json!({"podSelector": {}});
    let dns = json!({"ports": [
        {"protocol": "UDP", "port": PORT_DNS},
        {"protocol": "TCP", "port": PORT_DNS},
    ]});
    let api_server = json!({"ports": PORTS_API_SERVER.map(tcp)});
    let mut shard_reaches =
        vec![json!({"to": [instances], "ports": [tcp(PORT_AGENT)]}), dns.clone(), api_server.clone()];
    shard_reaches.extend(hub.map(|port| json!({"ports": [tcp(port)]})));
    let policy = |name: &str, selected: &Value, ingress: Value, egress: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(name),
            "spec": {
                "podSelector": selected["podSelector"],
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress,
                "egress": egress,
            },
        })
    };
    [
        policy(
            "mysql-fleet-instances",
            &instances,
            json!([
                // Clients, the other instances' replication and copies.
                {"from": [tenant], "ports": [tcp(PORT_MYSQL)]},
                // Orders of the shard; an open instance proves by its peers that it is not alone.
                {"from": [shards, instances], "ports": [tcp(PORT_AGENT)]},
                // kubelet's probes, and who collects metrics.
                {"ports": [tcp(PORT_AGENT_HEALTH)]},
            ]),
            json!([
                {"to": [instances], "ports": [tcp(PORT_MYSQL), tcp(PORT_AGENT)]},
                dns,
                // That it takes a connection is another proof.
                api_server,
            ]),
        ),
        policy(
            "mysql-fleet-shard",
            &shards,
            json!([
                // kubectl fleet comes by port-forward, from the node, which no policy concerns.
                {"from": [tenant], "ports": [tcp(PORT_SHARD_GRPC)]},
                {"ports": [tcp(PORT_SHARD_HEALTH), tcp(PORT_SHARD_METRICS)]},
            ]),
            Value::Array(shard_reaches),
        ),
    ]
}

fn tcp(port: u16) -> Value {
    json!({"protocol": "TCP", "port": port})
}
