//! Who may do what, asked of a real API server: every cell of the matrix in docs/tenancy.md, and all that the
//! server serves for a shard.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "tenancy/requests.rs"]
mod requests;

use std::{collections::BTreeSet, time::Duration};

use e2e::{
    apiserver::{self, ApiServer},
    kubernetes,
    roles::{self, Role, Target},
    wait,
};
use fleet_api::names;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1 as rbac,
};
use kube::{Api, Client, api::PostParams};
use kubectl_fleet::render::{RenderOptions, render};
use requests::{Request, served};
use serde_json::json;

const OWN: &str = "tenant-a";
const OTHER: &str = "tenant-b";
const LIMIT: Duration = Duration::from_secs(20);

/// Verbs that only give rights to others, besides those of requests.
const GIVING: [&str; 3] = ["bind", "escalate", "impersonate"];

/// A user, as the authentication says.
#[derive(Clone, Debug)]
struct Subject {
    user: String,
    groups: Vec<String>,
}

impl Subject {
    fn person(user: &str) -> Self {
        Self { user: user.to_owned(), groups: vec!["system:authenticated".to_owned()] }
    }

    fn account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ];
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: groups.map(str::to_owned).into(),
        }
    }
}

struct World {
    client: Client,
    _server: ApiServer,
    served: Vec<requests::Served>,
}

impl World {
    /// An API server with our resources and two tenants.
    async fn new() -> Self {
        let server = apiserver::start().await.unwrap();
        let client = server.client().await.unwrap();
        for crd in fleet_api::crds() {
            kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), OWN).await.unwrap();
        }
        for namespace in [OWN, OTHER] {
            let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}");
            kubernetes::apply(&client, &text, OWN).await.unwrap();
        }
        let ours = || async {
            let all = served(&client).await?;
            let found = all.iter().any(|served| served.target.group == names::GROUP);
            if found { Ok(all) } else { anyhow::bail!("it is not among the resources") }
        };
        let all =
            wait::until("MySQLCluster to be served", LIMIT, Duration::from_millis(100), ours).await.unwrap();
        Self { client, _server: server, served: all }
    }

    async fn apply(&self, object: &serde_json::Value) {
        kubernetes::apply(&self.client, &object.to_string(), OWN).await.unwrap();
    }

    /// Gives a user a role, in a namespace or everywhere.
    async fn bind(&self, role: &Role, subject: &Subject, namespace: Option<&str>) {
        let reference = json!({
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role.object.metadata.name,
        });
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" },
            "metadata": {"name": subject.user, "namespace": namespace},
            "roleRef": reference,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": subject.user}],
        }))
        .await;
    }

    /// Whether a user may do something; the namespace "" means all of them, or none.
    async fn may(
        &self,
        subject: &Subject,
        verb: &str,
        target: &Target,
        namespace: &str,
        name: Option<&str>,
    ) -> bool {
        let (resource, subresource) = match target.resource.split_once('/') {
            Some((resource, part)) => (resource, Some(part.to_owned())),
            None => (target.resource.as_str(), None),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(subject.user.clone()),
                groups: Some(subject.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.to_owned()),
                    verb: Some(verb.to_owned()),
                    group: Some(target.group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource,
                    name: name.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    }

    /// Waits until the API server has seen the rights that a binding gives.
    async fn bound(&self, subject: &Subject, verb: &str, target: &Target, namespace: &str) {
        let what = format!("the rights of {} in {namespace:?}", subject.user);
        wait::until(what, LIMIT, Duration::from_millis(20), || async {
            if self.may(subject, verb, target, namespace, None).await {
                return Ok(());
            }
            anyhow::bail!("{verb} {target} is refused")
        })
        .await
        .unwrap();
    }

    /// All that a user may do in a namespace, of what is served.
    async fn rights(&self, subject: &Subject, namespace: &str, verbs: &[&str]) -> BTreeSet<(Target, String)> {
        let asked =
            self.served.iter().flat_map(|served| verbs.iter().map(move |verb| (&served.target, *verb)));
        stream::iter(asked)
            .map(|(target, verb)| async move {
                let allowed = self.may(subject, verb, target, namespace, None).await;
                allowed.then(|| (target.clone(), verb.to_owned()))
            })
            .buffer_unordered(32)
            .filter_map(std::future::ready)
            .collect()
            .await
    }
}

/// What everybody may do who is known: ask about themselves.
fn about_oneself(target: &Target, verb: &str) -> bool {
    let reviews = ["authorization.k8s.io", "authentication.k8s.io"];
    verb == "create" && reviews.contains(&target.group.as_str()) && target.resource.starts_with("self")
}

/// What Kubernetes itself shows every account: the public certificates that a cluster's own services are trusted by.
fn trusted(target: &Target, verb: &str) -> bool {
    target.resource == "clustertrustbundles" && ["get", "list", "watch"].contains(&verb)
}

/// A user of each role in tenant-a, and an auditor of everything.
async fn subjects(world: &World, roles: &[Role]) -> Vec<(usize, Subject, bool)> {
    let mut subjects = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        world.apply(&serde_json::to_value(&role.object).unwrap()).await;
        let subject = Subject::person(role.file);
        world.bind(role, &subject, Some(OWN)).await;
        subjects.push((index, subject, false));
        if role.file == "auditor" {
            let everywhere = Subject::person("auditor-of-all");
            world.bind(role, &everywhere, None).await;
            subjects.push((index, everywhere, true));
        }
    }
    for (index, subject, everywhere) in &subjects {
        let one =
            roles::targets(roles).into_iter().find(|target| roles[*index].allows(target, "get")).unwrap();
        world.bound(subject, "get", &one, if *everywhere { "" } else { OWN }).await;
    }
    subjects
}

#[tokio::test]
async fn every_cell_of_the_matrix_is_what_the_api_server_says_and_all_else_is_refused() {
    let world = World::new().await;
    let roles = roles::all().unwrap();
    for target in roles::targets(&roles) {
        assert!(world.served.iter().any(|served| served.target == target), "{target} is not served");
    }
    for (index, subject, everywhere) in subjects(&world, &roles).await {
        for namespace in [OWN, OTHER, ""] {
            let found = world.rights(&subject, namespace, &roles::VERBS).await;
            let counts = everywhere || namespace == OWN;
            let wanted = world
                .served
                .iter()
                .flat_map(|served| roles::VERBS.map(|verb| (served.target.clone(), verb.to_owned())))
                .filter(|(target, verb)| {
                    counts && roles[index].allows(target, verb) || about_oneself(target, verb)
                })
                .collect::<BTreeSet<_>>();
            let differing: Vec<_> = wanted.symmetric_difference(&found).collect();
            assert!(differing.is_empty(), "{} in {namespace:?}: {differing:?}", subject.user);
        }
    }
}

#[tokio::test]
async fn every_cell_of_the_matrix_holds_for_real_requests() {
    let world = World::new().await;
    let roles = roles::all().unwrap();
    let targets = roles::targets(&roles);
    for namespace in [OWN, OTHER] {
        requests::make_objects(&world.client, namespace).await;
    }
    let (mut allowed, mut refused) = (0, 0);
    for (index, subject, everywhere) in subjects(&world, &roles).await {
        for namespace in [OWN, OTHER] {
            for served in world.served.iter().filter(|served| targets.contains(&served.target)) {
                for verb in roles::VERBS.iter().filter(|verb| served.verbs.iter().any(|has| has == *verb)) {
                    // A request about a namespace is one in that namespace.
                    let named = served.target.resource == "namespaces" && !["list", "watch"].contains(verb);
                    let counts = everywhere || (namespace == OWN && (served.namespaced || named));
                    let may = counts && roles[index].allows(&served.target, verb);
                    let request = Request { served, verb, namespace, user: &subject.user };
                    let answer = request.send(&world.client).await;
                    assert!(
                        if may { answer.is_done() } else { answer.is_refused(&subject.user) },
                        "{verb} {} in {namespace} as {} (may: {may}): {answer:?}",
                        served.target,
                        subject.user
                    );
                    *(if may { &mut allowed } else { &mut refused }) += 1;
                }
            }
        }
    }
    println!("{allowed} requests were allowed and {refused} refused");
    assert!(allowed > 0 && refused > 0);
}

#[tokio::test]
async fn a_shard_may_do_in_its_namespace_what_its_role_says_and_nothing_anywhere_else() {
    let world = World::new().await;
    let objects = render(&RenderOptions::new(OWN, "registry.example/mysql-fleet:1"));
    let kinds = ["ServiceAccount", "Role", "RoleBinding"];
    for object in objects.iter().filter(|object| kinds.contains(&object["kind"].as_str().unwrap())) {
        world.apply(object).await;
    }
    let role = objects.iter().find(|object| object["kind"] == "Role").unwrap();
    let role: rbac::Role = serde_json::from_value(role.clone()).unwrap();
    let shard = Subject::account(OWN, names::SHARD);
    let statefulsets = Target { group: "apps".to_owned(), resource: "statefulsets".to_owned() };
    world.bound(&shard, "list", &statefulsets, OWN).await;

    let verbs = [&roles::VERBS[..], &GIVING].concat();
    let given = |target: &Target, verb: &str| {
        role.rules.iter().flatten().any(|rule| {
            let has =
                |all: Option<&Vec<String>>, one: &str| all.is_some_and(|all| all.iter().any(|x| x == one));
            rule.resource_names.is_none()
                && has(rule.api_groups.as_ref(), &target.group)
                && has(rule.resources.as_ref(), &target.resource)
                && rule.verbs.iter().any(|given| given == verb)
        })
    };
    // What any account may do that nobody has given anything.
    let nobody = Subject::account(OWN, "nobody");
    for namespace in [OWN, OTHER, ""] {
        let found = world.rights(&shard, namespace, &verbs).await;
        let base = world.rights(&nobody, namespace, &verbs).await;
        let harmless = |target: &Target, verb: &str| about_oneself(target, verb) || trusted(target, verb);
        assert!(base.iter().all(|(target, verb)| harmless(target, verb)), "{namespace:?}: {base:?}");
        let wanted = world
            .served
            .iter()
            .flat_map(|served| verbs.iter().map(|verb| (served.target.clone(), (*verb).to_owned())))
            .filter(|(target, verb)| namespace == OWN && given(target, verb))
            .chain(base)
            .collect::<BTreeSet<_>>();
        let differing: Vec<_> = wanted.symmetric_difference(&found).collect();
        assert!(differing.is_empty(), "in {namespace:?}: {differing:?}");
        assert_eq!(
            found.iter().any(|(target, verb)| !harmless(target, verb)),
            namespace == OWN,
            "{namespace:?}"
        );
    }
    let leases = Target { group: "coordination.k8s.io".to_owned(), resource: "leases".to_owned() };
    for (namespace, name, may) in [
        (OWN, names::shard_lease(OWN), true),
        (OWN, names::shard_lease(OTHER), false),
        (OTHER, names::shard_lease(OTHER), false),
        (OTHER, names::shard_lease(OWN), false),
    ] {
        for verb in ["get", "update"] {
            let found = world.may(&shard, verb, &leases, namespace, Some(&name)).await;
            assert_eq!(found, may, "{verb} {name} in {namespace}");
        }
    }
}
