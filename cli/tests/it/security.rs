//! The limits of strangers: secrets, TLS, host names, logins, and text that deceives.

use std::time::Duration;

use counterfoil::redis::{Client, cmd};
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{Certificates, MysqlServer, RedisOptions, RedisServer, Sentinel};

use crate::client::{address, get, request, send};
use crate::http::{self, KINDS, sample, scrape};
use crate::support::{Site, eventually};

/// A password that occurs in nothing else.
const SECRET: &str = "hunter2-of-the-test";

#[tokio::test]
async fn no_output_shows_a_password() {
    const COMMANDS: [&[&str]; 5] = [
        &["check-config"],
        &["check"],
        &["status"],
        &["scripts", "load"],
        &["rejects", "list"],
    ];
    let site = Site::new().await;
    let (redis, mysql) = (site.redis.url(), &site.mysql_url);
    // nothing listens on port 1
    let pairs = [
        format!("redis = \"redis://u:{SECRET}@127.0.0.1:1\"\nmysql = {mysql:?}"),
        format!("cluster = [\"redis://u:{SECRET}@127.0.0.1:1\"]\nmysql = {mysql:?}"),
        format!(
            "redis = \"redis://u:{SECRET}@primary\"\nsentinel = [\"redis://u:{SECRET}@127.0.0.1:1\"]\n\
             mysql = {mysql:?}"
        ),
        format!("redis = {redis:?}\nmysql = \"mysql://u:{SECRET}@127.0.0.1:1/x\""),
        format!(
            "redis = {redis:?}\nmysql = \"mysql://127.0.0.1:1/x\"\nredis_password = \"{SECRET}\"\n\
             mysql_password = \"{SECRET}\""
        ),
    ];
    let tried = pairs.iter().enumerate().map(async |(number, pair)| {
        let file = site.folder().join(format!("{number}.toml"));
        let text = format!("listen = \"127.0.0.1:0\"\ntoken = \"{SECRET}\"\n[pair.main]\n{pair}\n");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let run = async |args: &&[&str]| {
            let output = site.run(&[args, &["--config", file][..]].concat()).await;
            format!("{args:?}: {output:?}")
        };
        let mut shown = join_all(COMMANDS.iter().map(run)).await;
        let daemon = site
            .daemon_with(|command| command.args(["--config", file]))
            .await;
        daemon.logs(&["unavailable"]).await;
        let bearer = format!("Authorization: Bearer {SECRET}\r\n");
        for path in ["/", "/api/v1/state", "/metrics"] {
            shown.push(format!(
                "{:?}",
                request(&daemon, "GET", path, &bearer).await
            ));
        }
        let ready = get(&daemon, "/readyz").await;
        assert!(
            ready.status == 503
                && [
                    "not ready: redis\n",
                    "not ready: mysql\n",
                    "not ready: mysql, redis\n"
                ]
                .contains(&&*ready.body),
            "{ready:?}"
        );
        daemon.signal("TERM");
        shown.push(daemon.ended().await.1);
        for shown in shown {
            assert!(!shown.contains(SECRET), "{pair}: {shown}");
        }
    });
    join_all(tried).await;
}

#[tokio::test]
async fn sentinel_urls_decide_about_tls_and_credentials() {
    let server = async || RedisServer::start(RedisOptions::volatile().tcp()).await;
    let (first, second) = (server().await, server().await);
    second.replica_of(&first).await;
    let sentinel = Sentinel::start(&first).await;
    let site = Site::without_tables().await;
    let (mysql, url) = (&site.mysql_url, sentinel.url());
    let write = |primary: &str, sentinel: &str| {
        site.write(&format!(
            "[pair.main]\nredis = {primary:?}\nsentinel = [{sentinel:?}]\nmysql = {mysql:?}\n"
        ));
    };
    write("redis://primary", &url);
    site.printed(&["scripts", "load"]).await;
    // the primary has no TLS: a client that asks for it must not send anything in plain text
    write("rediss://primary", &url);
    site.ends_with(2, &["scripts", "load"]).await;

    let client = Client::open(url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for words in [
        &format!("ACL SETUSER asker on >{SECRET} allkeys allchannels allcommands"),
        "ACL SETUSER default off",
    ] {
        let mut words = words.split(' ');
        let mut command = cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        command.exec_async(&mut connection).await.unwrap();
    }
    write("redis://primary", &url);
    site.ends_with(2, &["scripts", "load"]).await;
    write(
        "redis://primary",
        &url.replace("://", &format!("://asker:{SECRET}@")),
    );
    site.printed(&["scripts", "load"]).await;
}

#[tokio::test]
async fn sentinel_and_its_primary_are_reached_over_tls() {
    let certificates = Certificates::issue();
    let server =
        async || RedisServer::start(RedisOptions::volatile().tls_node(&certificates)).await;
    let (first, second) = (server().await, server().await);
    second.replica_of(&first).await;
    let sentinel = Sentinel::start_tls(&first, &certificates).await;
    let site = Site::without_tables().await;
    let (mysql, url) = (
        &site.mysql_url,
        sentinel.url().replace("redis://", "rediss://"),
    );
    let file = |name: &str| certificates.file(name);
    let client = format!(
        "redis_cert = {:?}\nredis_key = {:?}\n",
        file("client.pem"),
        file("client.key")
    );
    let authority = format!("redis_ca = {:?}\n", file("ca.pem"));
    for (files, code) in [
        (format!("{authority}{client}"), 0),
        (authority.clone(), 2),
        (client, 2),
        (String::new(), 2),
    ] {
        site.write(&format!(
            "[pair.main]\nredis = \"rediss://primary\"\nsentinel = [{url:?}]\nmysql = {mysql:?}\n{files}"
        ));
        site.ends_with(code, &["scripts", "load"]).await;
    }
}

#[tokio::test]
async fn check_reports_the_protection_of_both_servers() {
    let certificates = Certificates::issue();
    let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
    let mysql = MysqlServer::start_tcp(Some(&certificates)).await;
    let (database, pool) = mysql.database("security").await;
    let site = Site::of(redis, pool, String::new());
    site.sql(&format!(
        "CREATE USER shop@'%' IDENTIFIED BY '{SECRET}'; GRANT ALL ON *.* TO shop@'%'"
    ))
    .await;
    let file = |name: &str| certificates.file(name);
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let (redis, port) = (site.redis.port(), mysql.port());
    let address = format!("mysql://shop:{SECRET}@localhost:{port}/{database}");
    let write = |redis: &str, mysql: &str| {
        site.write(&format!(
            "[pair.main]\nredis = {redis:?}\nredis_ca = {ca:?}\nredis_cert = {cert:?}\nredis_key = {key:?}\nmysql = {mysql:?}\n"
        ));
    };
    write(
        &format!("rediss://localhost:{redis}"),
        &format!("{address}?ssl-ca={ca}"),
    );
    site.printed(&["init"]).await;
    let verified = "TLS, the certificate is verified";
    let checked = site.run(&["check"]).await.out;
    for server in ["redis", "mysql"] {
        assert!(
            checked.contains(&format!("pair main: {server}: {verified}")),
            "{checked}"
        );
    }
    // its certificate is another name's
    write(&format!("rediss://127.0.0.1:{redis}"), &address);
    let checked = site.run(&["check"]).await.out;
    assert!(!checked.contains("redis: TLS"), "{checked}");
    write(&format!("rediss://localhost:{redis}"), &address);
    let checked: Value = serde_json::from_str(&site.run(&["check", "--json"]).await.out).unwrap();
    let unverified = "TLS, the certificate is not verified";
    let mysql = checked[0]["tls"]["mysql"].as_str().unwrap();
    assert!(
        mysql.starts_with(unverified) && mysql.contains("(TLSv1."),
        "{mysql}"
    );
}

/// `openssl req -x509` makes a certificate of an authority, which rustls does not accept of a server. The
/// error has a line that makes one which it accepts.
#[tokio::test]
async fn a_self_signed_certificate_works_or_is_explained() {
    let certificates = Certificates::issue();
    let file = |name: &str| certificates.file(name);
    let (ca, certificate, key) = (file("server.pem"), file("server.pem"), file("server.key"));
    let made = async |line: &str| {
        let run = tokio::process::Command::new("sh")
            .args(["-c", &line.replace("HOST", "localhost")])
            .output();
        let made = run.await.expect("openssl runs");
        assert!(made.status.success(), "{line}: {made:?}");
    };
    let usual = "openssl req -x509 -newkey rsa:2048 -nodes -days 825 -keyout server.key -out server.pem \
                 -subj /CN=HOST -addext subjectAltName=DNS:HOST";
    let here = |line: &str| {
        line.replace("server.key", &key)
            .replace("server.pem", &certificate)
    };
    let site = Site::without_tables().await;
    let (mysql, client) = (&site.mysql_url, [file("client.pem"), file("client.key")]);
    let loads = async |code: i32| {
        let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
        site.write(&format!(
            "[pair.main]\nredis = \"rediss://localhost:{}\"\nredis_ca = {ca:?}\nredis_cert = {:?}\n\
             redis_key = {:?}\nmysql = {mysql:?}\n",
            redis.port(),
            client[0],
            client[1],
        ));
        site.ends_with(code, &["scripts", "load"]).await
    };
    made(&here(usual)).await;
    let server = MysqlServer::start_tcp(Some(&certificates)).await;
    let url = format!("mysql://shop@localhost:{}/b?ssl-ca={ca}", server.port());
    site.write(&format!(
        "[pair.main]\nredis = {:?}\nmysql = {url:?}\n",
        site.redis.url()
    ));
    let status = site.ends_with(2, &["status"]).await.out;
    let why = "MySQL is unavailable: ";
    assert!(status.contains(why) && status.contains(usual), "{status}");
    let refused = loads(2).await.err;
    let (_, line) = refused
        .split_once("self-signed: ")
        .unwrap_or_else(|| panic!("{refused}"));
    let (line, _) = line.split_once(", with").expect("the end of the line");
    assert!(line.starts_with(usual), "{line}");
    made(&here(line)).await;
    loads(0).await;
}

#[tokio::test]
async fn only_known_host_names_are_served() {
    let site = Site::new().await;
    let path = site.configure("");
    let text = std::fs::read_to_string(path).unwrap();
    site.write(&format!("hosts = [\"Counters.example.com\"]\n{text}"));
    let daemon = site.daemon().await;
    let asked = async |line: &str, host: &str| {
        let request = format!("GET {line} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        send(&daemon, request.as_bytes()).await.unwrap().status
    };
    for host in [
        "localhost",
        "localhost:80",
        "LOCALHOST",
        "a.localhost",
        "127.0.0.1:9292",
        "192.0.2.7",
        "[::1]:9292",
        "counters.example.com",
        "counters.EXAMPLE.com:443",
    ] {
        assert_eq!(
            asked("/metrics", &format!("Host: {host}\r\n")).await,
            200,
            "{host}"
        );
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "@",
        "",
    ] {
        let header = format!("Host: {host}\r\n");
        for path in ["/", "/metrics", "/api/v1/state", "/nothing"] {
            assert_eq!(asked(path, &header).await, 421, "{host}");
        }
        assert_eq!(asked("/healthz", &header).await, 200, "{host}");
    }
    assert_eq!(asked("/metrics", "").await, 421);
    let stranger = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let reply = send(&daemon, stranger.as_bytes()).await.unwrap();
    assert!(reply.body.contains("Add it to `hosts`"), "{reply:?}");
    assert_eq!(
        asked("http://evil.example/metrics", "Host: localhost\r\n").await,
        421
    );
}

#[tokio::test]
async fn other_machines_need_a_token() {
    let site = Site::new().await;
    let path = site.configure("");
    let text = std::fs::read_to_string(path)
        .unwrap()
        .replace("127.0.0.1:0", "0.0.0.0:0");
    site.write(&text);
    let refused = site.ends_with(3, &["run"]).await;
    assert!(
        refused
            .err
            .contains("set `token`, or allow_anonymous = true"),
        "{refused:?}"
    );
    // a credential of systemd has the token: other commands do not see it
    let warned = site.ends_with(1, &["check-config"]).await;
    assert!(warned.out.contains("there is no token"), "{warned:?}");
    site.ends_with(0, &["status"]).await;
    let empty = site.run_with(&["run"], &[("COUNTERFOIL_TOKEN", "")]).await;
    assert!(
        empty.code == 3 && empty.err.contains("variable COUNTERFOIL_TOKEN is empty"),
        "{empty:?}"
    );
    site.write(&format!("allow_anonymous = true\n{text}"));
    drop(site.daemon().await);

    site.write(&format!("token = {SECRET:?}\n{text}"));
    let daemon = site.daemon().await;
    daemon.logs(&["available", "mysql"]).await;
    // the daemon listens where it did, so it still needs a token
    site.write(&text.replace("0.0.0.0:0", "127.0.0.1:0"));
    daemon.signal("HUP");
    daemon.logs(&["reload failed", "there is no token"]).await;
    let path = "/metrics";
    assert_eq!(get(&daemon, path).await.status, 401);
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    assert_eq!(request(&daemon, "GET", path, &bearer).await.status, 200);
}

#[tokio::test]
async fn logins_expire_are_counted_and_follow_the_configuration() {
    let site = Site::new().await;
    let text = std::fs::read_to_string(site.configure("")).unwrap();
    std::fs::write(site.folder().join("token"), SECRET).unwrap();
    let file = |proxies: &str| format!("token_file = \"token\"\nproxies = [{proxies}]\n{text}");
    site.write(&file("\"127.0.0.1\""));
    let daemon = site.daemon().await;
    let port = address(&daemon).rsplit_once(':').unwrap().1.to_owned();
    let login = async |token: &str, headers: &str| {
        http::login(&daemon, &format!("token={token}"), headers).await
    };
    let status = async |headers: &str| request(&daemon, "GET", "/metrics", headers).await.status;

    let cookie = login(SECRET, "")
        .await
        .header("set-cookie")
        .unwrap()
        .to_owned();
    assert!(
        cookie.starts_with(&format!("counterfoil-{port}=")),
        "{cookie}"
    );
    assert!(
        cookie.contains("; Max-Age=604800") && !cookie.contains("Secure"),
        "{cookie}"
    );
    let behind_tls = login(SECRET, "X-Forwarded-Proto: https\r\n").await;
    assert!(
        behind_tls
            .header("set-cookie")
            .unwrap()
            .contains("; Secure"),
        "{behind_tls:?}"
    );
    let session = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(status(&session).await, 200);
    // the time until which it is valid is signed
    let later = session.replace("\r\n", "0\r\n");
    assert_eq!(status(&later).await, 401);

    // wrong tokens of other clients at the same address do not lock out a client with the right one
    let stranger = "X-Forwarded-For: 203.0.113.9, 198.51.100.7\r\n";
    for _ in 0..10 {
        assert_eq!(login("wrong", stranger).await.status, 401);
    }
    let refused = login("wrong", stranger).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(login(SECRET, stranger).await.status, 303);
    assert!(
        refused
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            <= 60
    );
    assert_eq!(login(SECRET, "").await.status, 303);
    assert_eq!(status(&format!("{stranger}{session}")).await, 200);
    let lines = daemon.lines(&["login failed", "client=198.51.100.7"]);
    assert_eq!((lines, daemon.lines(&["too many failed logins"])), (10, 1));
    assert!(!daemon.log().contains("=wrong") && !daemon.log().contains(SECRET));

    // a header ends before a line break
    let body = format!("token={SECRET}&next=family%3Fa%0D%0ASet-Cookie:%20a=b");
    let led = http::login(&daemon, &body, "").await;
    assert_eq!(
        (led.status, led.header("location")),
        (303, Some("./")),
        "{led:?}"
    );
    let ended = request(&daemon, "POST", "/logout", &session).await;
    let cookie = ended.header("set-cookie").unwrap();
    assert!(
        cookie.contains("Max-Age=0") && ended.status == 303,
        "{ended:?}"
    );

    // a reload replaces the token, and ends the sessions of the former one
    std::fs::write(site.folder().join("token"), "another").unwrap();
    site.write(&file(""));
    daemon.signal("HUP");
    daemon.logs(&["reloaded"]).await;
    // no proxy is configured any more, so this header is the client's own
    assert_eq!(
        login("wrong", "X-Forwarded-For: 192.0.2.99\r\n")
            .await
            .status,
        401
    );
    assert!(!daemon.log().contains("192.0.2.99"));
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(status(&bearer("another")).await, 200);
    assert_eq!(status(&session).await, 401);
    assert_eq!(status(&bearer(SECRET)).await, 401);
}

#[tokio::test]
async fn reads_by_http_write_nothing() {
    let site = Site::new().await;
    site.sql(
        "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, n BIGINT NOT NULL); \
         INSERT INTO item VALUES (1, 10), (2, 20), (3, 30)",
    )
    .await;
    let voted = "[[family]]\nname = \"shop/votes\"\nkind = \"cached\"\n\
        table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"n\" }\n";
    site.configure(&format!("{KINDS}{voted}"));
    let daemon = site.daemon().await;
    eventually("its families", async || {
        get(&daemon, "/api/v1/families").await.json()["total"] == 6
    })
    .await;
    // in Redis, with more that waits there
    site.printed(&["add", "shop/votes", "1", "5"]).await;
    site.sql("INSERT INTO item VALUES (4, 40)").await;
    let changes = async || {
        let info: String = site.redis.run("INFO persistence").await.unwrap();
        let line = info.lines().find(|line| line.starts_with("rdb_changes"));
        line.unwrap().to_owned()
    };
    eventually(
        "the hit is in MySQL, and nothing changes any more",
        async || {
            let before = changes().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            site.number("SELECT n FROM item WHERE id = 1").await == 15 && changes().await == before
        },
    )
    .await;
    let before = changes().await;
    for path in [
        "/api/v1/values?family=shop/votes&id=1&id=2&id=3&id=4&id=5",
        "/api/v1/values?family=shop/stock&id=new",
        "/api/v1/values?family=shop/views&id=new",
        "/api/v1/values?family=shop/visitors&id=7/2026-01-31",
        "/api/v1/series?family=shop/downloads&name=x&precision=60s",
        "/api/v1/series-names?family=shop/downloads",
        "/api/v1/activity?family=shop/readers&page=front",
        "/api/v1/rejects",
        "/api/v1/state",
        "/family?family=shop/votes&id=3",
        "/family?family=shop/readers&id=front",
        "/family?family=shop/downloads&id=x",
        "/",
        "/metrics",
    ] {
        assert_eq!(get(&daemon, path).await.status, 200, "{path}");
        assert_eq!(changes().await, before, "{path}");
    }
    let reply = get(
        &daemon,
        "/api/v1/values?family=shop/votes&id=1&id=2&id=4&id=5",
    )
    .await
    .json();
    assert_eq!(reply["values"], json!([15, 20, 40, null]));
    assert_eq!(site.printed(&["get", "shop/votes", "3"]).await, "3\t30\n");
    assert_eq!(changes().await, before);
}

#[tokio::test]
async fn ids_neither_control_the_terminal_nor_reorder_text() {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id VARBINARY(100) PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    site.configure(
        "[[family]]\nname = \"shop/votes\"\nkind = \"buffered\"\nsync_hits = 1\n\
         table = { name = \"item\", write = \"update\", keys = [[\"id\", \"text\"]], value = \"n\" }\n\
         [[family]]\nname = \"shop/views\"\nkind = \"buffered\"\n",
    );
    let (title, arabic) = ("\x1b]0;owned\x07\u{202e}x", "مرحبا");
    for id in [title, arabic] {
        site.printed(&["add", "shop/votes", id]).await;
        site.printed(&["add", "shop/views", id]).await;
    }
    site.printed(&["drain"]).await;
    for args in [
        &["list", "shop/views"][..],
        &["get", "shop/views", title, arabic],
        &["rejects", "list"],
        &["rejects", "retry", "--all"],
        &["add", "shop/votes", "x\x1by", "1"],
    ] {
        let shown = site.run(args).await;
        let text = shown.out + &shown.err;
        let is_control = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!text.contains(is_control), "{args:?}: {text:?}");
        let id_is_shown = text.contains("\\u{1b}]0;owned") && text.contains("\\u{202e}x");
        assert!(id_is_shown || args[0] == "add", "{args:?}: {text}");
        let quoted = format!("\u{2068}\"{arabic}\"\u{2069}");
        let bare = format!("\u{2068}{arabic}\u{2069}\t");
        let is_isolated = text.contains(&quoted) || text.contains(&bare);
        assert!(is_isolated || args[0] == "add", "{args:?}: {text}");
    }
    let daemon = site.daemon().await;
    eventually("the rejects", async || {
        let page = get(&daemon, "/").await.body;
        page.contains(&format!("<bdi>{arabic}</bdi>"))
            && page.contains("<bdi>\\u{1b}]0;owned\\u{7}\\u{202e}x</bdi>")
    })
    .await;
}

#[tokio::test]
async fn a_reload_takes_new_passwords_and_keeps_counting() {
    let site = Site::new().await;
    let set_password = async |password: &str| {
        let user = format!("ACL SETUSER daemon reset on >{password} allkeys allcommands");
        site.redis.run::<()>(&user).await.unwrap();
        let user = format!(
            "CREATE OR REPLACE USER reloader@localhost IDENTIFIED BY '{password}'; \
             GRANT ALL ON *.* TO reloader@localhost"
        );
        site.sql(&user).await;
        for file in ["redis", "mysql"] {
            std::fs::write(site.folder().join(file), password).unwrap();
        }
    };
    set_password("first").await;
    let redis = format!("{}?user=daemon", site.redis.url());
    let mysql = site.mysql_url.replace("root@", "reloader@");
    site.write(&format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {redis:?}\nredis_password_file = \"redis\"\n\
         mysql = {mysql:?}\nmysql_password_file = \"mysql\"\ndurability = \"immediate\"\n\
         [[family]]\nname = \"shop/views\"\nkind = \"buffered\"\nsync_time = \"100ms\"\n"
    ));
    let daemon = site.daemon().await;
    let ready = async || get(&daemon, "/readyz").await.status == 200;
    eventually("it is ready", ready).await;
    let value = "SELECT CAST(value AS SIGNED) FROM counterfoil_values";
    site.printed(&["add", "shop/views", "1"]).await;
    eventually("the first hit", async || site.number(value).await == 1).await;
    let sampled = async |hits: i64| {
        let state = get(&daemon, "/api/v1/state").await.json();
        state["pairs"][0]["families"][0]["counted"] == hits
    };
    eventually("a sample", async || sampled(1).await).await;

    set_password("second").await;
    site.redis
        .run::<i64>("CLIENT KILL USER daemon")
        .await
        .unwrap();
    eventually("it misses Redis", async || !ready().await).await;
    daemon.signal("HUP");
    daemon
        .logs(&["connecting with the reloaded settings", "pair=\"main\""])
        .await;
    eventually("it is ready again", ready).await;
    site.printed(&["add", "shop/views", "1"]).await;
    eventually("the second hit", async || site.number(value).await == 2).await;
    // the new worker's samples go on from those of the old one
    eventually("a sample", async || sampled(2).await).await;
    let metric = "counterfoil_counted_hits_total";
    let counted = sample(&scrape(&daemon).await, metric, &[("family", "views")]);
    assert_eq!(counted, Some(2.0));
    // nothing changed: the connections stay
    daemon.signal("HUP");
    daemon.logs_times(2, &["reloaded"]).await;
    assert_eq!(daemon.lines(&["connecting with the reloaded settings"]), 1);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_daemon_leaves_no_core_dump() {
    let site = Site::new().await;
    site.configure("");
    let daemon = site.daemon().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.id())).unwrap();
    let mut lines = limits.lines();
    let core = lines.find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{limits}");
}
