//! Agents with their mysqld inside a MySQL root file system, without containers.

use std::{
    fs,
    net::SocketAddr,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fleet_proto::agent::v1::{
    AdoptRequest, CloseRequest, Endpoint, FenceRequest, FollowRequest, InstanceFacts, OpenRequest,
    ProcessState, StartCloneRequest, WatchInstanceRequest, agent_service_client::AgentServiceClient,
};
use fleet_runtime::{
    grpc,
    tls::{self, Authority, CertificateRequest, Identity, Material, ReloadingIdentity, Role},
};
use mysql_async::{Conn, Opts, OptsBuilder, Row, SslOpts, prelude::Queryable};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill, killpg},
        stat::{Mode, SFlag, makedev, mknod},
    },
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::rustls::ClientConfig;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, transport::Channel};

pub const NAMESPACE: &str = "tenant-a";
const PATIENCE: Duration = Duration::from_mins(2);
/// The user's options of an instance that is started.
pub const MY_CNF: &str = "[mysqld]\ninnodb_buffer_pool_size = 64M\nmax_connections = 77\n";
/// The user and group that the agents run as.
const NOBODY: u32 = 999;

/// A data directory as --initialize-insecure makes it, for all tests of this process.
static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();

/// A world of instances: one authority, one folder inside the root file system.
pub struct World {
    rootfs: PathBuf,
    dir: PathBuf,
    authority: Authority,
    port: u16,
}

/// One agent.
pub struct Instance {
    pub ordinal: u16,
    pub child: Child,
    /// The instance's folder as this process sees it.
    pub dir: PathBuf,
    /// The same inside the root file system.
    inside: PathBuf,
    is_pid_1: bool,
    pub mysql_port: u16,
    pub health: SocketAddr,
    pub grpc: SocketAddr,
    identity: ReloadingIdentity,
}

impl World {
    /// Needs root for chroot, and FLEET_MYSQLD_ROOTFS. `port` is the first of 32 that must be free.
    pub fn new(port: u16) -> Self {
        tls::install_provider();
        let rootfs = PathBuf::from(
            std::env::var("FLEET_MYSQLD_ROOTFS").expect("FLEET_MYSQLD_ROOTFS names a MySQL root file system"),
        );
        let dir = rootfs.join(format!("fleet-test-{}-{port}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        devices(&rootfs);
        fs::create_dir_all(rootfs.join("etc")).unwrap();
        fs::write(rootfs.join("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
        let agent = std::env::var_os("FLEET_AGENT_BINARY")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_mysql-agent").into());
        fs::copy(agent, dir.join("mysql-agent")).unwrap();
        let authority = Authority::generate("test", jiff::Timestamp::now()).unwrap();
        Self { rootfs, dir, authority, port }
    }

    fn material(&self, role: Role, namespace: &str) -> Material {
        Self::material_of(&self.authority, self.authority.cert_pem(), role, namespace)
    }

    fn material_of(authority: &Authority, ca: &str, role: Role, namespace: &str) -> Material {
        let request = CertificateRequest {
            common_name: role.to_string(),
            dns_names: vec!["localhost".to_owned()],
            identity: Some(Identity::new(namespace, role)),
            validity: Duration::from_hours(1),
        };
        let issued = authority.issue(&request, jiff::Timestamp::now()).unwrap();
        Material { ca: ca.to_owned(), cert: issued.cert, key: issued.key }
    }

    /// Starts an instance, fresh or on the data it left. A fresh one is given data as `mysqld --initialize-insecure`
    /// makes them, which spares the seconds that it would take to make its own.
    pub fn start(&self, ordinal: u16) -> Instance {
        self.initialized(&self.dir.join(ordinal.to_string()).join("volume/data"));
        self.start_by(ordinal, false, &[])
    }

    /// Starts an instance that has to make its data directory by itself.
    pub fn start_empty(&self, ordinal: u16) -> Instance {
        self.start_by(ordinal, false, &[])
    }

    /// Makes a data directory where there is none, a copy of one that was initialised once for all tests. mysqld
    /// gives itself a server UUID as it starts.
    pub fn initialized(&self, datadir: &Path) {
        if datadir.exists() {
            return;
        }
        let template = TEMPLATE.get_or_init(|| self.initialize());
        fs::create_dir_all(datadir.parent().unwrap()).unwrap();
        succeed(Command::new("cp").args(["-a", "--reflink=auto"]).arg(template).arg(datadir));
    }

    fn initialize(&self) -> PathBuf {
        let made = self.folder("initialized");
        let inside = self.inside(&made).display().to_string();
        let mut mysqld = self.as_nobody();
        mysqld.args(["mysqld", "--no-defaults", "--initialize-insecure", &format!("--datadir={inside}")]);
        succeed(mysqld.arg("--loose-innodb-numa-interleave=OFF").stderr(Stdio::null()));
        fs::remove_file(made.join("auto.cnf")).unwrap();
        // Outlives the world, and is replaced by the next run.
        let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join("initialized");
        let _ = fs::remove_dir_all(&template);
        succeed(Command::new("cp").arg("-a").arg(&made).arg(&template));
        fs::remove_dir_all(made).unwrap();
        template
    }

    /// What runs a program inside the root file system as the agents' user.
    pub fn as_nobody(&self) -> Command {
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec={NOBODY}:{NOBODY}")).arg(&self.rootfs);
        command
    }

    /// The root file system.
    pub fn rootfs(&self) -> &Path {
        &self.rootfs
    }

    /// A path as it is seen inside the root file system.
    pub fn inside(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path.strip_prefix(&self.rootfs).unwrap())
    }

    /// A folder of this world that belongs to the agents' user.
    pub fn folder(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        succeed(Command::new("chown").arg(format!("{NOBODY}:{NOBODY}")).arg(&dir));
        dir
    }

    /// The port that an instance or a server of this ordinal listens on.
    pub fn mysql_port(&self, ordinal: u16) -> u16 {
        self.port + ordinal * 4
    }

    /// Starts an instance that believes to be in a pod, whose API server and neighbours can't be reached.
    pub fn start_cut_off(&self, ordinal: u16) -> Instance {
        self.initialized(&self.dir.join(ordinal.to_string()).join("volume/data"));
        self.start_by(ordinal, false, &["--api-server-host", "127.0.0.1", "--api-server-port", "1"])
    }

    /// Starts an instance in a pid namespace of its own, as in a container.
    pub fn start_as_pid_1(&self, ordinal: u16) -> Instance {
        self.start_by(ordinal, true, &[])
    }

    fn start_by(&self, ordinal: u16, pid_namespace: bool, more: &[&str]) -> Instance {
        let dir = self.dir.join(ordinal.to_string());
        for name in ["volume", "run", "tmp", "config", "tls"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        fs::write(dir.join("config/my.cnf"), MY_CNF).unwrap();
        self.issue_certificate(ordinal);
        for role in ["replication", "admin", "writer", "reader"] {
            fs::create_dir_all(dir.join("users").join(role)).unwrap();
            fs::write(dir.join("users").join(role).join("username"), role).unwrap();
            fs::write(dir.join("users").join(role).join("password"), password(role)).unwrap();
        }
        succeed(Command::new("chown").arg("-R").arg(format!("{NOBODY}:{NOBODY}")).arg(&dir));
        let first = self.mysql_port(ordinal);
        let address = |offset| SocketAddr::from(([127, 0, 0, 1], first + offset));
        let inside = self.inside(&dir);
        let path = |name: &str| inside.join(name).display().to_string();
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        let mut command = Command::new(if pid_namespace { "unshare" } else { "chroot" });
        if pid_namespace {
            command.args(["--pid", "--fork", "chroot"]);
        }
        let child = command
            .arg(format!("--userspec={NOBODY}:{NOBODY}"))
            .arg(&self.rootfs)
            .arg(self.inside(&self.dir).join("mysql-agent"))
            .args(["run", "--namespace", NAMESPACE, "--cluster", "orders", "--server-id-base", "100"])
            .args(["--pod-name", &format!("orders-{ordinal}"), "--report-host", "localhost"])
            .args(["--data-dir", &path("volume"), "--run-dir", &path("run"), "--tmp-dir", &path("tmp")])
            .args(["--config-dir", &path("config"), "--tls-dir", &path("tls"), "--users-dir", &path("users")])
            .args(["--mysql-bind-address", "127.0.0.1", "--mysql-port", &first.to_string()])
            .args(["--mysql-admin-port", &(first + 3).to_string()])
            .args(more)
            .args(["--grpc-addr", &address(1).to_string(), "--health-addr", &address(2).to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        Instance {
            ordinal,
            child,
            dir,
            inside,
            is_pid_1: pid_namespace,
            mysql_port: first,
            health: address(2),
            grpc: address(1),
            identity: ReloadingIdentity::new(&self.material(Role::Shard, NAMESPACE)).unwrap(),
        }
    }

    /// Gives an instance a new certificate, as kubelet shows a changed Secret: all files at once.
    pub fn issue_certificate(&self, ordinal: u16) {
        self.show(ordinal, &self.material(Role::Agent, NAMESPACE));
    }

    /// The authority that everything is issued by at first.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Gives an instance a certificate of this authority, and `ca` to trust; and the shard that asks it.
    pub fn issue_by(&self, authority: &Authority, ca: &str, instance: &Instance) {
        self.show(instance.ordinal, &Self::material_of(authority, ca, Role::Agent, NAMESPACE));
        instance.identity.swap(&Self::material_of(authority, ca, Role::Shard, NAMESPACE)).unwrap();
    }

    fn show(&self, ordinal: u16, material: &Material) {
        let tls = self.dir.join(ordinal.to_string()).join("tls");
        let serial = fs::read_dir(&tls).unwrap().count();
        let version = tls.join(format!("..version-{serial}"));
        fs::create_dir(&version).unwrap();
        for (file, text) in
            [("ca.crt", &material.ca), ("tls.crt", &material.cert), ("tls.key", &material.key)]
        {
            fs::write(version.join(file), text).unwrap();
            let link = tls.join(file);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(file), link).unwrap();
            }
        }
        succeed(Command::new("chown").arg("-R").arg(format!("{NOBODY}:{NOBODY}")).arg(&version));
        symlink(version.file_name().unwrap(), tls.join("..data_tmp")).unwrap();
        fs::rename(tls.join("..data_tmp"), tls.join("..data")).unwrap();
    }

    /// A client that the instance's agent must not obey.
    pub async fn stranger(
        &self,
        instance: &Instance,
        role: Role,
        namespace: &str,
    ) -> AgentServiceClient<Channel> {
        let identity = ReloadingIdentity::new(&self.material(role, namespace)).unwrap();
        AgentServiceClient::new(connect(instance.grpc, &identity).await.unwrap())
    }
}

fn succeed(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// The devices that a container runtime gives to every container.
fn devices(rootfs: &Path) {
    let dev = rootfs.join("dev");
    fs::create_dir_all(&dev).unwrap();
    for (name, minor) in [("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)] {
        match mknod(&dev.join(name), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, minor)) {
            Ok(()) => fs::set_permissions(dev.join(name), fs::Permissions::from_mode(0o666)).unwrap(),
            Err(Errno::EEXIST) => {}
            Err(error) => panic!("can't make {name} in {}: {error}", dev.display()),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs and data are kept in {}", self.dir.display());
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal_agent(Signal::SIGKILL);
            let _ = self.child.wait();
            // Outside a pid namespace mysqld outlives its agent.
            if let Some(pid) = self.mysqld() {
                let _ = killpg(pid, Signal::SIGKILL);
            }
        }
    }
}

/// Every process of this machine.
pub fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect()
}

pub fn password(role: &str) -> String {
    format!("{role}'s \"pass\\word\"")
}

async fn connect(address: SocketAddr, identity: &ReloadingIdentity) -> Result<Channel, grpc::GrpcError> {
    grpc::channel(address, "localhost", identity, &agent_identity()).await
}

fn agent_identity() -> Identity {
    Identity::new(NAMESPACE, Role::Agent)
}

impl Instance {
    pub async fn agent(&self) -> AgentServiceClient<Channel> {
        let channel =
            until("the agent listens", || connect(self.grpc, &self.identity), Result::is_ok).await.unwrap();
        AgentServiceClient::new(channel)
    }

    /// What a shard connects with.
    pub fn tls_client(&self) -> Arc<ClientConfig> {
        self.identity.client_config(&agent_identity()).unwrap()
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint { host: "localhost".to_owned(), port: self.mysql_port.into() }
    }

    pub async fn facts(&self) -> InstanceFacts {
        let mut stream =
            self.agent().await.watch_instance(WatchInstanceRequest {}).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap().facts.unwrap()
    }

    /// Waits until the streamed facts fit.
    pub async fn wait(&self, what: &str, fits: impl Fn(&InstanceFacts) -> bool) -> InstanceFacts {
        let mut stream =
            self.agent().await.watch_instance(WatchInstanceRequest {}).await.unwrap().into_inner();
        let mut last = None;
        let search = async {
            while let Some(message) = stream.message().await.unwrap() {
                let facts = message.facts.unwrap();
                if fits(&facts) {
                    return facts;
                }
                last = Some(facts);
            }
            panic!("instance {}: the stream ended before {what}", self.ordinal)
        };
        let found = tokio::time::timeout(PATIENCE, search).await.ok();
        found.unwrap_or_else(|| panic!("instance {} is not yet: {what}; it is {last:#?}", self.ordinal))
    }

    pub async fn wait_running(&self) -> InstanceFacts {
        self.wait("running", |facts| facts.process_state() == ProcessState::Running && facts.server.is_some())
            .await
    }

    pub async fn follow(&self, term: u64, source: &Self) -> Result<(), Status> {
        self.follow_at(term, source.endpoint()).await
    }

    pub async fn follow_at(&self, term: u64, source: Endpoint) -> Result<(), Status> {
        let request = FollowRequest { term, source: Some(source), acknowledge: true };
        self.agent().await.follow(request).await.map(drop)
    }

    pub async fn open(&self, term: u64, required_acks: u32) -> Result<(), Status> {
        self.agent().await.open(OpenRequest { term, required_acks }).await.map(drop)
    }

    pub async fn close(&self, term: u64) -> Result<(), Status> {
        self.agent().await.close(CloseRequest { term }).await.map(drop)
    }

    pub async fn adopt(&self, term: u64, gtids: &[&str]) -> Result<(), Status> {
        let gtids = gtids.iter().map(|&gtid| gtid.to_owned()).collect();
        self.agent().await.adopt(AdoptRequest { term, gtids }).await.map(drop)
    }

    pub async fn fence(&self, term: u64) -> Result<(), Status> {
        self.agent().await.fence(FenceRequest { term }).await.map(drop)
    }

    pub async fn start_clone(&self, term: u64, donor: &Self, expendable: &str) -> Result<(), Status> {
        self.start_clone_from(term, donor.endpoint(), expendable).await
    }

    pub async fn start_clone_from(&self, term: u64, donor: Endpoint, expendable: &str) -> Result<(), Status> {
        self.start_clone_keeping(term, donor, expendable, "").await
    }

    pub async fn start_clone_keeping(
        &self,
        term: u64,
        donor: Endpoint,
        expendable: &str,
        archived: &str,
    ) -> Result<(), Status> {
        let request = StartCloneRequest {
            term,
            donor: Some(donor),
            expendable_gtids: expendable.to_owned(),
            archive_gtids: archived.to_owned(),
        };
        self.agent().await.start_clone(request).await.map(drop)
    }

    /// The process of mysqld, searched by its option file: the pid file may be of another pid namespace.
    pub fn mysqld(&self) -> Option<Pid> {
        let option_file = format!("{}/run/my.cnf", self.inside.display());
        processes().into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("mysqld\0") && line.contains(&option_file)
        })
    }

    /// The process of the agent, which is a child of what was started where it has a pid namespace.
    pub fn agent_process(&self) -> Pid {
        let started = self.child.id();
        let children =
            fs::read_to_string(format!("/proc/{started}/task/{started}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().filter(|_| self.is_pid_1);
        Pid::from_raw(child.map_or_else(|| i32::try_from(started).unwrap(), |pid| pid.parse().unwrap()))
    }

    pub fn signal_mysqld(&self, signal: Signal) {
        kill(self.mysqld().expect("mysqld runs"), signal).unwrap();
    }

    pub fn signal_agent(&self, signal: Signal) {
        kill(self.agent_process(), signal).unwrap();
    }

    /// A client's connection over TCP and TLS.
    pub async fn client(&self, role: &str) -> Result<Conn, mysql_async::Error> {
        Conn::new(self.options(role)).await
    }

    fn options(&self, role: &str) -> Opts {
        let tls = SslOpts::default().with_root_certs(vec![self.dir.join("tls/ca.crt").into()]);
        OptsBuilder::default()
            .ip_or_hostname("localhost")
            .tcp_port(self.mysql_port)
            .user(Some(role))
            .pass(Some(password(role)))
            .ssl_opts(tls)
            .prefer_socket(false)
            .into()
    }

    /// A connection as the agent's own user, whose password is in the init file.
    pub async fn system(&self) -> Conn {
        self.try_system().await.unwrap()
    }

    pub async fn try_system(&self) -> Result<Conn, mysql_async::Error> {
        let init = fs::read_to_string(self.dir.join("run/init.sql")).unwrap();
        let password = init.split("IDENTIFIED BY '").nth(1).unwrap().split('\'').next().unwrap();
        let options = OptsBuilder::default()
            .socket(Some(self.dir.join("run/mysqld.sock").display().to_string()))
            .user(Some("fleet_system"))
            .pass(Some(password));
        Conn::new(options).await
    }

    /// One value, empty where the statement fails: tables come by replication.
    pub async fn value(&self, sql: &str) -> String {
        let value = self.system().await.query_first::<Option<String>, _>(sql).await;
        value.ok().flatten().flatten().unwrap_or_default()
    }

    pub async fn probe(&self, path: &str) -> u16 {
        let mut stream = TcpStream::connect(self.health).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// A way to a server that ends in the middle: some bytes of the server's answers pass, over all connections
/// together, and from then on nothing does, until this is dropped and every connection with it.
pub struct Valve {
    port: u16,
    shut: watch::Receiver<bool>,
    _connections: AbortOnDropHandle<()>,
}

impl Valve {
    pub async fn to(server: &Instance, passes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = SocketAddr::from(([127, 0, 0, 1], server.mysql_port));
        let (sender, shut) = watch::channel(false);
        let passage = Arc::new(Passage { left: AtomicU64::new(passes), shut: sender });
        let connections = async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let passage = Arc::clone(&passage);
                connections.spawn(async move { passage.connect(client, server).await });
            }
        };
        Self { port, shut, _connections: AbortOnDropHandle::new(tokio::spawn(connections)) }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint { host: "localhost".to_owned(), port: self.port.into() }
    }

    /// Returns once nothing passes any more.
    pub async fn shut(&self) {
        let shut = self.shut.clone();
        let wait = async move { shut.clone().wait_for(|shut| *shut).await.map(drop) };
        tokio::time::timeout(PATIENCE, wait).await.expect("the valve shuts").unwrap();
    }
}

struct Passage {
    left: AtomicU64,
    shut: watch::Sender<bool>,
}

impl Passage {
    async fn connect(&self, client: TcpStream, server: SocketAddr) {
        let server = TcpStream::connect(server).await.unwrap();
        let (mut client_out, mut client_in) = client.into_split();
        let (mut server_out, mut server_in) = server.into_split();
        let answers = async {
            let mut chunk = vec![0; 16 << 10];
            loop {
                let read = server_out.read(&mut chunk).await?;
                if read == 0 {
                    return client_in.shutdown().await;
                }
                let take = |left: u64| left.checked_sub(read as u64);
                if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                    self.left.store(0, Ordering::SeqCst);
                    self.shut.send_replace(true);
                    std::future::pending::<()>().await;
                }
                client_in.write_all(chunk.get(..read).unwrap()).await?;
            }
        };
        let requests = async {
            tokio::io::copy(&mut client_out, &mut server_in).await?;
            server_in.shutdown().await
        };
        // An end that went away ends the connection, which is what its other end shall see.
        let _ = tokio::try_join!(answers, requests);
    }
}

/// Repeats an attempt until its result fits.
pub async fn until<T, F: Future<Output = T>>(
    what: &str,
    attempt: impl Fn() -> F,
    fits: impl Fn(&T) -> bool,
) -> T {
    let search = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            let value = attempt().await;
            if fits(&value) {
                return value;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("not yet: {what}"))
}

pub async fn rows(conn: &mut Conn, sql: &str) -> Vec<Row> {
    conn.query(sql).await.unwrap()
}
