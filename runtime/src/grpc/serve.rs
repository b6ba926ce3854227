//! The accepting side.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::Connected},
};

use super::GrpcError;
use crate::tls::{Identity, ReloadingIdentity, identity_of};

/// Open connections, handshakes included. One more waits in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(5);
const MAX_STREAMS: u32 = 128;
// A connection that is dead ends within their sum: an agent takes an open stream for a shard that it reaches.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long open calls may go on once the shutdown has begun: streams never end by themselves.
const DRAIN: Duration = Duration::from_secs(3);
/// Pause after an accept that failed: the cause (no file descriptors) does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The other side of a connection, found in the extensions of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it connects from.
    pub address: Option<SocketAddr>,
    /// Whom its certificate speaks for.
    pub identity: Option<Identity>,
}

/// Serves gRPC over mutual TLS until `shutdown`, then lets open calls end for a few seconds.
///
/// A connection without a certificate of the trusted authority does not get past the handshake. Who is
/// connected is in [`Peer`]; each method decides with [`super::require_role`].
pub async fn serve(
    listener: TcpListener,
    identity: ReloadingIdentity,
    routes: Routes,
    shutdown: CancellationToken,
) -> Result<(), GrpcError> {
    let drained = {
        let shutdown = shutdown.clone();
        async move {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        }
    };
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections(listener, identity), shutdown.cancelled_owned());
    tokio::select! {
        ended = server => ended.map_err(GrpcError::Serve),
        () = drained => Ok(()),
    }
}

/// Connections whose handshake is done. Handshakes run side by side: a slow one holds up nobody.
fn connections(
    listener: TcpListener,
    identity: ReloadingIdentity,
) -> impl Stream<Item = Result<Connection, io::Error>> {
    let state = Accepting {
        listener,
        identity,
        limit: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        handshakes: FuturesUnordered::new(),
    };
    futures::stream::unfold(state, |mut state| async move {
        let connection = state.next().await;
        Some((Ok(connection), state))
    })
}

struct Accepting {
    listener: TcpListener,
    identity: ReloadingIdentity,
    limit: Arc<Semaphore>,
    handshakes: FuturesUnordered<Pin<Box<dyn Future<Output = Option<Connection>> + Send>>>,
}

impl Accepting {
    /// Cancel safe: a dropped call loses no connection.
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.next() => {
                    if let Some(connection) = done {
                        return connection;
                    }
                }
                accepted = accept(&self.listener, self.limit.clone()) => match accepted {
                    Ok((stream, address, permit)) => {
                        let acceptor = TlsAcceptor::from(self.identity.server_config());
                        self.handshakes.push(Box::pin(handshake(acceptor, stream, address, permit)));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "can't accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    limit: Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = limit.acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, permit))
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
) -> Option<Connection> {
    // Without it small answers wait for the other side's delayed acknowledgement.
    let _best_effort = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake has failed");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, "TLS handshake has taken too long");
            return None;
        }
    };
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let identity = certificate.and_then(|certificate| identity_of(certificate));
    let peer = Peer { address: Some(address), identity };
    Some(Connection { stream, peer, _permit: permit })
}

struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
