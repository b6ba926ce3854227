//! What an API server serves, and one request of each kind to it. Nothing is changed: every write is a dry run.

use e2e::{kubernetes, roles::Target};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// A resource or subresource.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) target: Target,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
    version: String,
}

/// All that the API server serves, in the version of each group that it prefers.
pub(crate) async fn served(client: &Client) -> anyhow::Result<Vec<Served>> {
    let mut lists = vec![(String::new(), client.list_core_api_resources("v1").await?)];
    for group in client.list_api_groups().await?.groups {
        let preferred = group.preferred_version.or_else(|| group.versions.first().cloned());
        if let Some(version) = preferred {
            lists.push((group.name, client.list_api_group_resources(&version.group_version).await?));
        }
    }
    let served = lists.into_iter().flat_map(|(group, list)| {
        list.resources.into_iter().map(move |resource| Served {
            target: Target { group: group.clone(), resource: resource.name },
            namespaced: resource.namespaced,
            verbs: resource.verbs,
            version: list.group_version.clone(),
        })
    });
    Ok(served.collect())
}

/// The object of each resource of the matrix, of the same name for all that has no name of its own.
const OBJECTS: &str = "
- {apiVersion: mysqlfleet.io/v1, kind: MySQLCluster, metadata: {name: one}, spec: {version: '9.7', storage: {size: 1Gi}}}
- {apiVersion: v1, kind: Secret, metadata: {name: one}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: one}}
- {apiVersion: v1, kind: LimitRange, metadata: {name: one}, spec: {limits: []}}
- {apiVersion: v1, kind: ResourceQuota, metadata: {name: one}, spec: {hard: {pods: '99'}}}
- {apiVersion: v1, kind: Service, metadata: {name: one}, spec: {clusterIP: None, ports: [{port: 1}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: one}, spec: {containers: [{name: one, image: one}]}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: one}
  spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
- apiVersion: events.k8s.io/v1
  kind: Event
  metadata: {name: one}
  eventTime: '2026-01-01T00:00:00.000000Z'
  reportingController: mysqlfleet.io/test
  reportingInstance: one
  action: Test
  reason: Test
  type: Normal
  regarding: {kind: Pod, name: one}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: one}
  spec: &workload
    selector: {matchLabels: {app: one}}
    template: {metadata: {labels: {app: one}}, spec: {containers: [{name: one, image: one}]}}
- {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: one}, spec: *workload}
- {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: one}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: one}, addressType: IPv4, endpoints: []}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: one}, spec: {podSelector: {}}}
- {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: one}, spec: {maxUnavailable: 1}}
- {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: one}, rules: []}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: one}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: one}
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicy
  metadata: {name: one}
  spec:
    matchConstraints:
      resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [nothings], operations: [CREATE]}]
    validations: [{expression: 'true'}]
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicyBinding
  metadata: {name: one}
  spec: {policyName: one, validationActions: [Deny]}
";

fn objects() -> Vec<Value> {
    serde_yaml_ng::from_str(OBJECTS).unwrap()
}

/// Makes an object of each resource, for requests to be about.
pub(crate) async fn make_objects(client: &Client, namespace: &str) {
    for mut object in objects() {
        if object["kind"] == "Event" {
            object["regarding"]["namespace"] = namespace.into();
        }
        kubernetes::apply(client, &object.to_string(), namespace).await.unwrap();
    }
}

/// One request as a user.
pub(crate) struct Request<'a> {
    pub(crate) served: &'a Served,
    pub(crate) verb: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) user: &'a str,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Answer {
    code: u16,
    text: String,
}

impl Answer {
    /// Whether it was carried out. No node runs the pod, so what is handed on to one ends there.
    pub(crate) fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
            || (self.code == 400 && self.text.contains("does not have a host assigned"))
    }

    /// Whether the user lacks the right to it.
    pub(crate) fn is_refused(&self, user: &str) -> bool {
        self.code == 403 && self.text.contains(&format!("User \\\"{user}\\\" cannot "))
    }
}

impl Request<'_> {
    pub(crate) async fn send(&self, client: &Client) -> Answer {
        let Self { served, verb, user, .. } = self;
        let collection = self.collection();
        let object = self.object_path();
        let dry = "dryRun=All";
        let part = served.target.resource.contains('/');
        let (method, path, body) = match *verb {
            "get" => ("GET", object, Value::Null),
            "list" => ("GET", collection, Value::Null),
            // The answer begins at once; its end is not waited for.
            "watch" => ("GET", format!("{collection}?watch=true"), Value::Null),
            "create" if part => ("POST", format!("{object}?command=true"), Value::Null),
            "create" => ("POST", format!("{collection}?{dry}"), self.another()),
            "update" => ("PUT", format!("{object}?{dry}"), live(client, &object).await),
            "patch" => ("PATCH", format!("{object}?{dry}"), json!({})),
            "delete" => ("DELETE", format!("{object}?{dry}"), Value::Null),
            "deletecollection" => ("DELETE", format!("{collection}?{dry}"), Value::Null),
            other => panic!("no request has the verb {other}"),
        };
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", kind)
            .header("Impersonate-User", *user)
            .body(Body::from(body))
            .unwrap();
        let response = client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let text = if *verb == "watch" && code == 200 {
            String::new()
        } else {
            String::from_utf8_lossy(&response.into_body().collect().await.unwrap().to_bytes()).into_owned()
        };
        Answer { code, text }
    }

    fn collection(&self) -> String {
        let Served { target, namespaced, version, .. } = self.served;
        let root = if target.group.is_empty() { "/api" } else { "/apis" };
        let plural = target.resource.split('/').next().unwrap();
        if *namespaced {
            format!("{root}/{version}/namespaces/{}/{plural}", self.namespace)
        } else {
            format!("{root}/{version}/{plural}")
        }
    }

    /// The path of the object, or of the part of it, that is asked for.
    fn object_path(&self) -> String {
        let Served { target, .. } = self.served;
        let name = match target.resource.as_str() {
            "namespaces" => self.namespace,
            "customresourcedefinitions" => "mysqlclusters.mysqlfleet.io",
            "clusterroles" => "mysql-fleet-auditor",
            "clusterrolebindings" => "auditor-of-all",
            _ => "one",
        };
        let part = target.resource.split_once('/').map(|(_, part)| format!("/{part}")).unwrap_or_default();
        format!("{}/{name}{part}", self.collection())
    }

    /// Another object of the kind. Where there is none, nobody may make one.
    fn another(&self) -> Value {
        let kinds = objects().into_iter();
        let mut same = kinds.filter(|object| {
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            object["apiVersion"] == self.served.version.as_str()
                && self.served.target.resource.starts_with(&kind)
        });
        let mut object = same.next().unwrap_or_else(|| json!({}));
        object["metadata"]["name"] = "another".into();
        object
    }
}

/// The object as it is, with all rights.
async fn live(client: &Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}
