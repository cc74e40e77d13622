//! healthcheck: 0 or 1, and one line.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::FAMILIES;
use crate::support::{Output, Site, eventually};

impl Site {
    async fn healthcheck(&self, args: &[&str]) -> Output {
        let outcome = self.run(&[&["healthcheck"], args].concat()).await;
        let lines = outcome.out.clone() + &outcome.err;
        assert_eq!(lines.lines().count(), 1, "{outcome:?}");
        outcome
    }

    async fn unhealthy(&self, args: &[&str], why: &str) {
        let outcome = self.healthcheck(args).await;
        let is_so = outcome.code == 1 && outcome.err.starts_with("counterfoil: unhealthy: ");
        assert!(is_so && outcome.err.contains(why), "{outcome:?}");
    }
}

#[tokio::test]
async fn the_daemon_alone_decides() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.unhealthy(&[], "`listen` is \"off\" or has port 0")
        .await;
    let daemon = site.daemon().await;
    site.listens_at(&daemon);
    eventually("it is ready", async || {
        site.healthcheck(&["--ready"]).await.code == 0
    })
    .await;
    let alive = site.healthcheck(&[]).await;
    assert_eq!((alive.code, alive.out.as_str()), (0, "ok\n"));

    site.redis.kill();
    eventually("it is not ready", async || {
        site.healthcheck(&["--ready"]).await.code == 1
    })
    .await;
    site.unhealthy(&["--ready"], "not ready: ").await;
    // it waits for Redis, and a restart would not help
    assert_eq!(site.healthcheck(&[]).await.code, 0);

    // a daemon that hangs takes connections and does not reply
    daemon.signal("STOP");
    site.unhealthy(&[], "no reply within 5 s").await;
    daemon.signal("CONT");
    daemon.signal("TERM");
    daemon.ended().await;
    site.unhealthy(&[], "Connection refused").await;
}

#[tokio::test]
async fn any_other_program_and_any_mistake_end_with_1() {
    let site = Site::new().await;
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = other.local_addr().expect("its address");
    let path = site.configure("");
    let text = std::fs::read_to_string(path).expect("the configuration");
    site.write(&text.replace("127.0.0.1:0", &address.to_string()));
    let greeting = tokio::spawn(async move {
        while let Ok((mut client, _)) = other.accept().await {
            let _ = client.read(&mut [0; 1000]).await;
            let _ = client.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n").await;
        }
    });
    site.unhealthy(&[], "replied HTTP/1.1 404 Not Found").await;
    greeting.abort();
    site.write(&text.replace("listen = \"127.0.0.1:0\"", "listen = \"off\""));
    site.unhealthy(&[], "`listen` is \"off\"").await;
    site.write("listen = 1\n");
    site.unhealthy(&[], "counterfoil.toml:1: ").await;
}
