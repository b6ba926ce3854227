//! The figures that the README states, measured.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleet_api::names::{self, PORT_SHARD_METRICS};
use fleet_api::v1::ConditionType;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::images::fleet::{PROGRAMS, Profile};
use crate::scenario::Stage;
use crate::tenant::Tenant;
use crate::wait;

pub mod failover;

const NAMESPACE: &str = "bench";
const CLUSTER: &str = "orders";
const LONG: Duration = Duration::from_mins(3);
const OFTEN: Duration = Duration::from_millis(20);
/// How often a fresh cluster is made.
const RUNS: usize = 5;
/// How long a cluster at rest is watched.
const REST: Duration = Duration::from_mins(1);
/// The kernel counts processor time and a process's start in hundredths of a second (`man 5 proc`).
const TICKS: f64 = 100.0;

/// One figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value with its unit.
    pub value: String,
}

/// Measures with release builds in the local cluster of the tests, with the images present.
pub async fn measure() -> Result<Vec<Figure>> {
    let stage = Stage::with(Profile::Release).await?;
    let tenant = stage.tenant(NAMESPACE).await?;
    tenant.delete(CLUSTER, LONG).await?;
    let mut figures = vec![healthy(&tenant).await?];
    figures.extend(at_rest(&stage, &tenant).await?);
    figures.push(first_reconcile(&stage, &tenant).await?);
    tenant.delete(CLUSTER, LONG).await?;
    for program in PROGRAMS {
        let file = stage.programs.program(program);
        let size = fs::metadata(&file).with_context(|| format!("could not read {}", file.display()))?.len();
        figures.push(figure(format!("size of {program}"), mebibytes(size)));
    }
    Ok(figures)
}

/// From the apply of three instances on fresh volumes until Healthy.
async fn healthy(tenant: &Tenant) -> Result<Figure> {
    let spec = tenant.spec(json!({"deletionPolicy": "Delete"}));
    let mut seconds = Vec::new();
    for run in 1..=RUNS {
        let begun = Instant::now();
        tenant.apply(CLUSTER, &spec).await?;
        tenant.wait_for(CLUSTER, ConditionType::Healthy, "True", LONG).await?;
        seconds.push(begun.elapsed().as_secs_f64());
        // The last one is measured on.
        if run < RUNS {
            tenant.delete(CLUSTER, LONG).await?;
            wait::until("the pods to be gone", LONG, OFTEN, || async {
                if tenant.instances(CLUSTER).await?.is_empty() { Ok(()) } else { bail!("some are left") }
            })
            .await?;
        }
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or_default();
    let worst = seconds.last().copied().unwrap_or_default();
    let value = format!("{median:.1} s (median of {RUNS}, worst {worst:.1} s)");
    Ok(figure("from apply to Healthy, 3 instances".into(), value))
}

/// Memory and processor time of shard and agents while nothing happens.
async fn at_rest(stage: &Stage, tenant: &Tenant) -> Result<Vec<Figure>> {
    let leader = leader(tenant).await?;
    let shard = one(&stage.processes(&leader, "shard-manager")?)?;
    let mut agents = Vec::new();
    for pod in tenant.instances(CLUSTER).await?.values() {
        agents.push(one(&stage.processes(pod, "mysql-agent")?)?);
    }
    let ticks = || -> Result<Vec<f64>> {
        std::iter::once(&shard).chain(&agents).map(|pid| processor(*pid)).collect()
    };
    let before = ticks()?;
    tokio::time::sleep(REST).await;
    let after = ticks()?;
    let used: Vec<f64> =
        before.iter().zip(&after).map(|(from, to)| (to - from) / REST.as_secs_f64() * 1000.0).collect();
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (shard_used, agents_used) = used.split_first().context("the shard was measured")?;
    let mut agent_memory = 0;
    for pid in &agents {
        agent_memory = agent_memory.max(memory(*pid)?);
    }
    Ok(vec![
        figure("memory of the shard at rest (resident)".into(), mebibytes(memory(shard)?)),
        figure("processor of the shard at rest".into(), format!("{shard_used:.1} ms/s")),
        figure("memory of an agent at rest (resident, the largest of 3)".into(), mebibytes(agent_memory)),
        figure(
            "processor of an agent at rest (the most of 3)".into(),
            format!("{:.1} ms/s", most(agents_used)),
        ),
    ])
}

/// From the start of the shard's process until its first reconcile has ended.
async fn first_reconcile(stage: &Stage, tenant: &Tenant) -> Result<Figure> {
    scale(tenant, 0).await?;
    wait::until("the shard to be stopped", LONG, OFTEN, || async {
        if shard_pods(tenant).await?.is_empty() { Ok(()) } else { bail!("pods are left") }
    })
    .await?;
    scale(tenant, 1).await?;
    let took = wait::until("the first reconcile", LONG, OFTEN, || async {
        let pods = shard_pods(tenant).await?;
        let pod = pods.first().context("there is no pod")?;
        let pid = one(&stage.processes(pod, "shard-manager")?)?;
        let address =
            pod.status.as_ref().and_then(|status| status.pod_ip.clone()).context("it has no address")?;
        let metrics = get(&format!("{address}:{PORT_SHARD_METRICS}"), "/metrics").await?;
        let counted = metrics
            .lines()
            .filter(|line| line.starts_with("controller_runtime_reconcile_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .any(|count| count > 0.0);
        if counted { age(pid) } else { bail!("it has reconciled nothing") }
    })
    .await?;
    scale(tenant, 2).await?;
    Ok(figure("from the shard's start to its first reconcile".into(), format!("{took:.2} s")))
}

async fn scale(tenant: &Tenant, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let patch = json!({"spec": {"replicas": replicas}});
    deployments.patch_scale(names::SHARD, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

async fn shard_pods(tenant: &Tenant) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let all = pods.list(&ListParams::default()).await?.items;
    let prefix = format!("{}-", names::SHARD);
    Ok(all
        .into_iter()
        .filter(|pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(&prefix)))
        .collect())
}

async fn leader(tenant: &Tenant) -> Result<Pod> {
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(tenant.client.clone(), NAMESPACE);
    let lease = leases.get(&names::shard_lease(NAMESPACE)).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).context("the Lease has no holder")?;
    let pods = shard_pods(tenant).await?;
    let named = |pod: &Pod| pod.metadata.name.as_deref().is_some_and(|name| holder.starts_with(name));
    pods.into_iter().find(named).with_context(|| format!("the Lease's holder {holder} is no pod"))
}

fn one(pids: &[i32]) -> Result<i32> {
    match pids {
        [pid] => Ok(*pid),
        other => bail!("there is not one process but {other:?}"),
    }
}

/// The fields of `/proc/PID/stat` after the program's name, which may have blanks in it.
fn stat(pid: i32) -> Result<Vec<f64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("the process {pid} ended"))?;
    let fields =
        text.rsplit_once(") ").map(|(_, fields)| fields).context("/proc/PID/stat is not as documented")?;
    Ok(fields.split(' ').map(|field| field.trim().parse().unwrap_or_default()).collect())
}

/// Seconds of processor time that a process has used (fields 14 and 15 of `man 5 proc`).
fn processor(pid: i32) -> Result<f64> {
    Ok(stat(pid)?.iter().skip(11).take(2).sum::<f64>() / TICKS)
}

/// Seconds since a process was started (field 22).
fn age(pid: i32) -> Result<f64> {
    let started = stat(pid)?.get(19).copied().context("/proc/PID/stat is too short")? / TICKS;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let now: f64 =
        uptime.split(' ').next().unwrap_or_default().parse().context("/proc/uptime is not a number")?;
    Ok(now - started)
}

/// Resident memory in bytes.
fn memory(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("the process {pid} ended"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the process has no memory")?;
    let kibibytes: u64 =
        line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is not a number")?;
    Ok(kibibytes * 1024)
}

async fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: local\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn figure(name: String, value: String) -> Figure {
    Figure { name, value }
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
