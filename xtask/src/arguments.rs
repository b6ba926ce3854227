//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use e2e::demo::{self, Place};
use e2e::progress::Progress;

use crate::bench::Bench;
use crate::chaos::Chaos;
use crate::{clusters, codegen, test};

/// The project's tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Bring up local Kubernetes clusters side by side, or repair them
    Up(Up),
    /// Take local clusters down; nothing is left behind
    Down(Down),
    /// List the local clusters
    Ls,
    /// Print the path of a cluster's kubeconfig
    Kubeconfig(Kubeconfig),
    /// Work with images in local clusters
    #[command(subcommand)]
    Image(Image),
    /// Cut a cluster off from the others (NAME), or one node from everything (NAME/NODE)
    Cut {
        /// NAME or NAME/NODE
        target: String,
    },
    /// Undo `cut`
    Heal {
        /// NAME or NAME/NODE
        target: String,
    },
    /// Make the container images
    Images(Images),
    /// Show it all: a cluster, a tenant's shard, a MySQL cluster, a row written and read
    Demo(Demo),
    /// Run all checks and tests, or the tests of some tiers
    Test(Test),
    /// What continuous integration runs: the same as `test`
    Ci,
    /// Cause faults under load, drawn from a seed, and judge what clients were told
    Chaos(Chaos),
    /// Measure the figures that the README states, or those of failovers
    Bench(Bench),
    /// Write the generated files
    Codegen {
        /// Fail where one is out of date, and write none
        #[arg(long)]
        check: bool,
    },
}

#[derive(Debug, Args)]
struct Demo {
    /// Remove all that the demonstration made
    #[arg(long)]
    down: bool,
    /// Use the cluster of a context of your kubeconfig, instead of a local one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Where to push our image to, for that cluster to pull it from: HOST[:PORT][/PATH]
    #[arg(long, value_name = "REGISTRY", requires = "context")]
    image_registry: Option<String>,
    /// The image of MySQL in that cluster; {version} is replaced
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "context",
        default_value = "docker.io/library/mysql:{version}"
    )]
    mysql_image: String,
    /// The version of MySQL in that cluster
    #[arg(long, value_name = "VERSION", requires = "context", default_value = "9.7")]
    mysql_version: String,
    /// How our programs are compiled
    #[arg(long, value_enum, default_value_t = Profile::Quick)]
    profile: Profile,
}

#[derive(Debug, Args)]
struct Test {
    /// Run the tests of this tier only; may be repeated [default: all checks and all tiers]
    #[arg(long = "tier", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    tiers: Vec<u8>,
}

#[derive(Debug, Args)]
struct Up {
    /// Names of the clusters
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Nodes of each cluster [default: what it has, or 1]
    #[arg(long, value_name = "K")]
    nodes: Option<u8>,
}

#[derive(Debug, Args)]
struct Down {
    /// Names of the clusters
    #[arg(required_unless_present = "all", value_name = "NAME")]
    names: Vec<String>,
    /// All clusters
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Keep the files (etcd, volumes, logs): the next `up` goes on from them
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
struct Kubeconfig {
    /// Name of the cluster
    name: String,
    /// Print the kubeconfig itself
    #[arg(long)]
    print: bool,
}

#[derive(Debug, Subcommand)]
enum Image {
    /// Load an image archive (OCI layout or `docker save`) into every node of clusters
    Load {
        /// The archive
        file: PathBuf,
        /// Names of the clusters
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Images {
    /// How our programs are compiled
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Profile {
    /// Soon built, for tests
    Quick,
    /// Small and fast
    Release,
}

impl From<Profile> for e2e::images::fleet::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Quick => Self::Quick,
            Profile::Release => Self::Release,
        }
    }
}

impl Arguments {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.task {
            Task::Up(up) => clusters::up(&up.names, up.nodes).await?,
            Task::Down(down) => clusters::down(&down.names, down.all, down.keep).await?,
            Task::Ls => clusters::ls().await?,
            Task::Kubeconfig(kubeconfig) => clusters::kubeconfig(&kubeconfig.name, kubeconfig.print)?,
            Task::Image(Image::Load { file, names }) => clusters::load(&file, &names).await?,
            Task::Cut { target } => clusters::cut(&target).await?,
            Task::Heal { target } => clusters::heal(&target).await?,
            Task::Images(images) => clusters::images(images.profile.into()).await?,
            Task::Demo(arguments) => arguments.run().await?,
            Task::Test(arguments) if arguments.tiers.is_empty() => test::everything().await?,
            Task::Test(arguments) => test::tiers(&arguments.tiers).await?,
            Task::Ci => test::everything().await?,
            Task::Chaos(chaos) => return chaos.run().await,
            Task::Bench(bench) => return bench.run().await,
            Task::Codegen { check } => codegen::codegen(check)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Demo {
    async fn run(self) -> Result<()> {
        let progress = Progress::default();
        if self.down {
            return demo::down(self.context.as_deref(), &progress).await;
        }
        let place = match (self.context, self.image_registry) {
            (None, _) => Place::Local,
            (Some(context), Some(registry)) => Place::Existing {
                context,
                registry,
                mysql_image: self.mysql_image,
                version: self.mysql_version,
            },
            (Some(context), None) => bail!(
                "--image-registry is missing: the cluster of --context {context} has to get our image from a \
                 registry"
            ),
        };
        demo::run(&place, self.profile.into(), &progress).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[tokio::test]
    async fn another_cluster_needs_a_registry_for_our_image() {
        let arguments = Arguments::try_parse_from(["xtask", "demo", "--context", "kind-x"]).unwrap();
        let error = arguments.run().await.unwrap_err().to_string();
        assert!(error.contains("--image-registry") && error.contains("kind-x"), "{error}");
        Arguments::try_parse_from(["xtask", "demo", "--down", "--context", "kind-x"]).unwrap();
        let error = Arguments::try_parse_from(["xtask", "test", "--tier", "9"]).unwrap_err().to_string();
        assert!(error.contains("--tier") && error.contains('9'), "{error}");
    }

    #[tokio::test]
    async fn bad_flags_of_chaos_and_bench_are_named() {
        for (arguments, named) in [
            (&["chaos", "--minutes", "0"][..], "--minutes"),
            (&["chaos", "--nodes", "9"], "--nodes"),
            (&["chaos", "--seed", "x"], "--seed"),
            (&["bench", "failover", "--runs", "0"], "--runs"),
            (&["bench", "failover", "--event", "nap"], "kill-mysqld"),
        ] {
            let all = ["xtask"].iter().chain(arguments);
            let error = Arguments::try_parse_from(all).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        for (arguments, named) in [
            (&["chaos", "--actions", "kill-mysqld,nap"][..], "\"nap\""),
            (&["chaos", "--actions", ","], "--list"),
            (&["chaos", "--cluster", "A B"], "\"A B\""),
        ] {
            let all = ["xtask"].iter().chain(arguments);
            let error = Arguments::try_parse_from(all).unwrap().run().await.unwrap_err();
            assert!(format!("{error:#}").contains(named), "{error:#}");
        }
    }
}
