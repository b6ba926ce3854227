//! Measuring.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use e2e::bench::failover::{self, Event, Settings};
use e2e::cluster::plan;
use e2e::paths;

use crate::arguments::Profile;
use crate::interrupt;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lose or move the primary again and again under load, and measure what clients see
    Failover(Failover),
}

#[derive(Debug, Args)]
struct Failover {
    /// How often each event happens
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Only this event; may be repeated [default: all]
    #[arg(long = "event", value_name = "EVENT", value_enum)]
    events: Vec<Event>,
    /// Clients that write
    #[arg(long, value_name = "C", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    clients: u32,
    /// The local cluster; one that is there is used as it is
    #[arg(long, value_name = "NAME", default_value = "bench")]
    cluster: String,
    /// Where the single runs go, a JSON object per line [default: in the build folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How our programs are compiled
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
}

impl Bench {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.what {
            None => {
                println!("| figure | measured |\n|---|---|");
                for figure in e2e::bench::measure().await? {
                    println!("| {} | {} |", figure.name, figure.value);
                }
                Ok(ExitCode::SUCCESS)
            }
            Some(What::Failover(failover)) => failover.run().await,
        }
    }
}

impl Failover {
    async fn run(self) -> Result<ExitCode> {
        plan::check_name(&self.cluster)?;
        let settings = Settings {
            cluster: self.cluster,
            events: if self.events.is_empty() { Event::ALL.to_vec() } else { self.events },
            runs: self.runs,
            clients: self.clients,
            output: self.output.unwrap_or_else(|| paths::target().join("bench/failover.jsonl")),
            profile: self.profile.into(),
        };
        let measured = interrupt::unless_interrupted(Box::pin(failover::measure(&settings))).await?;
        println!("\n{}", failover::table(&measured));
        println!("{}; single runs in {}", failover::machine(&settings), settings.output.display());
        let broken: Vec<String> = measured.iter().filter_map(|run| run.broken.clone()).collect();
        for why in &broken {
            println!("BROKEN: {why}");
        }
        Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
