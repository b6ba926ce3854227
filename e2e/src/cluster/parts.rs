//! The daemons of a cluster and how each is told to run.

use std::path::PathBuf;

use anyhow::Result;

use super::daemon::Daemon;
use super::pki::Pki;
use super::storage::{self, DRIVER};
use super::{Cluster, files};
use crate::tools::Tools;

/// Makes the descriptions of a cluster's daemons.
pub struct Parts<'a> {
    cluster: &'a Cluster,
    tools: &'a Tools,
    pki: &'a Pki,
}

impl<'a> Parts<'a> {
    /// The files of `cluster` must have been written.
    pub fn new(cluster: &'a Cluster, tools: &'a Tools, pki: &'a Pki) -> Self {
        Self { cluster, tools, pki }
    }

    fn daemon(&self, node: u8, name: &str, arguments: Vec<String>, files: Vec<PathBuf>) -> Result<Daemon> {
        let plan = self.cluster.plan();
        Ok(Daemon {
            id: format!("{}/{node}/{name}", plan.name),
            namespace: Some(plan.namespace(node)),
            program: self.tools.path(name)?.to_owned(),
            arguments,
            environment: vec![("PATH".into(), self.tools.search_path())],
            files,
            log: self.cluster.log_folder().join(format!("{name}-{node}.log")),
        })
    }

    /// etcd, reachable from node 0 alone.
    pub fn etcd(&self) -> Result<Daemon> {
        let data = self.cluster.home().join("etcd");
        self.daemon(0, "etcd", etcd_arguments(&data, 2379, 2380), vec![])
    }

    /// The API server on node 0.
    pub fn api_server(&self) -> Result<Daemon> {
        let plan = self.cluster.plan();
        let mut arguments = api_server_arguments(self.pki, 2379);
        arguments.extend([
            "--bind-address=0.0.0.0".into(),
            format!("--advertise-address={}", plan.node_ip(0)),
            "--secure-port=6443".into(),
            format!("--service-cluster-ip-range={}", plan.services()),
            format!("--kubelet-client-certificate={}", self.pki.identity("admin").display()),
            format!("--kubelet-client-key={}", self.pki.identity("admin").display()),
            // Else logs and exec hang on resolving the node's name.
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--allow-privileged=true".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            format!("--audit-policy-file={}", self.cluster.home().join("audit-policy.yaml").display()),
            format!("--audit-log-path={}", self.cluster.audit_log().display()),
        ]);
        self.daemon(0, "kube-apiserver", arguments, vec![self.cluster.home().join("audit-policy.yaml")])
    }

    /// The controllers of Kubernetes itself.
    pub fn controller_manager(&self) -> Result<Daemon> {
        let plan = self.cluster.plan();
        let arguments = vec![
            format!("--kubeconfig={}", self.cluster.home().join("controller-manager.kubeconfig").display()),
            format!("--service-account-private-key-file={}", self.pki.service_account_key().display()),
            format!("--root-ca-file={}", self.pki.authority().display()),
            format!("--cluster-signing-cert-file={}", self.pki.authority().display()),
            format!("--cluster-signing-key-file={}", self.pki.authority_key().display()),
            format!("--service-cluster-ip-range={}", plan.services()),
            // Ours is the only one: no Lease to wait for after a crash.
            "--leader-elect=false".into(),
            // Nodes have fixed ranges.
            "--allocate-node-cidrs=false".into(),
        ];
        self.daemon(0, "kube-controller-manager", arguments, vec![])
    }

    /// The scheduler.
    pub fn scheduler(&self) -> Result<Daemon> {
        let kubeconfig = self.cluster.home().join("scheduler.kubeconfig");
        let arguments = vec![format!("--kubeconfig={}", kubeconfig.display()), "--leader-elect=false".into()];
        self.daemon(0, "kube-scheduler", arguments, vec![])
    }

    /// A node's containerd.
    pub fn containerd(&self, node: u8) -> Result<Daemon> {
        let config = self.cluster.node_home(node).join("containerd.toml");
        self.daemon(node, "containerd", vec!["--config".into(), config.display().to_string()], vec![config])
    }

    /// A node's kubelet.
    pub fn kubelet(&self, node: u8) -> Result<Daemon> {
        let plan = self.cluster.plan();
        let folder = self.cluster.node_home(node);
        let config = folder.join("kubelet.yaml");
        let arguments = vec![
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", folder.join("kubelet.kubeconfig").display()),
            format!("--hostname-override={}", plan.node_name(node)),
            format!("--node-ip={}", plan.node_ip(node)),
            format!(
                "--node-labels=topology.kubernetes.io/zone=zone-{node},topology.kubernetes.io/region={}",
                plan.name
            ),
            format!("--root-dir={}", folder.join("kubelet").display()),
            format!("--cert-dir={}", folder.join("kubelet/pki").display()),
        ];
        self.daemon(node, "kubelet", arguments, vec![config])
    }

    /// A node's kube-proxy.
    pub fn proxy(&self, node: u8) -> Result<Daemon> {
        let config = self.cluster.node_home(node).join("proxy.yaml");
        self.daemon(node, "kube-proxy", vec![format!("--config={}", config.display())], vec![config])
    }

    /// CoreDNS on node 0.
    pub fn dns(&self) -> Result<Daemon> {
        let config = self.cluster.home().join("Corefile");
        self.daemon(0, "coredns", vec!["-conf".into(), config.display().to_string()], vec![config])
    }

    /// A node's storage driver.
    pub fn driver(&self, node: u8) -> Result<Daemon> {
        let cluster = self.cluster;
        let arguments = vec![
            format!("--name={DRIVER}"),
            format!("--socket={}", files::csi_socket(cluster, node).display()),
            format!("--registration={}", storage::registration_socket(cluster, node).display()),
            format!("--node={}", cluster.plan().node_name(node)),
            format!("--data={}", cluster.volumes().display()),
        ];
        self.daemon(node, "loopcsi", arguments, vec![])
    }

    /// The sidecar that makes volumes (`csi-provisioner`) or lets them grow (`csi-resizer`), on node 0.
    pub fn sidecar(&self, name: &str) -> Result<Daemon> {
        let mut arguments = vec![
            format!("--kubeconfig={}", self.cluster.kubeconfig().display()),
            format!("--csi-address={}", files::csi_socket(self.cluster, 0).display()),
            "--leader-election=false".into(),
            "--retry-interval-start=200ms".into(),
        ];
        if name == "csi-resizer" {
            arguments.push("--handle-volume-inuse-error=false".into());
        }
        self.daemon(0, name, arguments, vec![])
    }
}

/// How etcd runs, alone on the loopback address.
pub fn etcd_arguments(data: &std::path::Path, client_port: u16, peer_port: u16) -> Vec<String> {
    vec![
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls=http://127.0.0.1:{client_port}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client_port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
        // The machine's page cache outlives any process that is killed; a lost machine loses a test cluster.
        "--unsafe-no-fsync".into(),
    ]
}

/// What every API server here has in common.
pub fn api_server_arguments(pki: &Pki, etcd_port: u16) -> Vec<String> {
    let server = pki.identity("apiserver");
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--client-ca-file={}", pki.authority().display()),
        format!("--tls-cert-file={}", server.display()),
        format!("--tls-private-key-file={}", server.display()),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", pki.service_account_public_key().display()),
        format!("--service-account-signing-key-file={}", pki.service_account_key().display()),
        "--authorization-mode=Node,RBAC".into(),
    ]
}
