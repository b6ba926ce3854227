//! A bare API server for tests that need nothing else of Kubernetes: no nodes, no controllers.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

use crate::cluster::daemon::Daemon;
use crate::cluster::pki::Pki;
use crate::cluster::{files, parts};
use crate::kubernetes;
use crate::progress::Progress;
use crate::tools::{self, Tools};

/// Name of the file with audit events.
const AUDIT_LOG: &str = "audit.log";

/// A running etcd and API server, killed and removed when this is dropped.
pub struct ApiServer {
    folder: tempfile::TempDir,
    etcd: Guard,
    server: Guard,
}

/// Kills a process by the handle that started it.
struct Guard {
    daemon: Daemon,
    child: tokio::process::Child,
}

/// Starts etcd and an API server on free ports of 127.0.0.1. Needs no root, only Go for the first build.
pub async fn start() -> Result<ApiServer> {
    start_with(None).await
}

/// The same with an audit policy (YAML): see [`ApiServer::audited`].
pub async fn start_audited(policy: &str) -> Result<ApiServer> {
    start_with(Some(policy)).await
}

async fn start_with(audit_policy: Option<&str>) -> Result<ApiServer> {
    let tools = Tools::of(&tools::API_SERVER, &Progress::default()).await?;
    let folder = tempfile::Builder::new().prefix("apiserver-").tempdir()?;
    let home = folder.path().to_owned();
    let pki = Pki::ensure_bare(&home.join("pki"))?;
    let [client_port, peer_port, port] = free_ports()?;
    let etcd = spawn(
        &home,
        "etcd",
        tools.path("etcd")?,
        parts::etcd_arguments(&home.join("etcd"), client_port, peer_port),
    )?;
    let mut arguments = parts::api_server_arguments(&pki, client_port);
    arguments.extend([
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        format!("--cert-dir={}", home.display()),
        // Without its controller no namespace would have the account it asks for.
        "--disable-admission-plugins=ServiceAccount".into(),
    ]);
    if let Some(policy) = audit_policy {
        let file = home.join("audit.yaml");
        std::fs::write(&file, policy).with_context(|| format!("could not write {}", file.display()))?;
        arguments.push(format!("--audit-policy-file={}", file.display()));
        arguments.push(format!("--audit-log-path={}", home.join(AUDIT_LOG).display()));
    }
    let api_server = spawn(&home, "kube-apiserver", tools.path("kube-apiserver")?, arguments)?;
    let url = format!("https://127.0.0.1:{port}");
    let server = ApiServer { folder, etcd, server: api_server };
    files::write_private(&server.kubeconfig(), &files::kubeconfig("bare", &url, &pki, "admin")?)?;
    let client = server.client().await?;
    let daemon = &server.server.daemon;
    daemon.ready(Duration::from_mins(1), || async { kubernetes::ready(&client).await }).await?;
    Ok(server)
}

impl ApiServer {
    /// A client with all rights.
    pub async fn client(&self) -> Result<Client> {
        kubernetes::client_from_file(&self.kubeconfig()).await
    }

    /// The kubeconfig of [`Self::client`], for programs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The audit events so far, each an object of `audit.k8s.io/v1`.
    pub fn audited(&self) -> Result<Vec<serde_json::Value>> {
        let file = self.folder.path().join(AUDIT_LOG);
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        // The last line may be half written.
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        complete.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// The kubeconfig of [`Self::kubeconfig`] for another user, who has that user's rights alone.
    pub fn kubeconfig_as(&self, user: &str) -> Result<PathBuf> {
        let text = std::fs::read_to_string(self.kubeconfig())?;
        let mut config: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text)?;
        let admin = config.get_mut("users").and_then(|users| users.get_mut(0)?.get_mut("user"));
        let admin = admin.and_then(|admin| admin.as_mapping_mut()).context("the kubeconfig has no user")?;
        admin.insert("as".into(), user.into());
        let file = self.folder.path().join(format!("kubeconfig-{}", user.replace(':', "-")));
        files::write_private(&file, &serde_yaml_ng::to_string(&config)?)?;
        Ok(file)
    }

    /// The output of the API server.
    pub fn log(&self) -> &Path {
        &self.server.daemon.log
    }

    /// Stops the API server (SIGSTOP) or lets it go on (SIGCONT): requests hang, connections stay.
    pub fn pause(&self, paused: bool) -> Result<()> {
        use nix::sys::signal::Signal;
        self.server.daemon.signal(if paused { Signal::SIGSTOP } else { Signal::SIGCONT })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // etcd last: an API server without it takes its time.
        for guard in [&mut self.server, &mut self.etcd] {
            // It may have ended by itself.
            let _ = guard.child.start_kill();
        }
    }
}

fn spawn(home: &Path, name: &str, program: &Path, arguments: Vec<String>) -> Result<Guard> {
    let daemon = Daemon {
        id: format!("{}/{name}", home.display()),
        namespace: None,
        program: program.to_owned(),
        arguments,
        environment: Vec::new(),
        files: Vec::new(),
        log: home.join(format!("{name}.log")),
    };
    let child = daemon.spawn_owned()?;
    Ok(Guard { daemon, child })
}

/// Ports that are free now; another program may take one before it is used, then the start fails and says so.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("could not find a free port on 127.0.0.1")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
