//! What the agent is told, checked once.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use fleet_runtime::{server::ListenAddr, telemetry::TelemetryArgs};

/// How much a crash of the machine may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Durability {
    /// Every commit and every received transaction is synced to disk before it is acknowledged.
    Strict,
    /// Logs are synced by the operating system: a crash of the machine loses what it had not written
    /// yet, a crash of mysqld alone loses nothing.
    Relaxed,
}

/// Raw arguments of `mysql-agent run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Namespace of the instance.
    #[arg(long, env = "FLEET_NAMESPACE", value_parser = dns_label)]
    pub namespace: String,
    /// Name of the instance's pod: the name of the cluster, a dash and the ordinal.
    #[arg(long, env = "FLEET_POD_NAME", value_parser = dns_label)]
    pub pod_name: String,
    /// Name of the cluster.
    #[arg(long, env = "FLEET_CLUSTER", value_parser = dns_label)]
    pub cluster: String,
    /// Base of the cluster's server ids; an instance has the base plus its ordinal plus 1.
    #[arg(long, env = "FLEET_SERVER_ID_BASE")]
    pub server_id_base: u32,
    /// How much a crash of the machine may lose.
    #[arg(long, env = "FLEET_DURABILITY", value_enum, default_value = "Strict")]
    pub durability: Durability,
    /// Data volume. mysqld's data is in its folder data, the agent's own state in fleet.
    #[arg(long, env = "FLEET_DATA_DIR", default_value = "/var/lib/mysql", value_parser = absolute)]
    pub data_dir: PathBuf,
    /// Folder of what is made anew at each start: socket, generated my.cnf. Best in memory.
    #[arg(long, env = "FLEET_RUN_DIR", default_value = "/fleet/run", value_parser = absolute)]
    pub run_dir: PathBuf,
    /// Folder of mysqld's temporary files.
    #[arg(long, env = "FLEET_TMP_DIR", default_value = "/tmp", value_parser = absolute)]
    pub tmp_dir: PathBuf,
    /// Folder of the user's my.cnf.
    #[arg(long, env = "FLEET_CONFIG_DIR", default_value = "/fleet/config", value_parser = absolute)]
    pub config_dir: PathBuf,
    /// Folder of ca.crt, tls.crt and tls.key.
    #[arg(long, env = "FLEET_TLS_DIR", default_value = "/fleet/tls", value_parser = absolute)]
    pub tls_dir: PathBuf,
    /// Folder of the roles' credentials: <role>/username and <role>/password.
    #[arg(long, env = "FLEET_USERS_DIR", default_value = "/fleet/users", value_parser = absolute)]
    pub users_dir: PathBuf,
    /// mysqld itself; searched in PATH and the usual places by default.
    #[arg(long, env = "FLEET_MYSQLD", value_parser = absolute)]
    pub mysqld: Option<PathBuf>,
    /// Address of the gRPC service.
    #[arg(long, env = "FLEET_GRPC_ADDR", default_value = ":9443")]
    pub grpc_addr: ListenAddr,
    /// Address of probes and metrics.
    #[arg(long, env = "FLEET_HEALTH_ADDR", default_value = ":8081")]
    pub health_addr: ListenAddr,
    /// Port of mysqld.
    #[arg(long, env = "FLEET_MYSQL_PORT", default_value_t = 3306, value_parser = clap::value_parser!(u16).range(1..))]
    pub mysql_port: u16,
    /// Port of mysqld's administrative interface on 127.0.0.1, which the agent uses when clients have taken all
    /// connections.
    #[arg(long, env = "FLEET_MYSQL_ADMIN_PORT", default_value_t = 33062, value_parser = clap::value_parser!(u16).range(1..))]
    pub mysql_admin_port: u16,
    /// Address mysqld listens on; all by default.
    #[arg(long, env = "FLEET_MYSQL_BIND_ADDRESS")]
    pub mysql_bind_address: Option<IpAddr>,
    /// Name that other instances reach this one by; that of the pod in its headless Service by default.
    #[arg(long, env = "FLEET_REPORT_HOST")]
    pub report_host: Option<String>,
    /// Host of the API server, as Kubernetes tells every pod; outside of one the instance does not notice that it
    /// is isolated.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST")]
    pub api_server_host: Option<String>,
    /// Port of the API server.
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", default_value_t = 443, value_parser = clap::value_parser!(u16).range(1..))]
    pub api_server_port: u16,
    /// Seconds that mysqld may take to end after a signal, before it is killed.
    #[arg(long, env = "FLEET_SHUTDOWN_SECONDS", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub shutdown_seconds: u64,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Arguments that can't be checked one by one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The ordinal can't be read.
    #[error(
        "invalid value '{pod}' for '--pod-name' (FLEET_POD_NAME): it must be '{cluster}-' and the ordinal of the instance, as a StatefulSet names its pods"
    )]
    PodName {
        /// The pod's name.
        pod: String,
        /// The cluster's name.
        cluster: String,
    },
    /// The server id leaves the range of MySQL.
    #[error(
        "invalid value '{base}' for '--server-id-base' (FLEET_SERVER_ID_BASE): base + {ordinal} + 1 exceeds 4294967295, the highest server id of MySQL"
    )]
    ServerId {
        /// The base.
        base: u32,
        /// The ordinal.
        ordinal: u32,
    },
}

/// The checked arguments: immutable from here on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the instance.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Unique number of the mysqld in its cluster.
    pub server_id: u32,
    /// Name that other instances reach this one by.
    pub report_host: String,
    /// How much a crash of the machine may lose.
    pub durability: Durability,
    /// Every folder and file.
    pub paths: Paths,
    /// mysqld, where it was named.
    pub mysqld: Option<PathBuf>,
    /// Port of mysqld.
    pub mysql_port: u16,
    /// Port of mysqld's administrative interface.
    pub mysql_admin_port: u16,
    /// Address mysqld listens on.
    pub mysql_bind_address: Option<IpAddr>,
    /// What mysqld may take to end after a signal.
    pub shutdown: Duration,
    /// The API server; `None` outside a pod.
    pub api_server: Option<HostPort>,
    /// The agents of all instances of the cluster, by the name of their headless Service.
    pub agents: HostPort,
}

/// A name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Every folder and file the agent uses.
#[derive(Clone, Debug)]
pub struct Paths {
    volume: PathBuf,
    run: PathBuf,
    /// Temporary files of mysqld.
    pub tmp: PathBuf,
    config: PathBuf,
    /// ca.crt, tls.crt and tls.key.
    pub tls: PathBuf,
    /// Credentials of the roles.
    pub users: PathBuf,
}

impl Paths {
    /// The mount of the data volume.
    pub fn volume(&self) -> &Path {
        &self.volume
    }
    /// The data directory of mysqld.
    pub fn data(&self) -> PathBuf {
        self.volume.join("data")
    }
    /// The agent's own state on the volume.
    pub fn state(&self) -> PathBuf {
        self.volume.join("fleet")
    }
    /// Binary logs that are kept though their data were replaced.
    pub fn archive(&self) -> PathBuf {
        self.state().join("archive")
    }
    /// mysqld's socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("mysqld.sock")
    }
    /// The file beside the socket with the number of the process whose it is.
    pub fn socket_lock(&self) -> PathBuf {
        self.run.join("mysqld.sock.lock")
    }
    /// mysqld's pid file.
    pub fn pid_file(&self) -> PathBuf {
        self.run.join("mysqld.pid")
    }
    /// The generated option file.
    pub fn my_cnf(&self) -> PathBuf {
        self.run.join("my.cnf")
    }
    /// The statements that mysqld runs as it starts.
    pub fn init_file(&self) -> PathBuf {
        self.run.join("init.sql")
    }
    /// The user's option file.
    pub fn user_my_cnf(&self) -> PathBuf {
        self.config.join("my.cnf")
    }
    /// Folder of what is made anew at each start.
    pub fn run(&self) -> &Path {
        &self.run
    }
}

impl Config {
    /// Checks what single arguments can't tell.
    pub fn new(args: &RunArgs) -> Result<Self, ConfigError> {
        let ordinal: u32 = args
            .pod_name
            .strip_prefix(&args.cluster)
            .and_then(|rest| rest.strip_prefix('-'))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| ConfigError::PodName {
                pod: args.pod_name.clone(),
                cluster: args.cluster.clone(),
            })?;
        let server_id = ordinal
            .checked_add(1)
            .and_then(|number| number.checked_add(args.server_id_base))
            .ok_or(ConfigError::ServerId { base: args.server_id_base, ordinal })?;
        let report_host = args.report_host.clone().unwrap_or_else(|| {
            format!("{}.{}-instances.{}.svc", args.pod_name, args.cluster, args.namespace)
        });
        Ok(Self {
            namespace: args.namespace.clone(),
            pod: args.pod_name.clone(),
            server_id,
            report_host,
            durability: args.durability,
            paths: Paths {
                volume: args.data_dir.clone(),
                run: args.run_dir.clone(),
                tmp: args.tmp_dir.clone(),
                config: args.config_dir.clone(),
                tls: args.tls_dir.clone(),
                users: args.users_dir.clone(),
            },
            mysqld: args.mysqld.clone(),
            mysql_port: args.mysql_port,
            mysql_admin_port: args.mysql_admin_port,
            mysql_bind_address: args.mysql_bind_address,
            shutdown: Duration::from_secs(args.shutdown_seconds),
            api_server: args
                .api_server_host
                .clone()
                .map(|host| HostPort { host, port: args.api_server_port }),
            agents: HostPort {
                host: format!("{}-instances.{}.svc", args.cluster, args.namespace),
                port: args.grpc_addr.port(),
            },
        })
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err("must be an absolute path".to_owned());
    }
    if text.contains(['\n', '\r', '"', '\'', '\\']) {
        return Err("must not contain quotes, backslashes or line breaks".to_owned());
    }
    Ok(path)
}

fn dns_label(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 63 lower-case letters, digits and dashes, and begin and end with a letter or digit"
            .to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parse(extra: &[&str]) -> Result<RunArgs, clap::Error> {
        let mut line =
            vec!["run", "--namespace", "tenant-a", "--cluster", "orders", "--server-id-base", "100"];
        line.extend(extra);
        let matches = Cli::command().try_get_matches_from(line)?;
        Ok(Cli::from_arg_matches(&matches)?.run)
    }

    #[test]
    fn names_and_numbers_follow_from_the_ordinal() {
        let config = Config::new(&parse(&["--pod-name", "orders-2"]).unwrap()).unwrap();
        assert_eq!(config.server_id, 103);
        assert_eq!(config.report_host, "orders-2.orders-instances.tenant-a.svc");
        assert_eq!(config.paths.data(), Path::new("/var/lib/mysql/data"));
        assert_eq!(config.agents.host, "orders-instances.tenant-a.svc");
        assert_eq!(config.durability, Durability::Strict);
    }

    #[test]
    fn pod_of_another_cluster_is_refused() {
        for pod in ["other-0", "orders", "orders-x", "orders-99999999999"] {
            let error = Config::new(&parse(&["--pod-name", pod]).unwrap()).unwrap_err();
            assert!(error.to_string().contains("--pod-name"), "{error}");
        }
    }

    #[test]
    fn server_id_above_the_range_is_refused() {
        let mut args = parse(&["--pod-name", "orders-0"]).unwrap();
        args.server_id_base = u32::MAX;
        assert!(Config::new(&args).unwrap_err().to_string().contains("--server-id-base"));
    }

    #[test]
    fn bad_values_name_their_flag() {
        for (flag, value) in [
            ("--durability", "Eventual"),
            ("--data-dir", "relative"),
            ("--mysql-port", "0"),
            ("--shutdown-seconds", "0"),
            ("--mysql-bind-address", "here"),
            ("--pod-name", "Upper-0"),
        ] {
            let pod = if flag == "--pod-name" { vec![] } else { vec!["--pod-name", "orders-0"] };
            let error = parse(&[&pod[..], &[flag, value]].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(flag) && error.to_string().contains(value), "{error}");
        }
    }
}
