//! The state as text for people: the members, and a tree of the federated clusters with their members.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::view::{ConditionView, DriftView, FederatedView, FederationStatusView, MemberView, PlacedView};
use crate::status::table::{age, one_line, or_none, section};

/// A line and what hangs from it.
struct Node {
    line: String,
    children: Vec<Node>,
}

impl Node {
    fn leaf(line: String) -> Self {
        Self { line, children: Vec::new() }
    }

    fn write(&self, text: &mut String, indent: &str) {
        for (index, child) in self.children.iter().enumerate() {
            let last = index + 1 == self.children.len();
            let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            text.push_str(indent);
            text.push_str(branch);
            text.push_str(&child.line);
            text.push('\n');
            child.write(text, &format!("{indent}{below}"));
        }
    }
}

/// The hub in namespace `hub`. Ages count from when the hub has put the state together, by its own clock.
pub(super) fn text(status: &FederationStatusView, hub: &str) -> String {
    let role = if status.leader {
        "the leader"
    } else {
        "not the leader: it hears no member, and tells what stands in the objects"
    };
    let mut text = String::new();
    if status.members.is_empty() {
        text.push_str("No MemberCluster at this hub.\n");
    } else {
        let columns = ["MEMBER", "REGION", "ZONE", "REACHABLE", "CONNECTED", "LAST CONTACT", "VERSION"];
        section(&mut text, &columns, status.members.iter().map(|member| row(member, status.observed_at)));
        // The first section begins the output.
        text.remove(0);
    }
    text.push('\n');
    let head = format!("hub {hub} (version {}, asked {}, {role})", status.version, status.pod);
    text.push_str(&one_line(&head));
    text.push('\n');
    let clusters: Vec<Node> =
        status.clusters.iter().map(|cluster| of_cluster(cluster, status.observed_at)).collect();
    if clusters.is_empty() {
        text.push_str("No MySQLClusterFederated at this hub.\n");
    }
    Node { line: String::new(), children: clusters }.write(&mut text, "");
    text
}

fn row(member: &MemberView, now: Option<Timestamp>) -> Vec<String> {
    let reachable = member.conditions.iter().find(|condition| condition.type_ == "Reachable");
    vec![
        member.name.clone(),
        or_none(one_line(&member.region)),
        or_none(one_line(&member.zone)),
        reachable.map_or_else(|| "Unknown".to_owned(), |condition| condition.status.clone()),
        format!("{}/{}", member.connected.len(), member.namespaces.len()),
        ago(member.last_contact, now).unwrap_or_else(|| "never".to_owned()),
        or_none(one_line(&member.version)),
    ]
}

fn of_cluster(cluster: &FederatedView, now: Option<Timestamp>) -> Node {
    let FederatedView { namespace, name, phase, members_ready, generation, observed_generation, .. } =
        cluster;
    let mut words = Vec::new();
    if !phase.is_empty() {
        words.push(phase.clone());
    }
    if !members_ready.is_empty() {
        words.push(format!("{members_ready} members ready"));
    }
    words.push(seen(*generation, *observed_generation));
    let mut children: Vec<Node> = cluster.conditions.iter().filter(|one| !fine(one)).map(problem).collect();
    children.extend(cluster.members.iter().map(|placed| of_member(placed, now)));
    Node { line: format!("{namespace}/{name}: {}", words.join(", ")), children }
}

fn of_member(placed: &PlacedView, now: Option<Timestamp>) -> Node {
    let mut line = format!("{}: {}", placed.member, placed.outcome);
    if let Some(since) = placed.since.and_then(|since| now.map(|now| age(since, now))) {
        let _infallible = write!(line, " for {since}");
    }
    let mut children = Vec::new();
    if !placed.message.is_empty() {
        children.push(Node::leaf(one_line(&placed.message)));
    }
    if placed.drift.is_empty() && placed.compared {
        children.push(Node::leaf("spec: as wanted".to_owned()));
    } else if !placed.drift.is_empty() {
        let count = placed.drift.len();
        let plural = if count == 1 { "field" } else { "fields" };
        let than = if placed.compared { "not as wanted" } else { "wanted otherwise than last agreed on" };
        let fields = placed.drift.iter().map(|field| Node::leaf(drift(field, placed.compared))).collect();
        let line = format!("spec: {count} {plural} {than}");
        children.push(Node { line, children: fields });
    }
    let heard = ago(placed.last_contact, now);
    let Some(state) = &placed.last_observed else {
        line.push_str(", its cluster was never seen");
        return Node { line, children };
    };
    let mut words = vec![format!("cluster {}", or_none(one_line(&state.phase)))];
    if state.deleting {
        words.push("is being deleted".to_owned());
    }
    words.push(format!("primary {}", or_none(one_line(&state.primary))));
    words.push(format!("term {}", state.term));
    words.push(format!("{}/{} instances ready", state.ready, state.replicas));
    words.push(seen(state.generation, state.observed_generation));
    let problems = state.conditions.iter().filter(|one| !fine(one)).map(problem).collect();
    children.push(Node { line: words.join(", "), children: problems });
    let heard = match (placed.stale, heard) {
        (true, Some(heard)) => format!(", STALE: last heard {heard}"),
        (true, None) => ", STALE".to_owned(),
        (false, Some(heard)) => format!(", heard {heard}"),
        (false, None) => String::new(),
    };
    line.push_str(&heard);
    Node { line, children }
}

/// Whether the newest generation is the one that the rest is about.
fn seen(generation: i64, observed: i64) -> String {
    if generation == observed {
        format!("generation {generation}")
    } else {
        format!("generation {generation} (still acted on: {observed})")
    }
}

fn drift(field: &DriftView, compared: bool) -> String {
    let value = |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string);
    let other = if compared {
        format!("the member has {}", value(&field.member))
    } else {
        format!("agreed was {}", value(&field.agreed))
    };
    let holder =
        if field.held_by.is_empty() { String::new() } else { format!(", held by {} there", field.held_by) };
    let both = if field.both_changed { ", changed by both since they agreed" } else { "" };
    one_line(&format!("{}: the hub wants {}, {other}{holder}{both}", field.path, value(&field.hub)))
}

/// Which value is fine depends on the type.
fn fine(condition: &ConditionView) -> bool {
    match condition.type_.as_str() {
        "Ready" | "Distributed" | "Available" | "Healthy" | "ReconcileSucceeded" => {
            condition.status == "True"
        }
        _ => condition.status == "False",
    }
}

fn problem(condition: &ConditionView) -> Node {
    let ConditionView { type_, status, reason, message } = condition;
    let colon = if message.is_empty() { "" } else { ": " };
    Node::leaf(one_line(&format!("{type_}={status} {reason}{colon}{message}")))
}

fn ago(then: Option<Timestamp>, now: Option<Timestamp>) -> Option<String> {
    Some(format!("{} ago", age(then?, now?)))
}
