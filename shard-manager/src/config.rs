//! Raw arguments, and the configuration that they are checked into once.

use clap::{Parser, ValueEnum};
use fleet_api::names;
use fleet_runtime::{
    process::{ProcessArgs, image, object_name},
    server::ListenAddr,
};

use crate::federation::{Endpoint, Settings};

/// Manages the MySQLCluster objects of exactly one namespace.
#[derive(Debug, Parser)]
#[command(name = "shard-manager", version)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs, reason = "the flattened arguments would take it as their help")]
    pub process: ProcessArgs,

    /// Name of the shard's Lease [default: shard-NAMESPACE]
    #[arg(long, env = "FLEET_LEASE_NAME", value_name = "NAME", value_parser = object_name)]
    pub lease_name: Option<String>,

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

    /// Hub that this shard gets clusters from, as https://HOST:PORT; without it the shard belongs to no federation
    #[arg(long, env = "FLEET_FEDERATION_ENDPOINT", value_name = "URL", requires = "federation_secret")]
    pub federation_endpoint: Option<Endpoint>,

    /// Secret of the namespace with the certificate for the hub (tls.crt, tls.key) and the hub's authority (ca.crt)
    #[arg(long, env = "FLEET_FEDERATION_SECRET", value_name = "NAME", requires = "federation_endpoint", value_parser = object_name)]
    pub federation_secret: Option<String>,
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
    /// What every controller is told: the tenant namespace, this pod, addresses.
    pub process: ProcessArgs,
    /// Name of the Lease.
    pub lease_name: String,
    /// Address of the gRPC services.
    pub grpc_addr: ListenAddr,
    /// Whether gRPC reflection is served.
    pub grpc_reflection: bool,
    /// Images of MySQL pods.
    pub images: Images,
    /// The hub, where there is one.
    pub federation: Option<Settings>,
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
            lease_name: args.lease_name.unwrap_or_else(|| names::shard_lease(&args.process.namespace)),
            process: args.process,
            grpc_addr: args.grpc_addr,
            grpc_reflection: args.grpc_reflection,
            images: Images {
                agent: args.agent_image,
                mysql: args.mysql_image,
                pull_policy: args.image_pull_policy,
            },
            federation: args
                .federation_endpoint
                .zip(args.federation_secret)
                .map(|(endpoint, secret)| Settings { endpoint, secret }),
        }
    }
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
            (&["--federation-endpoint", "hub:9443"], "--federation-endpoint", "hub:9443"),
            (&["--federation-secret", "A b"], "--federation-secret", "A b"),
        ] {
            let error = parse(arguments).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(flag) && text.contains(value), "{text}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn a_hub_needs_its_address_and_a_certificate() {
        assert_eq!(parse(&[]).unwrap().federation, None);
        let (endpoint, secret) =
            (["--federation-endpoint", "https://hub:9443"], ["--federation-secret", "hub"]);
        for (given, missing) in [(endpoint, "--federation-secret"), (secret, "--federation-endpoint")] {
            let error = parse(&given).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        let both = parse(&[endpoint, secret].concat()).unwrap().federation.unwrap();
        assert_eq!((both.endpoint.to_string().as_str(), both.secret.as_str()), ("https://hub:9443", "hub"));
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
