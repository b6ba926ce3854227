//! What belongs to the tenant and to no single cluster: its certificate authority, the certificates of
//! the shard and of the people who ask it, and the seed that passwords are derived from.
//!
//! The Secrets are made once by the leader and read by every pod of the shard. While a leader has the keys
//! in memory it puts back a Secret that was deleted or edited. A new leader that finds an authority it can't
//! read makes none: a new authority would cut the shard off from every running instance, so a person has
//! to restore or delete it. Until then every cluster says so, and clusters can be deleted.
//!
//! The authority is exchanged for another one, by itself or by request, without anybody being cut off: [`rotation`].

mod asked;
mod certificates;
mod exchange;
mod keeper;
mod parties;
mod rotation;
mod seed;

pub use certificates::{Keys, KeysError};
pub use exchange::Exchange;
pub use fleet_runtime::tls::{certificate, tls_data};
pub use keeper::{FoundKeys, Keeper};
pub use seed::Seed;
