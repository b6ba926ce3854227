//! Metrics of the instance, read from its facts at each scrape.

use std::fmt;

use fleet_proto::agent::v1::ThreadState;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use tokio::sync::watch;

use crate::facts::Published;

/// Encodes the latest facts.
#[derive(Debug)]
pub struct InstanceMetrics(pub watch::Receiver<Published>);

impl Collector for InstanceMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let facts = self.0.borrow().facts.clone();
        let mut write = |name: &str, help: &str, unit: Option<&Unit>, metric: &dyn Metric| {
            metric.encode_into(&mut encoder, name, help, unit)
        };
        let server = facts.server.as_ref();
        write(
            "mysqlfleet_agent_mysqld_up",
            "Whether mysqld answers.",
            None,
            &ConstGauge::new(i64::from(server.is_some())),
        )?;
        write(
            "mysqlfleet_agent_mysqld_exits",
            "Ends of mysqld without an order.",
            None,
            &ConstCounter::new(facts.mysqld_exits),
        )?;
        write("mysqlfleet_agent_term", "Highest term followed.", None, &ConstGauge::new(signed(facts.term)))?;
        let size = &ConstGauge::new(signed(facts.disk_total_bytes));
        write("mysqlfleet_agent_volume_size", "Size of the data volume.", Some(&Unit::Bytes), size)?;
        let free = &ConstGauge::new(signed(facts.disk_free_bytes));
        write("mysqlfleet_agent_volume_free", "Free space of the data volume.", Some(&Unit::Bytes), free)?;
        let Some(server) = server else { return Ok(()) };
        write(
            "mysqlfleet_agent_mysqld_writable",
            "Whether mysqld takes clients' writes.",
            None,
            &ConstGauge::new(i64::from(!server.read_only)),
        )?;
        write(
            "mysqlfleet_agent_ackers",
            "Connected semi-synchronous replicas.",
            None,
            &ConstGauge::new(i64::from(server.semi_sync_clients)),
        )?;
        let Some(replication) = &server.replication else {
            return Ok(());
        };
        let runs = [replication.receiver(), replication.applier()]
            .iter()
            .all(|state| *state == ThreadState::Running);
        write(
            "mysqlfleet_agent_replication_up",
            "Whether receiver and applier run.",
            None,
            &ConstGauge::new(i64::from(runs)),
        )?;
        let Some(lag) = replication.lag else { return Ok(()) };
        let seconds = f64::from(i32::try_from(lag.seconds).unwrap_or(i32::MAX)) + f64::from(lag.nanos) / 1e9;
        let help = "How far the applier is behind the source.";
        write("mysqlfleet_agent_replication_lag", help, Some(&Unit::Seconds), &ConstGauge::new(seconds))
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A metric behind a reference, since [`EncodeMetric`] takes its encoder by value.
trait Metric {
    fn encode_into(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
    ) -> Result<(), fmt::Error>;
}

impl<M: EncodeMetric> Metric for M {
    fn encode_into(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
    ) -> Result<(), fmt::Error> {
        let metric = encoder.encode_descriptor(name, help, unit, self.metric_type())?;
        self.encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use fleet_proto::agent::v1::{InstanceFacts, ReplicationFacts, ServerFacts};
    use fleet_runtime::metrics::Metrics;

    use super::*;

    fn encoded(facts: InstanceFacts) -> String {
        let metrics = Metrics::new();
        let published = Published { facts, at: tokio::time::Instant::now() };
        metrics.register(|registry| {
            registry.register_collector(Box::new(InstanceMetrics(watch::channel(published).1)));
        });
        metrics.encode().unwrap()
    }

    #[test]
    fn instance_without_mysqld_is_down() {
        let text = encoded(InstanceFacts { mysqld_exits: 3, ..InstanceFacts::default() });
        assert!(text.contains("mysqlfleet_agent_mysqld_up 0"), "{text}");
        assert!(text.contains("mysqlfleet_agent_mysqld_exits_total 3"), "{text}");
        assert!(!text.contains("mysqlfleet_agent_mysqld_writable"), "{text}");
    }

    #[test]
    fn replica_has_its_lag_in_seconds() {
        let replication = ReplicationFacts {
            receiver: ThreadState::Running.into(),
            applier: ThreadState::Running.into(),
            lag: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
            ..ReplicationFacts::default()
        };
        let server =
            ServerFacts { read_only: true, replication: Some(replication), ..ServerFacts::default() };
        let text = encoded(InstanceFacts { server: Some(server), ..InstanceFacts::default() });
        assert!(text.contains("mysqlfleet_agent_replication_lag_seconds 1.5"), "{text}");
        assert!(text.contains("mysqlfleet_agent_replication_up 1"), "{text}");
        assert!(text.contains("mysqlfleet_agent_mysqld_writable 0"), "{text}");
    }
}
