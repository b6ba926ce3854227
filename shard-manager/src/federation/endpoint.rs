//! Where the hub is, and how the shard shows who it is.

use std::{fmt, str::FromStr};

/// What a shard needs to dial its hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the hub is.
    pub endpoint: Endpoint,
    /// Secret of the namespace with `tls.crt`, `tls.key` and `ca.crt`.
    pub secret: String,
}

/// Address of a hub: `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// The host, which is also a name in the hub's certificate.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}:{}", self.host, self.port)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = "an endpoint is https://HOST:PORT, where HOST is a DNS name or an IPv4 address that is in the \
                      hub's certificate";
        let parsed = text.strip_prefix("https://").and_then(|rest| {
            let (host, port) = rest.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
            let good = (1..=253).contains(&host.len())
                && host.bytes().all(allowed)
                && host
                    .split('.')
                    .all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'));
            good.then(|| Self { host: host.to_owned(), port })
        });
        parsed.ok_or_else(|| wanted.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_as_written() {
        for text in ["https://hub.example:9443", "https://192.0.2.1:1", "https://hub:65535"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "hub:9443",
            "http://hub:9443",
            "https://hub",
            "https://hub:0",
            "https://hub:70000",
            "https://:9443",
            "https://hub:9443/",
            "https://a b:1",
            "https://-hub:1",
            "https://hub..x:1",
            "https://user@hub:1",
            "https://[::1]:9443",
        ] {
            assert!(text.parse::<Endpoint>().unwrap_err().contains("https://HOST:PORT"), "{text}");
        }
    }
}
