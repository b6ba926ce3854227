//! Supervisor of one mysqld: PID 1 of its container.
//!
//! The agent prepares the data directory, starts mysqld and starts it again, looks at it all the time and
//! streams what it sees, and follows the orders of its shard. It decides nothing that needs the state of
//! another instance. Its own decisions are those that keep an acknowledged write: every mysqld boots closed,
//! only an order of the newest term opens it, an open one is never ended politely, and an open one that has lost
//! everybody is ended.
//!
//! ```text
//! run ─┬─ supervisor   prepares, starts and waits for mysqld
//!      ├─ observer     looks at it and publishes facts
//!      ├─ service      gRPC: facts out, orders in ── orders   follow, open, close, clone, fence
//!      ├─ isolation    ends an open mysqld that reaches neither shard, API server nor ackers
//!      ├─ leave        before the end: another instance takes over from a primary
//!      ├─ archive      removes old archives of binary logs
//!      ├─ certificates lets mysqld load renewed ones
//!      └─ stop         the end
//! ```

mod archive;
mod certificates;
mod cgroup;
pub mod config;
mod datadir;
mod facts;
pub mod install;
mod instance;
mod isolation;
mod leave;
mod memory;
mod metrics;
mod mycnf;
mod mysqld_log;
mod observer;
mod orders;
mod process;
pub mod run;
mod service;
mod sql;
mod stop;
mod supervisor;
mod users;
mod volume;
