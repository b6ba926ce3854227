//! Renewed certificates, and another authority.

use std::net::SocketAddr;

use fleet_proto::agent::v1::{CloneFacts, CloneState, InstanceFacts, TlsFacts};
use fleet_runtime::tls::Authority;
use jiff::Timestamp;
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    cluster::{cluster, count, table},
    harness::{Instance, World, until},
};

/// The certificate that a new connection to the agent is shown.
async fn of_agent(instance: &Instance) -> Vec<u8> {
    shown(instance, TcpStream::connect(instance.grpc).await.unwrap()).await
}

/// The certificate that a new connection to mysqld is shown, after MySQL's request for TLS.
async fn of_mysqld(instance: &Instance) -> Vec<u8> {
    // CLIENT_PROTOCOL_41, CLIENT_SSL and CLIENT_SECURE_CONNECTION (MySQL manual, Protocol::SSLRequest).
    const CAPABILITIES: u32 = 0x200 | 0x800 | 0x8000;
    const LENGTH: u8 = 32;
    let address = SocketAddr::from(([127, 0, 0, 1], instance.mysql_port));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let header = stream.read_u32_le().await.unwrap();
    let mut greeting = vec![0; usize::try_from(header & 0x00ff_ffff).unwrap()];
    stream.read_exact(&mut greeting).await.unwrap();
    let mut request = vec![LENGTH, 0, 0, 1];
    request.extend(CAPABILITIES.to_le_bytes());
    request.extend((1_u32 << 24).to_le_bytes());
    request.push(45);
    request.resize(4 + usize::from(LENGTH), 0);
    stream.write_all(&request).await.unwrap();
    shown(instance, stream).await
}

async fn shown(instance: &Instance, stream: TcpStream) -> Vec<u8> {
    let connector = TlsConnector::from(instance.tls_client());
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap().first().unwrap().to_vec()
}

/// The session of each replica's receiver on the primary: a receiver that connects again has another.
const DUMPS: &str = "SELECT GROUP_CONCAT(id ORDER BY id) FROM performance_schema.processlist \
    WHERE command LIKE 'Binlog Dump%'";

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificate_is_served_to_new_connections_and_disturbs_neither_clients_nor_replication() {
    let world = World::new(21800);
    let instances = cluster(&world).await;
    let [primary, replicas @ ..] = &instances;
    let mut writer = table(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    for replica in replicas {
        until("the row is there", || count(replica), |found| found == "1").await;
    }
    let dumps = primary.value(DUMPS).await;
    assert_eq!(dumps.split(',').count(), 2, "{dumps}");
    let processes = instances.each_ref().map(Instance::mysqld);
    let mut before = Vec::new();
    for instance in &instances {
        before.push([of_mysqld(instance).await, of_agent(instance).await]);
    }

    for instance in &instances {
        world.issue_certificate(instance.ordinal);
    }
    for (instance, [mysql, agent]) in instances.iter().zip(&before) {
        until("mysqld serves another", || of_mysqld(instance), |now| now != mysql).await;
        until("the agent serves another", || of_agent(instance), |now| now != agent).await;
        assert_eq!(of_mysqld(instance).await, of_agent(instance).await);
    }

    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    for replica in replicas {
        until("the row is there", || count(replica), |found| found == "2").await;
    }
    assert_eq!(primary.value(DUMPS).await, dumps, "the channels stay up");
    assert_eq!(instances.each_ref().map(Instance::mysqld), processes);

    // Channels made from now on use the new ones.
    let [first, _] = replicas;
    first.signal_mysqld(Signal::SIGKILL);
    first.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;
    first.follow(1, primary).await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (3)").await.unwrap();
    until("the row is there", || count(first), |found| found == "3").await;
}

/// Whether an agent and its mysqld say that they trust exactly these authorities, and are trusted by the first of them.
fn says(facts: &InstanceFacts, authorities: &[&Authority]) -> bool {
    let mut names: Vec<String> = authorities.iter().map(|one| one.fingerprint().into()).collect();
    let issuer = names.first().unwrap().clone();
    names.sort();
    let told = |facts: &TlsFacts| facts.authorities == names && facts.issuer == issuer;
    [&facts.tls, &facts.mysqld_tls].into_iter().all(|facts| facts.as_ref().is_some_and(told))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_comes_and_the_old_one_goes_without_a_connection_being_lost() {
    let world = World::new(21840);
    let instances = cluster(&world).await;
    let [primary, replicas @ ..] = &instances;
    let mut writer = table(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (0)").await.unwrap();
    for replica in replicas {
        until("the row is there", || count(replica), |found| found == "1").await;
    }
    let dumps = primary.value(DUMPS).await;
    let processes = instances.each_ref().map(Instance::mysqld);
    let (old, new) = (world.authority(), Authority::generate("test", Timestamp::now()).unwrap());
    for instance in &instances {
        instance.wait("trusts the only authority", |facts| says(facts, &[old])).await;
    }

    // Each step reaches one instance after the other, and in between all of them talk to one another.
    let both = |first: &Authority, second: &Authority| format!("{}{}", first.cert_pem(), second.cert_pem());
    let steps: [(&Authority, String, &[&Authority]); 3] = [
        (old, both(old, &new), &[old, &new]),
        (&new, both(&new, old), &[&new, old]),
        (&new, new.cert_pem().to_owned(), &[&new]),
    ];
    let mut rows = 1;
    for (issuer, ca, trusted) in steps {
        for instance in &instances {
            world.issue_by(issuer, &ca, instance);
            instance.wait("has loaded it", |facts| says(facts, trusted)).await;
            let mut second = primary.client("writer").await.unwrap();
            second.query_drop(format!("INSERT INTO app.t VALUES ({rows})")).await.unwrap();
            rows += 1;
            for replica in replicas {
                until("the row is there", || count(replica), |found| *found == rows.to_string()).await;
            }
        }
    }
    writer.query_drop("INSERT INTO app.t VALUES (100)").await.unwrap();
    assert_eq!(primary.value(DUMPS).await, dumps, "the channels stay up");
    assert_eq!(instances.each_ref().map(Instance::mysqld), processes, "no mysqld was started again");

    // What connects from now on knows the new one alone: a receiver, the agent past full connections, and a copy.
    let [first, second] = replicas;
    first.signal_mysqld(Signal::SIGKILL);
    let again = |facts: &InstanceFacts| facts.mysqld_exits == 1 && facts.server.is_some();
    first.wait("restarted", |facts| again(facts) && says(facts, &[&new])).await;
    first.follow(1, primary).await.unwrap();
    until("the row is there", || count(first), |found| *found == (rows + 1).to_string()).await;
    let executed = second.value("SELECT @@GLOBAL.gtid_executed").await;
    second.close(1).await.unwrap();
    second.start_clone(1, first, &executed).await.unwrap();
    let copied =
        |facts: &InstanceFacts| facts.clone.as_ref().map(CloneFacts::state) == Some(CloneState::Completed);
    second.wait("cloned", |facts| copied(facts) && facts.server.is_some()).await;
}
