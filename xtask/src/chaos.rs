//! Faults under load.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use e2e::chaos::action::Kind;
use e2e::chaos::{self, Settings};
use e2e::cluster::plan;
use e2e::paths;

use crate::arguments::Profile;
use crate::interrupt;

#[derive(Debug, Args)]
pub(crate) struct Chaos {
    /// For how many minutes faults are caused
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// The seed of the faults [default: one of now]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Nodes besides that of the control plane
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    nodes: u8,
    /// Clients that write; half as many read
    #[arg(long, value_name = "C", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=500))]
    clients: u32,
    /// Only these actions, separated by commas (see --list)
    #[arg(long, value_name = "A,B")]
    actions: Option<String>,
    /// The local cluster; one that is there is used as it is
    #[arg(long, value_name = "NAME", default_value = "chaos")]
    cluster: String,
    /// Where the history goes [default: in the build folder, named after the seed]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// How our programs are compiled
    #[arg(long, value_enum, default_value_t = Profile::Quick)]
    profile: Profile,
    /// Show the actions, and cause none
    #[arg(long)]
    list: bool,
}

impl Chaos {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        if self.list {
            let lines = Kind::ALL.map(|kind| format!("{:<24} {}", kind.to_string(), kind.about()));
            // Nobody may be reading any more.
            let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
            return Ok(ExitCode::SUCCESS);
        }
        let settings = self.settings()?;
        println!("seed {}, history in {}", settings.seed, settings.history.display());
        // Boxed for its size. Dropped at an interrupt, which ends the faults.
        let report = interrupt::unless_interrupted(Box::pin(chaos::run(&settings))).await?;
        print!("\n{report}");
        let longest = report.taken.iter().map(|taken| taken.redundant).max().unwrap_or_default();
        println!("in sync again after each step within {:.1} s", longest.as_secs_f64());
        let (seed, history) = (settings.seed, report.history.display());
        if report.is_clean() {
            println!("clean: seed {seed}, history in {history}");
            return Ok(ExitCode::SUCCESS);
        }
        println!(
            "NOT clean: seed {seed}, history in {history}; the cluster {} is left to look at",
            settings.cluster
        );
        Ok(ExitCode::FAILURE)
    }

    fn settings(self) -> Result<Settings> {
        plan::check_name(&self.cluster)?;
        let kinds = self.actions.as_deref().map(chaos::kinds).transpose()?.unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seed = self.seed.unwrap_or(now);
        let history =
            self.history.unwrap_or_else(|| paths::target().join(format!("chaos/seed-{seed}.jsonl")));
        Ok(Settings {
            cluster: self.cluster,
            nodes: self.nodes,
            clients: self.clients,
            seed,
            time: Duration::from_secs(self.minutes * 60),
            kinds,
            history,
            profile: self.profile.into(),
        })
    }
}
