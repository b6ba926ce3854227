//! The addresses and names of a cluster, all computed from its name and index.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

/// The highest index: pods use 10.101-10.140, services 10.151-10.190.
pub const LAST_INDEX: u8 = 40;
/// The highest number of nodes of one cluster.
pub const MOST_NODES: u8 = 30;
/// The bridge that joins the bridges of all clusters.
pub const BACKBONE: &str = "mfleet";
/// The domain of Services and pods.
pub const DOMAIN: &str = "cluster.local";

/// What a cluster is called and where it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The name a person gave.
    pub name: String,
    /// A number unique on this machine, from 1 to [`LAST_INDEX`].
    pub index: u8,
    /// How many nodes, at least one. The control plane is in the namespace of node 0.
    pub nodes: u8,
}

/// Checks a cluster's name: a short DNS label, as it is part of namespace, cgroup and node names.
pub fn check_name(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() <= 20
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-');
    if !good {
        bail!(
            "\"{name}\" cannot be the name of a cluster: use at most 20 small letters, digits and \"-\", \
             beginning with a letter and not ending with \"-\""
        );
    }
    Ok(())
}

impl Plan {
    /// The name of a node in Kubernetes.
    pub fn node_name(&self, node: u8) -> String {
        format!("{}-{node}", self.name)
    }

    /// The network namespace of a node.
    pub fn namespace(&self, node: u8) -> String {
        format!("mf-{}-{node}", self.name)
    }

    /// The control group of a node, relative to each hierarchy's root.
    pub fn cgroup(&self, node: u8) -> String {
        format!("mf-{}-{node}", self.name)
    }

    /// The bridge that joins the nodes.
    pub fn bridge(&self) -> String {
        format!("mf{}", self.index)
    }

    /// The two ends of the link between the cluster's bridge and the backbone.
    pub fn uplink(&self) -> (String, String) {
        (format!("mf{}up", self.index), format!("mf{}bb", self.index))
    }

    /// The host's end of a node's link.
    pub fn link(&self, node: u8) -> String {
        format!("mf{}n{node}", self.index)
    }

    /// This machine's address on the cluster's bridge, which is the nodes' default gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 210, self.index, 1)
    }

    /// The address of a node.
    pub fn node_ip(&self, node: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 210, self.index, 10 + node)
    }

    /// The pods of the whole cluster.
    pub fn pods(&self) -> String {
        format!("10.{}.0.0/16", 100 + self.index)
    }

    /// The pods of one node.
    pub fn node_pods(&self, node: u8) -> String {
        format!("10.{}.{node}.0/24", 100 + self.index)
    }

    /// The Services.
    pub fn services(&self) -> String {
        format!("10.{}.0.0/16", 150 + self.index)
    }

    /// The Service address of the API server.
    pub fn api_service_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 150 + self.index, 0, 1)
    }

    /// The Service address of CoreDNS.
    pub fn dns_service_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 150 + self.index, 0, 10)
    }

    /// The URL of the API server as everyone reaches it.
    pub fn api_url(&self) -> String {
        format!("https://{}:6443", self.node_ip(0))
    }

    /// The indices of all nodes.
    pub fn each_node(&self) -> std::ops::Range<u8> {
        0..self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_the_kernels_limit() {
        let plan = Plan { name: "demo".into(), index: LAST_INDEX, nodes: MOST_NODES };
        let (up, backbone) = plan.uplink();
        for name in [plan.bridge(), up, backbone, plan.link(MOST_NODES - 1)] {
            assert!(name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn names_that_would_break_something_are_refused() {
        for name in ["", "Demo", "a b", "-a", "a-", "1a", "averyveryverylongname1", "a/b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["demo", "m1", "member-a"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn ranges_of_clusters_do_not_overlap() {
        let last = Plan { name: "z".into(), index: LAST_INDEX, nodes: 1 };
        let first = Plan { name: "a".into(), index: 1, nodes: 1 };
        assert_eq!(last.pods(), "10.140.0.0/16");
        assert_eq!(first.services(), "10.151.0.0/16");
        assert_eq!(last.services(), "10.190.0.0/16");
    }
}
