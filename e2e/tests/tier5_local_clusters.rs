//! The local clusters themselves: repair, cutting, growing volumes, and nothing left behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::cluster::cgroups::Hierarchy;
use e2e::cluster::plan::{LAST_INDEX, Plan};
use e2e::cluster::{Cluster, daemon, down, network, up};
use e2e::progress::Progress;
use e2e::wait;
use tokio::net::TcpStream;

async fn up(name: &str, nodes: Option<u8>) -> Cluster {
    up::up(&[name.to_owned()], nodes, &Progress::default()).await.unwrap().remove(0)
}

/// What a cluster has on this machine.
fn traces(name: &str) -> Vec<String> {
    let mut traces: Vec<String> =
        daemon::of_cluster(name).iter().map(|pid| format!("process {pid}")).collect();
    traces.extend(network::namespaces(name));
    traces.extend(Hierarchy::detect().unwrap().groups(&format!("mf-{name}-")));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let (home, runtime) = (format!("/clusters/{name}/"), format!("/run/mysql-fleet/{name}/"));
    traces.extend(
        mounts.lines().filter(|line| line.contains(&home) || line.contains(&runtime)).map(str::to_owned),
    );
    let loops = Command::new("losetup").args(["--list", "--noheadings"]).output().unwrap();
    let loops = String::from_utf8(loops.stdout).unwrap();
    traces.extend(loops.lines().filter(|line| line.contains(&home)).map(str::to_owned));
    traces
}

#[tokio::test]
async fn a_cluster_whose_parts_were_killed_is_repaired_and_leaves_nothing() {
    let cluster = up("t-repair", None).await;
    let links = [cluster.plan().bridge(), cluster.plan().link(0), cluster.plan().uplink().0];
    let warm = Instant::now();
    up("t-repair", None).await;
    assert!(warm.elapsed() < Duration::from_secs(20), "{:?}", warm.elapsed());

    // As after a crash: all of its processes at once, without a chance to say goodbye.
    daemon::kill_all("the cluster", || daemon::of_cluster("t-repair")).await.unwrap();
    assert!(!cluster.is_ready().await);
    up("t-repair", None).await;
    assert!(cluster.is_ready().await);

    down::down("t-repair", false, &Progress::default()).await.unwrap();
    assert_eq!(traces("t-repair"), Vec::<String>::new());
    for link in links {
        assert!(!Path::new("/sys/class/net").join(&link).exists(), "{link}");
    }
    assert!(!cluster.home().exists());
    down::down("t-repair", false, &Progress::default()).await.unwrap();
}

#[tokio::test]
async fn an_up_that_was_interrupted_anywhere_is_completed_by_the_next() {
    for after in [50, 200, 500, 1000, 2000, 4000] {
        let names = ["t-stopped".to_owned()];
        let progress = Progress::default();
        // Dropping the future is what an interrupt does to it: the daemons go on, the rest is not done.
        let _ = tokio::time::timeout(Duration::from_millis(after), up::up(&names, None, &progress)).await;
    }
    let cluster = up("t-stopped", None).await;
    assert!(cluster.is_ready().await);
    let _ =
        tokio::time::timeout(Duration::from_millis(20), down::down("t-stopped", false, &Progress::default()))
            .await;
    down::down("t-stopped", false, &Progress::default()).await.unwrap();
    assert_eq!(traces("t-stopped"), Vec::<String>::new());

    // A removal of the files that was killed in its middle: they are no cluster any more, and go the next time.
    let half = cluster.home().with_file_name(".t-stopped.removed");
    std::fs::create_dir_all(half.join("n0/containerd")).unwrap();
    assert!(Cluster::find("t-stopped").unwrap().is_none());
    down::down("t-stopped", false, &Progress::default()).await.unwrap();
    assert!(!half.exists());
    assert!(!cluster.home().exists());
}

#[tokio::test]
async fn a_network_whose_making_was_interrupted_anywhere_is_completed() {
    // No cluster takes the last index while others are free.
    let plan = Plan { name: "t-network".into(), index: LAST_INDEX, nodes: 2 };
    network::remove(&plan).await.unwrap();
    for after in (0..).step_by(500).map(Duration::from_micros) {
        let first = tokio::time::timeout(after, network::ensure(&plan)).await;
        network::ensure(&plan).await.unwrap();
        for node in plan.each_node() {
            let kubelet = std::net::SocketAddr::from((plan.node_ip(node), 10250));
            let connected = tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(kubelet)).await;
            // Nobody listens: a refusal is an answer, and an answer is a way there and back.
            let answer =
                connected.unwrap_or_else(|_| panic!("node {node} is not reached, cut after {after:?}"));
            assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused, "{after:?}");
        }
        assert!(is_up(&plan.uplink().0), "cut after {after:?}");
        network::remove(&plan).await.unwrap();
        if first.is_ok() {
            break;
        }
    }
    assert_eq!(traces("t-network"), Vec::<String>::new());
}

/// Whether a link is meant to be up, whatever its other end does.
fn is_up(link: &str) -> bool {
    let flags = std::fs::read_to_string(format!("/sys/class/net/{link}/flags")).unwrap();
    u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap() & 1 == 1
}

#[tokio::test]
async fn three_nodes_are_ready_and_one_can_be_cut_off() {
    let cluster = up("t-nodes", Some(3)).await;
    let client = cluster.client().await.unwrap();
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(client);
    assert_eq!(nodes.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 3);
    let kubelet = std::net::SocketAddr::from((cluster.plan().node_ip(1), 10250));
    let connect = || async { anyhow::Ok(TcpStream::connect(kubelet).await?) };
    let limit = Duration::from_secs(20);
    let (pause, node) = (Duration::from_millis(100), "the second node");
    wait::until(node, limit, pause, connect).await.unwrap();
    cluster.cut(Some(1)).await.unwrap();
    assert!(!matches!(tokio::time::timeout(Duration::from_secs(1), connect()).await, Ok(Ok(_))));
    cluster.heal(Some(1)).await.unwrap();
    // The kernel asks for a neighbour that was silent, and sends a lost packet again, once a second.
    wait::until(node, limit, pause, connect).await.unwrap();
    assert!(cluster.cut(Some(3)).await.unwrap_err().to_string().contains("its nodes are 0 to 2"));
    down::down("t-nodes", false, &Progress::default()).await.unwrap();
    assert_eq!(traces("t-nodes"), Vec::<String>::new());
}
