//! The flags that every controller has.

use std::{num::NonZeroUsize, time::Duration};

use fleet_api::names;

use crate::{lease::LeaseConfig, server::ListenAddr, telemetry::TelemetryArgs};

/// The flags that every controller has, each also by environment. They are checked as they are read.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Namespace that this process works for: exactly one
    #[arg(long, env = "FLEET_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    pub namespace: String,

    /// Name of the pod this process runs in: its identity in the Lease
    #[arg(long, env = "FLEET_POD_NAME", value_name = "POD", value_parser = object_name)]
    pub pod_name: String,

    /// Seconds for which the others wait when the leader is gone without a word; a leader that can't renew its
    /// Lease stops after two thirds of them
    #[arg(long, env = "FLEET_LEASE_DURATION", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(3..=3600))]
    pub lease_duration: u16,

    /// Address of /metrics
    #[arg(long, env = "FLEET_METRICS_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_METRICS))]
    pub metrics_addr: ListenAddr,

    /// Address of /livez and /readyz
    #[arg(long, env = "FLEET_HEALTH_ADDR", value_name = "ADDR", default_value_t = ListenAddr::any(names::PORT_SHARD_HEALTH))]
    pub health_addr: ListenAddr,

    /// How many objects are reconciled at the same time
    #[arg(long, env = "FLEET_CONCURRENCY", value_name = "N", default_value = "4")]
    pub concurrency: NonZeroUsize,

    #[command(flatten)]
    #[allow(missing_docs, reason = "the flattened arguments would take it as their help")]
    pub telemetry: TelemetryArgs,
}

impl ProcessArgs {
    /// The Lease of this name, wanted by this pod.
    pub fn lease(&self, name: &str) -> LeaseConfig {
        let wanted = LeaseConfig::new(&self.namespace, name, &self.pod_name);
        wanted.lasting(Duration::from_secs(self.lease_duration.into()))
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
             exactly one is worked for"
            .to_owned())
    }
}

/// A name of a Kubernetes object, as a flag's value.
pub fn object_name(text: &str) -> Result<String, String> {
    let allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-' || *b == b'.';
    if (1..=253).contains(&text.len()) && text.as_bytes().iter().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("a name is 1 to 253 characters of a-z, 0-9, '-' and '.'".to_owned())
    }
}

/// A reference of a container image, as a flag's value.
pub fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_whitespace) {
        return Err("an image is a reference such as registry.example/mysql:9.7".to_owned());
    }
    Ok(text.to_owned())
}
