//! Fence: nothing of a lower term is left in mysqld.

use std::sync::{Arc, atomic::Ordering};

use super::{LookAfter, OrderError, Orders};

impl Orders {
    /// Kills mysqld, which boots closed, unless nothing of a lower term can be in it.
    ///
    /// An order under way holds its turn for as long as mysqld makes it wait, and a stopped mysqld makes it wait
    /// for each deadline. So mysqld is killed before the turn, which ends every session of that order, and what
    /// counts is decided in the turn: an order that was before may have touched the next mysqld.
    ///
    /// The term is persisted in the turn and not before: whoever reads of it and of a stopped receiver must be
    /// able to rely on no order of a lower term being under way, which could start it again.
    pub async fn fence(self: Arc<Self>, term: u64) -> Result<(), OrderError> {
        self.not_of_the_past(term)?;
        // Those that queue before this one are refused instead of trying a mysqld that is being killed.
        self.fencing.fetch_max(term, Ordering::SeqCst);
        self.end_touched(term).await;
        let mut state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        self.end_touched(term).await;
        state.abandon_opening().await;
        self.fenced.fetch_max(term, Ordering::SeqCst);
        Ok(())
    }

    /// Kills a mysqld in which an order of a term below `term` may have left something. One that no order has
    /// touched since its start is closed and follows nobody, also while it copies.
    async fn end_touched(&self, term: u64) {
        let status = self.instance.now();
        let untouched = status.login.is_none() || self.touched.load(Ordering::SeqCst) != status.generation;
        if self.fenced.load(Ordering::SeqCst) >= term || untouched || self.instance.cloning() {
            return;
        }
        tracing::warn!(term, "is fenced: kills mysqld");
        self.instance.process.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, time::Duration};

    use clap::Parser;
    use fleet_proto::agent::v1::{CloneFacts, CloneState};
    use tokio::{task::JoinHandle, time::timeout};

    use super::*;
    use crate::{
        config::{Config, RunArgs},
        instance::Instance,
        supervisor::{self, ProcessStatus},
        volume::Volume,
    };

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    /// Orders for a process that runs and never answers.
    struct Fixture {
        _dir: tempfile::TempDir,
        volume: Arc<Volume>,
        instance: Arc<Instance>,
        orders: Arc<Orders>,
        supervisor: JoinHandle<()>,
    }

    impl Fixture {
        async fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("volume/data")).unwrap();
            fs::create_dir(dir.path().join("run")).unwrap();
            fs::write(dir.path().join("volume/data/mysql.ibd"), "").unwrap();
            let mysqld = dir.path().join("mysqld");
            // By another process: one that this one has open for writing could not be started.
            let script =
                format!("printf '#!/bin/sh\\nexec sleep 600\\n' > {0}; chmod +x {0}", mysqld.display());
            assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
            let path = |name: &str| dir.path().join(name).display().to_string();
            let args = Cli::parse_from([
                "run",
                "--namespace=tenant-a",
                "--pod-name=orders-0",
                "--cluster=orders",
                "--server-id-base=100",
                &format!("--data-dir={}", path("volume")),
                &format!("--run-dir={}", path("run")),
                &format!("--config-dir={}", path("config")),
                &format!("--users-dir={}", path("users")),
                &format!("--mysqld={}", path("mysqld")),
            ]);
            let config = Arc::new(Config::new(&args.run).unwrap());
            let volume = Arc::new(Volume::open(&config.paths.state()).unwrap());
            let (supervisor, handle) = supervisor::new(Arc::clone(&config), Arc::clone(&volume));
            let instance = Arc::new(Instance::new(handle));
            let orders = Orders::new(config, Arc::clone(&volume), Arc::clone(&instance));
            let supervisor = tokio::spawn(supervisor.run());
            let fixture = Self { _dir: dir, volume, instance, orders, supervisor };
            fixture.runs(1).await;
            fixture
        }

        /// Waits for a start of mysqld, and makes it one that has answered.
        async fn runs(&self, generation: u64) {
            let mut status = self.instance.process.status();
            let running = |status: &ProcessStatus| status.generation == generation && status.login.is_some();
            timeout(Duration::from_secs(10), status.wait_for(running)).await.unwrap().unwrap();
            self.instance.process.answers(generation, None);
        }

        fn touch(&self, generation: u64) {
            self.orders.touched.store(generation, Ordering::SeqCst);
        }

        async fn fence(&self, term: u64) -> Result<(), OrderError> {
            Arc::clone(&self.orders).fence(term).await
        }

        fn generation(&self) -> u64 {
            self.instance.now().generation
        }

        async fn end(self) {
            self.instance.process.stop(Duration::ZERO).await;
            self.supervisor.await.unwrap();
        }
    }

    #[tokio::test]
    async fn mysqld_is_killed_before_its_turn_and_what_a_lower_term_did_meanwhile_is_ended_too() {
        let fixture = Fixture::start().await;
        fixture.volume.keep_term(1).unwrap();
        fixture.touch(1);
        let order_of_term_1 = fixture.orders.state.lock().await;
        let fencing = tokio::spawn(Arc::clone(&fixture.orders).fence(2));
        fixture.runs(2).await;
        assert_eq!(fixture.volume.term().unwrap(), 1, "facts of term 2 would say that term 1 is over");
        let queued = fixture.orders.not_of_the_past(1);
        assert!(matches!(queued, Err(OrderError::LowerTerm { given: 1, kept: 2 })), "{queued:?}");
        // It had not had its session yet.
        fixture.touch(2);
        drop(order_of_term_1);
        fencing.await.unwrap().unwrap();
        fixture.runs(3).await;
        assert_eq!(fixture.volume.term().unwrap(), 2);
        assert!(matches!(fixture.orders.admit(1).await, Err(OrderError::LowerTerm { .. })));
        assert!(matches!(fixture.fence(1).await, Err(OrderError::LowerTerm { .. })));
        fixture.end().await;
    }

    #[tokio::test]
    async fn repeated_fence_does_not_kill_again_though_an_order_of_its_term_came_between() {
        let fixture = Fixture::start().await;
        fixture.touch(1);
        fixture.fence(2).await.unwrap();
        fixture.runs(2).await;
        drop(fixture.orders.admit(2).await.unwrap());
        fixture.touch(2);
        fixture.fence(2).await.unwrap();
        assert_eq!(fixture.generation(), 2);
        assert!(fixture.instance.login().is_some());
        // A newer term is another matter.
        fixture.fence(3).await.unwrap();
        fixture.runs(3).await;
        fixture.end().await;
    }

    #[tokio::test]
    async fn untouched_or_copying_mysqld_is_left_alone_and_the_term_kept() {
        let fixture = Fixture::start().await;
        fixture.fence(2).await.unwrap();
        fixture.touch(1);
        let copying = CloneFacts { state: CloneState::Running.into(), ..CloneFacts::default() };
        fixture.instance.set_clone_override(Some(copying));
        fixture.fence(3).await.unwrap();
        assert_eq!(fixture.generation(), 1);
        assert!(fixture.instance.login().is_some());
        assert_eq!(fixture.volume.term().unwrap(), 3);
        fixture.end().await;
    }
}
