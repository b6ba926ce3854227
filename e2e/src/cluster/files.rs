//! The configuration files of a cluster.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Cluster;
use super::pki::Pki;
use super::plan::DOMAIN;
use super::storage::DRIVER;
use crate::images::pause::PAUSE_IMAGE;

/// The API server's audit policy: one line per write, and per read of a pod's account outside the system.
const AUDIT_POLICY: &str = r"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
  namespaces: ['', kube-system]
- level: Metadata
  userGroups: ['system:serviceaccounts']
- level: None
";

/// Writes every configuration file of the cluster.
pub fn write_all(cluster: &Cluster, pki: &Pki) -> Result<()> {
    let plan = cluster.plan();
    let home = cluster.home();
    write(&home.join("audit-policy.yaml"), AUDIT_POLICY)?;
    for identity in ["admin", "controller-manager", "scheduler", "proxy"] {
        let file = if identity == "admin" {
            cluster.kubeconfig()
        } else {
            home.join(format!("{identity}.kubeconfig"))
        };
        write_private(&file, &kubeconfig(&plan.name, &plan.api_url(), pki, identity)?)?;
    }
    write(&home.join("Corefile"), &corefile(cluster))?;
    // Pods with dnsPolicy Default get this file: the machine's own may name a server they cannot reach.
    write(&home.join("resolv.conf"), &format!("nameserver {}\n", plan.node_ip(0)))?;
    for node in plan.each_node() {
        let folder = cluster.node_home(node);
        for part in ["cni", "kubelet/plugins", "kubelet/plugins_registry"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("could not make {}", folder.display()))?;
        }
        let identity = format!("kubelet-{node}");
        write_private(
            &folder.join("kubelet.kubeconfig"),
            &kubeconfig(&plan.name, &plan.api_url(), pki, &identity)?,
        )?;
        write(&folder.join("kubelet.yaml"), &kubelet(cluster, pki, node))?;
        write(&folder.join("proxy.yaml"), &proxy(cluster, node))?;
        write(&folder.join("cni/10-bridge.conflist"), &cni(cluster, node))?;
        write(&folder.join("containerd.toml"), &containerd(cluster, node)?)?;
    }
    Ok(())
}

/// A kubeconfig with everything in it, so that it can be copied.
pub fn kubeconfig(cluster: &str, url: &str, pki: &Pki, identity: &str) -> Result<String> {
    let embed = |file: &Path| -> Result<String> {
        Ok(STANDARD.encode(fs::read(file).with_context(|| format!("could not read {}", file.display()))?))
    };
    let pem = embed(&pki.identity(identity))?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {"server": url, "certificate-authority-data": embed(&pki.authority())?}}],
        "users": [{"name": identity, "user": {"client-certificate-data": pem, "client-key-data": pem}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": identity}}],
        "current-context": cluster,
    });
    Ok(serde_yaml_ng::to_string(&config)?)
}

fn corefile(cluster: &Cluster) -> String {
    let ip = cluster.plan().node_ip(0);
    let kubeconfig = cluster.kubeconfig();
    // No `cache`: it would hold the NXDOMAIN of a pod that is about to appear. The second block answers all
    // other names at once; it cannot be part of the first, where `template` runs before `kubernetes`.
    format!(
        "{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {ip}
    errors
    ready {ip}:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {}
        pods insecure
        ttl 1
    }}
    loadbalance
}}
.:53 {{
    bind {ip}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
",
        kubeconfig.display()
    )
}

fn kubelet(cluster: &Cluster, pki: &Pki, node: u8) -> String {
    let plan = cluster.plan();
    let folder = cluster.node_home(node).join("kubelet");
    let certificate = pki.identity(&format!("kubelet-{node}"));
    text(&json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", plan.cgroup(node)),
        "containerRuntimeEndpoint": format!("unix://{}", cluster.containerd_socket(node).display()),
        "authentication": {
            "x509": {"clientCAFile": pki.authority()},
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": certificate,
        "tlsPrivateKeyFile": certificate,
        "clusterDNS": [plan.dns_service_ip()],
        "clusterDomain": DOMAIN,
        "resolvConf": cluster.home().join("resolv.conf"),
        "localStorageCapacityIsolation": false,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
        // Images are loaded by hand: one that was collected would not come back.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // A container that is killed again and again is back within seconds, not within five minutes.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        // The growth of a volume is seen at a resync.
        "syncFrequency": "5s",
        "podLogsDir": folder.join("podlogs"),
        "volumePluginDir": folder.join("volume-plugins"),
    }))
}

fn proxy(cluster: &Cluster, node: u8) -> String {
    let plan = cluster.plan();
    text(&json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": cluster.home().join("proxy.kubeconfig")},
        "clusterCIDR": plan.pods(),
        "mode": "iptables",
        "hostnameOverride": plan.node_name(node),
        "healthzBindAddress": "0.0.0.0:10256",
        // The default of a second would be the better part of a failover.
        "iptables": {"minSyncPeriod": "100ms"},
        // These sysctls are not writable in a network namespace.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }))
}

fn cni(cluster: &Cluster, node: u8) -> String {
    let plan = cluster.plan();
    text(&json!({
        "cniVersion": "1.0.0",
        "name": cluster.cni_network(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                // Only what leaves the cluster is masqueraded, by the node's own rule.
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": cluster.node_runtime(node).join("ipam"),
                    "ranges": [[{"subnet": plan.node_pods(node)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    }))
}

fn containerd(cluster: &Cluster, node: u8) -> Result<String> {
    let folder = cluster.node_home(node);
    let runtime = cluster.node_runtime(node);
    let plugins = ["/usr/lib/cni", "/opt/cni/bin"]
        .into_iter()
        .find(|folder| Path::new(folder).join("bridge").exists())
        .context("the CNI plugins are missing: install the package containernetworking-plugins")?;
    Ok(format!(
        r#"version = 3
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  # Lowering the score needs CAP_SYS_RESOURCE, which a sandbox's root may lack.
  restrict_oom_score_adj = true
  # The pods' namespaces go with the rest of the cluster's mounts.
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{conf}"
  # The plugin for it would leave a file behind for each pod of a cluster that is killed.
  use_internal_loopback = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
"#,
        root = folder.join("containerd").display(),
        state = runtime.join("containerd").display(),
        socket = cluster.containerd_socket(node).display(),
        conf = folder.join("cni").display(),
    ))
}

/// The path of a node's CSI socket, below the kubelet's folder.
pub fn csi_socket(cluster: &Cluster, node: u8) -> std::path::PathBuf {
    cluster.node_home(node).join("kubelet/plugins").join(DRIVER).join("csi.sock")
}

/// JSON is YAML.
fn text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Writes a file by a rename, so that no reader and no interruption sees half of it.
pub fn write(file: &Path, text: &str) -> Result<()> {
    write_mode(file, text, 0o644)
}

/// Writes a file that only its owner may read.
pub fn write_private(file: &Path, text: &str) -> Result<()> {
    write_mode(file, text, 0o600)
}

fn write_mode(file: &Path, text: &str, mode: u32) -> Result<()> {
    let draft = file.with_added_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    options
        .open(&draft)
        .and_then(|mut open| open.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&draft, file))
        .with_context(|| format!("could not write {}", file.display()))
}
