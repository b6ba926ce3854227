//! Health over HTTP, as kube-apiserver serves it: `/livez`, `/readyz` and `/readyz/<check>`.
//!
//! `?verbose` lists every check, `?exclude=<check>` leaves one out (repeatable), `?timeout=<time>`
//! (`5`, `5s`, `500ms`) sets each check's limit, which is 2 seconds otherwise. Checks run side by side; one that
//! panics has failed.

use std::{fmt, future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use futures::{FutureExt as _, future::join_all};
use tokio::sync::watch;

use crate::error::panic_text;

const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

type Outcome = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

#[derive(Clone)]
struct Check {
    name: &'static str,
    live: bool,
    ready: bool,
    blocking: bool,
    run: Arc<dyn Fn() -> Outcome + Send + Sync>,
}

/// The named checks of a process.
///
/// A check returns why it fails. It must not hold the process up: it is dropped at its timeout.
#[derive(Clone, Default)]
pub struct Health {
    checks: Vec<Check>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks.iter().map(|check| check.name)).finish()
    }
}

impl Health {
    /// Health without checks: always live, always ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check of `/livez`: while it fails the process must be started anew.
    #[must_use]
    pub fn live<F>(self, name: &'static str, check: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.add(name, true, false, true, check)
    }

    /// Adds a check of `/readyz`: while it fails nobody shall be sent here.
    #[must_use]
    pub fn ready<F>(self, name: &'static str, check: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.add(name, false, true, true, check)
    }

    /// Adds a check of `/readyz` that fails with `missing` until `values` has one.
    #[must_use]
    pub fn ready_with<T: Send + Sync + 'static>(
        self,
        name: &'static str,
        values: &watch::Receiver<Option<T>>,
        missing: &'static str,
    ) -> Self {
        let values = values.clone();
        self.ready(name, move || {
            let there = values.borrow().is_some();
            async move { if there { Ok(()) } else { Err(missing.to_owned()) } }
        })
    }

    /// Adds a check that `/readyz` reports and that does not make it fail.
    #[must_use]
    pub fn ready_nonblocking<F>(
        self,
        name: &'static str,
        check: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.add(name, false, true, false, check)
    }

    fn add<F>(
        mut self,
        name: &'static str,
        live: bool,
        ready: bool,
        blocking: bool,
        check: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let run = Arc::new(move || Box::pin(check()) as Outcome);
        self.checks.push(Check { name, live, ready, blocking, run });
        self
    }

    /// The routes. Merge them with others to serve both at one address.
    pub fn router(self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/livez/{check}", get(livez_one))
            .route("/readyz", get(readyz))
            .route("/readyz/{check}", get(readyz_one))
            .with_state(self)
    }

    async fn answer(&self, path: &str, chosen: impl Fn(&Check) -> bool, query: &Asked) -> Response {
        let (excluded, checks): (Vec<&Check>, Vec<&Check>) = self
            .checks
            .iter()
            .filter(|check| chosen(check))
            .partition(|check| query.exclude.iter().any(|name| name == check.name));
        let outcomes = join_all(checks.iter().map(|check| async {
            let checked = AssertUnwindSafe(async { (check.run)().await }).catch_unwind();
            match tokio::time::timeout(query.timeout, checked).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => Err(format!("the check panicked: {}", panic_text(&*panic))),
                Err(_) => Err(format!("no answer in {} s", query.timeout.as_secs_f64())),
            }
        }))
        .await;
        let failed = checks.iter().zip(&outcomes).any(|(check, outcome)| check.blocking && outcome.is_err());
        let mut lines: Vec<String> =
            excluded.iter().map(|check| format!("[+]{} excluded: ok\n", check.name)).collect();
        lines.extend(checks.iter().zip(&outcomes).map(|(check, outcome)| match outcome {
            Ok(()) => format!("[+]{} ok\n", check.name),
            Err(why) if check.blocking => format!("[-]{} failed: {why}\n", check.name),
            Err(why) => format!("[!]{} failed, not blocking: {why}\n", check.name),
        }));
        let unknown = |name: &&String| !excluded.iter().any(|check| check.name == name.as_str());
        lines.extend(
            query.exclude.iter().filter(unknown).map(|name| format!("warn: no check {name:?} to exclude\n")),
        );
        let body = lines.concat();
        if failed {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{body}{path} check failed\n")).into_response()
        } else if query.verbose {
            format!("{body}{path} check passed\n").into_response()
        } else {
            "ok".into_response()
        }
    }
}

/// What the query of a request asks for.
struct Asked {
    verbose: bool,
    exclude: Vec<String>,
    timeout: Duration,
}

impl Asked {
    fn new(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut asked = Self { verbose: false, exclude: Vec::new(), timeout: TIMEOUT };
        for (key, value) in pairs {
            match key.as_str() {
                "verbose" => asked.verbose = true,
                "exclude" => asked.exclude.push(value),
                "timeout" => {
                    asked.timeout = duration(&value)
                        .filter(|timeout| !timeout.is_zero() && *timeout <= MAX_TIMEOUT)
                        .ok_or_else(|| format!("timeout={value}: a time above 0, at most 30s\n"))?;
                }
                _ => {}
            }
        }
        Ok(asked)
    }
}

/// Seconds, or a number with `s` or `ms`.
fn duration(text: &str) -> Option<Duration> {
    if let Some(millis) = text.strip_suffix("ms") {
        return millis.parse().ok().map(Duration::from_millis);
    }
    let seconds = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

type Pairs = Query<Vec<(String, String)>>;

async fn livez(State(health): State<Health>, Query(pairs): Pairs) -> Response {
    respond(&health, "livez", |check| check.live, pairs).await
}

async fn livez_one(State(health): State<Health>, Path(name): Path<String>, Query(pairs): Pairs) -> Response {
    respond_one(&health, "livez", name, |check| check.live, pairs).await
}

async fn readyz(State(health): State<Health>, Query(pairs): Pairs) -> Response {
    respond(&health, "readyz", |check| check.ready, pairs).await
}

async fn readyz_one(State(health): State<Health>, Path(name): Path<String>, Query(pairs): Pairs) -> Response {
    respond_one(&health, "readyz", name, |check| check.ready, pairs).await
}

async fn respond(
    health: &Health,
    path: &str,
    chosen: impl Fn(&Check) -> bool,
    pairs: Vec<(String, String)>,
) -> Response {
    match Asked::new(pairs) {
        Ok(asked) => health.answer(path, chosen, &asked).await,
        Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
    }
}

async fn respond_one(
    health: &Health,
    path: &str,
    name: String,
    chosen: impl Fn(&Check) -> bool,
    pairs: Vec<(String, String)>,
) -> Response {
    if !health.checks.iter().any(|check| chosen(check) && check.name == name) {
        return (StatusCode::NOT_FOUND, format!("no check {name:?} in {path}\n")).into_response();
    }
    let path = format!("{path}/{name}");
    respond(health, &path, |check| chosen(check) && check.name == name, pairs).await
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(uri: &str) -> (u16, String) {
        let health = Health::new()
            .live("ping", || async { Ok(()) })
            .ready("cache", || async { Ok(()) })
            .ready("database", || async { Err("it starts".to_owned()) })
            .ready("slow", std::future::pending)
            .ready_nonblocking("lease", || async { Err("held by another".to_owned()) });
        let response = health.router().oneshot(Request::get(uri).body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_check_makes_it_unready_and_not_dead() {
        assert_eq!(ask("/livez").await, (200, "ok".to_owned()));
        let (status, body) = ask("/readyz").await;
        assert_eq!(status, 503);
        assert_eq!(
            body,
            "[+]cache ok\n[-]database failed: it starts\n[-]slow failed: no answer in 2 s\n\
             [!]lease failed, not blocking: held by another\nreadyz check failed\n"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_does_not_block_is_reported_only() {
        let (status, body) = ask("/readyz?exclude=database&exclude=slow&verbose").await;
        assert_eq!(status, 200);
        assert_eq!(
            body,
            "[+]database excluded: ok\n[+]slow excluded: ok\n[+]cache ok\n\
             [!]lease failed, not blocking: held by another\nreadyz check passed\n"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_check_can_be_asked() {
        assert_eq!(ask("/readyz/cache").await, (200, "ok".to_owned()));
        assert_eq!(ask("/readyz/database").await.0, 503);
        assert_eq!(ask("/readyz/nothing").await.0, 404);
        assert_eq!(ask("/readyz/ping").await.0, 404);
        for half_a_second in ["0.5", "0.5s", "500ms"] {
            let (_, body) = ask(&format!("/readyz/slow?timeout={half_a_second}")).await;
            assert_eq!(body, "[-]slow failed: no answer in 0.5 s\nreadyz/slow check failed\n");
        }
        for wrong in ["0", "31", "-1s", "1m", "ms", ""] {
            let (status, body) = ask(&format!("/readyz?timeout={wrong}")).await;
            assert_eq!(status, 400);
            assert!(body.starts_with(&format!("timeout={wrong}: ")), "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_excluded_is_said() {
        let (status, body) = ask("/readyz/cache?exclude=cash&verbose").await;
        assert_eq!(status, 200);
        assert_eq!(body, "[+]cache ok\nwarn: no check \"cash\" to exclude\nreadyz/cache check passed\n");
    }

    #[tokio::test]
    async fn a_check_that_panics_has_failed() {
        let health = Health::new()
            .live("sound", || async { Ok(()) })
            .live("broken", || async { if true { panic!("lost invariant") } else { Ok(()) } });
        let request = Request::get("/livez").body(Body::empty()).unwrap();
        let response = health.router().oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), 503);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            String::from_utf8_lossy(&body),
            "[+]sound ok\n[-]broken failed: the check panicked: lost invariant\nlivez check failed\n"
        );
    }
}
