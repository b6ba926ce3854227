//! One tenant on a Kubernetes cluster: its shard, its MySQL clusters, and what a user of them does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, MySQLCluster, MySQLClusterStatus, Phase};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::kubernetes::{self, MANAGER};
use crate::{command, wait};

/// How programs reach the cluster.
#[derive(Debug, Clone)]
pub enum Access {
    /// By a kubeconfig file.
    File(PathBuf),
    /// By a context of the user's own kubeconfig.
    Context(String),
}

impl Access {
    /// A client by the same way.
    pub async fn client(&self) -> Result<Client> {
        match self {
            Self::File(file) => kubernetes::client_from_file(file).await,
            Self::Context(context) => kubernetes::client_for_context(context).await,
        }
    }

    /// The same for kubectl and its plugins.
    pub fn arguments(&self) -> [String; 2] {
        match self {
            Self::File(file) => ["--kubeconfig".into(), file.display().to_string()],
            Self::Context(context) => ["--context".into(), context.clone()],
        }
    }
}

/// The images a tenant runs.
#[derive(Debug, Clone)]
pub struct Images {
    /// mysql-fleet, with its tag.
    pub fleet: String,
    /// MySQL, with `{version}` as its tag.
    pub mysql: String,
    /// The version of MySQL that clusters ask for.
    pub version: String,
    /// When nodes pull them.
    pub pull_policy: &'static str,
}

impl Images {
    /// The arguments of `kubectl fleet` that print a namespace and its shard with these images.
    pub fn rendering(&self, namespace: &str) -> Vec<String> {
        let Self { fleet, mysql, version: _, pull_policy } = self;
        ["shard", "render", namespace, "--create-namespace", "--image", fleet]
            .into_iter()
            .chain(["--mysql-image", mysql, "--image-pull-policy", pull_policy])
            .map(str::to_owned)
            .collect()
    }
}

/// A namespace with its shard.
#[derive(Clone)]
pub struct Tenant {
    /// A client with all rights.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    access: Access,
    plugin: PathBuf,
    images: Images,
}

impl Tenant {
    /// Applies the namespace, the CustomResourceDefinitions and the shard, and waits until the shard serves.
    /// `plugin` is the program kubectl-fleet, which renders the shard as a user would have it rendered.
    pub async fn deploy(access: Access, plugin: PathBuf, namespace: &str, images: Images) -> Result<Self> {
        let tenant =
            Self { client: access.client().await?, namespace: namespace.to_owned(), access, plugin, images };
        for crd in fleet_api::crds() {
            let text = serde_yaml_ng::to_string(&crd)?;
            kubernetes::apply(&tenant.client, &text, namespace).await?;
        }
        let shard = tenant.render().await?;
        kubernetes::apply(&tenant.client, &shard, namespace).await?;
        tenant.wait_for_shard(Duration::from_mins(2)).await?;
        Ok(tenant)
    }

    /// What `kubectl fleet shard render` prints for this tenant.
    async fn render(&self) -> Result<String> {
        let mut render = command::command(&self.plugin);
        render.args(self.images.rendering(&self.namespace));
        command::finish(&mut render).await
    }

    /// Waits until every pod of the shard is ready.
    pub async fn wait_for_shard(&self, limit: Duration) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let ready = || async {
            let deployment = deployments.get(names::SHARD).await?;
            let generation = deployment.metadata.generation;
            let wanted = deployment.spec.replicas.unwrap_or(1);
            let status = deployment.status.unwrap_or_default();
            let (updated, ready) = (status.updated_replicas.unwrap_or(0), status.ready_replicas.unwrap_or(0));
            if status.observed_generation == generation && updated == wanted && ready == wanted {
                return Ok(());
            }
            bail!("{ready} of {wanted} pods are ready");
        };
        let waited = wait::until("the shard to be ready", limit, Duration::from_millis(200), ready).await;
        self.explained(waited).await
    }

    /// The MySQL clusters.
    pub fn clusters(&self) -> Api<MySQLCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until another instance than `old` is the primary of a cluster and takes writes.
    pub async fn another_primary(&self, name: &str, old: &str, limit: Duration) -> Result<MySQLCluster> {
        let clusters = self.clusters();
        wait::until(format!("another primary than {old}"), limit, Duration::from_millis(20), || async {
            let cluster = clusters.get(name).await?;
            let MySQLClusterStatus { phase, primary, conditions, .. } =
                cluster.status.clone().unwrap_or_default();
            let serves = matches!(phase, Some(Phase::Healthy | Phase::Degraded | Phase::Cloning));
            ensure!(serves && primary.as_deref() != Some(old), "it is in {phase:?}: {conditions:?}");
            Ok(cluster)
        })
        .await
    }

    /// A spec that asks for little: `fields` replace or add.
    pub fn spec(&self, fields: Value) -> Value {
        let mut spec = json!({
            "replicas": 3,
            "version": self.images.version,
            "storage": {"size": "1Gi"},
            "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "768Mi"}},
        });
        if let (Some(spec), Value::Object(fields)) = (spec.as_object_mut(), fields) {
            spec.extend(fields);
        }
        spec
    }

    /// Applies a MySQLCluster.
    pub async fn apply(&self, name: &str, spec: &Value) -> Result<MySQLCluster> {
        let object = json!({
            "apiVersion": "mysqlfleet.io/v1",
            "kind": "MySQLCluster",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        });
        self.clusters()
            .patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("could not apply the MySQLCluster {name}"))
    }

    /// Waits until a condition has a status and is about the newest generation.
    pub async fn wait_for(
        &self,
        name: &str,
        condition: ConditionType,
        status: &str,
        limit: Duration,
    ) -> Result<MySQLCluster> {
        let clusters = self.clusters();
        let what = format!("the condition {condition:?} of {name} to be {status}");
        let waited = wait::until(what, limit, Duration::from_millis(100), || async {
            let cluster = clusters.get(name).await?;
            let conditions =
                cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let found = conditions.iter().find(|found| found.type_ == condition);
            match found {
                Some(found)
                    if found.status == status && found.observed_generation == cluster.metadata.generation =>
                {
                    Ok(cluster)
                }
                Some(found) => bail!("it is {} ({}: {})", found.status, found.reason, found.message),
                None => bail!("the shard has not reported it"),
            }
        })
        .await;
        self.explained(waited).await
    }

    /// The instances' pods by name.
    pub async fn instances(&self, name: &str) -> Result<BTreeMap<String, Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let selector = ListParams::default().labels(&format!("{}={name}", names::LABEL_CLUSTER));
        let list = pods.list(&selector).await.context("could not list the instances")?;
        Ok(list.items.into_iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect())
    }

    /// The user name and the password of a role.
    pub async fn account(&self, cluster: &str, role: UserRole) -> Result<(String, String)> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = names::user_secret(cluster, role);
        let secret = secrets.get(&name).await.with_context(|| format!("could not read the Secret {name}"))?;
        let data = secret.data.unwrap_or_default();
        let field = |key: &str| {
            let bytes = data.get(key).with_context(|| format!("the Secret {name} has no {key}"))?;
            String::from_utf8(bytes.0.clone())
                .with_context(|| format!("{key} in the Secret {name} is not text"))
        };
        Ok((field("username")?, field("password")?))
    }

    /// Runs SQL as a role against a host, from within the instance `pod`, over TLS. Returns the rows, columns
    /// separated by tabs.
    pub async fn sql(
        &self,
        cluster: &str,
        pod: &str,
        host: &str,
        role: UserRole,
        statement: &str,
    ) -> Result<String> {
        let (user, password) = self.account(cluster, role).await?;
        let argv = [
            "env",
            &format!("MYSQL_PWD={password}"),
            "mysql",
            "--no-defaults",
            &format!("--host={host}"),
            &format!("--user={user}"),
            "--connect-timeout=5",
            "--ssl-mode=VERIFY_CA",
            "--ssl-ca=/fleet/tls/ca.crt",
            "--batch",
            "--skip-column-names",
            &format!("--execute={statement}"),
        ];
        let rows = kubernetes::exec(&self.client, &self.namespace, pod, "mysqld", &argv).await;
        let rows = rows.with_context(|| format!("`{statement}` as {role} at {host} failed"))?;
        Ok(rows.trim_end().to_owned())
    }

    /// What `kubectl fleet status` prints.
    pub async fn status(&self, format: &str) -> Result<String> {
        let mut status = command::command(&self.plugin);
        status
            .args(["status", "--namespace", &self.namespace, "--output", format])
            .args(self.access.arguments());
        command::finish(&mut status).await
    }

    /// Deletes a MySQLCluster and waits until it is gone.
    pub async fn delete(&self, name: &str, limit: Duration) -> Result<()> {
        let clusters = self.clusters();
        match clusters.delete(name, &kube::api::DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.code == 404 => return Ok(()),
            result => {
                result.with_context(|| format!("could not delete the MySQLCluster {name}"))?;
            }
        }
        let waited = wait::until(format!("{name} to be gone"), limit, Duration::from_millis(200), || async {
            match clusters.get_opt(name).await? {
                None => Ok(()),
                Some(left) => bail!("its finalizers are {:?}", left.metadata.finalizers.unwrap_or_default()),
            }
        })
        .await;
        self.explained(waited).await
    }

    /// Adds to an error what the namespace looks like: a failed wait alone says little.
    async fn explained<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                let scene = Box::pin(self.scene())
                    .await
                    .unwrap_or_else(|unseen| format!("(not to be seen: {unseen:#})"));
                Err(error.context(scene))
            }
        }
    }

    async fn scene(&self) -> Result<String> {
        use std::fmt::Write;
        let mut text = format!("the namespace {} has:\n", self.namespace);
        for kind in ["api/v1", "apis/mysqlfleet.io/v1"] {
            let resource = if kind == "api/v1" { "pods" } else { "mysqlclusters" };
            let path = format!("/{kind}/namespaces/{}/{resource}", self.namespace);
            for row in kubernetes::table(&self.client, &path).await?.iter().skip(1) {
                writeln!(text, "  {}", row.get(..5).unwrap_or(row).join("  "))?;
            }
        }
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut warnings: Vec<Event> =
            events.list(&ListParams::default().fields("type=Warning")).await?.items;
        warnings.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        for event in warnings.iter().rev().take(8) {
            let object = event.involved_object.name.as_deref().unwrap_or_default();
            writeln!(text, "  {object}: {}", event.message.as_deref().unwrap_or_default())?;
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        for pod in pods.list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            let log = kube::api::LogParams { tail_lines: Some(6), ..kube::api::LogParams::default() };
            if let Ok(lines) = pods.logs(&name, &log).await {
                writeln!(
                    text,
                    "  the last lines of {name}:\n    {}",
                    lines.trim_end().replace('\n', "\n    ")
                )?;
            }
        }
        Ok(text)
    }
}
