//! The lines that count in each language. A test compares them with the READMEs of the packages.

use std::net::SocketAddr;
use std::path::Path;

use counterfoil::Family;
use counterfoil::redis::{ConnectionAddr, ConnectionInfo};

use super::files;
use crate::config::{Config, PairConfig};

/// The head, and the program with {redis}, {daemon}, {namespace} and {family}.
const PROGRAMS: [(&str, &str); 5] = [
    (
        "Python: pip install counterfoil",
        r#"from counterfoil import Counterfoil
client = Counterfoil.connect("{redis}", "{namespace}", daemon="{daemon}")
views = client.buffered("{family}")
views.add("product-1")
print(views.value("product-1", 0), "views")"#,
    ),
    (
        NODE,
        r#"import { Counterfoil } from 'counterfoil';
const counterfoil = await Counterfoil.connect('{redis}', '{namespace}', { daemon: '{daemon}' });
const views = counterfoil.buffered('{family}');
await views.add('product-1');
console.log(await views.value('product-1', 0));
await counterfoil.close();"#,
    ),
    (
        "PHP: composer require counterfoil/counterfoil",
        r#"<?php
require 'vendor/autoload.php';
use Counterfoil\Counterfoil;
$views = Counterfoil::connect('{redis}', '{namespace}', daemon: '{daemon}')->buffered('{family}');
$views->add('product-1');
echo $views->value('product-1', 0), "\n";"#,
    ),
    (
        "Ruby: gem install counterfoil",
        r#"require "counterfoil"
counterfoil = Counterfoil.connect("{redis}", "{namespace}", daemon: "{daemon}")
views = counterfoil.buffered("{family}")
views.add("product-1")
puts "views: #{views.value("product-1", "unknown")}""#,
    ),
    (
        "Go: go get github.com/counterfoil/counterfoil-go",
        r#"options := counterfoil.Options{Daemons: []string{"{daemon}"}}
counters, err := counterfoil.Connect("{redis}", "{namespace}", options)
if err != nil {
	log.Fatal(err)
}
defer counters.Close(ctx)
views, err := counters.Buffered("{family}")
if err != nil {
	log.Fatal(err)
}
if _, err := views.Add(ctx, "product-1", 1); err != nil {
	log.Fatal(err)
}
fmt.Println(views.ValueOr(ctx, "product-1", 0))"#,
    ),
];
const NODE: &str = "Node, in a file program.mjs: npm install counterfoil ioredis";

/// Stands for the password of Redis, which is not printed.
const PASSWORD: &str = "PASSWORD";

/// Returns the programs that count in the first buffered family whose ids are any texts, with a head
/// for each. Without such a family there are none.
pub fn all(path: &Path, config: &Config, pair: &PairConfig) -> Vec<String> {
    let Some(family) = free_family(pair) else {
        return Vec::new();
    };
    let (redis, socket) = redis_url(&pair.redis.servers[0]);
    let listen = config.http.as_ref().map(|http| http.listen);
    let daemon = daemon_url(listen);
    let fill = |text: &str, redis: &str| {
        text.replace("{redis}", redis)
            .replace("{daemon}", &daemon)
            .replace("{namespace}", family.namespace())
            .replace("{family}", family.name())
    };
    let mut lines = vec![format!(
        "read a value: `counterfoil get {family} product-1`; the page: {daemon}"
    )];
    if redis.contains(PASSWORD) {
        let file = files::secret_file(files::folder(path), &pair.name, "redis");
        let place = if file.exists() {
            format!(", which is in {}", file.display())
        } else {
            String::new()
        };
        lines.push(format!(
            "{PASSWORD} is that of Redis's user {:?}{place}.",
            pair.redis.user()
        ));
    }
    for (head, program) in PROGRAMS {
        // the package for Node takes a socket's path instead of a URL
        let redis = socket.as_ref().filter(|_| head == NODE).unwrap_or(&redis);
        lines.push(format!("\n# {head}\n{}", fill(program, redis)));
    }
    lines
}

fn free_family(pair: &PairConfig) -> Option<Family> {
    let mut families = pair.families.iter().filter(|family| !family.is_pattern());
    families.find_map(|family| {
        let family = family.sample().ok()?;
        (family.kind() == "buffered" && family.table().is_none()).then_some(family)
    })
}

/// Returns the URL for the packages, and the path if it is a socket's.
fn redis_url(info: &ConnectionInfo) -> (String, Option<String>) {
    let settings = info.redis_settings();
    let login = match (settings.username(), settings.password()) {
        (Some(user), Some(_)) => format!("{user}:{PASSWORD}@"),
        (None, Some(_)) => format!(":{PASSWORD}@"),
        _ => String::new(),
    };
    let database = match settings.db() {
        0 => String::new(),
        number => format!("/{number}"),
    };
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            (format!("redis://{login}{host}:{port}{database}"), None)
        }
        ConnectionAddr::TcpTls { host, port, .. } => {
            (format!("rediss://{login}{host}:{port}{database}"), None)
        }
        other => {
            let path = other.to_string();
            (format!("unix://{login}{path}"), Some(path))
        }
    }
}

fn daemon_url(listen: Option<SocketAddr>) -> String {
    match listen {
        Some(listen) if !listen.ip().is_unspecified() => format!("http://{listen}"),
        Some(listen) => format!("http://127.0.0.1:{}", listen.port()),
        None => "http://127.0.0.1:9292".to_owned(),
    }
}
