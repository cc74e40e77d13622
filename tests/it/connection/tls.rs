//! TLS to servers that insist on it, with an authority of the application's own; and a password without TLS.

use std::time::{Duration, Instant};

use counterfoil::redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use counterfoil::sqlx::raw_sql;
use counterfoil::{Counterfoil, ErrorKind};
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::support::tls::{CERTIFIED, Tls};
use crate::support::{counted, family};

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
    for (words, mysql) in [
        ("UnknownIssuer", tls.mysql_url(&CERTIFIED.replace("ssl-ca=ca.pem&", ""))),
        ("not valid for name", elsewhere(tls.mysql_url(CERTIFIED))),
        ("Access denied", tls.mysql_url(&CERTIFIED.replace("&ssl-cert=client.pem&ssl-key=client.key", ""))),
        ("Access denied", tls.mysql_url("mysql://shop@mysql.internal/shop?ssl-mode=DISABLED")),
    ] {
        let (kind, message) = refusal(both.clone(), mysql).await;
        assert!(kind == ErrorKind::Store && message.contains(words), "{words}: {kind:?} {message}");
    }
}

/// MySQL from 8 on has it encrypted, by TLS or by RSA.
#[tokio::test]
async fn a_password_goes_over_tcp_without_tls() {
    let (redis, mysql) = (RedisServer::start(RedisOptions::volatile()).await, MysqlServer::start_tcp(None).await);
    let (database, pool) = mysql.database("shop").await;
    raw_sql("CREATE USER shop@'%' IDENTIFIED BY 'secret'; GRANT ALL ON *.* TO shop@'%'").execute(&pool).await.unwrap();
    let url = |password| format!("mysql://shop:{password}@127.0.0.1:{}/{database}?ssl-mode=DISABLED", mysql.port());
    let counterfoil =
        Counterfoil::builder().redis(redis.url()).mysql(url("secret")).create_tables(true).connect().await;
    let views = counterfoil.unwrap().open(family("views").build().unwrap()).await.unwrap();
    assert_eq!(counted(views.add("a", 1).await.unwrap()), 1);
    let (kind, message) = refusal(redis.url(), url("wrong")).await;
    assert!(kind == ErrorKind::Store && message.contains("Access denied"), "{kind:?} {message}");
}
