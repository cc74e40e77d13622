//! setup: on given servers as an administrator or not, again, and on private servers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use counterfoil::sqlx::{AssertSqlSafe, Connection, MySqlConnection, raw_sql};
use counterfoil::{Counterfoil, Family, MemoryStore};
use tempfile::TempDir;
use testkit::{MysqlServer, RedisOptions, RedisServer};

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
        let folder = TempDir::new().expect("a folder");
        let users = folder.path().join("users");
        fs::write(&users, "").expect("written");
        let options = RedisOptions::aof("everysec").arg("aclfile", users.display().to_string());
        let redis = RedisServer::start(options).await;
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

    /// Counts as an application does that knows the namespace and the name only, and waits for the
    /// row that the daemon writes.
    async fn a_hit_arrives(&self) {
        // by its own name, also where a daemon runs beside this test
        let text = self.read("counterfoil.toml");
        let listen = text.replace("127.0.0.1:9292", "127.0.0.1:0");
        fs::write(self.site.folder().join("counterfoil.toml"), listen).expect("written");
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
        rest.contains("\nACL SETUSER counter reset on >PASSWORD ~cf1:wanted ~cf1:{"),
        "{rest}"
    );
    fresh.sql(statements).await;

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
                (&"http://127.0.0.1:9292".to_owned(), daemon),
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
