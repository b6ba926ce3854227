//! The wire services of mysql-fleet: the code generated from the `.proto` files beside it.

/// The services of the agent of one MySQL instance.
pub mod agent {
    /// Version 1 of the agent's services.
    #[allow(missing_docs, clippy::pedantic, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("mysqlfleet.agent.v1");
    }
}

/// The services of a hub.
pub mod federation {
    /// Version 1 of the hub's services.
    #[allow(missing_docs, clippy::pedantic, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("mysqlfleet.federation.v1");
    }
}

/// The services of a shard.
pub mod shard {
    /// Version 1 of the shard's services.
    #[allow(missing_docs, clippy::pedantic, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("mysqlfleet.shard.v1");
    }
}

/// The descriptors of all services, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
