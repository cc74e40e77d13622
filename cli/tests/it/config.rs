//! `counterfoil.toml`: the example, mistakes and their lines, mutilated files, and secrets.

use std::fs;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Site;

const EXAMPLE: &str = include_str!("../../counterfoil.toml");
const PAIR: &str = "[pair.main]\nredis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\n";
/// A file that looks like a certificate.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n";

/// Creates a folder with the files that the example names, and others.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (file, text) in [
        ("token", "a token\n"),
        ("empty", "\u{feff}\r\n"),
        ("redis-password", "a password\n"),
        ("mysql-password", "a password\n"),
        ("ca.pem", CERTIFICATE),
        ("client.pem", CERTIFICATE),
        ("client.key", "-----BEGIN PRIVATE KEY-----\n"),
        ("credentials/main_redis_ca", "none"),
        ("credentials/main_mysql_ca", CERTIFICATE),
    ] {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    folder
}

/// Returns what `check-config` prints of a file with this text, or the error after the file's name.
fn check_with(folder: &TempDir, text: &str, environment: &[(&str, &str)]) -> Result<Value, String> {
    let path = folder.path().join("counterfoil.toml");
    fs::write(&path, text).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_counterfoil"))
        .args(["check-config", "--json", "--config"])
        .arg(&path)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    // 1: it is valid, with a warning
    if checked.status.code().is_some_and(|code| code < 2) {
        return Ok(serde_json::from_slice(&checked.stdout).unwrap());
    }
    let error = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(3), "{text}\n{error}");
    let place = format!("counterfoil: {}", path.display());
    let told = error.trim_end().strip_prefix(&place);
    Err(told.unwrap_or_else(|| panic!("{text}\n{error}")).to_owned())
}

fn check(folder: &TempDir, text: &str) -> Result<Value, String> {
    check_with(folder, text, &[])
}

fn refused(folder: &TempDir, text: &str) -> String {
    match check(folder, text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error,
    }
}

/// Returns the name of the setting in a line, also in a comment.
fn setting(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("# ").unwrap_or(line).split_once(" = ")?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

#[test]
fn each_setting_of_the_example_is_one() {
    let folder = folder();
    let checked = check(&folder, EXAMPLE).unwrap();
    assert_eq!(
        checked[0]["families"],
        json!([
            "forum/votes",
            "shop-*/views",
            "shop-*/visitors",
            "forum/downloads",
            "forum/readers"
        ])
    );
    let lines: Vec<_> = EXAMPLE.lines().collect();
    let mut tried = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = setting(line).filter(|_| line.starts_with("# ")) else {
            continue;
        };
        let mut with = lines.clone();
        with[at] = &line[2..];
        match name {
            // the two settings go together
            "redis_cert" => with[at + 1] = &lines[at + 1][2..],
            "redis_key" => with[at - 1] = &lines[at - 1][2..],
            "cluster" => with.retain(|other| !other.starts_with("redis = ")),
            _ => {}
        }
        check(&folder, &with.join("\n")).unwrap_or_else(|error| panic!("{line}: {error}"));
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn each_setting_is_in_the_example() {
    let family = |kind: &str| format!("{PAIR}[[family]]\nname = 'a/b'\nkind = '{kind}'\n");
    let kinds = ["buffered", "cached", "series", "activity", "visitors"];
    let of_kinds = kinds.map(|kind| format!("{}x = 1\n", family(kind)));
    let others = [
        "x = 1\n".to_owned(),
        format!("{PAIR}x = 1\n"),
        format!("{}[family.recount]\nx = 1\n", family("cached")),
        format!("{}table = {{ x = 1 }}\n", family("cached")),
    ];
    for text in of_kinds.into_iter().chain(others) {
        let error = refused(&folder(), &text);
        let (_, expected) = error
            .split_once("expected")
            .unwrap_or_else(|| panic!("{error}"));
        // the last ones are not settings of the library
        let settings = expected.split('`').skip(1).step_by(2);
        for known in settings.chain(["family", "name", "pair", "recount"]) {
            let written = [
                format!("{known} = "),
                format!("[{known}."),
                format!("[[{known}]]"),
                format!(".{known}]"),
            ];
            let is_written = written.iter().any(|written| EXAMPLE.contains(written));
            assert!(is_written, "{known} is not in the example");
        }
    }
}

#[test]
fn mistakes_are_told_with_file_and_line() {
    let top = |line: &str| format!("{line}\n{PAIR}");
    let pair = |line: &str| format!("{PAIR}{line}\n");
    let family = |lines: &str| format!("{PAIR}[[family]]\nname = 'a/b'\n{lines}\n");
    let cached = |lines: &str| family(&format!("kind = 'cached'\n{lines}"));
    let named = |name: &str| cached("").replace("'a/b'", &format!("'{name}'"));
    let recount = |lines: &str| cached(&format!("[family.recount]\n{lines}"));
    let times = "rows = 'added'\nwithin = '1s'\nevery = '1h'\n";
    let table = "table = 't'\nkeys = ['k']\n";
    let table_named = |name: &str| {
        format!(
            "table = {{ name = '{name}', write = 'update', value = 'n', keys = [['k', 'text']] }}"
        )
    };
    let cases = [
        ("x =".to_owned(), 1, ""),
        ("colour = 1\n".to_owned(), 1, "unknown field `colour`"),
        (String::new(), 1, "there is no [pair.NAME]"),
        (top("family = 1"), 1, "expected [[family]]"),
        (top("\nlisten = '9292'"), 2, "neither ADDRESS:PORT"),
        (top("shutdown = 'soon'"), 1, "\"soon\" is no time such as"),
        (top("shutdown = '-2s'"), 1, "\"-2s\" is no time such as"),
        (top("shutdown = 2"), 1, "integer `2`, expected a string"),
        (top("log = 'xml'"), 1, "unknown variant `xml`"),
        (
            top("token = 'a'\ntoken_file = 'token'"),
            1,
            "token and token_file are both given",
        ),
        (top("token_file = 'nowhere'"), 1, "nowhere was not read"),
        (
            top("\nhosts = ['a', 'https://a']"),
            2,
            "\"https://a\" is not a host name",
        ),
        (top("hosts = ['a:443']"), 1, "without a port"),
        (top("token = ''"), 1, "token is empty: remove it"),
        (top("token = ' '"), 1, "the token is empty"),
        (top("token_file = 'empty'"), 1, "/empty is empty"),
        (top("token = ' x'"), 1, "spaces around it"),
        (top("token = 'ä'"), 1, "printable ASCII"),
        (
            top("token = 'x'\nallow_anonymous = true"),
            1,
            "goes without a token",
        ),
        (
            PAIR.replace("main", "\"a b\""),
            1,
            "a name has letters, digits",
        ),
        (
            PAIR.replace("redis = 'redis://localhost'\n", ""),
            1,
            "or the URLs of `cluster` alone",
        ),
        (
            PAIR.replace("mysql = 'mysql://localhost/b'\n", ""),
            1,
            "missing field `mysql`",
        ),
        (
            PAIR.replace("redis://localhost", "rediss://a/#insecure"),
            2,
            "redis_ca",
        ),
        (
            PAIR.replace("redis://localhost", "redis://localhost/#insecure"),
            2,
            "redis_ca",
        ),
        (
            PAIR.replace("redis://localhost", "redis://:a#b@localhost"),
            2,
            "written as %23 in a password",
        ),
        (
            PAIR.replace("localhost/b", "localhost/b#c"),
            1,
            "written as %23 in a password",
        ),
        (
            PAIR.replace("localhost/b", "localhost/Performance_Schema"),
            1,
            "which is the server's own",
        ),
        (
            PAIR.replace("redis://localhost", "http://a"),
            2,
            "expected the URL of a Redis",
        ),
        (
            PAIR.replace("mysql://localhost/b", "nonsense"),
            1,
            "mysql: expected a URL such as mysql://USER@HOST/DATABASE",
        ),
        (
            PAIR.replace("redis =", "colour ="),
            2,
            "unknown field `colour`",
        ),
        (
            pair("cluster = ['redis://a']"),
            1,
            "the URLs of `cluster` alone",
        ),
        (
            PAIR.replace("redis = 'redis://localhost'", "sentinel = ['redis://a']"),
            1,
            "the name that Sentinel knows",
        ),
        (
            pair("redis_password = ''"),
            1,
            "main_redis_password is empty",
        ),
        (
            pair("mysql_password_file = 'empty'"),
            1,
            "main_mysql_password: the file",
        ),
        (pair("redis_ca = 'empty'"), 1, "main_redis_ca: the file"),
        (
            pair("conections = 1"),
            4,
            "unknown field `conections`: is `connections` meant?",
        ),
        (
            pair("connections = 1"),
            1,
            "pair \"main\": connections: at least 2 are needed",
        ),
        (pair("serve = 'none'"), 4, "neither \"all\", \"declared\""),
        (
            pair("serve = ['shop', 'shop-*']"),
            4,
            "serve: namespace \"shop-*\" does not match",
        ),
        (
            pair("durability = 'sometimes'"),
            4,
            "expected \"immediate\", or a time",
        ),
        (pair("redis_cert = 'client.pem'"), 1, "go together"),
        (
            pair("redis_ca = 'token'"),
            1,
            "redis_ca: the file has no CERTIFICATE in PEM",
        ),
        (
            pair("redis_key = 'client.pem'"),
            1,
            "redis_key: the file has no PRIVATE KEY in PEM",
        ),
        (pair("redis_ca = 'none.pem'"), 1, "none.pem was not read"),
        (pair("redis_ca = 'ca.pem'"), 1, "need a rediss:// URL"),
        (family(""), 4, "missing field `kind`"),
        (family("kind = 'other'"), 6, "unknown variant `other`"),
        (
            cached("colour = 1"),
            7,
            "unknown field `colour`, expected for the kind cached one of `kind`, `partitions`, \
             `durability`, `table`, `sync_time`, `remember_requests`, `retain`, `min` or `max`",
        ),
        (
            cached("sync_tiem = '1s'"),
            7,
            "unknown field `sync_tiem`: is `sync_time` meant?",
        ),
        (
            cached(&table_named("counterfoil_values")),
            4,
            "family \"a/b\": table \"counterfoil_values\" is counterfoil's own",
        ),
        (
            cached(&table_named("other.Counterfoil_Drift")),
            4,
            "is counterfoil's own",
        ),
        (
            cached(&table_named("MySQL.user")),
            4,
            "table \"MySQL.user\" is the server's own",
        ),
        (
            cached("retain = 600"),
            7,
            "integer `600`, expected a time such as \"2.5s\"",
        ),
        (
            cached("wide = true"),
            4,
            "family \"a/b\": a/b: wide is not a setting of cached families",
        ),
        (cached("pair = 'other'"), 4, "there is no [pair.other]"),
        (cached("partitions = 0"), 4, "partitions"),
        (
            cached("table = { name = 't', value = 'n', keys = [] }"),
            7,
            "missing field `write`",
        ),
        (family("kind = 'series'\nkeep = ['7 s']"), 7, ""),
        (named("ab"), 4, "expected NAMESPACE/FAMILY"),
        (named("*-*/b"), 4, "or one * in the namespace"),
        (named("A/b"), 4, "family \"A/b\""),
        (recount("every = '1h'"), 7, "missing field `within`"),
        (recount(times), 7, "either table and keys, or sql"),
        (
            recount(&format!("within = '1s'\nevery = '1h'\n{table}")),
            7,
            "recount: rows is missing: \"added\" if rows stay as they were added and none counts less \
             than 0, \"added_and_deleted\" if they are also deleted or changed",
        ),
        (
            recount("rows = 'deleted'"),
            8,
            "unknown variant `deleted`, expected `added` or `added_and_deleted`",
        ),
        (
            recount(&format!(
                "rows = 'added'\nevery = '1h'\nwithin = '0s'\n{table}"
            )),
            7,
            "within and every must be",
        ),
        (
            recount(&format!(
                "rows = 'added'\nevery = '0s'\nwithin = '1s'\n{table}"
            )),
            7,
            "greater than 0",
        ),
        (
            recount(&format!("{times}ids_per_second = 0\n{table}")),
            11,
            "expected a nonzero u32",
        ),
        (
            recount(&format!("{times}sql = 'SELECT 1'")),
            4,
            "the ids need at least one (?): SELECT 1",
        ),
        (
            recount(&format!("{times}ids = 'both'\nsql = 'SELECT 1 IN (?)'")),
            7,
            "ids go with a table",
        ),
        (
            recount(&format!("{times}table = 't'\nkeys = ['k', 'l']")),
            4,
            "2 key columns, and the family's table has 1",
        ),
        (
            family(&format!(
                "kind = 'series'\n[family.recount]\n{times}{table}"
            )),
            4,
            "only buffered and cached",
        ),
        (
            cached("[[family]]\nname = 'a/b'\nkind = 'cached'"),
            7,
            "is described twice",
        ),
    ];
    let (folder, mut wrong) = (folder(), Vec::new());
    for (text, line, what) in cases {
        let error = refused(&folder, &text);
        let place = format!(":{line}: ");
        if !(error.starts_with(&place) && error.contains(what)) || error.contains('\n') {
            wrong.push(format!("{text}\nwas told: {error}\nnot: {place}...{what}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn several_pairs_have_their_own_families() {
    let folder = folder();
    let other = PAIR.replace("main", "other");
    let family = "[[family]]\nname = 'a/b'\nkind = 'visitors'\n";
    let error = refused(&folder, &format!("{PAIR}{other}{family}"));
    assert!(
        error.starts_with(":7: ") && error.contains("pair = \"NAME\" is missing"),
        "{error}"
    );
    let both = format!("{PAIR}{other}{family}pair = 'main'\n{family}pair = 'other'\n");
    let checked = check(&folder, &both).unwrap();
    for (pair, name) in [(0, "main"), (1, "other")] {
        assert_eq!(checked[pair]["pair"], name);
        assert_eq!(checked[pair]["families"], json!(["a/b"]));
    }
}

#[test]
fn the_most_specific_description_applies_in_any_order() {
    let names = [
        "shop-1/views",
        "shop-*/views",
        "s*/views",
        "*-1/views",
        "shop-1/other",
        "*/none",
    ];
    let describe = |name: &&str| format!("[[family]]\nname = '{name}'\nkind = 'buffered'\n");
    let folder = folder();
    for order in [names.to_vec(), names.iter().rev().copied().collect()] {
        let families: String = order.iter().map(describe).collect();
        let checked = check(&folder, &format!("{PAIR}{families}")).unwrap();
        let mut overlaps = checked[0]["overlaps"].as_array().unwrap().clone();
        overlaps.sort_by_key(Value::to_string);
        // "s*" is as long as "*-" without its end; the beginning decides
        assert_eq!(
            json!(overlaps),
            json!([
                ["*-1/views", "s*/views"],
                ["shop-*/views", "*-1/views"],
                ["shop-*/views", "s*/views"],
                ["shop-1/views", "*-1/views"],
                ["shop-1/views", "s*/views"],
                ["shop-1/views", "shop-*/views"],
            ])
        );
    }
}

#[tokio::test]
async fn secrets_come_from_the_file_a_credential_or_the_environment() {
    let site = Site::new().await;
    let user = "ACL SETUSER daemon reset on >right allkeys allcommands";
    site.redis.run::<()>(user).await.unwrap();
    let (redis, mysql) = (format!("{}?user=daemon", site.redis.url()), &site.mysql_url);
    let credentials = site.folder().join("credentials");
    let credentials = credentials.to_str().unwrap();
    fs::create_dir(credentials).unwrap();
    // in the order of precedence
    let sources = ["written", "credential", "file", "environment"];
    for first in 0..sources.len() {
        // the first source is right, and those after it are wrong
        let password = |source: &str| {
            let at = sources.iter().position(|one| *one == source).unwrap();
            (at >= first).then_some(if at == first { "right" } else { "wrong" })
        };
        let mut text = format!("[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\n");
        if let Some(password) = password("written") {
            text += &format!("redis_password = {password:?}\n");
        } else if let Some(password) = password("file") {
            fs::write(site.folder().join("password"), format!("{password}\r\n")).unwrap();
            text += "redis_password_file = 'password'\n";
        }
        site.write(&text);
        let credential = format!("{credentials}/main_redis_password");
        match password("credential") {
            Some(password) => fs::write(credential, password).unwrap(),
            None => drop(fs::remove_file(credential)),
        }
        let mut environment = vec![("CREDENTIALS_DIRECTORY", credentials)];
        let variable = password("environment");
        environment.extend(variable.map(|value| ("COUNTERFOIL_MAIN_REDIS_PASSWORD", value)));
        let loaded = site.run_with(&["scripts", "load"], &environment).await;
        assert_eq!(loaded.code, 0, "{}: {loaded:?}", sources[first]);
    }
    // a byte order mark is no part of the password
    fs::write(site.folder().join("password"), "\u{feff}right\r\n").unwrap();
    let text = format!("[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\n");
    site.write(&format!("{text}redis_password_file = 'password'\n"));
    site.printed(&["scripts", "load"]).await;
    site.write(&text);
    let variable = "COUNTERFOIL_MAIN_REDIS_PASSWORD";
    let empty = site.run_with(&["scripts", "load"], &[(variable, "")]).await;
    assert!(
        empty.code == 3 && empty.err.contains(variable) && empty.err.contains("is empty"),
        "{empty:?}"
    );
    // not as the default user, which this Redis lets in without a password
    let missing = site.run(&["scripts", "load"]).await;
    let why = "the password of Redis's user \"daemon\" is missing";
    assert!(
        missing.code == 2 && missing.err.contains(why),
        "{missing:?}"
    );
}

#[test]
fn certificates_can_be_credentials() {
    let folder = folder();
    let credentials = folder.path().join("credentials");
    let environment = [("CREDENTIALS_DIRECTORY", credentials.to_str().unwrap())];
    for (redis, mysql, words) in [
        (
            "rediss://a",
            "mysql://localhost/b",
            "redis_ca: the file has no CERTIFICATE",
        ),
        (
            "redis://localhost",
            "mysql://a/b?ssl-mode=REQUIRED",
            "ssl-ca needs ssl-mode",
        ),
    ] {
        if redis == "redis://localhost" {
            fs::remove_file(credentials.join("main_redis_ca")).unwrap();
        }
        let text = format!("[pair.main]\nredis = '{redis}'\nmysql = '{mysql}'\n");
        let error = check_with(&folder, &text, &environment).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn beyond_this_machine_tls_is_required() {
    let folder = folder();
    let redis =
        |settings: &str| format!("[pair.main]\n{settings}\nmysql = 'mysql://localhost/b'\n");
    let mysql = |url: &str| PAIR.replace("mysql://localhost/b", url);
    for text in [
        redis("redis = 'redis://127.0.0.2:7000'"),
        redis("redis = 'redis://[::1]'"),
        redis("redis = 'redis+unix:///run/redis.sock'"),
        redis("redis = 'rediss://10.0.0.5'"),
        redis("redis = 'redis://10.0.0.5'\ntls = 'off'"),
        redis("redis = 'redis://primary'\nsentinel = ['redis://localhost:1']"),
        redis("redis = 'rediss://primary'\nsentinel = ['rediss://10.0.0.7']"),
        redis("cluster = ['rediss://10.0.0.5', 'rediss://10.0.0.6']"),
        redis("cluster = 'rediss://10.0.0.5'"),
        mysql("mysql://[::1]/b?ssl-mode=DISABLED"),
        mysql("mysql://far/b?socket=/run/mysql.sock"),
        mysql("mysql://10.0.0.6/b?ssl-mode=DISABLED") + "tls = 'off'",
        // without a mode, it is the one that the rule requires
        mysql("mysql://10.0.0.6/b"),
        mysql("mysql://10.0.0.6/b?ssl-ca=ca.pem"),
        mysql("mysql://10.0.0.6/b?ssl-ca=ca.pem&ssl-mode=VERIFY_CA"),
        mysql("mysql://localhost/b?ssl-ca=ca.pem"),
    ] {
        check(&folder, &text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    for (text, words) in [
        (
            redis("redis = 'redis://10.0.0.5'"),
            "expected rediss://, or tls = \"off\"",
        ),
        (redis("redis = 'redis://localhost.evil'"), "no TLS"),
        (
            redis("cluster = ['rediss://10.0.0.5', 'redis://10.0.0.6']"),
            "no TLS",
        ),
        (
            redis("redis = 'redis://primary'\nsentinel = ['rediss://10.0.0.7']"),
            "no TLS",
        ),
        (
            redis("redis = 'rediss://primary'\nsentinel = ['redis://10.0.0.7']"),
            "no TLS",
        ),
        (
            redis("redis = 'redis://localhost'\nsentinel = ['redis://10.0.0.7']"),
            "no TLS",
        ),
        (
            mysql("mysql://10.0.0.6/b?ssl-mode=PREFERRED"),
            "ssl-mode=REQUIRED",
        ),
        (
            mysql("mysql://10.0.0.6/b?sslmode=disabled"),
            "ssl-mode=REQUIRED",
        ),
        (
            mysql("mysql://localhost/b?ssl-ca=ca.pem&ssl-mode=REQUIRED"),
            "ssl-ca needs ssl-mode=VERIFY_CA",
        ),
        (
            mysql("mysql://localhost/b?ssl-mod=REQUIRED"),
            "unknown parameter \"ssl-mod\" of the database's URL; known are ssl-mode, ",
        ),
        (mysql("mysql://localhost"), "names no database"),
        (mysql("mysql://localhost/"), "names no database"),
        (mysql("postgres://localhost/b"), "such as mysql://"),
        (
            mysql("mysql://localhost/b?ssl-ca=none.pem"),
            "none.pem: No such file",
        ),
        (
            mysql("mysql://localhost/b?ssl-ca=credentials"),
            "is not a file",
        ),
    ] {
        let error = refused(&folder, &text);
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn no_error_shows_a_secret() {
    let folder = folder();
    let redis =
        |settings: &str| format!("[pair.main]\n{settings}\nmysql = 'mysql://localhost/b'\n");
    let mysql = |url: &str| PAIR.replace("mysql://localhost/b", url);
    for text in [
        redis("redis = 'redis://u:hunter2@a'"),
        redis("redis = 'http://u:hunter2@a'"),
        redis("redis = 'rediss://u:hunter2@a#x'"),
        redis("redis = ['redis://u:hunter2@a', 1]"),
        redis("cluster = 'redis://u:hunter2@a'"),
        redis("cluster = ['redis://u:hunter2@a:99999']"),
        redis("cluster = [['redis://u:hunter2@a']]"),
        redis("redis = 'redis://p'\nsentinel = 'redis://u:hunter2@a'"),
        mysql("mysql://u:hunter2@a"),
        mysql("mysql://u:hunter2@a/b?x=1"),
        mysql("mysql://u:hunter2@a:99999/b"),
        mysql("http://u:hunter2@a/b"),
        format!("{PAIR}redis_password = ['hunter2']\n"),
        format!("{PAIR}redis_password = hunter2\n"),
        format!("{PAIR}redis_password = 'hunter2"),
        format!("{PAIR}redis_password = 'hunter2'\nredis_password_file = 'token'"),
    ] {
        let error = refused(&folder, &text);
        assert!(!error.contains("hunter2"), "{text}: {error}");
    }
    let error = refused(&folder, &format!("{PAIR}mysql_password = 12345678\n"));
    assert!(
        error.starts_with(":4: expected a string in quotes"),
        "{error}"
    );
}

/// A regular expression for inserted text.
const PIECE: &str = "[\\[\\]{}=\"'.,#a-z0-9\\n\u{e9}*/-]{0,6}";

/// Replaces parts of the file: reading succeeds, or the error names the file.
#[test]
fn mutilated_files_never_panic() {
    let folder = folder();
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(testkit::seed()),
        ..Config::default()
    });
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, PIECE), 1..6);
    let reads = |cuts: Vec<(prop::sample::Index, usize, String)>| {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, length, new) in &cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, new.chars());
        }
        let _ = check(&folder, &text.into_iter().collect::<String>());
        Ok(())
    };
    runner.run(&cuts, reads).unwrap();
}
