//! Logs and traces.
//!
//! Logs go to the standard error: JSON lines, or text where that is a terminal. With an OTLP endpoint
//! spans are sent there too. kube's and the HTTP stack's own lines are shown from `warn` up, unless the
//! filter names them.

use std::{fmt, io, io::IsTerminal, str::FromStr, time::Duration};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// Limit of one export, and of the last one when the process ends.
const EXPORT: Duration = Duration::from_secs(5);

/// Which log lines are written: a level (`info`), or tracing's filter directives (`info,kube=debug`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// The text is no log filter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no log filter: write error, warn, info, debug, trace or off, or directives such as info,kube=debug"
)]
pub struct InvalidLogFilter(String);

impl FromStr for LogFilter {
    type Err = InvalidLogFilter;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A lone word that is no level would silently be the name of a module.
        let level = text == "off" || text.parse::<tracing::Level>().is_ok();
        if (level || text.contains([',', '='])) && EnvFilter::try_new(text).is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidLogFilter(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The flags of logs and traces.
#[derive(Clone, Debug, clap::Args)]
pub struct TelemetryArgs {
    /// Log lines to write: error, warn, info, debug, trace, or directives such as info,kube=debug
    #[arg(long, env = "FLEET_LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    pub log_level: LogFilter,
    /// OTLP collector (gRPC) that spans are sent to, such as http://collector:4317
    #[arg(long, env = "FLEET_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<hyper::Uri>,
}

impl Default for TelemetryArgs {
    fn default() -> Self {
        Self { log_level: LogFilter("info".to_owned()), otlp_endpoint: None }
    }
}

/// Telemetry can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The exporter refuses the endpoint.
    #[error("can't send spans to --otlp-endpoint {endpoint}: {source}")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// Something has set the process's log up before.
    #[error("the log is set up already: {0}")]
    AlreadySet(#[from] tracing_subscriber::util::TryInitError),
}

/// Holds the exporter of the process. Spans that wait are sent when it is flushed or dropped.
#[derive(Debug)]
#[must_use = "spans are lost when it is dropped early"]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Sets up the process's log and traces. Must be called within a tokio runtime.
pub fn init(service: &'static str, args: &TelemetryArgs) -> Result<Telemetry, TelemetryError> {
    let filter = EnvFilter::new(format!("warn,{}", scoped(service, &args.log_level.0)));
    let provider = args.otlp_endpoint.as_ref().map(|endpoint| provider(service, endpoint)).transpose()?;
    let traces = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(service)));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = if io::stderr().is_terminal() {
        lines.boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    tracing_subscriber::registry().with(filter).with(traces).with(lines).try_init()?;
    Ok(Telemetry { provider })
}

/// A bare level is for our own crates: at `debug`, the HTTP stack alone would fill the log.
fn scoped(service: &str, filter: &str) -> String {
    const OURS: [&str; 6] =
        ["fleet_runtime", "fleet_api", "mysql_agent", "shard_manager", "kubectl_fleet", "fleet_topology"];
    if filter.contains([',', '=']) {
        return filter.to_owned();
    }
    let ours = OURS.map(|name| format!("{name}={filter},")).concat();
    format!("{ours}{}={filter}", service.replace('-', "_"))
}

fn provider(service: &'static str, endpoint: &hyper::Uri) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint.to_string())
        .with_timeout(EXPORT)
        .build()
        .map_err(|source| TelemetryError::Exporter { endpoint: endpoint.to_string(), source })?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

impl Telemetry {
    /// Sends what waits, for a few seconds at most. The last thing a process does.
    ///
    /// Blocks its thread: the exporter has a thread of its own, which needs the tokio runtime's others.
    pub fn flush(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(provider) = self.provider.take()
            && let Err(error) = provider.shutdown_with_timeout(EXPORT)
        {
            tracing::warn!(%error, "spans could not be sent");
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_directives() {
        for text in ["info", "debug", "off", "info,kube=debug", "fleet_runtime=trace"] {
            assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), text);
        }
        for text in ["verbose", "", "info,kube=loud"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_level_alone_is_for_our_own_crates() {
        let scoped_level = scoped("my-controller", "debug");
        assert!(scoped_level.contains("fleet_runtime=debug,"), "{scoped_level}");
        assert!(scoped_level.ends_with(",my_controller=debug"), "the program's own lines: {scoped_level}");
        assert_eq!(scoped("my-controller", "info,kube=debug"), "info,kube=debug");
    }
}
