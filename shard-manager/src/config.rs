//! Raw arguments, and the configuration that they are checked into once.

use std::num::NonZeroUsize;

use clap::{Parser, ValueEnum};
use fleet_api::names;
use fleet_runtime::{server::ListenAddr, telemetry::TelemetryArgs};

/// Manages the MySQLCluster objects of exactly one namespace.
#[derive(Debug, Parser)]
#[command(name = "shard-manager", version)]
pub struct Args {
    /// Namespace that this shard manages: exactly one
    #[arg(long, env = "FLEET_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    pub namespace: String,

    /// Name of the pod this process runs in: its identity in the Lease
    #[arg(long, env = "FLEET_POD_NAME", value_name = "POD", value_parser = label)]
    pub pod_name: String,

    /// Name of the shard's Lease [default: shard-NAMESPACE]
    #[arg(long, env = "FLEET_LEASE_NAME", value_name = "NAME", value_parser = label)]
    pub lease_name: Option<String>,

    /// Address of /metrics
    #[arg(long, env = "FLEET_METRICS_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_METRICS))]
    pub metrics_addr: ListenAddr,

    /// Address of /livez and /readyz
    #[arg(long, env = "FLEET_HEALTH_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_HEALTH))]
    pub health_addr: ListenAddr,

    /// Address of the gRPC services
    #[arg(long, env = "FLEET_GRPC_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_GRPC))]
    pub grpc_addr: ListenAddr,

    /// Serve gRPC reflection, so that tools such as grpcurl need no .proto files
    #[arg(long, env = "FLEET_GRPC_REFLECTION", default_value_t = true, action = clap::ArgAction::Set)]
    pub grpc_reflection: bool,

    /// Image that the agent is copied from into each MySQL pod
    #[arg(long, env = "FLEET_AGENT_IMAGE", value_name = "IMAGE", value_parser = image)]
    pub agent_image: String,

    /// Image of clusters that name none; {version} is replaced by their version
    #[arg(long, env = "FLEET_MYSQL_IMAGE", value_name = "IMAGE", default_value = "docker.io/library/mysql:{version}", value_parser = image)]
    pub mysql_image: String,

    /// When the images of MySQL pods are pulled
    #[arg(long, env = "FLEET_IMAGE_PULL_POLICY", value_enum, default_value_t = PullPolicy::IfNotPresent)]
    pub image_pull_policy: PullPolicy,

    /// How many clusters are reconciled at the same time
    #[arg(long, env = "FLEET_CONCURRENCY", value_name = "N", default_value = "4")]
    pub concurrency: NonZeroUsize,

    #[command(flatten)]
    #[allow(missing_docs, reason = "the flattened arguments would take it as their help")]
    pub telemetry: TelemetryArgs,
}

/// When an image is pulled, as in the pod's spec.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// At each start of a container.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never: the node has to have it.
    Never,
}

impl PullPolicy {
    /// The policy as it stands in a pod's spec.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The tenant namespace.
    pub namespace: String,
    /// This process's pod.
    pub pod_name: String,
    /// Name of the Lease.
    pub lease_name: String,
    /// Address of /metrics.
    pub metrics_addr: ListenAddr,
    /// Address of the probes.
    pub health_addr: ListenAddr,
    /// Address of the gRPC services.
    pub grpc_addr: ListenAddr,
    /// Whether gRPC reflection is served.
    pub grpc_reflection: bool,
    /// Images of MySQL pods.
    pub images: Images,
    /// How many clusters are reconciled at the same time.
    pub concurrency: NonZeroUsize,
}

/// The images of MySQL pods.
#[derive(Debug, Clone)]
pub struct Images {
    /// Image that the agent is copied from.
    pub agent: String,
    /// Image of clusters that name none, with `{version}` for their version.
    pub mysql: String,
    /// When images are pulled.
    pub pull_policy: PullPolicy,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            lease_name: args.lease_name.unwrap_or_else(|| names::shard_lease(&args.namespace)),
            namespace: args.namespace,
            pod_name: args.pod_name,
            metrics_addr: args.metrics_addr,
            health_addr: args.health_addr,
            grpc_addr: args.grpc_addr,
            grpc_reflection: args.grpc_reflection,
            images: Images {
                agent: args.agent_image,
                mysql: args.mysql_image,
                pull_policy: args.image_pull_policy,
            },
            concurrency: args.concurrency,
        }
    }
}

/// A DNS label, as names of namespaces are.
fn namespace(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if bytes.len() <= 63 && inner && edge(bytes.first()) && edge(bytes.last()) {
        Ok(text.to_owned())
    } else {
        Err("a namespace is at most 63 characters of a-z, 0-9 and '-', and begins and ends with a letter or digit; \
             a shard manages exactly one"
            .to_owned())
    }
}

/// A name of a Kubernetes object.
fn label(text: &str) -> Result<String, String> {
    let allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-' || *b == b'.';
    if (1..=253).contains(&text.len()) && text.as_bytes().iter().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("a name is 1 to 253 characters of a-z, 0-9, '-' and '.'".to_owned())
    }
}

fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_whitespace) {
        return Err("an image is a reference such as registry.example/mysql:9.7".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const REQUIRED: [&str; 7] =
        ["shard-manager", "--namespace", "tenant-a", "--pod-name", "shard-0", "--agent-image", "fleet:1"];

    fn parse(more: &[&str]) -> Result<Config, clap::Error> {
        Args::try_parse_from(REQUIRED.iter().chain(more)).map(Config::from)
    }

    #[test]
    fn the_lease_is_named_after_the_namespace() {
        assert_eq!(parse(&[]).unwrap().lease_name, "shard-tenant-a");
        assert_eq!(parse(&["--lease-name", "mine"]).unwrap().lease_name, "mine");
    }

    #[test]
    fn a_bad_flag_is_named_with_its_value() {
        for (arguments, flag, value) in [
            (&["--grpc-addr", "9443"][..], "--grpc-addr", "9443"),
            (&["--lease-name", "a b"], "--lease-name", "a b"),
            (&["--concurrency", "0"], "--concurrency", "0"),
            (&["--image-pull-policy", "Sometimes"], "--image-pull-policy", "Sometimes"),
        ] {
            let error = parse(arguments).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(flag) && text.contains(value), "{text}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn exactly_one_namespace_is_taken() {
        let missing =
            Args::try_parse_from(["shard-manager", "--pod-name", "p", "--agent-image", "i"]).unwrap_err();
        assert!(missing.to_string().contains("--namespace"));
        let twice = parse(&["--namespace", "tenant-b"]).unwrap_err();
        assert!(twice.to_string().contains("--namespace"), "{twice}");
        for bad in ["Tenant", "a,b", "-a", "a-", ""] {
            let error = Args::try_parse_from(["shard-manager", "--namespace", bad]).unwrap_err();
            assert!(error.to_string().contains("--namespace"), "{error}");
        }
    }
}
