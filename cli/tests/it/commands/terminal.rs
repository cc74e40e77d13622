//! Commands in a pseudo terminal.

use std::process::Stdio;

use tokio::process::Command;

use crate::support::Site;

/// Runs the program in a terminal of 100 columns, waits for a text, sends an action, and prints the
/// exit status and the terminal's output.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
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
    if not acted and wanted.encode() in shown:
        acted = True
        os.write(terminal, action.encode())
_, status = os.waitpid(pid, 0)
sys.stdout.buffer.write(b"%d\n" % os.waitstatus_to_exitcode(status) + shown)
"#;

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
