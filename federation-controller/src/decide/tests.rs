use fleet_proto::federation::v1::{Condition as Said, Field};
use serde_json::json;

use super::*;

const UID: &str = "f-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(more: &Value) -> MySQLClusterFederated {
    let mut spec = json!({
        "template": {"version": "9.7", "storage": {"size": "1Gi"}},
        "placement": [{"member": "east"}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLClusterFederated", "spec": spec,
        "metadata": {"name": "orders", "namespace": "tenant-a", "uid": UID, "generation": 1},
    });
    serde_json::from_value(object).unwrap()
}

fn cluster(available: &str) -> ClusterState {
    ClusterState {
        name: "orders".to_owned(),
        uid: "c-1".to_owned(),
        federated_uid: UID.to_owned(),
        spec_json: "{}".to_owned(),
        primary: "orders-0".to_owned(),
        gtid_executed: "a:1-5".to_owned(),
        conditions: vec![Said {
            r#type: "Available".to_owned(),
            status: available.to_owned(),
            ..Said::default()
        }],
        ..ClusterState::default()
    }
}

fn heard(second: i64, cluster: Option<ClusterState>, answer: Option<Answer>) -> Contact {
    Contact::Heard(Box::new(Heard { at: at(second), reported: at(second), cluster, answer }))
}

fn silent(last: Option<i64>) -> Contact {
    Contact::Silent { last: last.map(at) }
}

fn allowed(contact: Contact) -> BTreeMap<String, MemberFacts> {
    BTreeMap::from([("east".to_owned(), MemberFacts { allowed: Ok(()), contact })])
}

fn answered(wanted: &DesiredCluster, result: Answered) -> Answer {
    let outcome = Outcome {
        name: "orders".to_owned(),
        federated_uid: UID.to_owned(),
        result: result.into(),
        ..Outcome::default()
    };
    Answer { wanted: Some(wanted.clone()), outcome: Some(outcome) }
}

fn wanted(decision: &Decision) -> DesiredCluster {
    decision.wanted["east"].clone().unwrap()
}

fn condition_of(decision: &Decision, type_: &str) -> (String, String) {
    let condition = decision.status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (condition.status.clone(), condition.message.clone())
}

/// Takes a decision's status, as the next reconcile finds it.
fn then(object: &mut MySQLClusterFederated, decision: Decision) {
    object.status = Some(decision.status);
}

/// An object whose member has the wanted spec and is available, since second 10.
fn aligned() -> (MySQLClusterFederated, DesiredCluster) {
    let mut object = object(&json!({}));
    let first = decide(&object, &allowed(silent(None)), at(0));
    let sent = wanted(&first);
    then(&mut object, first);
    let contact = heard(10, Some(cluster("True")), Some(answered(&sent, Answered::Aligned)));
    let decision = decide(&object, &allowed(contact), at(10));
    let sent = wanted(&decision);
    then(&mut object, decision);
    (object, sent)
}

#[test]
fn an_aligned_and_available_member_makes_the_object_ready() {
    let (object, sent) = aligned();
    let status = object.status.unwrap();
    assert_eq!((status.phase, status.members_ready.as_deref()), (Some(FederatedPhase::Ready), Some("1/1")));
    let agreed = status.members[0].agreed_spec.clone().unwrap();
    assert_eq!(agreed.to_string(), sent.spec_json);
    assert_eq!(sent.agreed_json, sent.spec_json);
}

#[test]
fn a_silent_member_keeps_its_state_as_stale_and_ready_is_unknown() {
    let (mut object, sent) = aligned();
    let before = object.status.clone().unwrap().members[0].clone();
    let decision = decide(&object, &allowed(silent(Some(17))), at(30));
    let member = decision.status.members[0].clone();
    let kept = member.last_observed_state.clone().unwrap();
    assert_eq!((kept.stale, kept.last_contact.0), (true, at(17)));
    let as_before = LastObservedState { stale: false, last_contact: time(at(10)), ..kept };
    assert_eq!(Some(as_before), before.last_observed_state, "nothing else has changed");
    assert_eq!(member.agreed_spec, before.agreed_spec);
    assert_eq!(condition_of(&decision, "Ready").0, "Unknown");
    assert_eq!(condition_of(&decision, "Distributed").0, "Unknown");
    let (stale, message) = condition_of(&decision, "Stale");
    assert!(stale == "True" && message.contains("east was last heard at 1970-01-01T00:00:17Z"), "{message}");
    assert_eq!(decision.status.phase, Some(FederatedPhase::Unknown));
    assert_eq!(wanted(&decision), sent, "what is wanted is kept ready");

    let status = decision.status.clone();
    then(&mut object, decision);
    let restarted = decide(&object, &allowed(silent(None)), at(90));
    assert_eq!(restarted.status, status, "a hub that starts anew has forgotten nothing, and writes nothing");
}

#[test]
fn heartbeats_and_the_same_report_again_change_no_status() {
    let (object, sent) = aligned();
    let contact = heard(60, Some(cluster("True")), Some(answered(&sent, Answered::Aligned)));
    assert_eq!(decide(&object, &allowed(contact), at(60)).status, object.status.unwrap());
}

#[test]
fn positions_alone_are_written_once_in_a_while() {
    let (object, sent) = aligned();
    let moved = ClusterState { gtid_executed: "a:1-9".to_owned(), ..cluster("True") };
    let decide_at = |second| {
        let contact = heard(second, Some(moved.clone()), Some(answered(&sent, Answered::Aligned)));
        decide(&object, &allowed(contact), at(second)).status
    };
    assert_eq!(Some(decide_at(19)), object.status);
    let later = decide_at(20).members[0].last_observed_state.clone().unwrap();
    assert_eq!((later.gtid_executed.as_str(), later.observed_at.0), ("a:1-9", at(20)));
}

#[test]
fn a_longer_set_of_transactions_than_is_kept_is_left_out_rather_than_cut() {
    let object = object(&json!({}));
    let long = ClusterState { gtid_executed: "x".repeat(MAX_GTIDS + 1), ..cluster("True") };
    let decision = decide(&object, &allowed(heard(1, Some(long), None)), at(1));
    assert_eq!(decision.status.members[0].last_observed_state.as_ref().unwrap().gtid_executed, "");
}

#[test]
fn an_answer_to_an_older_spec_is_none_to_the_new_one() {
    let (mut object, sent) = aligned();
    let agreed = object.status.clone().unwrap().members[0].agreed_spec.clone();
    object.spec.template.replicas = 5;
    let contact = heard(20, Some(cluster("True")), Some(answered(&sent, Answered::Aligned)));
    let decision = decide(&object, &allowed(contact), at(20));
    assert_eq!(decision.status.members[0].outcome, PlacedOutcome::Waiting);
    assert_eq!(
        decision.status.members[0].agreed_spec, agreed,
        "agreed is what was aligned, not what is wanted"
    );
    assert!(wanted(&decision).spec_json.contains("\"replicas\":5"));
    assert_eq!(condition_of(&decision, "Distributed").0, "False");
}

#[test]
fn all_but_kept_fields_are_agreed() {
    let (mut object, _) = aligned();
    let agreed = object.status.clone().unwrap().members[0].agreed_spec.clone();
    object.spec.template.replicas = 5;
    object.spec.template.mysqld.insert("max_connections".to_owned(), "9".to_owned());
    let sent = wanted(&decide(&object, &allowed(silent(None)), at(20)));
    let mut answer = answered(&sent, Answered::Kept);
    let field = |path: &str, held_by: &str| Field {
        path: path.to_owned(),
        held_by: held_by.to_owned(),
        ..Field::default()
    };
    answer.outcome.as_mut().unwrap().fields = vec![field(".replicas", "owner"), field(".paused", "")];
    let decision = decide(&object, &allowed(heard(20, Some(cluster("True")), Some(answer))), at(20));
    let member = &decision.status.members[0];
    assert_eq!(
        (member.outcome, member.kept_fields.as_slice()),
        (PlacedOutcome::Kept, &[".replicas".to_owned()][..])
    );
    let mut but_replicas: Value = serde_json::from_str(&sent.spec_json).unwrap();
    but_replicas["replicas"] = agreed.unwrap()["replicas"].clone();
    assert_eq!(leaves(member.agreed_spec.as_ref().unwrap()), leaves(&but_replicas));
    assert_eq!(but_replicas["mysqld"]["max_connections"], "9");

    let sent = wanted(&decision);
    let mut answer = answered(&sent, Answered::Kept);
    answer.outcome.as_mut().unwrap().fields = vec![field(".replicas", "owner")];
    then(&mut object, decision);
    let contact = heard(30, Some(cluster("True")), Some(answer));
    let again = decide(&object, &allowed(contact), at(30));
    assert_eq!(wanted(&again), sent, "nothing is sent that was sent before");
}

#[test]
fn a_conflict_names_the_uid_that_could_be_adopted() {
    let object = object(&json!({}));
    let sent = wanted(&decide(&object, &allowed(silent(None)), at(0)));
    let foreign = ClusterState { federated_uid: String::new(), uid: "other".to_owned(), ..cluster("True") };
    let contact = heard(5, Some(foreign), Some(answered(&sent, Answered::Conflict)));
    let decision = decide(&object, &allowed(contact), at(5));
    let member = &decision.status.members[0];
    assert_eq!(member.outcome, PlacedOutcome::Conflict);
    assert!(member.message.contains("UID other"), "{}", member.message);
    assert_eq!(member.last_observed_state, None, "somebody else's cluster is not this one's");
}

#[test]
fn a_uid_is_adopted_by_policy_alone() {
    let uids = json!({"east": "other"});
    let adopt = object(&json!({"conflict": {"policy": "Adopt", "uids": uids}}));
    assert_eq!(wanted(&decide(&adopt, &allowed(silent(None)), at(0))).adopt_uid, "other");
    let abort = object(&json!({"conflict": {"uids": uids}}));
    assert_eq!(wanted(&decide(&abort, &allowed(silent(None)), at(0))).adopt_uid, "");
}

#[test]
fn nothing_is_sent_to_a_member_that_is_not_allowed_or_whose_overrides_cannot_be_used() {
    let bad = json!([{"member": "east", "overrides": {"mysqld": {"gtid_mode": "OFF"}}}]);
    let decision = decide(&object(&json!({"placement": bad})), &allowed(heard(1, None, None)), at(1));
    assert_eq!(decision.wanted["east"], None);
    assert_eq!(decision.status.members[0].outcome, PlacedOutcome::Invalid);
    assert!(condition_of(&decision, "Distributed").1.contains("gtid_mode"));

    let facts = MemberFacts { allowed: Err("no such member".to_owned()), contact: silent(None) };
    let decision = decide(&object(&json!({})), &BTreeMap::from([("east".to_owned(), facts)]), at(1));
    assert_eq!(decision.wanted["east"], None);
    assert_eq!(decision.status.members[0].outcome, PlacedOutcome::NotAllowed);
}

fn deleted(policy: &str) -> MySQLClusterFederated {
    let (mut object, _) = aligned();
    object.spec.deletion_policy = serde_json::from_value(json!(policy)).unwrap();
    object.metadata.deletion_timestamp = Some(time(at(50)));
    object
}

#[test]
fn with_retain_nothing_is_waited_for() {
    let decision = decide(&deleted("Retain"), &allowed(silent(None)), at(60));
    assert!(decision.nothing_left());
    assert_eq!(decision.wanted["east"], None);
}

#[test]
fn with_delete_a_silent_member_is_named_and_waited_for() {
    let decision = decide(&deleted("Delete"), &allowed(silent(None)), at(60));
    assert!(!decision.nothing_left());
    let (status, message) = condition_of(&decision, "Distributed");
    assert!(status == "False" && message.contains("east: Removing: it is silent"), "{message}");
    assert_eq!(decision.status.phase, Some(FederatedPhase::Deleting));
    assert_eq!(wanted(&decision).delete_uid, "c-1", "it is told as soon as it has reported");
}

#[test]
fn with_delete_a_member_is_done_when_it_has_answered_and_its_cluster_is_gone() {
    let object = deleted("Delete");
    let gone = |answer| decide(&object, &allowed(heard(60, None, answer)), at(60)).nothing_left();
    let told = wanted(&decide(&object, &allowed(silent(None)), at(60)));
    assert!(gone(Some(answered(&told, Answered::Deleted))));
    assert!(gone(Some(Answer { wanted: None, outcome: None })), "it was not told to make it");
    assert!(!gone(None), "it may still work off an order to make it");
    let make = DesiredCluster { delete_uid: String::new(), ..told.clone() };
    assert!(!gone(Some(answered(&make, Answered::Failed))), "it may still make it");
    let there = heard(60, Some(cluster("True")), Some(answered(&told, Answered::Failed)));
    assert!(!decide(&object, &allowed(there), at(60)).nothing_left());
}

#[test]
fn a_member_that_is_placed_no_more_is_let_go_like_the_object() {
    let (mut object, _) = aligned();
    object.spec.placement[0].member = "west".to_owned();
    let facts = allowed(heard(20, Some(cluster("True")), None));
    let names = |decision: &Decision| {
        decision.status.members.iter().map(|member| member.member.clone()).collect::<Vec<_>>()
    };
    let retained = decide(&object, &facts, at(20));
    assert_eq!((names(&retained), &retained.wanted["east"]), (vec!["west".to_owned()], &None));
    object.spec.deletion_policy = FederatedDeletion::Delete;
    let deleted = decide(&object, &facts, at(20));
    assert_eq!(names(&deleted), ["east", "west"]);
    assert_eq!(wanted(&deleted).delete_uid, "c-1");
}

#[test]
fn what_is_known_to_be_down_counts_before_what_is_not_known() {
    let object = object(&json!({"placement": [{"member": "east"}, {"member": "west"}]}));
    let mut facts = allowed(heard(1, Some(cluster("False")), None));
    facts.insert("west".to_owned(), MemberFacts { allowed: Ok(()), contact: silent(None) });
    let (status, message) = condition_of(&decide(&object, &facts, at(1)), "Ready");
    assert!(status == "False" && message.contains("east") && !message.contains("west"), "{message}");
}
