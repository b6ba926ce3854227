//! Arguments.

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::{
    federation::{self, FederationError, FederationStatusOptions, Selection},
    force::{self, Consent, ForceError},
    member::{self, CertificateOptions, MemberError},
    render::{self, FederationOptions, PullPolicy, RenderOptions},
    request::{self, RequestError, RequestOptions, What},
    status::{self, Format, ShardOptions, StatusError, StatusOptions},
};

/// Asks and deploys the shards of mysql-fleet.
#[derive(Debug, Parser)]
#[command(name = "kubectl-fleet", bin_name = "kubectl fleet", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work with the shard of a tenant namespace
    #[command(subcommand)]
    Shard(Shard),
    /// Show the state of a shard and of its MySQL clusters
    Status(StatusArgs),
    /// Make another instance of a MySQL cluster its primary, and wait for it
    Switchover(SwitchoverArgs),
    /// Work with one instance of a MySQL cluster
    #[command(subcommand)]
    Instance(Instance),
    /// Make an instance the primary though the failover is blocked, at the price of data, and wait for it
    ///
    /// For a cluster in phase FailoverBlocked whose lost instances will not come back. Nobody can prove that the
    /// instance holds every commit that was acknowledged to a client: those that only lost instances hold are lost to
    /// the cluster. An instance that comes back with some is left alone until it is rebuilt. Make sure first that no
    /// instance that the shard can't reach goes on running elsewhere.
    ForcePrimary(ForcePrimaryArgs),
    /// Look at a hub's federation
    #[command(subcommand)]
    Federation(Federation),
    /// Work with the members of a hub's federation
    #[command(subcommand)]
    Member(Member),
}

#[derive(Debug, Subcommand)]
enum Federation {
    /// Show what the hub knows of its members and of the federated clusters
    ///
    /// A tree: the hub, its federated clusters, and their members, each with the fields in which it is not as wanted,
    /// who holds them there, and since when nothing was heard of it. The certificate to ask with is in Secret
    /// mysql-fleet-hub-viewer of the hub's namespace.
    Status(FederationStatusArgs),
}

#[derive(Debug, Args)]
struct FederationStatusArgs {
    /// Show the MySQLClusterFederated of this name alone
    #[arg(value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Show those of this namespace alone
    #[arg(long, short, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    /// Form of the output
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value = "table")]
    output: OutputArg,
    /// Print the state again after each change, until interrupted
    #[arg(long, short)]
    watch: bool,
}

/// Which hub is asked.
#[derive(Debug, Args)]
struct HubArgs {
    /// Namespace of the hub's controller
    #[arg(long, value_name = "NAMESPACE", default_value = "mysql-fleet-hub", value_parser = namespace)]
    hub_namespace: String,
    /// Context of the kubeconfig to use, for the hub's cluster
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Path of the kubeconfig [default: $KUBECONFIG, else ~/.kube/config, else the pod's own account]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Member {
    /// Issue a certificate for a namespace of a member, and print it as a Secret for `kubectl apply -f -` there
    ///
    /// Run it at the hub: the certificate is signed with the hub's authority, which has to be readable for you.
    Certificate(CertificateArgs),
}

#[derive(Debug, Args)]
struct CertificateArgs {
    /// Name of the MemberCluster
    #[arg(value_name = "MEMBER", value_parser = member_name)]
    member: String,
    /// Namespace of the member that the certificate speaks for
    #[arg(long, short, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: String,
    /// Name of the printed Secret, for the shard's --federation-secret
    #[arg(long, value_name = "NAME", default_value = "hub", value_parser = secret)]
    secret: String,
    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Debug, Subcommand)]
enum Instance {
    /// Give up what an instance holds and the primary does not, and wait until its data are a copy
    ///
    /// The binary logs with those transactions are kept for 7 days, in fleet/archive on the instance's volume.
    Rebuild(RebuildArgs),
    /// Keep what an instance holds and the primary does not, and wait until it is in sync
    ///
    /// For transactions that change no data, such as those of FLUSH TABLES or ANALYZE TABLE: the primary commits an empty
    /// one by the name of each. What they did change stays changed on that instance alone.
    Release(ReleaseArgs),
}

#[derive(Debug, Subcommand)]
enum Shard {
    /// Print all that a tenant namespace needs, for `kubectl apply -f -`
    Render(RenderArgs),
}

#[derive(Debug, Args)]
struct RenderArgs {
    /// The tenant namespace
    #[arg(value_name = "NAMESPACE", value_parser = namespace)]
    namespace: String,
    /// Image of mysql-fleet, for the shard and for the agent of each MySQL pod
    #[arg(long, env = "FLEET_IMAGE", value_name = "IMAGE", value_parser = image)]
    image: String,
    /// Image of MySQL, for clusters that name none; {version} is replaced by the cluster's version
    #[arg(long, env = "FLEET_MYSQL_IMAGE", value_name = "IMAGE", value_parser = image)]
    mysql_image: Option<String>,
    /// When nodes pull the images
    #[arg(
        long,
        env = "FLEET_IMAGE_PULL_POLICY",
        value_name = "POLICY",
        value_enum,
        default_value = "IfNotPresent"
    )]
    image_pull_policy: PullPolicy,
    /// Pods of the shard, of which one leads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    /// Print the Namespace too, with the `restricted` Pod Security Standard enforced
    #[arg(long)]
    create_namespace: bool,
    /// Hub that the shard gets clusters from, as https://HOST:PORT
    #[arg(long, env = "FLEET_FEDERATION_ENDPOINT", value_name = "URL", requires = "federation_secret", value_parser = hub)]
    federation_endpoint: Option<String>,
    /// Secret of the namespace with the certificate for the hub (tls.crt, tls.key) and the hub's authority (ca.crt)
    #[arg(long, env = "FLEET_FEDERATION_SECRET", value_name = "NAME", requires = "federation_endpoint", value_parser = secret)]
    federation_secret: Option<String>,
    /// Print NetworkPolicies too: MySQL pods and the shard are reached by whom they need, and reach nobody else
    #[arg(long)]
    network_policies: bool,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    shard: ShardArgs,
    /// Form of the output
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value = "table")]
    output: OutputArg,
    /// Print the state again after each change, until interrupted
    #[arg(long, short)]
    watch: bool,
}

#[derive(Debug, Args)]
struct SwitchoverArgs {
    /// The MySQLCluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Pod that is to be the primary [default: the one in sync that lacks the least]
    #[arg(long, value_name = "POD")]
    to: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Args)]
struct RebuildArgs {
    /// The MySQLCluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// The instance's pod
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Args)]
struct ReleaseArgs {
    /// The MySQLCluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// The instance's pod
    #[arg(value_name = "POD")]
    pod: String,
    /// The transactions to keep, as its message in `kubectl fleet status` has them; one that holds others is not released
    #[arg(long, value_name = "SET")]
    gtids: String,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Args)]
struct ForcePrimaryArgs {
    /// The MySQLCluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Pod that is to be the primary
    #[arg(value_name = "POD")]
    pod: String,
    /// Accept that commits that were acknowledged to clients and POD does not hold are lost; without it nothing is done
    #[arg(long)]
    accept_data_loss: bool,
    /// Name of the MySQLCluster once more, where no terminal is there to type it at
    #[arg(long, value_name = "CLUSTER")]
    confirm: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

/// Of whom something is asked, and for how long.
#[derive(Debug, Args)]
struct RequestArgs {
    #[command(flatten)]
    shard: ShardArgs,
    /// How long to wait, such as 90s or 2m; what was asked for goes on afterwards
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
}

/// Which shard is asked.
#[derive(Debug, Args)]
struct ShardArgs {
    /// The tenant namespace [default: the one of the kubeconfig's context]
    #[arg(long, short, env = "FLEET_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Path of the kubeconfig [default: $KUBECONFIG, else ~/.kube/config, else the pod's own account]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutputArg {
    Table,
    Json,
    Yaml,
}

/// The command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The shard can't be asked.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// What was asked for was not done.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No primary was forced.
    #[error(transparent)]
    Force(#[from] ForceError),
    /// The federation can't be shown.
    #[error(transparent)]
    Federation(#[from] FederationError),
    /// No certificate was issued.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The objects can't be written as YAML.
    #[error("can't write the objects as YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The output can't be written.
    #[error("can't write to the standard output: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    /// 2 where an argument has to be changed, else 1.
    pub fn exit_code(&self) -> u8 {
        let usage = match self {
            Self::Status(error) => error.is_usage(),
            Self::Request(error) => error.is_usage(),
            Self::Force(error) => error.is_usage(),
            Self::Federation(error) => error.is_usage(),
            Self::Member(error) => error.is_usage(),
            Self::Yaml(_) | Self::Output(_) => false,
        };
        if usage { 2 } else { 1 }
    }
}

impl Cli {
    /// Does what the arguments say.
    pub async fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Shard(Shard::Render(args)) => {
                let text = render::to_yaml(&render::render(&args.into()))?;
                match io::stdout().write_all(text.as_bytes()) {
                    // The reader (`head`) has seen enough.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    written => Ok(written?),
                }
            }
            Command::Status(args) => Ok(status::run(&args.into(), &mut io::stdout()).await?),
            Command::Switchover(SwitchoverArgs { cluster, to, request }) => {
                let options = request.of(cluster, What::Switchover { to });
                Ok(request::run(&options, &mut io::stdout()).await?)
            }
            Command::Instance(Instance::Release(ReleaseArgs { cluster, pod, gtids, request })) => {
                let options = request.of(cluster, What::Release { pod, gtids });
                Ok(request::run(&options, &mut io::stdout()).await?)
            }
            Command::Instance(Instance::Rebuild(RebuildArgs { cluster, pod, request })) => {
                let options = request.of(cluster, What::Rebuild { pod });
                Ok(request::run(&options, &mut io::stdout()).await?)
            }
            Command::ForcePrimary(args) => {
                let consent = args.consent().await?;
                let ForcePrimaryArgs { cluster, pod, request, .. } = args;
                let options = request.of(cluster, What::ForcePrimary { pod, consent });
                Ok(request::run(&options, &mut io::stdout()).await?)
            }
            Command::Federation(Federation::Status(args)) => {
                Ok(federation::status(&args.into(), &mut io::stdout()).await?)
            }
            Command::Member(Member::Certificate(args)) => {
                Ok(member::certificate(&args.into(), &mut io::stdout()).await?)
            }
        }
    }
}

impl ForcePrimaryArgs {
    /// That data may be lost: by the arguments, or asked for at the terminal.
    async fn consent(&self) -> Result<Consent, ForceError> {
        let Self { cluster, pod, accept_data_loss, confirm, request } = self;
        let at_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        if let Some(consent) =
            force::consent(cluster, pod, *accept_data_loss, confirm.as_deref(), at_terminal)?
        {
            return Ok(consent);
        }
        let shard = ShardOptions::from(&request.shard);
        force::ask(&shard, cluster, pod, &mut io::stdin().lock(), &mut io::stderr()).await
    }
}

impl From<RenderArgs> for RenderOptions {
    fn from(args: RenderArgs) -> Self {
        let RenderArgs {
            namespace,
            image,
            mysql_image,
            image_pull_policy,
            replicas,
            create_namespace,
            federation_endpoint,
            federation_secret,
            network_policies,
        } = args;
        let federation = federation_endpoint
            .zip(federation_secret)
            .map(|(endpoint, secret)| FederationOptions { endpoint, secret });
        Self {
            namespace,
            image,
            mysql_image,
            image_pull_policy,
            replicas,
            create_namespace,
            federation,
            network_policies,
        }
    }
}

impl From<CertificateArgs> for CertificateOptions {
    fn from(args: CertificateArgs) -> Self {
        let CertificateArgs { member, namespace, secret, hub } = args;
        Self { member, namespace, secret, hub: hub.into() }
    }
}

impl From<HubArgs> for ShardOptions {
    fn from(args: HubArgs) -> Self {
        let HubArgs { hub_namespace, context, kubeconfig } = args;
        Self { namespace: Some(hub_namespace), context, kubeconfig }
    }
}

impl From<FederationStatusArgs> for FederationStatusOptions {
    fn from(args: FederationStatusArgs) -> Self {
        let FederationStatusArgs { cluster, namespace, hub, output, watch } = args;
        let selection = Selection { namespace, cluster };
        Self { hub: hub.into(), selection, format: output.into(), watch }
    }
}

impl From<OutputArg> for Format {
    fn from(output: OutputArg) -> Self {
        match output {
            OutputArg::Table => Self::Table,
            OutputArg::Json => Self::Json,
            OutputArg::Yaml => Self::Yaml,
        }
    }
}

impl From<StatusArgs> for StatusOptions {
    fn from(args: StatusArgs) -> Self {
        let StatusArgs { shard, output, watch } = args;
        Self { shard: ShardOptions::from(&shard), format: output.into(), watch }
    }
}

impl RequestArgs {
    fn of(self, cluster: String, what: What) -> RequestOptions {
        let Self { shard, timeout } = self;
        RequestOptions { cluster, what, shard: ShardOptions::from(&shard), timeout }
    }
}

impl From<&ShardArgs> for ShardOptions {
    fn from(args: &ShardArgs) -> Self {
        let ShardArgs { namespace, context, kubeconfig } = args;
        Self { namespace: namespace.clone(), context: context.clone(), kubeconfig: kubeconfig.clone() }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wanted = "a duration is a number with a unit, such as 90s or 2m, and at least 1s";
    let parsed: SignedDuration = text.parse().map_err(|_| wanted.to_owned())?;
    Duration::try_from(parsed).ok().filter(|parsed| parsed.as_secs() >= 1).ok_or_else(|| wanted.to_owned())
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edges = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && edges
}

/// It stands in a certificate.
fn member_name(text: &str) -> Result<String, String> {
    if is_label(text) {
        return Ok(text.to_owned());
    }
    Err("a member is 1 to 63 letters a-z, digits and '-', with a letter or digit at both ends".to_owned())
}

fn namespace(text: &str) -> Result<String, String> {
    if is_label(text) {
        return Ok(text.to_owned());
    }
    Err("a namespace is 1 to 63 letters a-z, digits and '-', with a letter or digit at both ends".to_owned())
}

/// The shard checks the address more closely, and ends with the flag's name where it is wrong.
fn hub(text: &str) -> Result<String, String> {
    let port = text.strip_prefix("https://").and_then(|rest| rest.rsplit_once(':'));
    match port {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Ok(text.to_owned())
        }
        _ => Err("a hub's address is https://HOST:PORT".to_owned()),
    }
}

fn secret(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if (1..=253).contains(&text.len()) && text.bytes().all(inner) {
        return Ok(text.to_owned());
    }
    Err("a Secret's name is 1 to 253 characters of a-z, 0-9, '-' and '.'".to_owned())
}

fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("an image is a reference such as registry.example/mysql-fleet:1.0".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let error = Cli::try_parse_from(arguments).expect_err("the arguments were taken");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bad_argument_is_named_with_its_value() {
        for (arguments, name, value) in [
            (
                &["kubectl-fleet", "shard", "render", "Tenant_A", "--image", "i"][..],
                "<NAMESPACE>",
                "Tenant_A",
            ),
            (&["kubectl-fleet", "shard", "render", "a"], "--image", "IMAGE"),
            (&["kubectl-fleet", "shard", "render", "-x"], "'-x'", "-x"),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image", "i", "--replicas", "0"],
                "--replicas",
                "'0'",
            ),
            (&["kubectl-fleet", "shard", "render", "a", "--image", "a b"], "--image", "a b"),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image", "i", "--image-pull-policy", "Maybe"],
                "--image-pull-policy",
                "Maybe",
            ),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image", "i", "--federation-endpoint", "hub:1"],
                "--federation-endpoint",
                "hub:1",
            ),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image", "i", "--federation-secret", "hub"],
                "--federation-endpoint",
                "URL",
            ),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image", "i", "--federation-secret", "A b"],
                "--federation-secret",
                "A b",
            ),
            (&["kubectl-fleet", "member", "certificate", "East", "-n", "a"], "<MEMBER>", "East"),
            (&["kubectl-fleet", "member", "certificate", "east"], "--namespace", "NAMESPACE"),
            (&["kubectl-fleet", "member", "certificate", "east", "-n", "A"], "--namespace", "A"),
            (&["kubectl-fleet", "federation", "status", "-n", "A"], "--namespace", "A"),
            (&["kubectl-fleet", "federation", "status", "-o", "wide"], "--output", "wide"),
            (&["kubectl-fleet", "federation", "status", "--hub-namespace", "a/b"], "--hub-namespace", "a/b"),
            (&["kubectl-fleet", "status", "-n", "a/b"], "--namespace", "a/b"),
            (&["kubectl-fleet", "status", "-o", "xml"], "--output", "xml"),
            (&["kubectl-fleet", "switchover", "orders", "--timeout", "soon"], "--timeout", "soon"),
            (&["kubectl-fleet", "switchover", "orders", "--timeout", "0s"], "--timeout", "0s"),
            (&["kubectl-fleet", "switchover", "orders", "-n", "A"], "--namespace", "A"),
            (&["kubectl-fleet", "instance", "rebuild", "orders", "orders-1", "-n", "A"], "--namespace", "A"),
            (&["kubectl-fleet", "force-primary", "orders", "orders-1", "--timeout", "0s"], "--timeout", "0s"),
            (&["kubectl-fleet", "force-primary", "orders", "orders-1", "--accept"], "'--accept'", "--accept"),
            (&["kubectl-fleet", "status", "-n", "a", "-n", "b"], "--namespace", "multiple times"),
        ] {
            let text = refused(arguments);
            assert!(text.contains(name) && text.contains(value), "{arguments:?}: {text}");
        }
        assert!(refused(&["kubectl-fleet", "shard", "render"]).contains("<NAMESPACE>"));
        assert!(refused(&["kubectl-fleet", "force-primary", "orders"]).contains("<POD>"));
    }

    #[tokio::test]
    async fn a_primary_is_not_forced_without_the_word_for_it() {
        for (more, part) in [
            (&[][..], "--accept-data-loss is missing"),
            (&["--confirm", "orders"], "--accept-data-loss is missing"),
            (&["--accept-data-loss", "--confirm", "invoices"], "--confirm is \"invoices\""),
        ] {
            let arguments = ["kubectl-fleet", "force-primary", "orders", "orders-1"].iter().chain(more);
            let refused = Cli::try_parse_from(arguments).unwrap().run().await.unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{refused}");
            assert!(refused.to_string().contains(part), "{refused}");
        }
    }
}
