//! Raw arguments, and the configuration that they are checked into once.

use std::time::Duration;

use clap::Parser;
use fleet_api::names;
use fleet_runtime::{
    process::{ProcessArgs, object_name},
    server::ListenAddr,
};

/// A stream is over after this many heartbeats that did not come.
const MISSED: u32 = 3;

/// Keeps the MySQLClusterFederated objects of a hub in its member clusters.
#[derive(Debug, Parser)]
#[command(
    name = "federation-controller",
    version,
    mut_arg("namespace", |namespace| {
        namespace.help("Namespace that this process runs in: its Lease and its certificates are there. The objects are \
            those of all namespaces")
    })
)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs, reason = "the flattened arguments would take it as their help")]
    pub process: ProcessArgs,

    /// Address that the shards of members dial
    #[arg(long, env = "FLEET_GRPC_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_GRPC))]
    pub grpc_addr: ListenAddr,

    /// DNS name under which members reach this hub, which is in its certificate; once for each name
    #[arg(long = "dns-name", env = "FLEET_DNS_NAMES", value_name = "HOST", value_delimiter = ',', value_parser = object_name)]
    pub dns_names: Vec<String>,

    /// Seconds between two heartbeats of a member; one that misses three of them is silent
    #[arg(long, env = "FLEET_HEARTBEAT_INTERVAL", value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub heartbeat_interval: u16,
}

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every controller is told.
    pub process: ProcessArgs,
    /// Address of the gRPC services.
    pub grpc_addr: ListenAddr,
    /// Names in the hub's certificate, beside those of its Service.
    pub dns_names: Vec<String>,
    /// What members have to keep to.
    pub pace: Pace,
}

/// How often a member has to be heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// After which silence a stream is over.
    pub silence: Duration,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let heartbeat = Duration::from_secs(args.heartbeat_interval.into());
        Self {
            process: args.process,
            grpc_addr: args.grpc_addr,
            dns_names: args.dns_names,
            pace: Pace { heartbeat, silence: MISSED * heartbeat },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(more: &[&str]) -> Result<Config, clap::Error> {
        let required = ["federation-controller", "--namespace", "fleet-hub", "--pod-name", "hub-0"];
        Args::try_parse_from(required.iter().chain(more)).map(Config::from)
    }

    #[test]
    fn a_member_may_miss_two_heartbeats() {
        let pace = parse(&["--heartbeat-interval", "2"]).unwrap().pace;
        assert_eq!(pace, Pace { heartbeat: Duration::from_secs(2), silence: Duration::from_secs(6) });
    }

    #[test]
    fn a_bad_flag_is_named_with_its_value() {
        for (flag, value) in [
            ("--grpc-addr", "9443"),
            ("--heartbeat-interval", "0"),
            ("--heartbeat-interval", "201"),
            ("--dns-name", "a b"),
        ] {
            let text = parse(&[flag, value]).unwrap_err().to_string();
            assert!(text.contains(flag) && text.contains(value), "{text}");
        }
    }
}
