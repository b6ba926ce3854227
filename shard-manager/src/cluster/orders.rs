//! Orders of a decision, in the words of the wire.

use fleet_api::names;
use fleet_topology::{Action, Decision};

use crate::agents::{Agents, Order, OrderKind};

/// How many empty transactions are ordered at once; agents take no more.
const ADOPTED_AT_ONCE: usize = 1000;

/// Gives the orders of a decision, which has to be one whose record is the one in force.
pub fn send(agents: &Agents, namespace: &str, cluster: &str, decision: &Decision) {
    let host = |ordinal: u32| names::instance_host(namespace, cluster, &names::pod(cluster, ordinal));
    for order in &decision.orders {
        let kind = match &order.action {
            Action::Follow { source, acknowledge } => {
                OrderKind::Follow { host: host(source.0), port: names::PORT_MYSQL, acknowledge: *acknowledge }
            }
            Action::Open { required_acks } => OrderKind::Open { required_acks: *required_acks },
            Action::Close => OrderKind::Close,
            Action::Fence => OrderKind::Fence,
            Action::Adopt { transactions } => OrderKind::Adopt {
                gtids: transactions.iter().take(ADOPTED_AT_ONCE).map(|gtid| gtid.to_string()).collect(),
            },
            Action::Clone { donor, expendable, archive } => OrderKind::Clone {
                host: host(donor.0),
                port: names::PORT_MYSQL,
                expendable: expendable.to_string(),
                archive: archive.to_string(),
            },
        };
        let order_of_term = Order { term: order.term.0, kind };
        agents.order(cluster, &names::pod(cluster, order.instance.0), order_of_term);
    }
}
