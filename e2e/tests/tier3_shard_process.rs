//! The shard's process where something is wrong with how it was started: one message, exit code 2.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::process::{Output, Stdio};
use std::time::Duration;

use e2e::{apiserver, paths};
use tokio::process::Command;

const ADDRESSES: [&str; 3] = ["--metrics-addr", "--health-addr", "--grpc-addr"];

/// Runs the shard until it ends by itself, which it has to do soon. Addresses that are not given are free ones.
async fn run(kubeconfig: &str, arguments: &[&str]) -> Output {
    let given = |flag: &str| arguments.iter().any(|argument| argument.starts_with(flag));
    let mut command = Command::new(paths::program("shard-manager"));
    command
        .args(["--agent-image=x:1", "--pod-name=shard-0"])
        .args(ADDRESSES.iter().filter(|flag| !given(flag)).map(|flag| format!("{flag}=127.0.0.1:0")))
        .args(arguments)
        .env_remove("FLEET_NAMESPACE")
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    tokio::time::timeout(Duration::from_secs(30), command.output()).await.expect("the shard runs on").unwrap()
}

fn assert_usage(output: &Output, words: &[&str]) {
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "\"{word}\" is not in: {said}");
    }
}

#[tokio::test]
async fn a_namespace_is_required_exactly_once_and_has_to_be_one() {
    assert_usage(&run("/dev/null", &[]).await, &["--namespace"]);
    assert_usage(&run("/dev/null", &["--namespace=a", "--namespace=b"]).await, &["--namespace", "multiple"]);
    assert_usage(&run("/dev/null", &["--namespace=a,b"]).await, &["--namespace", "a,b"]);
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    assert_usage(&run("/nowhere/kubeconfig", &["--namespace=tenant-a"]).await, &["KUBECONFIG"]);
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_and_a_port_in_use_are_named() {
    let server = apiserver::start().await.unwrap();
    let kubeconfig = server.kubeconfig().display().to_string();
    assert_usage(&run(&kubeconfig, &["--namespace=nowhere"]).await, &["nowhere"]);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ADDRESSES {
        let output = run(&kubeconfig, &["--namespace=default", &format!("{flag}={address}")]).await;
        assert_usage(&output, &[flag, &address]);
    }
}
