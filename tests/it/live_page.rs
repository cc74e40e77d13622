//! The example's live page, as a browser shows it.
//!
//! `COUNTERFOIL_CHROMIUM` names a Chromium or Chrome, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains puppeteer-core.

#[path = "../../examples/live_page/site.rs"]
mod site;

use std::env;
use std::net::SocketAddr;
use std::process::Stdio;

use site::Site;
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::*;

/// Returns the program that opens a page, without the page's address, or the reason why it cannot
/// run.
fn browser() -> Result<Command, &'static str> {
    let chromium = env::var_os("COUNTERFOIL_CHROMIUM").ok_or("COUNTERFOIL_CHROMIUM is not set")?;
    let modules =
        env::var_os("COUNTERFOIL_NODE_MODULES").ok_or("COUNTERFOIL_NODE_MODULES is not set")?;
    if !Path::new(&modules).join("puppeteer-core").exists() {
        return Err("COUNTERFOIL_NODE_MODULES holds no puppeteer-core");
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/live_page.mjs");
    let mut command = Command::new("node");
    command.arg(program).arg(chromium).env("NODE_PATH", modules);
    Ok(command)
}

/// Serves the site for as long as the test runs.
async fn serve(site: Site) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, site::router(site)).await });
    address
}

#[tokio::test]
async fn the_page_shows_its_hits_as_they_come() {
    let mut browser = match browser() {
        Ok(browser) => browser,
        Err(why) => return eprintln!("{why}: the test of the live page is skipped"),
    };
    let (redis, mysql) = (new_redis().await, mysql().await);
    let (database, _) = mysql.database("site").await;
    let address = serve(
        Site::open(&redis.url(), &mysql.url(&database))
            .await
            .unwrap(),
    )
    .await;
    let looked = browser
        .arg(format!("http://{address}"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&looked.stdout), text(&looked.stderr));
    assert!(looked.status.success(), "{}\n{out}{err}", looked.status);
    assert_eq!(out.trim(), "passed");
}
