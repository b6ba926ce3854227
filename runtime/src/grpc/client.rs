//! The connecting side.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::GrpcError;
use crate::tls::{Identity, ReloadingIdentity};

/// Limit of one attempt to connect, TLS handshake included.
const CONNECT: Duration = Duration::from_secs(5);
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to a gRPC server, which must have a certificate for `server_name` and be `expected`.
///
/// The channel pings while it is open, so that a peer that is gone is noticed in 15 seconds, and
/// connects again to the same address when it is used after a break, with the certificate of that time.
pub async fn channel(
    address: SocketAddr,
    server_name: &str,
    identity: &ReloadingIdentity,
    expected: &Identity,
) -> Result<Channel, GrpcError> {
    let name = dns_name(server_name)?;
    let (identity, expected) = (identity.clone(), expected.clone());
    let connector = service_fn(move |_: Uri| {
        let (identity, expected, name) = (identity.clone(), expected.clone(), name.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            secure(stream, name, &identity, &expected).await.map(TokioIo::new)
        }
    });
    endpoint(server_name)?.connect_with_connector(connector).await.map_err(|source| GrpcError::Connect {
        address: address.to_string(),
        server_name: server_name.to_owned(),
        source,
    })
}

/// Speaks gRPC over a stream that is open already, such as a forwarded port. When it breaks, so does
/// the channel.
pub async fn channel_over<S>(
    stream: S,
    server_name: &str,
    identity: &ReloadingIdentity,
    expected: &Identity,
) -> Result<Channel, GrpcError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let name = dns_name(server_name)?;
    let (identity, expected) = (identity.clone(), expected.clone());
    let once = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_: Uri| {
        let stream = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (identity, expected, name) = (identity.clone(), expected.clone(), name.clone());
        async move {
            let stream =
                stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the stream has ended"))?;
            secure(stream, name, &identity, &expected).await.map(TokioIo::new)
        }
    });
    endpoint(server_name)?.connect_with_connector(connector).await.map_err(|source| GrpcError::Connect {
        address: "an open stream".to_owned(),
        server_name: server_name.to_owned(),
        source,
    })
}

fn dns_name(name: &str) -> Result<ServerName<'static>, GrpcError> {
    ServerName::try_from(name.to_owned()).map_err(|_| GrpcError::ServerName(name.to_owned()))
}

/// The scheme is http since TLS is done by the connector, which knows whom to expect.
fn endpoint(server_name: &str) -> Result<Endpoint, GrpcError> {
    let endpoint = Endpoint::from_shared(format!("http://{server_name}"))
        .map_err(|_| GrpcError::ServerName(server_name.to_owned()))?;
    Ok(endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true))
}

async fn secure<S>(
    stream: S,
    name: ServerName<'static>,
    identity: &ReloadingIdentity,
    expected: &Identity,
) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = identity.client_config(expected).map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, stream).await
}
