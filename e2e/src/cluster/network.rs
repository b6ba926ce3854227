//! Bridges, namespaces and links of a cluster.
//!
//! ```text
//!              backbone (bridge mfleet, no address)
//!                 │ uplink: `cut NAME`
//!   bridge mf<I> (10.210.I.1/24, this machine) ── one link per node: `cut NAME/NODE`
//!                                                └ namespace mf-NAME-<node>, eth0 10.210.I.(10+node)/16
//! ```
//! A cut cluster loses the other clusters and keeps this machine, so that tests can still ask it. Pods keep
//! their addresses between the nodes of a cluster and are masqueraded when they leave it. This machine has
//! routes to pods and, through kube-proxy of node 0, to Services.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::plan::{BACKBONE, Plan};
use crate::command::run;

/// Makes what is missing of the cluster's network. Links that were cut stay as they are found. So a link is up
/// from its first moment: one that an interruption leaves down would be taken for one that was cut.
pub async fn ensure(plan: &Plan) -> Result<()> {
    bridge(BACKBONE).await?;
    let bridge_name = plan.bridge();
    bridge(&bridge_name).await?;
    // Without this the machine answers for its address on one bridge through another.
    sysctl_host(&format!("net/ipv4/conf/{bridge_name}/arp_ignore"), "1")?;
    ip(&["addr", "replace", &format!("{}/24", plan.gateway()), "dev", &bridge_name]).await?;
    let (up, backbone) = plan.uplink();
    if !exists(&up) {
        ip(&["link", "add", &up, "up", "type", "veth", "peer", "name", &backbone]).await?;
    }
    ip(&["link", "set", &up, "master", &bridge_name]).await?;
    ip(&["link", "set", &backbone, "master", BACKBONE, "up"]).await?;
    futures::future::try_join_all(plan.each_node().map(|node| ensure_node(plan, node))).await?;
    let first = plan.node_ip(0).to_string();
    ip(&["route", "replace", &plan.services(), "via", &first]).await?;
    for node in plan.each_node() {
        ip(&["route", "replace", &plan.node_pods(node), "via", &plan.node_ip(node).to_string()]).await?;
    }
    Ok(())
}

async fn ensure_node(plan: &Plan, node: u8) -> Result<()> {
    let namespace = plan.namespace(node);
    let link = plan.link(node);
    ensure_namespace(&namespace).await?;
    if !exists(&link) {
        ip(&["link", "add", &link, "up", "type", "veth", "peer", "name", "eth0", "netns", &namespace])
            .await?;
    }
    ip(&["link", "set", &link, "master", &plan.bridge()]).await?;
    let address = format!("{}/16", plan.node_ip(node));
    let gateway = plan.gateway().to_string();
    inside(&namespace, &["ip", "link", "set", "lo", "up"]).await?;
    inside(&namespace, &["ip", "addr", "replace", &address, "dev", "eth0"]).await?;
    inside(&namespace, &["ip", "link", "set", "eth0", "up"]).await?;
    inside(&namespace, &["ip", "route", "replace", "default", "via", &gateway]).await?;
    inside(&namespace, &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).await?;
    for other in plan.each_node().filter(|other| *other != node) {
        let via = plan.node_ip(other).to_string();
        inside(&namespace, &["ip", "route", "replace", &plan.node_pods(other), "via", &via]).await?;
    }
    let pods = plan.pods();
    let rule = ["POSTROUTING", "-s", &pods, "!", "-d", &pods, "-o", "eth0", "-j", "MASQUERADE"];
    let iptables = ["iptables", "-w", "-t", "nat"];
    let check = [&iptables[..], &["-C"], &rule[..]].concat();
    if inside(&namespace, &check).await.is_err() {
        inside(&namespace, &[&iptables[..], &["-A"], &rule[..]].concat()).await?;
    }
    Ok(())
}

/// Makes a network namespace. The file of one whose mount is gone (after a crash) is made anew.
async fn ensure_namespace(name: &str) -> Result<()> {
    if inside(name, &["true"]).await.is_ok() {
        return Ok(());
    }
    if namespace_file(name).exists() {
        ip(&["netns", "delete", name]).await?;
    }
    ip(&["netns", "add", name]).await
}

/// Removes all of a cluster's network, and the backbone with the last cluster. Its processes must be gone.
pub async fn remove(plan: &Plan) -> Result<()> {
    for namespace in namespaces(&plan.name) {
        ip(&["netns", "delete", &namespace]).await?;
    }
    let (up, _) = plan.uplink();
    let mut links: Vec<String> = (0..super::plan::MOST_NODES).map(|node| plan.link(node)).collect();
    links.extend([up, plan.bridge()]);
    for link in links.iter().filter(|link| exists(link)) {
        // The kernel removes a veth by itself some time after its namespace; it may win.
        if let Err(error) = ip(&["link", "delete", link]).await
            && exists(link)
        {
            return Err(error);
        }
    }
    if exists(BACKBONE) && std::fs::read_dir(format!("/sys/class/net/{BACKBONE}/brif"))?.next().is_none() {
        ip(&["link", "delete", BACKBONE]).await?;
    }
    Ok(())
}

/// Takes the link of a node, or of the whole cluster to the others, down or up.
pub async fn set_link(plan: &Plan, node: Option<u8>, up: bool) -> Result<()> {
    let link = match node {
        Some(node) if node < plan.nodes => plan.link(node),
        Some(node) => {
            bail!("cluster {} has no node {node}: its nodes are 0 to {}", plan.name, plan.nodes - 1)
        }
        None => plan.uplink().0,
    };
    ip(&["link", "set", &link, if up { "up" } else { "down" }]).await
}

/// The network namespaces of a cluster's nodes that exist.
pub fn namespaces(cluster: &str) -> Vec<String> {
    let prefix = format!("mf-{cluster}-");
    let mut names: Vec<String> = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.strip_prefix(&prefix).is_some_and(|node| node.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .collect();
    names.sort();
    names
}

/// The file that stands for a network namespace.
pub fn namespace_file(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Runs a program in a network namespace. Only the network is entered: `ip netns exec` would also mount a
/// new /sys and hide the cgroups.
pub async fn inside(namespace: &str, arguments: &[&str]) -> Result<String> {
    let net = format!("--net={}", namespace_file(namespace).display());
    let mut all = vec![net.as_str()];
    all.extend(arguments);
    run("nsenter", all).await
}

async fn bridge(name: &str) -> Result<()> {
    if !exists(name) {
        // Another cluster may make the backbone at the same moment.
        if let Err(error) = ip(&["link", "add", name, "type", "bridge"]).await
            && !exists(name)
        {
            return Err(error);
        }
    }
    ip(&["link", "set", name, "up"]).await
}

fn exists(link: &str) -> bool {
    Path::new("/sys/class/net").join(link).exists()
}

fn sysctl_host(key: &str, value: &str) -> Result<()> {
    let file = Path::new("/proc/sys").join(key);
    std::fs::write(&file, value).with_context(|| format!("could not write {}", file.display()))
}

async fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments).await.map(drop)
}
