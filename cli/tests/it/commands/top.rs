//! top, in a pseudo terminal.

use std::process::Stdio;

use tokio::process::Command;

use super::FAMILIES;
use crate::support::Site;

/// Runs the program in a terminal of 100 columns, waits for a text, sends an action, and prints the
/// exit status and the terminal's output.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
program, wanted, action, *arguments = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(program, [program, *arguments])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
shown, deadline, acted = b"", time.time() + 30, False
while time.time() < deadline:
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
        if b"\x1b[6n" in data:
            os.write(terminal, b"\x1b[1;1R")
    if not acted and wanted.encode() in shown:
        acted = True
        if action == "TERM":
            os.kill(pid, signal.SIGTERM)
        else:
            os.write(terminal, action.encode().decode("unicode_escape").encode())
_, status = os.waitpid(pid, 0)
sys.stdout.buffer.write(b"%d\n" % os.waitstatus_to_exitcode(status) + shown)
"#;

async fn top(site: &Site, wanted: &str, action: &str) -> (String, String) {
    in_terminal(site, &["top"], wanted, action).await
}

/// Runs a command in a terminal, and returns its exit code and what the terminal showed.
pub async fn in_terminal(
    site: &Site,
    arguments: &[&str],
    wanted: &str,
    action: &str,
) -> (String, String) {
    let mut python = Command::new("python3");
    python.args([
        "-c",
        TERMINAL,
        env!("CARGO_BIN_EXE_counterfoil"),
        wanted,
        action,
    ]);
    python.args(arguments);
    let ended = python
        .current_dir(site.folder())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("python");
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    let (code, shown) = told.split_once('\n').unwrap_or_else(|| panic!("{ended:?}"));
    (code.to_owned(), shown.to_owned())
}

#[tokio::test]
async fn every_way_out_restores_the_terminal() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a"]).await;
    for action in ["q", "\\x1b", "\\x03", "TERM"] {
        let (code, shown) = top(&site, "shop/views", action).await;
        assert_eq!(code, "0", "{action}: {shown}");
        let [begun, ended] = ["\x1b[?1049h", "\x1b[?1049l"].map(|switch| shown.rfind(switch));
        assert!(
            begun.is_some() && begun < ended,
            "{action}: the other screen is left: {shown:?}"
        );
        assert!(
            shown.contains("redis up") && shown.contains("PENDING"),
            "{shown:?}"
        );
    }
}

#[tokio::test]
async fn without_a_terminal_it_points_to_status() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let refused = site.ends_with(3, &["top"]).await;
    assert!(
        refused
            .err
            .contains("`counterfoil status` prints the same once"),
        "{refused:?}"
    );
}
