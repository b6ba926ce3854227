//! Arguments.

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::{
    force::{self, Consent, ForceError},
    render::{self, PullPolicy, RenderOptions},
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
}

#[derive(Debug, Subcommand)]
enum Instance {
    /// Give up what an instance holds and the primary does not, and wait until its data are a copy
    ///
    /// The binary logs with those transactions are kept for 7 days, in fleet/archive on the instance's volume.
    Rebuild(RebuildArgs),
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
    #[arg(long, env = "FLEET_IMAGE", value_name = "IMAGE", value_parser = image, default_value = render::DEFAULT_IMAGE)]
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
        let RenderArgs { namespace, image, mysql_image, image_pull_policy, replicas, create_namespace } =
            args;
        Self { namespace, image, mysql_image, image_pull_policy, replicas, create_namespace }
    }
}

impl From<StatusArgs> for StatusOptions {
    fn from(args: StatusArgs) -> Self {
        let StatusArgs { shard, output, watch } = args;
        let format = match output {
            OutputArg::Table => Format::Table,
            OutputArg::Json => Format::Json,
            OutputArg::Yaml => Format::Yaml,
        };
        Self { shard: ShardOptions::from(&shard), format, watch }
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

fn namespace(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edges = !text.starts_with('-') && !text.ends_with('-');
    if (1..=63).contains(&text.len()) && text.bytes().all(inner) && edges {
        return Ok(text.to_owned());
    }
    Err("a namespace is 1 to 63 letters a-z, digits and '-', with a letter or digit at both ends".to_owned())
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
            (&["kubectl-fleet", "shard", "render", "Tenant_A"][..], "<NAMESPACE>", "Tenant_A"),
            (&["kubectl-fleet", "shard", "render", "-x"], "'-x'", "-x"),
            (&["kubectl-fleet", "shard", "render", "a", "--replicas", "0"], "--replicas", "'0'"),
            (&["kubectl-fleet", "shard", "render", "a", "--image", "a b"], "--image", "a b"),
            (
                &["kubectl-fleet", "shard", "render", "a", "--image-pull-policy", "Maybe"],
                "--image-pull-policy",
                "Maybe",
            ),
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
