//! TLS to servers that require it, with an application's own authority; and a password without TLS.

use counterfoil::redis::{
    Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
};
use counterfoil::sqlx::{AssertSqlSafe, raw_sql};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::*;

/// A client's certificates: those of the authority, and its own.
type Chosen = (bool, bool);
const BOTH: Chosen = (true, true);
/// Choices that the servers refuse.
const INCOMPLETE: [Chosen; 2] = [(false, true), (true, false)];

/// Returns the connection info of Redis with the chosen certificates.
fn redis(certificates: &Certificates, url: &str, chosen: Chosen) -> ConnectionInfo {
    Client::build_with_tls(url, certified(certificates, chosen))
        .unwrap()
        .get_connection_info()
        .clone()
}

/// Returns the chosen certificates of a client.
fn certified(
    certificates: &Certificates,
    (with_authority, with_client): Chosen,
) -> TlsCertificates {
    let read = |file| fs::read(certificates.file(file)).unwrap();
    let client = || ClientTlsConfig {
        client_cert: read("client.pem"),
        client_key: read("client.key"),
    };
    TlsCertificates {
        root_cert: with_authority.then(|| read("ca.pem")),
        client_tls: with_client.then(client),
    }
}

/// Asserts that the connection is refused at once, with one of these words in the message.
async fn refused(redis: impl IntoConnectionInfo, mysql: String, kind: ErrorKind, words: &str) {
    let (started, builder) = (Instant::now(), Counterfoil::builder());
    let error = builder
        .redis(redis)
        .mysql(mysql)
        .connect()
        .await
        .expect_err(words);
    assert!(started.elapsed() < secs(5), "{error}");
    let message = format!("{error:#}");
    assert!(
        error.kind() == kind && words.split('|').any(|words| message.contains(words)),
        "{words}: {error:?}"
    );
}

/// Returns the URL of the server under a name without a certificate.
fn elsewhere(url: String) -> String {
    url.replace("localhost", "127.0.0.1")
}

#[tokio::test]
async fn what_is_not_certified_is_refused() {
    let tls = Tls::start().await;
    let url = tls.redis_url();
    let redis = |url: &str, chosen| redis(tls.certificates(), url, chosen);
    let (both, certified) = (redis(&url, BOTH), tls.mysql_url(CERTIFIED));
    let pair = Counterfoil::builder().redis(both.clone());
    pair.mysql(&certified).connect().await.unwrap();

    let plain = url.replace("rediss", "redis").into_connection_info();
    for (words, redis) in [
        ("UnknownIssuer", redis(&url, (false, true))),
        ("not valid for name", redis(&elsewhere(url.clone()), BOTH)),
        ("CertificateRequired", redis(&url, (true, false))),
        ("Connection reset", plain.unwrap()),
    ] {
        refused(redis, certified.clone(), ErrorKind::Redis, words).await;
    }
    let without = |part| tls.mysql_url(&CERTIFIED.replace(part, ""));
    let plain = tls.mysql_url("mysql://shop@mysql.internal/shop?ssl-mode=DISABLED");
    let uncertified = without("&ssl-cert=client.pem&ssl-key=client.key");
    // the messages of rustls and of OpenSSL, which sqlx prefers with all features
    let issuer = "UnknownIssuer|self-signed certificate in certificate chain";
    let name = "not valid for name|IP address mismatch";
    for (words, kind, mysql) in [
        (issuer, ErrorKind::Store, without("ssl-ca=ca.pem&")),
        (name, ErrorKind::Store, elsewhere(certified)),
        ("Access denied", AccessDenied, uncertified),
        // the messages of MySQL and of later MariaDB
        ("Access denied|insecure transport", AccessDenied, plain),
    ] {
        refused(both.clone(), mysql, kind, words).await;
    }
}

/// MySQL 8 and later encrypts the password: over TCP with RSA, over a Unix socket with its default
/// TLS.
#[tokio::test]
async fn a_password_is_taken_also_without_certificates() {
    let (redis, mysql) = (new_redis().await, MysqlServer::start_tcp(None).await);
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
        let pair = Counterfoil::builder().redis(redis.url()).mysql(url);
        let pair = pair.create_tables(true).connect().await.expect(url);
        pair.open(family("views")).await.expect(url);
    }
    refused(
        redis.url(),
        tcp.replace("secret", "wrong"),
        AccessDenied,
        "Access denied",
    )
    .await;
}

/// Poses as a MySQL that asks for the password in clear. Returns its URL, and what clients send.
async fn impostor() -> (String, JoinHandle<Vec<u8>>) {
    // version 10 of the protocol, 4.1, without TLS, with the plugin's name
    let mut greeting = b"\x0a5.7.0\0\x01\0\0\0abcdefgh\0\0\x82\x21\0\0\x08\0\x15".to_vec();
    greeting.extend([0; 10]);
    greeting.extend(b"ijklmnopqrst\0mysql_clear_password\0");
    let length = u32::try_from(greeting.len()).unwrap().to_le_bytes();
    greeting.splice(0..0, length);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // an address of this machine that is not one of the loopback interface
    let url = format!(
        "mysql://shop:secret@0.0.0.0:{}/shop",
        listener.local_addr().unwrap().port()
    );
    let served = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        client.write_all(&greeting).await.unwrap();
        let mut sent = [0; 1024];
        let length = client.read(&mut sent).await.unwrap_or_default();
        sent[..length].to_vec()
    });
    (url, served)
}

#[tokio::test]
async fn a_password_is_not_sent_in_clear_to_another_machine() {
    let is_sent = async |parameter: &str| {
        let (url, served) = impostor().await;
        let store = MysqlStore::new(url + parameter).unwrap();
        store.create_tables().await.unwrap_err();
        let sent = served.await.unwrap();
        sent.windows(6).any(|part| part == b"secret")
    };
    assert!(!is_sent("").await);
    // the URL accepts that
    assert!(is_sent("?ssl-mode=PREFERRED").await);
}

#[tokio::test]
async fn a_cluster_that_takes_tls_alone_counts_also_after_a_failover() {
    let certificates = Certificates::issue();
    let cluster = RedisCluster::start(RedisOptions::volatile().tls_node(&certificates)).await;
    let connect = async |chosen| {
        let builder = super::builder(&cluster).certs(certified(&certificates, chosen));
        Cluster::connect(builder.build().unwrap()).await
    };
    for chosen in INCOMPLETE {
        assert!(connect(chosen).await.is_err(), "{chosen:?}");
    }
    let error = Counterfoil::connect_cluster(
        cluster.urls().iter().map(String::as_str),
        "mysql://localhost/shop",
    )
    .await
    .err()
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");

    let pair = Counterfoil::new(connect(BOTH).await.unwrap(), MemoryStore::new());
    let views = pair.opened(family("views")).await;
    let ids = pages(20);
    for round in 1..=2 {
        for id in &ids {
            views.count(id, 1).await;
        }
        assert_eq!(views.get_many(&ids).await.unwrap(), [round; 20]);
        if round == 1 {
            cluster.failover(cluster.replica_of(0).await).await;
            cluster.wait_until_ok().await;
        }
    }
    pair.drained().await;
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
    let connect = async |chosen| {
        let info = |url: &str| redis(&certificates, url, chosen);
        Primary::connect_sentinel([info(&url)], info("rediss://primary")).await
    };
    for chosen in INCOMPLETE {
        let error = connect(chosen).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    }
    // the system does not know the authority
    let error = Primary::connect_sentinel([url.as_str()], "rediss://primary")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");

    let pair = Counterfoil::new(connect(BOTH).await.unwrap(), MemoryStore::new());
    let views = pair.opened(family("views")).await;
    views.count("page", 1).await;
    pair.drained().await;
    // the replica has the hit too
    pause(500).await;
    first.kill();
    sentinel.wait_promoted(&second).await;
    views.count("page", 1).await;
    assert_eq!(views.value("page").await, 2);
}
