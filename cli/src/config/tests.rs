//! Tests of the example, of mistakes and their positions, of mutilated files, and of secrets.

use std::fs;

use counterfoil::sqlx::ConnectOptions;
use counterfoil::sqlx::mysql::MySqlSslMode;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tempfile::TempDir;

use super::*;

/// A file that looks like a certificate.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n";

/// Creates a folder with the files that the example names.
fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for file in [
        "token",
        "redis-password",
        "mysql-password",
        "ca.pem",
        "client.pem",
        "client.key",
    ] {
        let text = match file.split_once('.') {
            Some((_, "pem")) => CERTIFICATE.to_owned(),
            Some(_) => CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY"),
            None => format!("{file} of the file\n"),
        };
        fs::write(folder.path().join(file), text).expect("written");
    }
    fs::write(folder.path().join("empty"), "\n").expect("written");
    folder
}

fn read(folder: &TempDir, text: &str) -> Result<Config, String> {
    let path = folder.path().join("counterfoil.toml");
    fs::write(&path, text).expect("written");
    Config::read(&path).map_err(|text| {
        let told = text.strip_prefix(&path.display().to_string());
        told.unwrap_or_else(|| panic!("{text} does not begin with {}", path.display()))
            .to_owned()
    })
}

/// Returns the name of the setting in a line, also in a comment.
fn setting(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (name, _) = line.split_once(" = ")?;
    (!name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    .then_some(name)
}

/// Returns the example with these lines uncommented, and without other lines that start with
/// `left_out`.
fn example_with(uncommented: &[usize], left_out: &str) -> String {
    let line = |(number, line): (usize, &str)| match uncommented.contains(&number) {
        true => line.strip_prefix("# ").unwrap_or(line).to_owned(),
        false if !left_out.is_empty() && line.starts_with(left_out) => String::new(),
        false => line.to_owned(),
    };
    EXAMPLE
        .lines()
        .enumerate()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_example_is_right_as_it_stands() {
    let config = read(&folder(), EXAMPLE).expect("right");
    let names: Vec<_> = config.families.iter().map(FamilyConfig::name).collect();
    assert_eq!(
        names,
        [
            "forum/votes",
            "shop-*/views",
            "shop-*/visitors",
            "forum/downloads",
            "forum/readers"
        ]
    );
    assert!(config.families[0].recount.is_some() && config.families[1].is_pattern());
    assert_eq!(config.http.expect("it listens").listen, DEFAULT_LISTEN);
    assert_eq!(config.pairs[0].serve, Serve::All);
}

#[test]
fn each_setting_of_the_example_is_one() {
    let folder = folder();
    let is_commented =
        |(_, line): &(usize, &str)| line.starts_with("# ") && setting(line).is_some();
    let commented: Vec<_> = EXAMPLE.lines().enumerate().filter(is_commented).collect();
    assert!(commented.len() > 40, "{commented:?}");
    for (number, line) in commented {
        let uncommented: Vec<_> = match setting(line) {
            // the two settings go together
            Some("redis_cert") => vec![number, number + 1],
            Some("redis_key") => vec![number - 1, number],
            _ => vec![number],
        };
        let left_out = if setting(line) == Some("cluster") {
            "redis = "
        } else {
            ""
        };
        if let Err(error) = read(&folder, &example_with(&uncommented, left_out)) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn each_setting_is_in_the_example() {
    let tables = [
        "x = 1\n".to_owned(),
        "[pair.a]\nx = 1\n".to_owned(),
        format!("{FAMILY}x = 1\n"),
        format!("{FAMILY}[family.recount]\nx = 1\n"),
        format!("{FAMILY}table = {{ x = 1 }}\n"),
    ];
    for text in &tables {
        let error = read(&folder(), text).expect_err("x is no setting");
        let expected = error
            .split("expected")
            .nth(1)
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
            assert!(
                written.iter().any(|written| EXAMPLE.contains(written)),
                "{known} is not in the example"
            );
        }
    }
}

const FAMILY: &str = "[pair.a]\nredis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\n\
     [[family]]\nname = 'a/b'\nkind = 'cached'\n";
const PAIR: &str = "[pair.main]\nredis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\n";

#[test]
fn mistakes_are_told_with_file_and_line() {
    let of_family = |more: &str| format!("{PAIR}[[family]]\nname = 'a/b'\n{more}");
    let of_pair = |more: &str| format!("{PAIR}{more}\n");
    let of_cached = |more: &str| of_family(&format!("kind = 'cached'\n{more}"));
    let named = |name: &str| of_cached("").replace("'a/b'\nkind", &format!("'{name}'\nkind"));
    let recount = |more: &str| of_cached(&format!("[family.recount]\n{more}"));
    let cases = [
        ("x =".to_owned(), ":1: ", ""),
        ("colour = 1\n".to_owned(), ":1: ", "unknown field `colour`"),
        (String::new(), ":1: ", "there is no [pair.NAME]"),
        (
            format!("listen = '9292'\n{PAIR}"),
            ":1: ",
            "neither ADDRESS:PORT",
        ),
        (
            format!("shutdown = 'soon'\n{PAIR}"),
            ":1: ",
            "\"soon\" is no time such as",
        ),
        (
            format!("shutdown = '-2s'\n{PAIR}"),
            ":1: ",
            "\"-2s\" is no time such as",
        ),
        (
            format!("shutdown = 2\n{PAIR}"),
            ":1: ",
            "2 is no time such as",
        ),
        (
            of_cached("retain = 600"),
            ":7: ",
            "invalid type: integer `600`, expected a time such as \"2.5s\"",
        ),
        (
            format!("log = 'xml'\n{PAIR}"),
            ":1: ",
            "unknown variant `xml`",
        ),
        (
            format!("token = 'a'\ntoken_file = 'token'\n{PAIR}"),
            ":",
            "are both given",
        ),
        (
            format!("token_file = 'nowhere'\n{PAIR}"),
            ":",
            "nowhere was not read",
        ),
        (
            format!("hosts = ['a', 'https://a']\n{PAIR}"),
            ":1: ",
            "\"https://a\" is not a host name",
        ),
        (
            format!("hosts = ['a:443']\n{PAIR}"),
            ":1: ",
            "without a port",
        ),
        (format!("token = ''\n{PAIR}"), ":", "the token is empty"),
        (
            format!("token_file = 'empty'\n{PAIR}"),
            ":",
            "the token is empty",
        ),
        (format!("token = ' x'\n{PAIR}"), ":", "spaces around it"),
        (format!("token = 'ä'\n{PAIR}"), ":", "printable ASCII"),
        (
            format!("token = 'x'\nallow_anonymous = true\n{PAIR}"),
            ":2: ",
            "goes without a token",
        ),
        (
            PAIR.replace("main", "\"a b\""),
            ":1: ",
            "a name has letters, digits",
        ),
        (
            PAIR.replace("redis = 'redis://localhost'\n", ""),
            ":1: ",
            "redis, or cluster, is missing",
        ),
        (
            PAIR.replace("mysql = 'mysql://localhost/b'\n", ""),
            ":1: ",
            "missing field `mysql`",
        ),
        (
            PAIR.replace("redis://localhost", "http://a"),
            ":2: ",
            "redis is no URL of a Redis",
        ),
        (
            PAIR.replace("mysql://localhost/b", "nonsense"),
            ":3: ",
            "mysql: the database's URL is not mysql://",
        ),
        (
            PAIR.replace("redis =", "colour ="),
            ":2: ",
            "unknown field `colour`",
        ),
        (
            of_pair("cluster = ['redis://a']"),
            ":1: ",
            "cluster goes without redis",
        ),
        (
            PAIR.replace("redis = 'redis://localhost'", "sentinel = ['redis://a']"),
            ":1: ",
            "sentinel needs redis",
        ),
        (of_pair("connections = 1"), ":4: ", "at least 2 are needed"),
        (
            of_pair("serve = 'none'"),
            ":4: ",
            "neither \"all\", \"declared\"",
        ),
        (
            of_pair("durability = 'sometimes'"),
            ":4: ",
            "unknown variant `sometimes`",
        ),
        (of_pair("redis_cert = 'client.pem'"), ":1: ", "go together"),
        (
            of_pair("redis_ca = 'token'"),
            ":4: ",
            "redis_ca: token has no CERTIFICATE in PEM",
        ),
        (
            of_pair("redis_key = 'client.pem'"),
            ":4: ",
            "redis_key: client.pem has no PRIVATE KEY in PEM",
        ),
        (
            of_pair("serve = ['shop', 'shop-*']"),
            ":4: ",
            "serve: namespace \"shop-*\" does not match",
        ),
        (of_family(""), ":4: ", "missing field `kind`"),
        (
            of_family("kind = 'other'"),
            ":6: ",
            "unknown variant `other`",
        ),
        (of_cached("colour = 1"), ":7: ", "unknown field `colour`"),
        (
            of_cached("wide = true"),
            ":7: ",
            "wide is not a setting of cached families",
        ),
        (
            of_cached("pair = 'other'"),
            ":7: ",
            "there is no [pair.other]",
        ),
        (of_cached("partitions = 0"), ":7: ", "partitions"),
        (
            of_cached("table = { name = 't', value = 'n', keys = [] }"),
            ":7: ",
            "missing field `write`",
        ),
        (of_family("kind = 'series'\nkeep = ['7 s']"), ":", ""),
        (named("ab"), ":5: ", "expected NAMESPACE/FAMILY"),
        (named("*-*/b"), ":5: ", "or one * in the namespace"),
        (named("A/b"), ":5: ", "family \"A/b\""),
        (recount("every = '1h'"), ":7: ", "missing field `within`"),
        (
            recount("within = '1s'\nevery = '1h'"),
            ":7: ",
            "either table and keys, or sql",
        ),
        (
            recount("every = '1h'\nwithin = '0s'\ntable = 't'\nkeys = ['k']"),
            ":9: ",
            "recount: within must be greater than 0",
        ),
        (
            recount("within = '1s'\nevery = '0s'\ntable = 't'\nkeys = ['k']"),
            ":9: ",
            "recount: every must be greater than 0",
        ),
        (
            recount("within = '1s'\nevery = '1h'\nids_per_second = 0\ntable = 't'\nkeys = ['k']"),
            ":10: ",
            "recount: ids_per_second must be greater than 0",
        ),
        (
            recount("within = '1s'\nevery = '1h'\nsql = 'SELECT 1'"),
            ":10: ",
            "the ids need at least one (?): SELECT 1",
        ),
        (
            recount("within = '1s'\nevery = '1h'\nids = 'both'\nsql = 'SELECT 1 IN (?)'"),
            ":10: ",
            "recount: ids is for a table",
        ),
        (
            recount("within = '1s'\nevery = '1h'\ntable = 't'\nkeys = ['k', 'l']"),
            ":7: ",
            "2 key columns, and the family's table has 1",
        ),
        (
            of_family("kind = 'series'\n[family.recount]\nwithin = '1s'\nevery = '1h'\n"),
            ":7: ",
            "only buffered and cached",
        ),
        (
            of_cached("[[family]]\nname = 'a/b'\nkind = 'cached'"),
            ":7: ",
            "described twice",
        ),
    ];
    let (folder, mut wrong) = (folder(), Vec::new());
    for (text, place, what) in cases {
        let error = read(&folder, &text)
            .err()
            .unwrap_or_else(|| panic!("taken:\n{text}"));
        if !(error.starts_with(place) && error.contains(what)) || error.contains('\n') {
            wrong.push(format!("{text}\nwas told: {error}\nnot: {place}...{what}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn several_pairs_have_their_own_families() {
    let other = PAIR.replace("main", "other");
    let family = "[[family]]\nname = 'a/b'\nkind = 'visitors'\n";
    let error = read(&folder(), &format!("{PAIR}{other}{family}")).expect_err("whose is it?");
    assert!(
        error.starts_with(":8: ") && error.contains("pair = \"NAME\" is missing"),
        "{error}"
    );
    let both = format!("{PAIR}{other}{family}pair = 'main'\n{family}pair = 'other'\n");
    let config = read(&folder(), &both).expect("right");
    assert_eq!(
        config
            .families
            .iter()
            .map(|family| family.pair.as_str())
            .collect::<Vec<_>>(),
        ["main", "other"]
    );
}

#[test]
fn a_pattern_describes_what_fits_it() {
    let text = format!("{PAIR}[[family]]\nname = 'shop-*/views'\nkind = 'buffered'\n");
    let family = read(&folder(), &text).expect("right").families.remove(0);
    let fits = |namespace: &str, name: &str| family.describes(namespace, name);
    assert!(fits("shop-1", "views") && fits("shop-a-b", "views"));
    assert!(!fits("shop-", "views") && !fits("shop-1", "sales") && !fits("xshop-1", "views"));
    let one = family.in_namespace("shop-7").expect("a family");
    assert_eq!(one.to_string(), "shop-7/views");
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
        let families = read(&folder, &format!("{PAIR}{families}"))
            .expect("right")
            .families;
        for (name, applies) in [
            ("shop-1/views", Some("shop-1/views")),
            ("shop-2/views", Some("shop-*/views")),
            ("small/views", Some("s*/views")),
            ("a-1/views", Some("*-1/views")),
            // as long as "*-1"; the beginning decides
            ("s-1/views", Some("*-1/views")),
            ("shop-1/none", Some("*/none")),
            ("x/views", None),
        ] {
            let found = crate::families::configured(&families, "main", name);
            assert_eq!(found.map(FamilyConfig::name).as_deref(), applies, "{name}");
        }
        let overlap = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|name| {
                families
                    .iter()
                    .find(|family| family.name() == name)
                    .expect(name)
            });
            assert_eq!(one.overlaps(other), other.overlaps(one));
            one.overlaps(other)
        };
        assert!(overlap("shop-1/views", "shop-*/views") && overlap("shop-*/views", "*-1/views"));
        assert!(overlap("s*/views", "shop-*/views") && overlap("s*/views", "*-1/views"));
        assert!(!overlap("shop-1/other", "shop-*/views") && !overlap("*/none", "s*/views"));
    }
}

#[test]
fn secrets_come_from_the_file_a_credential_or_the_environment() {
    let folder = folder();
    let secrets = |credentials: Option<&str>, environment| Secrets {
        folder: folder.path().to_owned(),
        credentials: credentials.map(|name| folder.path().join(name)),
        environment,
    };
    let parse = |more: &str, secrets: &Secrets| {
        let config =
            Config::parse(&format!("{PAIR}{more}"), secrets).map_err(|wrong| wrong.message);
        config.map(|config| {
            let url = config.pairs[0].mysql.options.to_url_lossy();
            let password = url.password().map(percent_encoding::percent_decode_str);
            password.map(|password| password.decode_utf8_lossy().into_owned())
        })
    };
    let environment: fn(&str) -> Option<String> =
        |name| (name == "COUNTERFOIL_MAIN_MYSQL_PASSWORD").then(|| "of the environment".to_owned());
    let of_systemd = folder.path().join("credentials");
    fs::create_dir(&of_systemd).expect("made");
    fs::write(of_systemd.join("main_mysql_password"), "of systemd\r\n").expect("written");
    let found = |more: &str, credentials, variable| {
        parse(more, &secrets(credentials, variable)).expect("right")
    };
    let written = "mysql_password = 'written'\n";
    let file = "mysql_password_file = 'mysql-password'\n";
    let none: fn(&str) -> Option<String> = |_| None;
    let folder = Some("credentials");
    for (more, credentials, variable, expected) in [
        ("", None, none, None),
        ("", None, environment, Some("of the environment")),
        ("", folder, environment, Some("of systemd")),
        (
            file,
            folder,
            environment,
            Some("mysql-password of the file"),
        ),
        (written, folder, environment, Some("written")),
    ] {
        assert_eq!(found(more, credentials, variable).as_deref(), expected);
    }
    for name in ["main_mysql_ca", "main_redis_ca"] {
        fs::write(of_systemd.join(name), CERTIFICATE).expect("written");
    }
    let remote = "[pair.main]\nredis = 'rediss://a'\nmysql = 'mysql://a/b'\n";
    let config = Config::parse(remote, &secrets(folder, none)).map_err(|wrong| wrong.message);
    let pair = config.expect("right").pairs.remove(0);
    let mode = format!("{:?}", pair.mysql.options.get_ssl_mode());
    assert_eq!(mode, "VerifyIdentity");
    assert_eq!(
        pair.redis_tls.authority.as_deref(),
        Some(CERTIFICATE.as_bytes())
    );
    let both =
        parse(&format!("{written}{file}"), &secrets(None, environment)).expect_err("which one?");
    assert!(both.contains("main_mysql_password"), "{both}");
    assert!(
        !both.contains("written"),
        "the secret itself is told: {both}"
    );
}

/// Reads a pair with these settings.
fn pair(folder: &TempDir, settings: &str) -> Result<PairConfig, String> {
    read(folder, &format!("[pair.main]\n{settings}")).map(|mut config| config.pairs.remove(0))
}

#[test]
fn beyond_this_machine_tls_is_required() {
    let folder = folder();
    let mysql = "mysql = 'mysql://localhost/b'";
    let redis = "redis = 'redis://localhost'";
    let accepted = [
        format!("redis = 'redis://127.0.0.2:7000'\n{mysql}"),
        format!("redis = 'redis://[::1]'\n{mysql}"),
        format!("redis = 'redis+unix:///run/redis.sock'\n{mysql}"),
        format!("redis = 'rediss://10.0.0.5'\n{mysql}"),
        format!("redis = 'redis://10.0.0.5'\n{mysql}\ntls = 'off'"),
        format!("redis = 'redis://primary'\nsentinel = ['redis://localhost:1']\n{mysql}"),
        format!("redis = 'rediss://primary'\nsentinel = ['rediss://10.0.0.7']\n{mysql}"),
        format!("cluster = ['rediss://10.0.0.5', 'rediss://10.0.0.6']\n{mysql}"),
        format!("{redis}\nmysql = 'mysql://[::1]/b?ssl-mode=DISABLED'"),
        format!("{redis}\nmysql = 'mysql://far/b?socket=/run/mysql.sock'"),
        format!("{redis}\nmysql = 'mysql://10.0.0.6/b?ssl-mode=DISABLED'\ntls = 'off'"),
    ];
    for text in accepted {
        if let Err(error) = pair(&folder, &text) {
            panic!("{text}: {error}");
        }
    }
    let refused = [
        (
            format!("redis = 'redis://10.0.0.5'\n{mysql}"),
            "expected rediss://, or tls = \"off\"",
        ),
        (
            format!("redis = 'redis://localhost.evil'\n{mysql}"),
            "no TLS",
        ),
        (
            format!("cluster = ['rediss://10.0.0.5', 'redis://10.0.0.6']\n{mysql}"),
            "no TLS",
        ),
        (
            format!("redis = 'redis://primary'\nsentinel = ['rediss://10.0.0.7']\n{mysql}"),
            "no TLS",
        ),
        (
            format!("redis = 'rediss://primary'\nsentinel = ['redis://10.0.0.7']\n{mysql}"),
            "no TLS",
        ),
        (
            format!("{redis}\nredis_ca = 'ca.pem'\n{mysql}"),
            "need a rediss:// URL",
        ),
        (
            format!("{redis}\nmysql = 'mysql://10.0.0.6/b?ssl-mode=PREFERRED'"),
            "ssl-mode=REQUIRED",
        ),
        (
            format!("{redis}\nmysql = 'mysql://10.0.0.6/b?sslmode=disabled'"),
            "ssl-mode=REQUIRED",
        ),
        (
            format!("{redis}\nmysql = 'mysql://localhost/b?ssl-ca=ca.pem&ssl-mode=REQUIRED'"),
            "ssl-ca needs ssl-mode=VERIFY_CA",
        ),
    ];
    for (text, words) in refused {
        let error = pair(&folder, &text).expect_err(&text);
        assert!(error.contains(words), "{text}: {error}");
    }
    for (url, expected) in [
        ("mysql://10.0.0.6/b", MySqlSslMode::Required),
        (
            "mysql://10.0.0.6/b?ssl-ca=ca.pem",
            MySqlSslMode::VerifyIdentity,
        ),
        (
            "mysql://10.0.0.6/b?ssl-ca=ca.pem&ssl-mode=VERIFY_CA",
            MySqlSslMode::VerifyCa,
        ),
        ("mysql://localhost/b", MySqlSslMode::Preferred),
    ] {
        let pair = pair(&folder, &format!("{redis}\nmysql = '{url}'")).expect(url);
        let mode = pair.mysql.options.get_ssl_mode();
        assert_eq!(format!("{mode:?}"), format!("{expected:?}"), "{url}");
    }
}

#[test]
fn urls_are_read_completely() {
    let folder = folder();
    let redis = "redis = 'redis://localhost'";
    for (settings, words) in [
        (
            format!("{redis}\nmysql = 'mysql://localhost/b?ssl-mod=REQUIRED'"),
            "unknown parameter \"ssl-mod\" of the database's URL; known are ssl-mode, ",
        ),
        (
            format!("{redis}\nmysql = 'mysql://localhost'"),
            "names no database",
        ),
        (
            format!("{redis}\nmysql = 'mysql://localhost/'"),
            "names no database",
        ),
        (
            format!("{redis}\nmysql = 'postgres://localhost/b'"),
            "not mysql://",
        ),
        (
            format!("{redis}\nmysql = 'mysql://localhost/b?ssl-ca=none.pem'"),
            "none.pem: No such file",
        ),
        (
            "redis = 'rediss://a'\nredis_ca = 'none.pem'\nmysql = 'mysql://localhost/b'".to_owned(),
            "redis_ca: ",
        ),
    ] {
        let error = pair(&folder, &settings).expect_err(&settings);
        assert!(error.contains(words), "{settings}: {error}");
    }
    // relative to the file, as a daemon has another folder
    let text = format!("{redis}\nmysql = 'mysql://localhost/b?ssl-ca=ca.pem'");
    let pair = pair(&folder, &text).expect("right");
    let url = pair.mysql.options.to_url_lossy();
    let url = percent_encoding::percent_decode_str(url.as_str()).decode_utf8_lossy();
    assert!(url.contains(&*folder.path().to_string_lossy()), "{url}");
}

#[test]
fn no_error_shows_a_secret() {
    let secret = "hunter2";
    let folder = folder();
    fs::write(folder.path().join("token"), secret).expect("written");
    for settings in [
        format!("redis = 'redis://u:{secret}@a'\nmysql = 'mysql://localhost/b'"),
        format!("redis = 'http://u:{secret}@a'\nmysql = 'mysql://localhost/b'"),
        format!("redis = 'rediss://u:{secret}@a#x'\nmysql = 'mysql://localhost/b'"),
        format!("redis = ['redis://u:{secret}@a']\nmysql = 'mysql://localhost/b'"),
        format!("cluster = 'redis://u:{secret}@a'\nmysql = 'mysql://localhost/b'"),
        format!("cluster = ['redis://u:{secret}@a:99999']\nmysql = 'mysql://localhost/b'"),
        format!("cluster = [['redis://u:{secret}@a']]\nmysql = 'mysql://localhost/b'"),
        format!(
            "redis = 'redis://p'\nsentinel = 'redis://u:{secret}@a'\nmysql = 'mysql://localhost/b'"
        ),
        format!("redis = 'redis://localhost'\nmysql = 'mysql://u:{secret}@a'"),
        format!("redis = 'redis://localhost'\nmysql = 'mysql://u:{secret}@a/b?x=1'"),
        format!("redis = 'redis://localhost'\nmysql = 'mysql://u:{secret}@a:99999/b'"),
        format!("redis = 'redis://localhost'\nmysql = 'http://u:{secret}@a/b'"),
        format!(
            "redis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\nredis_password = ['{secret}']"
        ),
        format!(
            "redis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\nredis_password = {secret}"
        ),
        format!(
            "redis = 'redis://localhost'\nmysql = 'mysql://localhost/b'\nredis_password = '{secret}"
        ),
    ] {
        let error = pair(&folder, &settings).expect_err(&settings);
        assert!(!error.contains(secret), "{settings}: {error}");
    }
    let numbers = format!("{PAIR}mysql_password = 12345678\n");
    let error = read(&folder, &numbers).expect_err("a number");
    assert!(
        error.starts_with(":4: expected a string in quotes"),
        "{error}"
    );
    let right = format!(
        "token_file = 'token'\n[pair.main]\nredis = 'redis://u:{secret}@localhost'\nmysql = 'mysql://u:{secret}@localhost/b'"
    );
    let shown = format!("{:?}", read(&folder, &right).expect("right"));
    assert!(!shown.contains(secret), "{shown}");
}

/// A regular expression for inserted text.
const PIECE: &str = "[\\[\\]{}=\"'.,#a-z0-9\\n\u{e9}*/-]{0,6}";

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(testkit::seed()),
        ..ProptestConfig::default()
    })]

    /// Replaces parts of the file: reading succeeds, or the error names the file.
    #[test]
    fn mutilated_files_never_panic(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, PIECE), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, length, new) in &cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, new.chars());
        }
        let text: String = text.into_iter().collect();
        let _ = read(&folder(), &text);
    }
}
