//! The option file mysqld is started with.
//!
//! Three parts in this order, so that the last one wins: defaults from the memory limit, the user's
//! keys, and what the safety of the cluster rests on.

use std::{fmt::Write as _, fs, io, path::PathBuf};

use crate::{
    config::{Config, Durability},
    memory::Sizes,
};

/// The log goes to the agent, which writes it as JSON. That is mysqld's default, and has no value to be set to:
/// `stderr` would be a file.
const LEFT_OUT: &str = "log_error";

/// Keys that mysqld only takes while it makes its data directory.
const AT_INITIALIZATION: [&str; 3] = ["lower_case_table_names", "innodb_page_size", "innodb_data_file_path"];

/// An option file of the user that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum MyCnfError {
    /// It can't be read.
    #[error("cannot read the user's options {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is no option.
    #[error("line {line} of {path} is {text:?}: only the group [mysqld] and lines `key = value` are taken")]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
    },
}

/// The user's options, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserOptions(Vec<(String, String)>);

impl UserOptions {
    /// Reads the user's option file; a missing one is empty.
    pub fn read(path: &std::path::Path) -> Result<Self, MyCnfError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|(line, text)| MyCnfError::Line {
                path: path.to_owned(),
                line,
                text,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(MyCnfError::Read { path: path.to_owned(), source }),
        }
    }

    /// Takes `key` and `key = value` in the group `[mysqld]`. Other groups and `!include` are refused: they
    /// could bring in options that nobody checked.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut options = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with(['#', ';']) || line == "[mysqld]" {
                continue;
            }
            let (key, value) =
                line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
            let fits = !key.is_empty()
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
            if !fits {
                return Err((index + 1, line.to_owned()));
            }
            options.push((key.replace('-', "_"), value.to_owned()));
        }
        Ok(Self(options))
    }

    /// Arguments for `mysqld --initialize-insecure`: the options that are fixed once data exist.
    pub fn at_initialization(&self) -> Vec<String> {
        self.0
            .iter()
            .filter(|(key, _)| AT_INITIALIZATION.contains(&key.as_str()))
            .map(|(key, value)| format!("--{key}={value}"))
            .collect()
    }
}

/// The whole option file.
pub fn render(config: &Config, sizes: &Sizes, user: &UserOptions) -> String {
    let mut file =
        String::from("# Made by mysql-agent at each start of mysqld; changes are lost.\n[mysqld]\n");
    section(&mut file, "Defaults, from the memory limit of the container", &defaults(sizes));
    let own = user
        .0
        .iter()
        .filter(|(key, _)| key != LEFT_OUT)
        .map(|(key, value)| option(key, value))
        .collect::<Vec<_>>();
    section(&mut file, "Options of the user", &own);
    section(&mut file, "Options of the operator, which overrule the ones above", &owned(config));
    file
}

fn section(file: &mut String, title: &str, lines: &[String]) {
    // Writing to a String cannot fail.
    let _ = writeln!(file, "\n# {title}");
    for line in lines {
        let _ = writeln!(file, "{line}");
    }
}

fn option(key: &str, value: impl std::fmt::Display) -> String {
    let value = value.to_string();
    if value.is_empty() { key.to_owned() } else { format!("{key} = {value}") }
}

fn defaults(sizes: &Sizes) -> Vec<String> {
    let mut lines = vec![
        option("innodb_buffer_pool_size", sizes.buffer_pool),
        option("innodb_log_buffer_size", sizes.log_buffer),
        option("temptable_max_ram", sizes.temporary_tables),
        option("max_connections", sizes.connections),
        option("table_open_cache", sizes.tables),
        option("table_definition_cache", sizes.tables),
        // The default of 9.7, ten million, grows to hundreds of MiB.
        option("binlog_transaction_dependency_history_size", 100_000),
        option("binlog_expire_logs_seconds", 7 * 24 * 3600),
        // A commit waits for the disk, and those of as many workers wait for it together. With the 4 of MySQL's default
        // a replica that has fallen behind gets no nearer to a primary with 8 clients.
        option("replica_parallel_workers", 16),
        // Neither survives a crash nor is copied by CLONE.
        option("disabled_storage_engines", "MyISAM,BLACKHOLE,FEDERATED,ARCHIVE"),
        option("loose_innodb_numa_interleave", "OFF"),
        // What is so by design at every start: users that exist already, the cluster's own authority, and the
        // replication password in the repository (it is only in its TLS-only user's hands).
        option("log_error_suppression_list", "MY-010235,MY-010068,MY-010897"),
    ];
    if !sizes.full_performance_schema {
        // 20 MiB instead of 240 MiB (measured on 9.7); running statements stay visible.
        lines.push(option("performance_schema_digests_size", 100));
        let without = [
            "error_size",
            "events_stages_history_long_size",
            "events_stages_history_size",
            "events_statements_history_long_size",
            "events_statements_history_size",
            "events_transactions_history_long_size",
            "events_transactions_history_size",
            "events_waits_history_long_size",
            "events_waits_history_size",
            "max_memory_classes",
            "max_mutex_classes",
            "max_rwlock_classes",
            "max_stage_classes",
            "max_statement_classes",
            "max_table_handles",
            "max_table_instances",
        ];
        lines.extend(without.map(|name| option(&format!("performance_schema_{name}"), 0)));
    }
    lines
}

fn owned(config: &Config) -> Vec<String> {
    let paths = &config.paths;
    let tls = |file: &str| paths.tls.join(file).display().to_string();
    let bind = config.mysql_bind_address.map_or_else(|| "*".to_owned(), |address| address.to_string());
    let mut lines = vec![
        option("datadir", paths.data().display()),
        option("socket", paths.socket().display()),
        option("pid_file", paths.pid_file().display()),
        option("tmpdir", paths.tmp.display()),
        option("replica_load_tmpdir", paths.tmp.display()),
        option("init_file", paths.init_file().display()),
        option("secure_file_priv", "NULL"),
        option("port", config.mysql_port),
        option("bind_address", bind),
        // Clients must not be able to keep the agent out. A thread of its own accepts its connections.
        option("admin_address", "127.0.0.1"),
        option("admin_port", config.mysql_admin_port),
        option("create_admin_listener_thread", "ON"),
        option("admin_ssl_ca", tls("ca.crt")),
        option("admin_ssl_cert", tls("tls.crt")),
        option("admin_ssl_key", tls("tls.key")),
        option("loose_mysqlx", "OFF"),
        option("server_id", config.server_id),
        option("report_host", &config.report_host),
        option("report_port", config.mysql_port),
        // A variable persisted by a client must not come back over this file.
        option("persisted_globals_load", "OFF"),
        option("log_timestamps", "UTC"),
        // Holds the tables on replication and CLONE that the agent reads.
        option("performance_schema", "ON"),
        // Keeps the writer and the admin out of the mysql schema.
        option("partial_revokes", "ON"),
        // Without it each first connection waits on reverse DNS.
        option("skip_name_resolve", "ON"),
        option("ssl_ca", tls("ca.crt")),
        option("ssl_cert", tls("tls.crt")),
        option("ssl_key", tls("tls.key")),
        option("require_secure_transport", "ON"),
        // Every mysqld boots closed; only an order opens it. Until one says what it is, it lets no client in: a primary
        // that starts again may have been replaced, and would answer those that the Service leads to it with old data.
        option("super_read_only", "ON"),
        option("offline_mode", "ON"),
        option("skip_replica_start", "ON"),
        option("gtid_mode", "ON"),
        option("enforce_gtid_consistency", "ON"),
        // Names that don't change with the host's.
        option("log_bin", "binlog"),
        option("relay_log", "relay"),
        option("log_replica_updates", "ON"),
        // ON throws away received, acknowledged transactions that were not applied yet.
        option("relay_log_recovery", "OFF"),
        option("replica_preserve_commit_order", "ON"),
        // A source that went silent is noticed by its missing heartbeats.
        option("replica_net_timeout", 2),
        option("plugin_load_add", "semisync_source.so"),
        option("plugin_load_add", "semisync_replica.so"),
        option("plugin_load_add", "mysql_clone.so"),
        option("clone_ssl_ca", tls("ca.crt")),
        // Both are switched on by order only.
        option("rpl_semi_sync_source_enabled", "OFF"),
        option("rpl_semi_sync_replica_enabled", "OFF"),
        option("rpl_semi_sync_source_wait_point", "AFTER_SYNC"),
        option("rpl_semi_sync_source_wait_no_replica", "ON"),
        option("rpl_semi_sync_source_timeout", u32::MAX),
    ];
    lines.extend(match config.durability {
        Durability::Strict => [
            option("sync_binlog", 1),
            option("sync_relay_log", 1),
            option("innodb_flush_log_at_trx_commit", 1),
            option("innodb_doublewrite", "ON"),
        ],
        // What mysqld wrote survives its own death, not the machine's.
        Durability::Relaxed => [
            option("sync_binlog", 0),
            option("sync_relay_log", 0),
            option("innodb_flush_log_at_trx_commit", 2),
            option("innodb_doublewrite", "ON"),
        ],
    });
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::RunArgs;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    fn config(extra: &[&str]) -> Config {
        let mut line = vec![
            "run",
            "--namespace=tenant-a",
            "--pod-name=orders-0",
            "--cluster=orders",
            "--server-id-base=100",
        ];
        line.extend(extra);
        Config::new(&Cli::parse_from(line).run).unwrap()
    }

    /// The value that mysqld takes for a key: the last one.
    fn value<'a>(file: &'a str, key: &str) -> Option<&'a str> {
        file.lines()
            .filter_map(|line| line.split_once(" = "))
            .filter(|(name, _)| *name == key)
            .map(|(_, v)| v)
            .next_back()
    }

    #[test]
    fn strict_small_instance() {
        let sizes = Sizes::for_limit(Some(512 << 20));
        insta::assert_snapshot!(render(&config(&[]), &sizes, &UserOptions::default()));
    }

    #[test]
    fn user_overrules_defaults_and_operator_overrules_user() {
        let user =
            UserOptions::parse("[mysqld]\nmax-connections = 7\nsync_binlog=0\nskip-name-resolve\n").unwrap();
        let file = render(&config(&[]), &Sizes::for_limit(None), &user);
        assert_eq!(value(&file, "max_connections"), Some("7"));
        assert_eq!(value(&file, "sync_binlog"), Some("1"));
        assert_eq!(value(&file, "skip_name_resolve"), Some("ON"));
    }

    #[test]
    fn relaxed_leaves_syncing_to_the_kernel_and_closing_as_it_is() {
        let file =
            render(&config(&["--durability=Relaxed"]), &Sizes::for_limit(None), &UserOptions::default());
        assert_eq!(value(&file, "sync_binlog"), Some("0"));
        assert_eq!(value(&file, "innodb_flush_log_at_trx_commit"), Some("2"));
        assert_eq!(value(&file, "super_read_only"), Some("ON"));
        assert_eq!(value(&file, "relay_log_recovery"), Some("OFF"));
    }

    #[test]
    fn includes_groups_and_nonsense_are_refused_with_their_line() {
        for (text, line) in
            [("!includedir /x", 1), ("a=1\n[client]\nb=2", 2), ("[mysqld]\n\n= 3", 3), ("a b = 1", 1)]
        {
            assert_eq!(UserOptions::parse(text).unwrap_err().0, line, "{text:?}");
        }
    }

    #[test]
    fn options_fixed_at_initialization_are_passed_then() {
        let user = UserOptions::parse("lower-case-table-names = 1\nmax_connections = 9").unwrap();
        assert_eq!(user.at_initialization(), ["--lower_case_table_names=1"]);
    }
}
