//! Listening: addresses as flags, binding with an error that names the flag, and serving plain HTTP.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long open requests may go on once the shutdown has begun.
const DRAIN: Duration = Duration::from_secs(5);

/// An address to listen on: `:8080` is every address of the machine, IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddr {
    ip: Option<IpAddr>,
    port: u16,
}

impl ListenAddr {
    /// Every address of the machine, at a port.
    pub const fn any(port: u16) -> Self {
        Self { ip: None, port }
    }

    /// The port.
    pub const fn port(self) -> u16 {
        self.port
    }
}

/// The text is not an address to listen on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an address to listen on: write :PORT, IPV4:PORT or [IPV6]:PORT")]
pub struct InvalidListenAddr(String);

impl FromStr for ListenAddr {
    type Err = InvalidListenAddr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidListenAddr(text.to_owned());
        if let Some(port) = text.strip_prefix(':') {
            return Ok(Self::any(port.parse().map_err(|_| invalid())?));
        }
        let address: SocketAddr = text.parse().map_err(|_| invalid())?;
        Ok(Self { ip: Some(address.ip()), port: address.port() })
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(address: SocketAddr) -> Self {
        Self { ip: Some(address.ip()), port: address.port() }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// An address can't be listened on. A process that gets it as a flag ends with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {flag} {address}: {source}; {}", advice(source))]
pub struct BindError {
    flag: &'static str,
    address: ListenAddr,
    source: std::io::Error,
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "end the process that uses it, or name another port",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege, name another port",
        std::io::ErrorKind::AddrNotAvailable => "name an address that this machine has",
        _ => "name another address",
    }
}

/// Listens on the address that `flag` (such as `--grpc-addr`) gave.
///
/// `:PORT` listens on `[::]`, which takes IPv4 too, and on `0.0.0.0` where the machine has no IPv6.
pub async fn bind(flag: &'static str, address: ListenAddr) -> Result<TcpListener, BindError> {
    let ip = address.ip.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let mut bound = TcpListener::bind((ip, address.port)).await;
    if address.ip.is_none() && matches!(&bound, Err(error) if error.kind() != std::io::ErrorKind::AddrInUse) {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port)).await;
    }
    bound.map_err(|source| BindError { flag, address, source })
}

/// Serves plain HTTP until `shutdown`, then lets open requests end for a few seconds.
pub async fn serve_http(
    listener: TcpListener,
    router: axum::Router,
    shutdown: CancellationToken,
) -> Result<(), std::io::Error> {
    let drained = {
        let shutdown = shutdown.clone();
        async move {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        }
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()) => served,
        () = drained => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        for text in [":8080", "127.0.0.1:0", "[::1]:9443"] {
            assert_eq!(text.parse::<ListenAddr>().unwrap().to_string(), text);
        }
        for text in ["8080", "localhost:80", ":", ":70000", ""] {
            assert!(text.parse::<ListenAddr>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn an_address_in_use_names_the_flag_and_the_address() {
        let first = bind("--health-addr", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = first.local_addr().unwrap();
        let error = bind("--health-addr", address.into()).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("can't listen on --health-addr {address}: ")), "{error}");
        assert!(error.contains("end the process that uses it"), "{error}");
    }
}
