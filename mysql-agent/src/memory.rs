//! Sizes of mysqld's memory, derived from the container's limit.

const MIB: u64 = 1 << 20;

/// From here on there is room for the full Performance Schema (240 MiB as measured on 9.7).
const ROOMY: u64 = 2048 * MIB;

/// Default sizes; the user's my.cnf may overrule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// innodb_buffer_pool_size in bytes.
    pub buffer_pool: u64,
    /// innodb_log_buffer_size in bytes.
    pub log_buffer: u64,
    /// temptable_max_ram in bytes.
    pub temporary_tables: u64,
    /// max_connections.
    pub connections: u64,
    /// table_open_cache and table_definition_cache.
    pub tables: u64,
    /// Whether the Performance Schema keeps its usual instruments. A small one still has what the agent
    /// reads: the replication and clone tables.
    pub full_performance_schema: bool,
}

impl Sizes {
    /// Sizes for a memory limit in bytes; `None` is a container without a limit.
    ///
    /// An idle mysqld 9.7 takes 220 MiB beside its buffer pool and Performance Schema (measured). The pool
    /// gets two thirds of what is left above an allowance for that, so the last third serves
    /// connections, sorts and temporary tables.
    pub fn for_limit(limit: Option<u64>) -> Self {
        let Some(limit) = limit else {
            return Self {
                buffer_pool: 128 * MIB,
                log_buffer: 64 * MIB,
                temporary_tables: 256 * MIB,
                connections: 151,
                tables: 2000,
                full_performance_schema: true,
            };
        };
        let roomy = limit >= ROOMY;
        let allowance = if roomy { 600 * MIB } else { 288 * MIB };
        let pool = limit.saturating_sub(allowance) / 3 * 2;
        Self {
            buffer_pool: (pool / (8 * MIB) * 8 * MIB).max(32 * MIB),
            log_buffer: if roomy { 64 * MIB } else { 16 * MIB },
            temporary_tables: (limit / 16).clamp(16 * MIB, 1024 * MIB),
            connections: (limit / (8 * MIB)).clamp(100, 4000),
            tables: if roomy { 4000 } else { 500 },
            full_performance_schema: roomy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_fits_from_small_to_large() {
        let share = |limit: u64| Sizes::for_limit(Some(limit * MIB)).buffer_pool / MIB;
        assert_eq!(share(256), 32);
        assert_eq!(share(512), 144);
        assert_eq!(share(700), 272);
        assert_eq!(share(1024), 488);
        assert_eq!(share(2048), 960);
        assert_eq!(share(65536), 43288);
    }

    #[test]
    fn pool_log_and_performance_schema_leave_room_below_the_limit() {
        for limit in (512..70_000).step_by(64) {
            let sizes = Sizes::for_limit(Some(limit * MIB));
            let schema = if sizes.full_performance_schema { 240 } else { 25 };
            let fixed = 220 - 64 + schema + (sizes.buffer_pool + sizes.log_buffer) / MIB;
            assert!(fixed + 30 < limit, "{limit} MiB: {fixed} MiB are taken at rest");
        }
    }

    #[test]
    fn no_limit_gives_the_defaults_of_mysql() {
        assert_eq!(Sizes::for_limit(None).buffer_pool, 128 * MIB);
    }
}
