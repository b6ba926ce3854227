//! mysqld as a process: started again, ended, reaped, and reported where it can't start.

use fleet_proto::agent::v1::ProcessState;
use mysql_async::prelude::Queryable;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::Code;

use crate::harness::{World, until};

#[tokio::test(flavor = "multi_thread")]
async fn as_pid_1_it_restarts_mysqld_and_reaps_orphans() {
    let world = World::new(21400);
    let mut instance = world.start_as_pid_1(0);
    instance.wait_running().await;
    instance.signal_mysqld(Signal::SIGKILL);
    instance.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;

    // RESTART ends mysqld with exit code 16 and counts on its supervisor.
    let before = instance.mysqld();
    assert!(instance.system().await.query_drop("RESTART").await.is_ok());
    until("another mysqld runs", || async { instance.mysqld() }, |now| now.is_some() && *now != before).await;
    assert_eq!(instance.wait_running().await.mysqld_exits, 1);

    // An orphan becomes the agent's child and must not stay a zombie.
    let agent = instance.agent_process();
    let orphan = std::process::Command::new("nsenter")
        .args([
            "--pid",
            "--target",
            &agent.to_string(),
            "sh",
            "-c",
            "sleep 3600 >/dev/null 2>&1 & echo orphaned",
        ])
        .output()
        .unwrap();
    assert!(orphan.status.success(), "{orphan:?}");
    let children = || async {
        let threads = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
        threads
            .map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default())
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>())
            .filter(|pid| Some(Pid::from_raw(*pid)) != instance.mysqld())
            .map(Pid::from_raw)
            .collect::<Vec<Pid>>()
    };
    let found = until("the orphan is a child", children, |children| !children.is_empty()).await;
    kill(found[0], Signal::SIGKILL).unwrap();
    until("the orphan is gone", children, Vec::is_empty).await;
    assert!(instance.mysqld().is_some());

    instance.signal_agent(Signal::SIGTERM);
    assert!(instance.child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_reported_and_recovers_by_itself() {
    let world = World::new(21300);
    let mut instance = world.start_empty(0);
    instance.wait_running().await;
    let config = instance.dir.join("config/my.cnf");
    std::fs::write(&config, "[mysqld]\nno_such_variable = 1\n").unwrap();
    instance.signal_mysqld(Signal::SIGKILL);
    let facts = instance.wait("reported", |facts| facts.process_message.contains("no_such_variable")).await;
    assert!(facts.server.is_none());
    assert_eq!([instance.probe("/livez").await, instance.probe("/readyz").await], [200, 503]);
    std::fs::write(&config, "[mysqld]\n").unwrap();
    let facts = instance.wait_running().await;
    assert!(facts.mysqld_exits >= 2);

    // A term that can't be read is never taken for 0.
    instance.signal_agent(Signal::SIGTERM);
    assert!(instance.child.wait().unwrap().success());
    let term = instance.dir.join("volume/fleet/term");
    std::fs::write(&term, "garbage").unwrap();
    let instance = world.start(0);
    let facts = instance.wait("failed", |facts| facts.process_state() == ProcessState::Failed).await;
    assert!(facts.process_message.contains("fleet/term"), "{}", facts.process_message);
    assert_eq!(instance.close(5).await.unwrap_err().code(), Code::FailedPrecondition);
    std::fs::remove_file(&term).unwrap();
    instance.wait_running().await;

    // A killed mysqld leaves the lock of its socket, and its number may be that of a thread of the agent by now.
    let agent = instance.agent_process().to_string();
    let threads = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let other = threads.find(|thread| *thread != agent).unwrap();
    std::fs::write(instance.dir.join("run/mysqld.sock.lock"), other).unwrap();
    instance.signal_mysqld(Signal::SIGKILL);
    instance.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;
}
