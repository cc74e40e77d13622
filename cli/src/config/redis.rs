//! The address of Redis.

use counterfoil::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::tls::{Certificates, NO_TLS, TlsRule, Transport, is_loopback};

/// The address of Redis, with the credentials.
#[derive(Clone, Debug)]
pub enum RedisPlace {
    At(ConnectionInfo),
    /// The sentinels, and the primary with its name as the host.
    Sentinel(Vec<ConnectionInfo>, ConnectionInfo),
    /// Some nodes.
    Cluster(Vec<ConnectionInfo>),
}

impl RedisPlace {
    fn all(&self) -> impl Iterator<Item = &ConnectionInfo> {
        let (many, one): (&[_], _) = match self {
            RedisPlace::At(one) => (&[], Some(one)),
            RedisPlace::Sentinel(sentinels, primary) => (sentinels, Some(primary)),
            RedisPlace::Cluster(nodes) => (nodes, None),
        };
        many.iter().chain(one)
    }

    /// Returns what connections need, to compare it.
    pub fn parts(&self) -> Vec<(String, i64, Option<&str>, Option<&str>)> {
        let parts = self.all().map(|info| {
            let settings = info.redis_settings();
            let address = format!("{:?}", info.addr());
            let (user, password) = (settings.username(), settings.password());
            (address, settings.db(), user, password)
        });
        parts.collect()
    }

    /// Returns the number of the database.
    pub fn database(&self) -> i64 {
        self.all()
            .last()
            .map_or(0, |info| info.redis_settings().db())
    }

    /// Sets the password of the servers, not that of the sentinels.
    pub fn set_password(&mut self, password: &str) {
        let set = |info: &mut ConnectionInfo| {
            let settings = info.redis_settings().clone().set_password(password);
            *info = info.clone().set_redis_settings(settings);
        };
        match self {
            RedisPlace::At(info) | RedisPlace::Sentinel(_, info) => set(info),
            RedisPlace::Cluster(nodes) => nodes.iter_mut().for_each(set),
        }
    }

    pub fn has_tls(&self) -> bool {
        self.all().any(is_tls)
    }

    /// Returns the protection of the least protected connection.
    pub fn transport(&self) -> Transport {
        let all = self.all().map(|info| match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => Transport::Unverified,
            ConnectionAddr::TcpTls { .. } => Transport::Verified,
            ConnectionAddr::Tcp(host, _) if !is_loopback(host) => Transport::Plain,
            _ => Transport::Local,
        });
        let RedisPlace::Sentinel(sentinels, primary) = self else {
            return all.min().unwrap_or(Transport::Plain);
        };
        // the primary's host is a name; it is taken to be where the sentinels are
        let is_remote = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => {
                !is_loopback(host)
            }
            _ => false,
        };
        match (is_tls(primary), sentinels.iter().any(is_remote)) {
            (true, _) => all.min().unwrap_or(Transport::Plain),
            (false, true) => Transport::Plain,
            (false, false) => Transport::Local,
        }
    }

    /// Refuses connections that others may read, and certificates without TLS.
    pub fn check(&self, rule: TlsRule, certificates: &Certificates) -> Result<(), String> {
        if self.transport() == Transport::Plain && rule == TlsRule::Required {
            return Err(format!(
                "redis is on another machine, and its URL has no TLS: expected rediss://, {NO_TLS}"
            ));
        }
        if !certificates.is_empty() && !self.has_tls() {
            return Err("redis_ca, redis_cert and redis_key need a rediss:// URL".to_owned());
        }
        Ok(())
    }
}

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Parses the URL of a Redis. The error does not contain the URL, which may have a password.
pub fn parse(setting: &str, url: &str) -> Result<ConnectionInfo, String> {
    let parsed = url.into_connection_info();
    parsed.map_err(|error| format!("{setting} is no URL of a Redis: {error:#}"))
}
