//! The alerts and the scrape configuration, checked by promtool if it is installed.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

/// Runs promtool in the folder of the rules. Returns `None` if it is not installed.
async fn promtool(args: &[&str]) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus");
    let mut command = Command::new("promtool");
    let ended = command.args(args).current_dir(folder).output().await;
    let Ok(ended) = ended else {
        eprintln!("promtool is not installed (Debian's package prometheus has it): skipped");
        return None;
    };
    let text = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    assert!(ended.status.success(), "promtool {args:?}: {text}");
    Some(text)
}

#[tokio::test]
async fn the_alerts_fire_in_each_outage_and_not_before() {
    if let Some(tested) = promtool(&["test", "rules", "rules.test.yml"]).await {
        assert!(tested.contains("SUCCESS"), "{tested}");
    }
}

#[tokio::test]
async fn the_scrape_configuration_is_valid() {
    let folder = TempDir::new().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, "secret").expect("written");
    let example = include_str!("../../prometheus/prometheus.yml");
    let credentials = "/etc/prometheus/counterfoil-token";
    assert!(example.contains(credentials));
    let example = example.replace(credentials, token.to_str().expect("UTF-8"));
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/rules.yml");
    let example = example.replace("- rules.yml", &format!("- {}", rules.display()));
    let path = folder.path().join("prometheus.yml");
    fs::write(&path, example).expect("written");
    promtool(&["check", "config", path.to_str().expect("UTF-8")]).await;
}
