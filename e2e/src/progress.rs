//! Progress of long steps: a spinner with the elapsed time on a terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::LocalBoxFuture;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// A group of steps shown together. Clones write to the same place.
#[derive(Clone)]
pub struct Progress {
    bars: MultiProgress,
    terminal: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self { bars: MultiProgress::new(), terminal: std::io::stderr().is_terminal() }
    }
}

impl Progress {
    /// Begins a step. It ends with [`Step::done`]; dropped before, it counts as failed.
    #[must_use]
    pub fn step(&self, what: impl Display) -> Step {
        let what = what.to_string();
        let bar = self.terminal.then(|| {
            let bar = self.bars.add(ProgressBar::new_spinner().with_message(what.clone()));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Step { what, begun: Instant::now(), bar, bars: self.bars.clone(), ended: false }
    }

    /// Runs one future as a step, which begins at once.
    pub fn run<'a, T: 'a>(
        &self,
        what: impl Display,
        work: impl Future<Output = Result<T>> + 'a,
    ) -> LocalBoxFuture<'a, Result<T>> {
        let step = self.step(what);
        Box::pin(async move {
            let value = work.await?;
            step.done();
            Ok(value)
        })
    }

    /// Prints a line above the running steps.
    pub fn say(&self, line: impl Display) {
        print_line(self.terminal.then_some(&self.bars), &line.to_string());
    }
}

/// One running step.
pub struct Step {
    what: String,
    begun: Instant,
    bar: Option<ProgressBar>,
    bars: MultiProgress,
    ended: bool,
}

impl Step {
    /// Says what the step is busy with now: a log that stands still for minutes helps nobody.
    pub fn detail(&self, detail: impl Display) {
        let line = format!("{}: {detail}", self.what);
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => print_line(None, &format!("{line} (after {:.1} s)", self.begun.elapsed().as_secs_f64())),
        }
    }

    /// Ends the step with success and prints how long it took.
    pub fn done(mut self) {
        self.end("done");
    }

    fn end(&mut self, result: &str) {
        self.ended = true;
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let line = format!("{}: {result} in {:.1} s", self.what, self.begun.elapsed().as_secs_f64());
        print_line(self.bar.is_some().then_some(&self.bars), &line);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end("FAILED");
        }
    }
}

fn print_line(bars: Option<&MultiProgress>, line: &str) {
    match bars {
        // A terminal that went away is no reason to fail the work.
        Some(bars) => drop(bars.println(line)),
        None => eprintln!("{line}"),
    }
}
