//! TLS to servers that require it, with an application's own authority; and a password without TLS.

use std::time::{Duration, Instant};

use counterfoil::redis::cluster::ClusterClient;
use counterfoil::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use counterfoil::redis::{
    Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates, TlsMode,
};
use counterfoil::sqlx::{AssertSqlSafe, raw_sql};
use counterfoil::{
    Counterfoil, ErrorKind, MemoryStore, Primary, cluster_settings, sentinel_settings,
};
use testkit::{Certificates, MysqlServer, RedisCluster, RedisOptions, RedisServer, Sentinel};

use crate::support::tls::{CERTIFIED, Tls};
use crate::support::{family, pause};

/// Returns the connection info of Redis with the chosen certificates.
fn redis(tls: &Tls, url: &str, with_authority: bool, with_client: bool) -> ConnectionInfo {
    let certificates = certified(tls.certificates(), with_authority, with_client);
    Client::build_with_tls(url, certificates)
        .unwrap()
        .get_connection_info()
        .clone()
}

/// Returns the chosen certificates of a client.
fn certified(
    certificates: &Certificates,
    with_authority: bool,
    with_client: bool,
) -> TlsCertificates {
    let read = |file| std::fs::read(certificates.file(file)).unwrap();
    let client = || ClientTlsConfig {
        client_cert: read("client.pem"),
        client_key: read("client.key"),
    };
    TlsCertificates {
        root_cert: with_authority.then(|| read("ca.pem")),
        client_tls: with_client.then(client),
    }
}

/// Returns the error of a connection that is refused at once.
async fn refusal(redis: impl IntoConnectionInfo, mysql: String) -> (ErrorKind, String) {
    let started = Instant::now();
    let error = Counterfoil::builder()
        .redis(redis)
        .mysql(mysql)
        .connect()
        .await
        .expect_err("refused");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}: {error}",
        started.elapsed()
    );
    (error.kind(), format!("{error:#}"))
}

/// Returns the URL of the server under a name without a certificate.
fn elsewhere(url: String) -> String {
    url.replace("localhost", "127.0.0.1")
}

#[tokio::test]
async fn what_is_not_certified_is_refused() {
    let tls = Tls::start().await;
    let both = redis(&tls, &tls.redis_url(), true, true);
    Counterfoil::builder()
        .redis(both.clone())
        .mysql(tls.mysql_url(CERTIFIED))
        .connect()
        .await
        .expect("certified");

    for (words, redis) in [
        ("UnknownIssuer", redis(&tls, &tls.redis_url(), false, true)),
        (
            "not valid for name",
            redis(&tls, &elsewhere(tls.redis_url()), true, true),
        ),
        (
            "CertificateRequired",
            redis(&tls, &tls.redis_url(), true, false),
        ),
        (
            "Connection reset",
            tls.redis_url()
                .replace("rediss", "redis")
                .into_connection_info()
                .unwrap(),
        ),
    ] {
        let (kind, message) = refusal(redis, tls.mysql_url(CERTIFIED)).await;
        assert!(
            kind == ErrorKind::Redis && message.contains(words),
            "{words}: {kind:?} {message}"
        );
    }
    // the messages of MariaDB and MySQL
    let plain = "Access denied|insecure transport";
    for (words, mysql) in [
        (
            "UnknownIssuer",
            tls.mysql_url(&CERTIFIED.replace("ssl-ca=ca.pem&", "")),
        ),
        ("not valid for name", elsewhere(tls.mysql_url(CERTIFIED))),
        (
            "Access denied",
            tls.mysql_url(&CERTIFIED.replace("&ssl-cert=client.pem&ssl-key=client.key", "")),
        ),
        (
            plain,
            tls.mysql_url("mysql://shop@mysql.internal/shop?ssl-mode=DISABLED"),
        ),
    ] {
        let (kind, message) = refusal(both.clone(), mysql).await;
        let told = words.split('|').any(|words| message.contains(words));
        assert!(
            kind == ErrorKind::Store && told,
            "{words}: {kind:?} {message}"
        );
    }
}

/// MySQL 8 and later encrypts the password: over TCP with RSA, over a Unix socket with its default
/// TLS.
#[tokio::test]
async fn a_password_is_taken_also_without_certificates() {
    let (redis, mysql) = (
        RedisServer::start(RedisOptions::volatile()).await,
        MysqlServer::start_tcp(None).await,
    );
    let (database, pool) = mysql.database("shop").await;
    for user in ["shop@'%'", "local@localhost"] {
        let sql = format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT ALL ON *.* TO {user}");
        raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    }
    let tcp = format!(
        "mysql://shop:secret@127.0.0.1:{}/{database}?ssl-mode=DISABLED",
        mysql.port()
    );
    let socket = format!(
        "mysql://local:secret@localhost/{database}?socket={}",
        mysql.socket().display()
    );
    for url in [&tcp, &socket] {
        let pair = Counterfoil::builder()
            .redis(redis.url())
            .mysql(url)
            .create_tables(true)
            .connect()
            .await
            .expect(url);
        pair.open(family("views")).await.expect(url);
    }
    let (kind, message) = refusal(redis.url(), tcp.replace("secret", "wrong")).await;
    assert!(
        kind == ErrorKind::Store && message.contains("Access denied"),
        "{kind:?} {message}"
    );
}

#[tokio::test]
async fn a_cluster_that_takes_tls_alone_counts_also_after_a_failover() {
    let certificates = Certificates::issue();
    let cluster = RedisCluster::start(RedisOptions::volatile().tls_node(&certificates)).await;
    let builder = || cluster_settings(ClusterClient::builder(cluster.urls()));
    let connect = async |with_authority, with_client| {
        let client = builder()
            .certs(certified(&certificates, with_authority, with_client))
            .build()
            .unwrap();
        client.get_async_connection().await
    };
    for (with_authority, with_client) in [(false, true), (true, false)] {
        assert!(
            connect(with_authority, with_client).await.is_err(),
            "{with_authority} {with_client}"
        );
    }
    let urls = cluster.urls();
    let uncertified =
        Counterfoil::connect_cluster(urls.iter().map(String::as_str), "mysql://localhost/shop")
            .await;
    let error = uncertified.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");

    let pair = Counterfoil::new(connect(true, true).await.unwrap(), MemoryStore::new());
    let views = pair.open(family("views")).await.unwrap();
    let ids: Vec<_> = (0..20).map(|number| format!("page/{number}")).collect();
    for round in 1..=2 {
        for id in &ids {
            let _ = views.add(id, 1).await.unwrap();
        }
        assert_eq!(views.get_many(&ids).await.unwrap(), [round; 20]);
        if round == 1 {
            cluster.failover(cluster.replica_of(0).await).await;
            cluster.wait_until_ok().await;
        }
    }
    pair.drain().await.unwrap();
    assert_eq!(views.stored(&ids).await.unwrap(), [Some(2); 20]);
}

#[tokio::test]
async fn sentinel_and_its_primary_take_tls_alone_also_after_a_failover() {
    let certificates = Certificates::issue();
    let server =
        async || RedisServer::start(RedisOptions::volatile().tls_node(&certificates)).await;
    let (first, second) = (server().await, server().await);
    second.replica_of(&first).await;
    let sentinel = Sentinel::start_tls(&first, &certificates).await;
    let url = sentinel.url().replace("redis://", "rediss://");
    let connect = async |with_authority, with_client| {
        let address = url.as_str().into_connection_info().unwrap().addr().clone();
        let builder =
            SentinelClientBuilder::new([address], "primary", SentinelServerType::Master).unwrap();
        let client = sentinel_settings(builder)
            .set_client_to_sentinel_certificates(certified(
                &certificates,
                with_authority,
                with_client,
            ))
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certified(
                &certificates,
                with_authority,
                with_client,
            ));
        Primary::connect_sentinel_client(client.build().unwrap()).await
    };
    for (with_authority, with_client) in [(false, true), (true, false)] {
        let error = connect(with_authority, with_client).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    }
    let error = Primary::connect_sentinel([url.as_str()], "rediss://primary")
        .await
        .unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Redis,
        "the authority is not known to the system: {error}"
    );

    let pair = Counterfoil::new(connect(true, true).await.unwrap(), MemoryStore::new());
    let views = pair.open(family("views")).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    pair.drain().await.unwrap();
    // the replica has the hit too
    pause(500).await;
    first.kill();
    sentinel.wait_promoted(&second).await;
    let _ = views.add("page", 1).await.unwrap();
    assert_eq!(views.get("page").await.unwrap(), 2);
}
