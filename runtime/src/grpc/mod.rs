//! gRPC over mutual TLS: who may call, and calling only whom one means.

mod client;
mod serve;

pub use client::{channel, channel_over};
pub use serve::{Peer, serve};
use tonic::{Request, Status};

use crate::tls::{Identity, Role};

/// The largest message that servers and clients take. Set it on each generated server and client
/// (`max_decoding_message_size`); it is tonic's own default, so forgetting it does no harm.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// gRPC can't be served, or a server can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The server has failed.
    #[error("gRPC server has failed: {0}")]
    Serve(#[source] tonic::transport::Error),
    /// The server can't be reached, or is not who is expected.
    #[error("can't connect to {server_name} at {address}: {}", chain(source))]
    Connect {
        /// Address or way.
        address: String,
        /// DNS name that its certificate must have.
        server_name: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The name can't stand in a certificate.
    #[error("{0:?} is no DNS name")]
    ServerName(String),
    /// TLS can't be configured.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
}

/// An error with its causes: tonic's own text is "transport error" whatever has happened.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Returns who calls, if it is one of the `allowed` roles of `namespace`.
///
/// Anybody else gets PERMISSION_DENIED with nothing said of what exists. Only requests that [`serve`]
/// took have a caller.
pub fn require_role<T>(request: &Request<T>, namespace: &str, allowed: &[Role]) -> Result<Identity, Status> {
    request
        .extensions()
        .get::<Peer>()
        .and_then(|peer| peer.identity.clone())
        .filter(|identity| match identity {
            Identity::Tenant { namespace: of, role } => of == namespace && allowed.contains(role),
            Identity::Member { .. } | Identity::Hub | Identity::Viewer => false,
        })
        .ok_or_else(|| Status::permission_denied("permission denied"))
}

/// Returns an interceptor that lets only the `allowed` roles of `namespace` call a service, for services
/// that don't ask by themselves (health, reflection).
pub fn role_interceptor(
    namespace: impl Into<String>,
    allowed: &'static [Role],
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync + 'static {
    let namespace = namespace.into();
    move |request| {
        require_role(&request, &namespace, allowed)?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests;
