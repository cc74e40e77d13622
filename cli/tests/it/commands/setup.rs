//! setup: on given servers as an administrator or not, again, and on private servers.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::{env, fs};

use counterfoil::sqlx::{AssertSqlSafe, Connection, MySqlConnection, raw_sql};
use counterfoil::{Counterfoil, Family, MemoryStore};
use tempfile::TempDir;
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;

use super::terminal::in_terminal;
use crate::support::{Daemon, Output, Site, eventually};

/// Servers without anything of counterfoil's. Redis stores its users, and MySQL lacks the database
/// `shop`.
struct Fresh {
    site: Site,
    mysql: MysqlServer,
    _users: TempDir,
}

impl Fresh {
    async fn start() -> Self {
        Fresh::with(RedisOptions::aof("everysec")).await
    }

    async fn with(redis: RedisOptions) -> Self {
        let folder = TempDir::new().expect("a folder");
        let users = folder.path().join("users");
        fs::write(&users, "").expect("written");
        let redis = redis.arg("aclfile", users.display().to_string());
        let redis = RedisServer::start(redis).await;
        let mysql = MysqlServer::start().await;
        let (_, pool) = mysql.database("cli").await;
        let site = Site::of(redis, pool, mysql.url("shop"));
        Fresh {
            site,
            mysql,
            _users: folder,
        }
    }

    /// Runs `setup` as an administrator of both servers.
    async fn set_up(&self, args: &[&str]) -> Output {
        let (redis, mysql) = (self.site.redis.url(), self.mysql.url("shop"));
        let urls = ["setup", "--redis", &redis, "--mysql", &mysql];
        self.site.run(&[&urls, args].concat()).await
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.site.folder().join(file)).expect("it was written")
    }

    fn mode(&self, file: &str) -> u32 {
        let found = fs::metadata(self.site.folder().join(file));
        found.expect("it was written").permissions().mode() & 0o777
    }

    /// Runs statements as `root`, in no database.
    async fn sql(&self, statements: &str) {
        let mut root = MySqlConnection::connect(&self.mysql.url(""))
            .await
            .expect("root");
        let ran = raw_sql(AssertSqlSafe(statements)).execute(&mut root).await;
        ran.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// Returns the address in the configuration.
    fn listen(&self) -> String {
        let text = self.read("counterfoil.toml");
        let mut lines = text.lines();
        let listen = lines.find_map(|line| line.strip_prefix("listen = "));
        listen.expect("an address").trim_matches('"').to_owned()
    }

    fn listens_at(&self, address: &str) {
        let text = self.read("counterfoil.toml");
        self.site.write(&text.replace(&self.listen(), address));
    }

    /// Counts as an application does that knows the namespace and the name only, and waits for the
    /// row that the daemon writes.
    async fn a_hit_arrives(&self) {
        // by its own name, also where a daemon runs beside this test
        self.listens_at("127.0.0.1:0");
        let daemon = self.site.daemon().await;
        daemon.logs(&["started", "families=1"]).await;
        let writer = Counterfoil::new(self.site.redis.manager().await, MemoryStore::new());
        let views = writer.open(Family::buffered("shop", "product_views")).await;
        let _ = views
            .expect("open")
            .add("product-1", 3)
            .await
            .expect("counted");
        drop(daemon);
        let drained = self.site.run(&["drain"]).await;
        assert_eq!(drained.code, 0, "{drained:?}");
        let value = "SELECT value FROM shop.counterfoil_values WHERE id = 'product-1'";
        assert_eq!(self.site.number(value).await, 3);
    }
}

#[tokio::test]
async fn an_administrator_needs_one_command_and_a_second_run_changes_nothing() {
    let fresh = Fresh::start().await;
    let done = fresh.set_up(&[]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    for line in [
        "wrote counterfoil.toml\n",
        "MySQL has the new database shop\n",
        "MySQL has the new user \"counterfoil\", with its privileges\n",
        "Redis has the new user \"counterfoil\", for the daemon and applications\n",
        "start the daemon: `counterfoil run`\n",
        "PASSWORD is that of Redis's user \"counterfoil\"",
    ] {
        assert!(done.out.contains(line), "{line:?}: {}", done.out);
    }
    let files =
        ["main_redis_password", "main_mysql_password"].map(|name| format!("secrets/{name}"));
    let config = fresh.read("counterfoil.toml");
    for file in &files {
        assert_eq!(fresh.mode(file), 0o600);
        let password = fresh.read(file);
        assert!(password.len() > 30 && config.contains(file), "{config}");
        assert!(!config.contains(password.trim()) && !done.out.contains(password.trim()));
    }
    assert_eq!(fresh.mode("secrets"), 0o700);
    let check = fresh.site.printed(&["check-config"]).await;
    assert!(check.contains("shop/product_views"), "{check}");

    // no right beyond those of `grants` and `acl`
    let login = format!(
        "counterfoil:{}@",
        fresh.read("secrets/main_mysql_password").trim()
    );
    let url = fresh.mysql.url("shop").replace("root@", &login);
    let mut daemon = MySqlConnection::connect(&url)
        .await
        .expect("the user logs in");
    let refused = raw_sql("CREATE TABLE more (id INT)")
        .execute(&mut daemon)
        .await;
    let refused = refused.expect_err("it may not");
    assert!(
        refused.to_string().contains("CREATE command denied"),
        "{refused}"
    );
    let users: Vec<String> = fresh.site.redis.run("ACL LIST").await.expect("listed");
    let own = users
        .iter()
        .find(|user| user.starts_with("user counterfoil "));
    let own = own.expect("the user");
    assert!(
        own.contains("~cf1:{shop/product_views/*") && !own.contains("+@all"),
        "{own}"
    );

    let secrets = files.clone().map(|file| fresh.read(&file));
    let again = fresh.set_up(&[]).await;
    assert_eq!(again.code, 0, "{again:#?}");
    assert!(
        again.out.starts_with("continues with counterfoil.toml\n"),
        "{}",
        again.out
    );
    assert!(!again.out.contains("new"), "{}", again.out);
    assert_eq!(fresh.read("counterfoil.toml"), config);
    assert_eq!(files.map(|file| fresh.read(&file)), secrets);
    fresh.a_hit_arrives().await;

    // a new family needs privileges in both servers
    fresh
        .sql("CREATE TABLE shop.item (id INT UNSIGNED PRIMARY KEY, votes BIGINT NOT NULL)")
        .await;
    let table =
        "table = { name = 'item', write = 'update', keys = [['id', 'unsigned']], value = 'votes' }";
    let family = format!("[[family]]\nname = \"shop/votes\"\nkind = \"cached\"\n{table}\n");
    fresh.site.write(&format!("{config}{family}"));
    assert_eq!(fresh.site.run(&["check"]).await.code, 2);
    let printed = fresh.site.ends_with(2, &["setup"]).await;
    let grant = "GRANT SELECT, UPDATE ON `shop`.`item` TO `counterfoil`@`localhost`;";
    assert!(
        printed.out.contains(grant) && printed.out.contains("+hdel"),
        "{printed:#?}"
    );
    let done = fresh.set_up(&[]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    assert_ne!(fresh.site.run(&["check"]).await.code, 2);
}

#[tokio::test]
async fn a_run_that_failed_is_continued_by_another() {
    let fresh = Fresh::start().await;
    // nothing is written before both servers were reached
    let (redis, nowhere) = (
        fresh.site.redis.url(),
        "mysql://root@localhost/shop?socket=/nowhere",
    );
    let failed = fresh
        .site
        .run(&["setup", "--redis", &redis, "--mysql", nowhere])
        .await;
    assert!(
        failed.code == 2 && failed.err.contains("MySQL at /nowhere: "),
        "{failed:?}"
    );
    assert_eq!(
        fs::read_dir(fresh.site.folder())
            .expect("the folder")
            .count(),
        0
    );
    let urls = [
        "setup",
        "--redis",
        &redis,
        "--mysql",
        "mysql://root@localhost",
    ];
    let missing = fresh.site.run(&urls).await;
    assert!(
        missing.code == 3 && missing.err.contains("names no database"),
        "{missing:?}"
    );

    // the user of another installation keeps its password
    fresh
        .sql("CREATE USER counterfoil@localhost IDENTIFIED BY 'other'")
        .await;
    let failed = fresh.set_up(&[]).await;
    let why = "MySQL has a user `counterfoil`@`localhost` with another password";
    assert!(failed.code == 2 && failed.err.contains(why), "{failed:?}");
    fresh.sql("DROP USER counterfoil@localhost").await;
    let user = "ACL SETUSER counterfoil on >other ~other +get";
    fresh.site.redis.run::<()>(user).await.expect("set");
    let failed = fresh.set_up(&[]).await;
    let why = "has a user \"counterfoil\" with another password";
    assert!(failed.code == 2 && failed.err.contains(why), "{failed:?}");
    fresh
        .site
        .redis
        .run::<()>("ACL DELUSER counterfoil")
        .await
        .expect("deleted");
    let done = fresh.set_up(&[]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    fresh.a_hit_arrives().await;
}

#[tokio::test]
async fn what_the_user_may_not_do_is_printed_for_an_administrator() {
    let fresh = Fresh::start().await;
    fresh
        .sql(
            "CREATE DATABASE shop; CREATE USER counter@localhost IDENTIFIED BY 'geh:eim'; \
              GRANT CREATE TEMPORARY TABLES ON shop.* TO counter@localhost",
        )
        .await;
    let user = "ACL SETUSER counter on >geh:eim ~cf1:* +@all -@admin";
    fresh.site.redis.run::<()>(user).await.expect("set");
    let redis = format!("{}?user=counter&pass=geh%3Aeim", fresh.site.redis.url());
    let mysql = fresh
        .mysql
        .url("shop")
        .replace("root@", "counter:geh%3Aeim@");
    let urls = ["setup", "--redis", &redis, "--mysql", &mysql];
    let printed = fresh.site.run(&urls).await;
    assert_eq!(printed.code, 2, "{printed:#?}");
    assert!(printed.err.contains("command denied"), "{printed:#?}");
    assert!(
        printed.out.contains("run `counterfoil setup` again"),
        "{printed:#?}"
    );
    assert!(!format!("{printed:?}").contains("eim"), "{printed:#?}");
    assert_eq!(fresh.read("secrets/main_mysql_password"), "geh:eim\n");
    let (_, statements) = printed
        .out
        .split_once("-- for an administrator of MySQL\n")
        .expect("SQL");
    let (statements, rest) = statements.split_once("# pair main: ").expect("an ACL");
    assert!(
        // the user exists, and keeps its password and its other rights
        rest.contains("\nACL SETUSER counter ~cf1:kept ~cf1:wanted ~cf1:{")
            && !rest.contains("PASSWORD"),
        "{rest}"
    );
    let said: Vec<_> = printed.err.lines().collect();
    let is_once = |line| said.iter().filter(|said| *said == line).count() == 1;
    assert!(said.iter().all(is_once), "{printed:#?}");
    fresh.sql(statements).await;
    // the account exists, for one host
    let grants = fresh.site.printed(&["grants", "daemon"]).await;
    assert!(
        grants.contains(" TO `counter`@`localhost`;") && !grants.contains("`%`"),
        "{grants}"
    );
    let acl = fresh.site.run(&["acl", "daemon"]).await;
    assert!(
        acl.code == 0
            && acl
                .out
                .contains("\nACL SETUSER counter ~cf1:kept ~cf1:wanted "),
        "{acl:?}"
    );

    let done = fresh.site.run(&["setup"]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    fresh.a_hit_arrives().await;
}

#[tokio::test]
async fn no_file_is_overwritten_unasked() {
    let fresh = Fresh::start().await;
    let example = fresh.site.printed(&["example-config"]).await;
    fresh.site.write(&example);
    let refused = fresh.set_up(&[]).await;
    let why = "is the untouched example: --overwrite replaces it";
    assert!(
        refused.code == 3 && refused.err.contains(why),
        "{refused:?}"
    );
    assert_eq!(fresh.read("counterfoil.toml"), example);
    let replaced = fresh
        .set_up(&["--overwrite", "--family", "forum/reads"])
        .await;
    assert_eq!(replaced.code, 0, "{replaced:#?}");
    assert!(
        replaced.out.contains("buffered(\"reads\")"),
        "{}",
        replaced.out
    );

    let refused = fresh.set_up(&["--family", "shop/likes"]).await;
    assert!(
        refused.code == 3
            && refused
                .err
                .contains("has no family shop/likes: declare it there"),
        "{refused:?}"
    );

    let other = fresh.mysql.url("other");
    let refused = fresh.site.run(&["setup", "--mysql", &other]).await;
    let why = "names another MySQL than --mysql: --overwrite replaces the file";
    assert!(
        refused.code == 3 && refused.err.contains(why),
        "{refused:?}"
    );
    // nor a secret of another configuration
    fs::remove_file(fresh.site.folder().join("counterfoil.toml")).expect("removed");
    let user = "ACL SETUSER own on >own ~cf1:* +@all -@admin";
    fresh.site.redis.run::<()>(user).await.expect("set");
    let redis = format!("{}?user=own&pass=own", fresh.site.redis.url());
    let mysql = fresh.mysql.url("shop");
    let urls = ["setup", "--redis", &redis, "--mysql", &mysql];
    let refused = fresh.site.run(&urls).await;
    let why = "secrets/main_redis_password has another password than the URL of redis";
    assert!(
        refused.code == 3 && refused.err.contains(why),
        "{refused:?}"
    );
    let replaced = fresh
        .site
        .run(&[&urls[..], &["--overwrite"]].concat())
        .await;
    assert_eq!(replaced.code, 0, "{replaced:#?}");
    assert_eq!(fresh.read("secrets/main_redis_password"), "own\n");
}

#[tokio::test]
async fn a_terminal_is_asked_for_the_servers() {
    let fresh = Fresh::start().await;
    let missing = fresh.site.ends_with(3, &["setup"]).await;
    assert!(
        missing.err.contains("the URL of Redis is missing"),
        "{missing:?}"
    );
    let (redis, mysql) = (fresh.site.redis.url(), fresh.mysql.url("shop"));
    let args = ["setup", "--redis", &redis];
    let (code, shown) =
        in_terminal(&fresh.site, &args, "URL of MySQL", &format!("{mysql}\n")).await;
    assert_eq!(code, "0", "{shown}");
    assert!(shown.contains("start the daemon: "), "{shown}");
}

/// A program without whitespace, and without the comma behind the last argument.
fn plain(program: &str) -> String {
    let words: String = program.split_whitespace().collect();
    words.replace(",)", ")")
}

#[tokio::test]
async fn private_servers_run_until_a_signal_and_continue_with_their_data() {
    let site = Site::without_tables().await;
    let data = tempfile::tempdir().expect("a folder");
    let folder = data.path().to_str().expect("a path");
    let config = format!("{folder}/counterfoil.toml");
    let start = async || {
        let mut command = site.command();
        command.args(["setup", "--private", "--dir", folder]);
        command.stdout(Stdio::null());
        Daemon::start(command).await
    };
    let daemon = start().await;
    daemon.logs(&["started", "families=1"]).await;
    let run = async |args: &[&str]| site.run(&[&["--config", &config], args].concat()).await;
    let counted = run(&["add", "shop/product_views", "product-1", "2"]).await;
    assert_eq!(counted.code, 0, "{counted:?}");
    eventually("it is ready", async || {
        run(&["healthcheck", "--ready"]).await.code == 0
    })
    .await;
    // MySQL's `root` has no password
    let sockets = fs::metadata(Path::new(folder).join("mysql")).expect("the folder of its socket");
    assert_eq!(sockets.permissions().mode() & 0o777, 0o700);
    let busy = site.run(&["setup", "--private", "--dir", folder]).await;
    assert!(busy.code == 3 && busy.err.contains("is in use"), "{busy:?}");
    daemon.signal("INT");
    let (status, log) = daemon.ended().await;
    assert!(
        status.success() && log.contains(&format!("the data is in {folder}")),
        "{log}"
    );
    // everything has ended
    assert_eq!(run(&["status"]).await.code, 2);
    assert!(!Path::new(folder).join("mysql.pid").exists());

    let daemon = start().await;
    daemon.logs(&["started", "families=1"]).await;
    let value = run(&["get", "shop/product_views", "product-1"]).await;
    assert_eq!(value.out, "product-1\t2\n");
    // a kill ends the servers, too
    daemon.signal("KILL");
    daemon.ended().await;
    eventually("the servers end", async || {
        !Path::new(folder).join("mysql.pid").exists()
    })
    .await;
}

#[tokio::test]
async fn the_printed_programs_are_those_of_the_packages() {
    let fresh = Fresh::start().await;
    let printed = fresh.set_up(&[]).await.out;
    let page = format!("http://{}", fresh.listen());
    // Node runs `import` and a top-level `await` in a file of this name without package.json
    assert!(
        printed.contains("# Node, in a file program.mjs: npm"),
        "{printed}"
    );
    let (_, programs) = printed.split_once("\n# ").expect("programs");
    let programs: Vec<_> = programs.split("\n# ").collect();
    let socket = format!(
        "unix://counterfoil:PASSWORD@{}",
        fresh.site.redis.socket().display()
    );
    let path = fresh.site.redis.socket().display().to_string();
    // how a README names the servers
    let readmes = [
        (
            include_str!("../../../../clients/python/README.md"),
            "os.environ.get(\"COUNTERFOIL_REDIS\",\"redis://localhost\")",
            "os.environ.get(\"COUNTERFOIL_DAEMON\",\"http://127.0.0.1:9292\")",
        ),
        (
            include_str!("../../../../clients/node/README.md"),
            "COUNTERFOIL_REDIS",
            "COUNTERFOIL_DAEMON",
        ),
        (
            include_str!("../../../../clients/php/README.md"),
            "$redis",
            "$daemon",
        ),
        (
            include_str!("../../../../clients/ruby/README.md"),
            "redis,",
            "ENV.fetch(\"COUNTERFOIL_DAEMON\",\"http://localhost:9292\")",
        ),
        (
            include_str!("../../../../clients/go/README.md"),
            "cmp.Or(os.Getenv(\"COUNTERFOIL_REDIS\"),\"redis://localhost:6379\")",
            "cmp.Or(os.Getenv(\"COUNTERFOIL_DAEMON\"),\"http://127.0.0.1:9292\")",
        ),
    ];
    assert_eq!(programs.len(), readmes.len(), "{printed}");
    for (program, (readme, redis, daemon)) in programs.into_iter().zip(readmes) {
        let (head, program) = program.split_once('\n').expect("a head");
        let (_, install) = head.split_once(": ").expect("a command");
        assert!(readme.contains(install), "{install}");
        // quotes of any kind stand around an address
        let quoted = |address: &str| [format!("\"{address}\""), format!("'{address}'")];
        let mut lines = 0;
        let readme = plain(readme);
        for line in program.lines().filter(|line| !line.trim().is_empty()) {
            let mut line = plain(line);
            for (address, named) in [
                (&socket, redis.trim_end_matches(',')),
                (&path, redis),
                (&page, daemon),
            ] {
                for literal in quoted(address) {
                    line = line.replace(&literal, named);
                }
            }
            assert!(
                readme.contains(&line),
                "{head}: {line} is not in the README"
            );
            lines += 1;
        }
        assert!(lines >= 5, "{head}: {program}");
    }
}

/// Each message says once what was wrong, where, and what to do.
#[tokio::test]
async fn what_is_wrong_with_a_server_is_said_once() {
    let fresh = Fresh::start().await;
    let (redis, mysql) = (fresh.site.redis.url(), fresh.mysql.url("shop"));
    fresh
        .sql("CREATE USER known@localhost IDENTIFIED BY 'right'")
        .await;
    let user = "ACL SETUSER known on >right ~* +@all";
    fresh.site.redis.run::<()>(user).await.expect("set");
    let refused = format!("{redis}?user=known&pass=wrong");
    let unknown = mysql.replace("root@", "known:wrong@");
    let nowhere = "redis+unix:///nowhere/redis.sock";
    let socket = fresh.site.redis.socket().display().to_string();
    let login = format!("Redis at {socket} refuses the user \"known\" with this password");
    for (redis, mysql, code, what, to_do) in [
        (
            &*refused,
            &*mysql,
            2,
            &*login,
            "Correct the user or the password",
        ),
        (
            nowhere,
            &mysql,
            2,
            "Redis at /nowhere/redis.sock: No such",
            "Check that it runs",
        ),
        (
            &redis,
            &unknown,
            2,
            "Access denied for user",
            "Correct the user or the password",
        ),
        (
            "localhost:6379",
            &mysql,
            3,
            "URL of a Redis",
            "such as redis://localhost:6379",
        ),
        (
            &redis,
            "localhost:3306/shop",
            3,
            "mysql: expected a URL",
            "mysql://USER@HOST/DATABASE",
        ),
    ] {
        let failed = ["setup", "--redis", redis, "--mysql", mysql];
        let failed = fresh.site.ends_with(code, &failed).await;
        let err = &failed.err;
        assert_eq!(err.matches(what).count(), 1, "{failed:?}");
        assert!(
            err.contains(to_do) && err.lines().count() == 1,
            "{failed:?}"
        );
        assert!(!err.contains("..") && !err.contains("wrong"), "{failed:?}");
    }

    // a port of something else, which replies, or does not
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let of_other = format!("redis://{}", other.local_addr().expect("its address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = other.accept().await {
            let _ = stream
                .write_all(b"welcome\r\nto\r\nsomething else\r\n")
                .await;
        }
    });
    let failed = ["setup", "--redis", &of_other, "--mysql", &mysql];
    let failed = fresh.site.ends_with(2, &failed).await.err;
    let what = "does not reply as Redis does. Correct the address in its URL";
    assert!(
        failed.contains(what) && failed.lines().count() == 1,
        "{failed}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = silent.local_addr().expect("its address");
    let failed = format!("mysql://root@{silent}/shop");
    let failed = ["setup", "--redis", &redis, "--mysql", &failed];
    let failed = fresh.site.ends_with(2, &failed).await.err;
    assert!(
        failed.contains("Check that it runs, and its address"),
        "{failed}"
    );
    let password = "CONFIG SET requirepass secret";
    fresh.site.redis.run::<()>(password).await.expect("set");
    let missing = ["setup", "--redis", &redis, "--mysql", &mysql];
    let missing = fresh.site.ends_with(2, &missing).await;
    assert!(missing.err.contains("wants a password"), "{missing:?}");
    assert!(!missing.err.contains("NOAUTH"), "{missing:?}");
    fresh.site.write(&format!(
        "[pair.main]\nredis = \"{of_other}\"\nmysql = \"{mysql}\"\n"
    ));
    let check = fresh.site.ends_with(2, &["check"]).await.out;
    assert!(
        check.lines().all(|line| line.starts_with("pair main: ")),
        "{check}"
    );
    fresh.site.configure("");
    let check = fresh.site.ends_with(2, &["check"]).await;
    assert!(
        check
            .out
            .contains("rejected the credentials: it wants a password. Correct"),
        "{check:?}"
    );

    for option in ["--redis-server", "--mysql-server"] {
        let other = ["setup", "--private", option, "/bin/true"];
        let other = fresh.site.ends_with(3, &other).await;
        let what = "counterfoil: /bin/true is not the server of";
        assert!(other.err.contains(what), "{other:?}");
    }
}

/// Redis's default. What it may lose is a warning, which does not keep the daemon from running.
#[tokio::test]
async fn a_redis_with_snapshots_only_is_set_up_with_a_warning() {
    let fresh = Fresh::with(RedisOptions::volatile().arg("save", "3600 1")).await;
    let done = fresh.set_up(&[]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    assert!(done.out.contains("pair main: warning: redis"), "{done:#?}");
    let check = fresh.site.ends_with(1, &["check"]).await;
    assert!(check.out.contains("appendonly"), "{check:?}");
    fresh.a_hit_arrives().await;
}

#[tokio::test]
async fn a_port_in_use_is_found_before_the_daemon_runs() {
    let fresh = Fresh::start().await;
    // held here unless another program has it
    let _usual = TcpListener::bind("127.0.0.1:9292").await;
    let done = fresh.set_up(&[]).await;
    assert_eq!(done.code, 0, "{done:#?}");
    let listen = fresh.listen();
    // not one that a connection to another machine may have when the daemon starts again
    let port = listen.strip_prefix("127.0.0.1:").expect("this machine");
    let port: u16 = port.parse().expect("a port");
    assert!((9293..9392).contains(&port), "{done:#?}");
    let said = format!("the daemon will listen at {listen}\n");
    assert!(done.out.contains(&said), "{done:#?}");

    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = other.local_addr().expect("its address").to_string();
    // it is no daemon: it ends each connection
    tokio::spawn(async move { while other.accept().await.is_ok() {} });
    fresh.listens_at(&address);
    let warning = format!("warning: listen: another program listens at {address}");
    let check = fresh.site.ends_with(1, &["check"]).await;
    assert!(check.out.contains(&warning), "{check:?}");
    let again = fresh.site.run(&["setup"]).await;
    assert!(again.out.contains(&warning), "{again:?}");

    fresh.listens_at("127.0.0.1:0");
    let daemon = fresh.site.daemon().await;
    fresh.site.listens_at(&daemon);
    let check = fresh.site.run(&["check"]).await;
    assert!(!check.out.contains("listen: "), "{check:?}");
    // a file that is replaced keeps its address
    let listen = fresh.listen();
    let replaced = fresh.set_up(&["--overwrite"]).await;
    assert_eq!(
        (replaced.code, fresh.listen()),
        (0, listen),
        "{replaced:#?}"
    );
}

/// A launcher passes how it was called: its own name is not on PATH.
#[tokio::test]
async fn advice_names_the_program_as_it_was_called() {
    let fresh = Fresh::start().await;
    let called = [("COUNTERFOIL_PROGRAM", "npx counterfoil-daemon")];
    let (redis, mysql) = (fresh.site.redis.url(), fresh.mysql.url("shop"));
    let args = ["setup", "--redis", &redis, "--mysql", &mysql];
    let done = fresh.site.run_with(&args, &called).await;
    assert_eq!(done.code, 0, "{done:#?}");
    let start = "start the daemon: `npx counterfoil-daemon run`\n";
    assert!(done.out.contains(start), "{done:#?}");
    assert!(!done.out.contains("`counterfoil "), "{done:#?}");

    // by a path, such as that of an environment of Python which is not activated
    let folder = fresh.site.folder().join("not on PATH");
    fs::create_dir(&folder).expect("a folder");
    let program = folder.join("counterfoil");
    symlink(env!("CARGO_BIN_EXE_counterfoil"), &program).expect("a link");
    let path = env::var("PATH").expect("PATH");
    let longer = format!("{}:{path}", folder.display());
    let absolute = format!("'{}'", program.display());
    for (called, path, shown) in [
        (&*program, &path, &*absolute),
        (Path::new("not on PATH/counterfoil"), &path, &absolute),
        (&program, &longer, "counterfoil"),
        (Path::new("counterfoil"), &longer, "counterfoil"),
    ] {
        let mut command = Command::new(&program);
        command.arg0(called).arg("setup").env("PATH", path);
        command.current_dir(fresh.site.folder());
        let ended = command.output().await.expect("it runs");
        let out = String::from_utf8_lossy(&ended.stdout);
        let start = format!("start the daemon: `{shown} run`\n");
        assert!(out.contains(&start), "{called:?}: {ended:?}");
    }
}

#[tokio::test]
async fn the_launcher_of_npm_names_npx() {
    let site = Site::without_tables().await;
    let launcher = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/npm/bin/counterfoil"
    );
    let package = site.folder().join("counterfoil-daemon");
    // as npm installs it, with a binary that shows the variable
    for (folder, program) in [
        (
            "counterfoil-daemon",
            fs::read_to_string(launcher).expect("the launcher"),
        ),
        (
            "counterfoil-daemon-linux-x64",
            "#!/bin/sh\necho \"$COUNTERFOIL_PROGRAM\"\n".to_owned(),
        ),
        (
            "counterfoil-daemon-linux-arm64",
            "#!/bin/sh\necho \"$COUNTERFOIL_PROGRAM\"\n".to_owned(),
        ),
    ] {
        let bin = site.folder().join(folder).join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        fs::write(bin.join("counterfoil"), program).expect("written");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join("counterfoil"), mode).expect("set");
    }
    let launcher = package.join("bin/counterfoil");
    let by_path = format!("{}\n", launcher.display());
    for (by_npm, shown) in [
        (Some("exec"), "npx counterfoil-daemon\n"),
        (None, &*by_path),
    ] {
        let mut started = Command::new("/bin/sh");
        started.arg(&launcher);
        started
            .env_remove("npm_command")
            .env_remove("COUNTERFOIL_PROGRAM");
        started.envs(by_npm.map(|command| ("npm_command", command)));
        let ended = started.output().await.expect("it runs");
        if !cfg!(all(
            target_os = "linux",
            any(target_arch = "x86_64", target_arch = "aarch64")
        )) {
            println!("skipped: npm has no binary for this platform");
            return;
        }
        assert_eq!(String::from_utf8_lossy(&ended.stdout), shown, "{ended:?}");
    }
}
