//! The dates on which the certificates of a pair end. Redis shows its certificate in a TLS
//! handshake, after which nothing is sent. MySQL reports its own in a status variable; it is left
//! out if the connection does not verify it. The files that the configuration names have the
//! others.

use std::sync::{Arc, Mutex, PoisonError};

use counterfoil::redis::{ConnectionAddr, ConnectionInfo};
use counterfoil::sqlx::mysql::MySqlSslMode;
use counterfoil::sqlx::{self, ConnectOptions};
use futures_util::future::{join, join_all};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use crate::config::PairConfig;
use crate::limits::in_time;

/// The time before its end from which a certificate is a problem.
const SOON_SECONDS: u64 = 14 * 86_400;

/// A certificate that a connection depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The server and its address, or the setting.
    pub certificate: String,
    /// The end of its validity in Unix seconds.
    pub expires: u64,
}

impl Certificate {
    /// Returns whether it ends within two weeks, or has ended.
    pub fn ends_soon(&self, now: u64) -> bool {
        self.expires < now + SOON_SECONDS
    }
}

/// Reads when the certificates end. Those of servers that do not reply are left out.
pub async fn read(pair: &PairConfig) -> Vec<Certificate> {
    let servers = pair.redis.servers.iter().chain(&pair.redis.sentinels);
    let (of_redis, of_mysql) = join(join_all(servers.map(of_redis)), of_mysql(pair)).await;
    let mut all: Vec<_> = of_redis.into_iter().flatten().chain(of_mysql).collect();
    if let Some(configured) = &pair.certificates {
        // a file with a chain begins with the client's own certificate. A file with authorities
        // serves until the last of them ends
        let client = configured
            .client_tls
            .as_ref()
            .and_then(|tls| ends(&tls.client_cert).first().copied());
        let authority = configured
            .root_cert
            .as_ref()
            .and_then(|pem| ends(pem).into_iter().max());
        for (setting, expires) in [("redis_cert", client), ("redis_ca", authority)] {
            all.extend(expires.map(|expires| Certificate {
                certificate: setting.to_owned(),
                expires,
            }));
        }
    }
    all
}

/// Returns the ends of the certificates in a file.
fn ends(pem: &[u8]) -> Vec<u64> {
    Pem::iter_from_buffer(pem)
        .filter_map(Result::ok)
        .filter_map(|pem| end(&pem.contents))
        .collect()
}

fn end(der: &[u8]) -> Option<u64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    certificate.validity().not_after.timestamp().try_into().ok()
}

async fn of_redis(server: &ConnectionInfo) -> Option<Certificate> {
    let ConnectionAddr::TcpTls { host, port, .. } = server.addr() else {
        return None;
    };
    let recorder = Arc::new(CertificateRecorder::default());
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(recorder.clone())
        .with_no_client_auth();
    let name = ServerName::try_from(host.clone()).ok()?;
    // a server that requires a certificate of its clients refuses this handshake, which offers
    // none. By then it has shown its own certificate, so the result of the handshake does not
    // matter
    let _ = in_time(async {
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.map(drop)
    })
    .await;
    let shown = recorder
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()?;
    Some(Certificate {
        certificate: format!("redis {host}:{port}"),
        expires: end(&shown)?,
    })
}

async fn of_mysql(pair: &PairConfig) -> Option<Certificate> {
    let options = &pair.mysql;
    let (MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity) = options.get_ssl_mode() else {
        return None;
    };
    let mut connection = in_time(options.connect()).await.ok()?;
    let status = sqlx::query_as("SHOW SESSION STATUS LIKE 'Ssl_server_not_after'");
    let (_, end): (String, String) = in_time(status.fetch_one(&mut connection)).await.ok()?;
    let expires = DateTime::strptime("%b %d %H:%M:%S %Y GMT", end)
        .ok()?
        .to_zoned(TimeZone::UTC)
        .ok()?
        .timestamp();
    Some(Certificate {
        certificate: format!("mysql {}:{}", options.get_host(), options.get_port()),
        expires: expires.as_second().try_into().ok()?,
    })
}

/// Notes the certificate that a server shows, and accepts any. That is safe, because nothing is
/// sent to the server after the handshake.
#[derive(Debug, Default)]
struct CertificateRecorder(Mutex<Option<Vec<u8>>>);

impl ServerCertVerifier for CertificateRecorder {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Some(own.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider: CryptoProvider = ring::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
