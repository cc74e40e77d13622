//! TLS to servers that insist on it, with an authority of the application's own; and a password without TLS.

use std::time::{Duration, Instant};

use counterfoil::redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use counterfoil::sqlx::{AssertSqlSafe, raw_sql};
use counterfoil::{Counterfoil, ErrorKind};
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::support::family;
use crate::support::tls::{CERTIFIED, Tls};

/// How Redis is connected to, with what of the certificates.
fn redis(tls: &Tls, url: &str, with_authority: bool, with_client: bool) -> ConnectionInfo {
    let client = || ClientTlsConfig {
        client_cert: tls.read("client.pem").unwrap(),
        client_key: tls.read("client.key").unwrap(),
    };
    let certificates = TlsCertificates {
        root_cert: with_authority.then(|| tls.read("ca.pem").unwrap()),
        client_tls: with_client.then(client),
    };
    Client::build_with_tls(url, certificates).unwrap().get_connection_info().clone()
}

/// How a connection is refused: at once.
async fn refusal(redis: impl IntoConnectionInfo, mysql: String) -> (ErrorKind, String) {
    let started = Instant::now();
    let error = Counterfoil::builder().redis(redis).mysql(mysql).connect().await.expect_err("refused");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}: {error}", started.elapsed());
    (error.kind(), error.to_string())
}

/// The same server by a name that it has no certificate for.
fn elsewhere(url: String) -> String {
    url.replace("localhost", "127.0.0.1")
}

#[tokio::test]
async fn what_is_not_certified_is_refused() {
    let tls = Tls::start().await;
    let both = redis(&tls, &tls.redis_url(), true, true);
    Counterfoil::builder().redis(both.clone()).mysql(tls.mysql_url(CERTIFIED)).connect().await.expect("certified");

    for (words, redis) in [
        ("UnknownIssuer", redis(&tls, &tls.redis_url(), false, true)),
        ("not valid for name", redis(&tls, &elsewhere(tls.redis_url()), true, true)),
        ("CertificateRequired", redis(&tls, &tls.redis_url(), true, false)),
        ("Connection reset", tls.redis_url().replace("rediss", "redis").into_connection_info().unwrap()),
    ] {
        let (kind, message) = refusal(redis, tls.mysql_url(CERTIFIED)).await;
        assert!(kind == ErrorKind::Redis && message.contains(words), "{words}: {kind:?} {message}");
    }
    // in MariaDB's words and in MySQL's
    let plain = "Access denied|insecure transport";
    for (words, mysql) in [
        ("UnknownIssuer", tls.mysql_url(&CERTIFIED.replace("ssl-ca=ca.pem&", ""))),
        ("not valid for name", elsewhere(tls.mysql_url(CERTIFIED))),
        ("Access denied", tls.mysql_url(&CERTIFIED.replace("&ssl-cert=client.pem&ssl-key=client.key", ""))),
        (plain, tls.mysql_url("mysql://shop@mysql.internal/shop?ssl-mode=DISABLED")),
    ] {
        let (kind, message) = refusal(both.clone(), mysql).await;
        let told = words.split('|').any(|words| message.contains(words));
        assert!(kind == ErrorKind::Store && told, "{words}: {kind:?} {message}");
    }
}

/// MySQL from 8 on has it encrypted: over TCP by RSA, over a Unix socket by the TLS that it offers by itself.
#[tokio::test]
async fn a_password_is_taken_also_without_certificates() {
    let (redis, mysql) = (RedisServer::start(RedisOptions::volatile()).await, MysqlServer::start_tcp(None).await);
    let (database, pool) = mysql.database("shop").await;
    for user in ["shop@'%'", "local@localhost"] {
        let sql = format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT ALL ON *.* TO {user}");
        raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    }
    let tcp = format!("mysql://shop:secret@127.0.0.1:{}/{database}?ssl-mode=DISABLED", mysql.port());
    let socket = format!("mysql://local:secret@localhost/{database}?socket={}", mysql.socket().display());
    for url in [&tcp, &socket] {
        let pair = Counterfoil::builder().redis(redis.url()).mysql(url).create_tables(true).connect().await.expect(url);
        pair.open(family("views").build().unwrap()).await.expect(url);
    }
    let (kind, message) = refusal(redis.url(), tcp.replace("secret", "wrong")).await;
    assert!(kind == ErrorKind::Store && message.contains("Access denied"), "{kind:?} {message}");
}
