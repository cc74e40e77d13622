//! A server process, its directory, and the guard that survives the process that started them.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The script of the guard, which removes the directory at the end. It reads the running server's
/// process group, or an empty line if none runs, from a pipe. Only this process keeps the pipe
/// open, so its end means that we have ended.
const GUARD: &str = r#"
    trap '' HUP INT TERM
    dir=$1 keep=$2 group= disk=
    while read -r line; do
        case $line in keep) keep=1 ;; /*) disk=$line ;; *) group=$line ;; esac
    done
    tries=0
    # Again until nobody is left, for a second at most: a server that is still dying could write into the directory.
    while [ -n "$group" ] && kill -s KILL -- "-$group" 2>/dev/null && [ $tries -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
    if [ -n "$disk" ]; then
        # Without what fills it. The copy takes the place of the disk below.
        [ "$keep" != 1 ] || { rm -f -- "$disk/rest" && cp -R -- "$disk" "$disk.kept"; }
        # A server that is still dying may keep the disk busy.
        umount "$disk" || umount -l "$disk"
        [ "$keep" != 1 ] || { rmdir -- "$disk" && mv -- "$disk.kept" "$disk"; }
    fi
    [ "$keep" = 1 ] || rm -rf -- "$dir"
"#;

/// The script that starts a server. It reports its process id to the guard (its standard output),
/// then becomes the server, which closes the pipe. So no server ever runs that the guard does not
/// know.
const SERVER: &str = r#"echo $$ && exec "$@" >&2"#;

const START_LIMIT: Duration = Duration::from_secs(60);
/// The poll interval. It is short, because the tests of interleavings restart Redis thousands of
/// times.
const POLL: Duration = Duration::from_millis(1);
const LOG_TAIL: usize = 30;
/// The limit of macOS for a socket's path, including the closing zero.
const SOCKET_PATH_LIMIT: usize = 104;

/// Whether directories are kept, by [`keep`].
static KEEP: AtomicBool = AtomicBool::new(false);

/// Keeps the directories of all servers that this process has started and not yet dropped, and of
/// those that it will start, as with `COUNTERFOIL_KEEP=1`. Each prints its path when it is dropped.
/// A server that is never dropped is kept only if it was started afterwards.
pub fn keep() {
    KEEP.store(true, Ordering::Relaxed);
}

/// A directory and at most one server process on it, which can be killed and restarted.
pub(crate) struct Process {
    dir: PathBuf,
    guard: Child,
    server: Mutex<Option<Child>>,
}

impl Process {
    /// Creates a directory with its guard, and no server yet.
    pub fn new() -> Self {
        let dir = short_directory();
        let keep = std::env::var_os("COUNTERFOIL_KEEP").is_some_and(|v| v == "1")
            || KEEP.load(Ordering::Relaxed);
        if keep {
            eprintln!("testkit: {} will be kept", dir.display());
        }
        let guard = {
            // macOS cannot create a pipe as close-on-exec in one step. A child that another thread
            // starts at that moment would inherit the pipe and keep it open.
            static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
            let _one = ONE_AT_A_TIME.lock();
            Command::new("/bin/sh")
                .args(["-c", GUARD, "guard"])
                .arg(&dir)
                .arg(if keep { "1" } else { "0" })
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                .process_group(0) // out of reach of Ctrl-C
                .spawn()
                .unwrap_or_else(|e| panic!("cannot start the guard of {}: {e}", dir.display()))
        };
        Self {
            dir,
            guard,
            server: Mutex::new(None),
        }
    }

    /// Returns the directory of sockets, data and log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lets the guard unmount this folder at the end.
    pub fn unmount_at_end(&self, folder: &Path) {
        self.tell(&folder.display().to_string());
    }

    /// Starts a server, after killing a running one, and waits until `ready` returns true.
    pub async fn start(&self, program: &Path, args: &[String], ready: impl Fn() -> bool) {
        self.spawn(program, args);
        let deadline = Instant::now() + START_LIMIT;
        while !ready() {
            if let Some(status) = self.reap() {
                self.fail(&format!(
                    "{} ended while starting: {status}",
                    program.display()
                ));
            }
            if Instant::now() > deadline {
                self.fail(&format!(
                    "{} did not reply within {START_LIMIT:?}",
                    program.display()
                ));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Runs a program to its end and panics if it fails.
    pub async fn run(&self, program: &Path, args: &[String]) {
        self.spawn(program, args);
        let status = loop {
            match self.reap() {
                Some(status) => break status,
                None => tokio::time::sleep(POLL).await,
            }
        };
        if !status.success() {
            self.fail(&format!("{} failed: {status}", program.display()));
        }
    }

    /// Kills the server with SIGKILL and waits for its end. Does nothing if no server runs.
    pub fn kill(&self) {
        if let Some(mut server) = self.server.lock().take() {
            // An error means that the server has already ended.
            let _ = kill_process_group(id(&server), Signal::KILL);
            server
                .wait()
                .unwrap_or_else(|e| panic!("cannot wait for a killed server: {e}"));
            self.tell("");
        }
    }

    /// Pauses the server with SIGSTOP. Returns when it is paused.
    pub fn pause(&self) {
        let pid = self.signal(Signal::STOP);
        // NOWAIT leaves an exit status for the standard library to collect.
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
        .unwrap_or_else(|e| panic!("cannot wait for the server to stand still: {e}"));
    }

    /// Resumes the server with SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Does something while the server is paused, or at once if no server runs.
    pub fn while_paused<T>(&self, work: impl FnOnce() -> T) -> T {
        let is_up = self.is_up();
        if is_up {
            self.pause();
        }
        let done = work();
        if is_up {
            self.resume();
        }
        done
    }

    /// Returns whether a server was started and has neither been killed nor ended.
    pub fn is_up(&self) -> bool {
        self.reap().is_none() && self.server.lock().is_some()
    }

    /// Panics with `what` and the end of the log.
    pub fn fail(&self, what: &str) -> ! {
        let bytes = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n    ");
        panic!("{what}\n  end of {}:\n    {tail}", self.log().display());
    }

    fn spawn(&self, program: &Path, args: &[String]) {
        self.kill();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", self.log().display()));
        let pipe = self
            .guard
            .stdin
            .as_ref()
            .expect("the guard was started with a pipe")
            .as_fd()
            .try_clone_to_owned()
            .expect("duplicate the guard's pipe");
        let server = Command::new("/bin/sh")
            .args(["-c", SERVER, "server"])
            .arg(program)
            .args(args)
            // in a shared folder, a database that starts would remove the temporary tables of all
            // others
            .env("TMPDIR", &self.dir)
            .stdin(Stdio::null())
            .stdout(pipe)
            .stderr(log)
            .current_dir(&self.dir)
            .env("LC_ALL", "C") // Redis refuses to start with a locale that is not installed
            .process_group(0) // out of reach of Ctrl-C, and children are killed with it
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {}: {e}", program.display()));
        *self.server.lock() = Some(server);
    }

    /// Returns the exit status of the server if it ended without being killed here, and forgets it.
    fn reap(&self) -> Option<ExitStatus> {
        let mut server = self.server.lock();
        let status = server
            .as_mut()?
            .try_wait()
            .expect("ask whether the server still runs")?;
        *server = None;
        self.tell("");
        Some(status)
    }

    fn signal(&self, signal: Signal) -> Pid {
        match self.server.lock().as_ref() {
            None => self.fail("no server is running"),
            Some(server) => {
                kill_process_group(id(server), signal)
                    .unwrap_or_else(|e| panic!("cannot signal the server: {e}"));
                id(server)
            }
        }
    }

    /// Sends a line to the guard. The guard must learn of every end, since another process may
    /// receive the same id.
    fn tell(&self, line: &str) {
        if let Some(mut pipe) = self.guard.stdin.as_ref() {
            match writeln!(pipe, "{line}") {
                // The guard was killed. Drop still kills the server, so the test may continue.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
                result => result.expect("write to the guard"),
            }
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() || KEEP.load(Ordering::Relaxed) {
            self.tell("keep");
            eprintln!("testkit: {} is kept", self.dir.display());
        }
        // This closes the pipe, on which the guard removes the directory and ends.
        let _ = self.guard.wait();
    }
}

/// Finds a program: named by an environment variable, or one of `names` on `PATH` or in `places`.
pub(crate) fn find(variable: Option<&str>, names: &[&str], places: &[&Path]) -> Option<PathBuf> {
    let named = variable.and_then(std::env::var_os);
    if let Some(named) = named.filter(|name| !name.is_empty()) {
        // Absolute, since servers run in their own directory. Links are not resolved, since
        // Debian's redis-server is a link to a program that behaves according to its name.
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        assert!(
            path.is_file(),
            "{} names {}, which is no file",
            variable.unwrap_or_default(),
            path.display()
        );
        return Some(path);
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&on_path)
        .chain(places.iter().map(PathBuf::from))
        .collect();
    names
        .iter()
        .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)))
        .find(|path| path.is_absolute() && path.is_file())
}

/// Returns the first line that a program prints for `--version`.
pub(crate) fn version(program: &Path) -> String {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .unwrap_or_else(|e| panic!("cannot run {} --version: {e}", program.display()));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} --version: {complaint}",
        program.display()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .next()
        .unwrap_or("no version")
        .trim()
        .to_owned()
}

/// Creates a directory. Its path is short enough for sockets, and needs no quoting in a URL or in a
/// shell script (mariadb-install-db).
fn short_directory() -> PathBuf {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._/".contains(byte);
    let usual = std::path::absolute(std::env::temp_dir()).expect("the current directory is known");
    let longest = usual.join("cf-XXXXXX").join("redis.sock").into_os_string();
    let suits = longest.len() < SOCKET_PATH_LIMIT && longest.as_encoded_bytes().iter().all(plain);
    let base = if suits { usual } else { "/tmp".into() };
    tempfile::Builder::new()
        .prefix("cf-")
        .rand_bytes(6)
        .tempdir_in(&base)
        .unwrap_or_else(|e| panic!("cannot create a directory in {}: {e}", base.display()))
        .keep()
}

fn id(server: &Child) -> Pid {
    Pid::from_child(server)
}

/// Sends a signal, such as TERM, HUP or KILL, to a program that the test started.
///
/// # Panics
///
/// If the program has ended, or there is no such signal.
pub fn signal(program: &tokio::process::Child, signal: &str) {
    let pid = program.id().expect("it runs").to_string();
    let kill = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid])
        .status();
    assert!(kill.expect("kill runs").success());
}
