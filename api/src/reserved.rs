//! The my.cnf keys that the operator owns.

/// Keys of my.cnf that a user can't set, because the safety of the cluster or the agent's own work
/// depends on them. Also refused: abbreviations of them, and the prefixes of [`RESERVED_PREFIXES`].
pub const RESERVED_KEYS: &[&str] = &[
    "admin_address",
    "autocommit",
    "basedir",
    "bind_address",
    "binlog_format",
    "character_set_client_handshake",
    "chroot",
    "clone_autotune_concurrency",
    "clone_valid_donor_list",
    "core_file",
    "create_admin_listener_thread",
    "daemonize",
    "datadir",
    "default_authentication_plugin",
    "disconnect_on_expired_password",
    "early_plugin_load",
    "enforce_gtid_consistency",
    "gtid_mode",
    "init_file",
    "init_replica",
    "initialize",
    "innodb_data_home_dir",
    "innodb_directories",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_force_recovery",
    "innodb_log_group_home_dir",
    "innodb_read_only",
    "innodb_undo_directory",
    "log_bin",
    "log_error",
    "log_replica_updates",
    "log_slave_updates",
    "mandatory_roles",
    "mysqlx",
    "no_defaults",
    "offline_mode",
    "partial_revokes",
    "performance_schema",
    "pid_file",
    "plugin_dir",
    "plugin_load",
    "plugin_load_add",
    "port",
    "read_only",
    "relay_log",
    "relay_log_purge",
    "relay_log_recovery",
    "replica_exec_mode",
    "replica_parallel_type",
    "replica_preserve_commit_order",
    "replica_skip_errors",
    "replicate_do_db",
    "replicate_do_table",
    "replicate_ignore_db",
    "replicate_ignore_table",
    "replicate_rewrite_db",
    "replicate_same_server_id",
    "replicate_wild_do_table",
    "replicate_wild_ignore_table",
    "report_host",
    "report_port",
    "require_secure_transport",
    "secure_file_priv",
    "server_id",
    "server_id_bits",
    "session_track_gtids",
    "shutdown",
    "slave_exec_mode",
    "slave_skip_errors",
    "socket",
    "ssl_ca",
    "ssl_capath",
    "ssl_cert",
    "ssl_cipher",
    "ssl_crl",
    "ssl_crlpath",
    "ssl_key",
    "super_read_only",
    "sync_binlog",
    "sync_relay_log",
    "tls_ciphersuites",
    "tls_version",
    "tmpdir",
    "transaction_read_only",
    "upgrade",
    "user",
];

/// Prefixes of my.cnf keys that a user can't set: families that the operator owns, and the modifiers
/// with which mysqld takes any option under another name.
pub const RESERVED_PREFIXES: &[&str] = &[
    "admin_",
    "binlog_do",
    "binlog_ignore",
    "caching_sha2_password_private",
    "defaults_",
    "disable_",
    "enable_",
    "group_replication",
    "loose_",
    "maximum_",
    "rpl_semi_sync",
    "skip_",
];

/// Says why a my.cnf key can't be set by a user; `None` where it can.
pub fn refusal(key: &str) -> Option<String> {
    let well_formed = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !well_formed {
        return Some(format!("{key:?} is not a my.cnf key in lower case with underscores"));
    }
    if let Some(owned) = RESERVED_KEYS.iter().find(|reserved| reserved.starts_with(key)) {
        return Some(format!("{key} is {owned} or an abbreviation of it, which the operator owns"));
    }
    RESERVED_PREFIXES
        .iter()
        .find(|prefix| key.starts_with(**prefix))
        .map(|prefix| format!("{key} begins with {prefix}, which the operator owns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_keys_are_refused_however_they_are_written() {
        for key in [
            "super_read_only",
            "super_read",
            "loose_super_read_only",
            "admin",
            "admin_port",
            "admin_ssl_ca",
            "create_admin_listener_thread",
            "skip_grant_tables",
            "rpl_semi_sync_source_timeout",
            "Server_Id",
            "server-id",
            "x\ny",
            "",
        ] {
            assert!(refusal(key).is_some(), "{key:?}");
        }
    }

    #[test]
    fn other_keys_are_taken() {
        for key in ["max_connections", "innodb_buffer_pool_size", "sql_mode", "long_query_time"] {
            assert_eq!(refusal(key), None, "{key:?}");
        }
    }

    #[test]
    fn lists_are_sorted() {
        assert!(RESERVED_KEYS.is_sorted());
        assert!(RESERVED_PREFIXES.is_sorted());
    }
}
