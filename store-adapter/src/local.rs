//! What is local to this host and process: who they are, and which cluster the data directory
//! belongs to. Besides the volume and the index, the only code that opens files.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Longest remembered cluster id that is read, bytes.
const IDENTITY_LEN_MAX: u64 = 256;

/// This host and this process, as told to other brokers.
pub trait Host: Send + Sync + Debug + 'static {
    /// The host's name.
    fn name(&self) -> String;
    /// The id of the running kernel's boot; empty where the system has none.
    fn boot_id(&self) -> String;
    /// This process's id.
    fn pid(&self) -> u32;
    /// When this process started, clock ticks since the boot; 0 if the system does not tell.
    fn start_time(&self) -> u64;
    /// Whether process `pid`, started at `start_time`, runs on this host.
    fn is_running(&self, pid: u32, start_time: u64) -> bool;
}

/// Remembers, outside of the volume, which cluster this data directory belongs to.
pub trait LocalIdentity: Send + Sync + Debug + 'static {
    /// The cluster's id; `None` if none was ever remembered.
    fn read(&self) -> io::Result<Option<String>>;
    /// Remembers `cluster_id`, durably.
    fn write(&self, cluster_id: &str) -> io::Result<()>;
}

/// The real host, as `/proc` shows it. Where there is none, boot id and start time are unknown,
/// and a double start is noticed by its heartbeat only.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcHost;

impl Host for ProcHost {
    fn name(&self) -> String {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    }

    fn boot_id(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default()
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn start_time(&self) -> u64 {
        start_time_of(self.pid()).unwrap_or(0)
    }

    fn is_running(&self, pid: u32, start_time: u64) -> bool {
        start_time != 0 && start_time_of(pid) == Some(start_time)
    }
}

/// Start time of a process, clock ticks since the boot; `None` if it does not run (a zombie does
/// not). proc_pid_stat(5): the state is field 3, the start time field 22.
fn start_time_of(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // Field 2, the command's name, is in parentheses and may hold anything, `)` and blanks too.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A host that says what it is told: for simulations and tests.
#[derive(Debug, Clone)]
pub struct FixedHost {
    /// Host name.
    pub name: String,
    /// Boot id.
    pub boot_id: String,
    /// This process's id.
    pub pid: u32,
    /// This process's start time.
    pub start_time: u64,
    /// The processes that run, with their start times.
    pub running: Vec<(u32, u64)>,
}

impl Host for FixedHost {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn boot_id(&self) -> String {
        self.boot_id.clone()
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn start_time(&self) -> u64 {
        self.start_time
    }

    fn is_running(&self, pid: u32, start_time: u64) -> bool {
        self.running.contains(&(pid, start_time))
    }
}

/// The cluster's id in a file of the local data directory.
#[derive(Debug)]
pub struct IdentityFile {
    path: PathBuf,
}

impl IdentityFile {
    /// Keeps the id in the file `path`, whose directory is made when it is written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl LocalIdentity for IdentityFile {
    fn read(&self) -> io::Result<Option<String>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.named(&error)),
        };
        let mut text = String::new();
        file.take(IDENTITY_LEN_MAX)
            .read_to_string(&mut text)
            .map_err(|error| self.named(&error))?;
        let id = text.trim();
        Ok((!id.is_empty()).then(|| id.to_owned()))
    }

    fn write(&self, cluster_id: &str) -> io::Result<()> {
        let written = self.replace(cluster_id);
        written.map_err(|error| self.named(&error))
    }
}

impl IdentityFile {
    /// The error with the name of the file.
    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a local file, not one of the volume"
    )]
    fn replace(&self, cluster_id: &str) -> io::Result<()> {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(dir)?;
        let temporary = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)?;
        writeln!(file, "{cluster_id}")?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(dir)?.sync_all()
    }
}

/// The cluster's id in memory: for simulations and tests. Outlives the brokers that share it.
#[derive(Debug, Default)]
pub struct MemoryIdentity(Mutex<Option<String>>);

impl LocalIdentity for MemoryIdentity {
    fn read(&self) -> io::Result<Option<String>> {
        Ok(self.0.lock().clone())
    }

    fn write(&self, cluster_id: &str) -> io::Result<()> {
        *self.0.lock() = Some(cluster_id.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_runs_and_another_start_time_does_not() {
        let host = ProcHost;
        assert!(!host.name().is_empty());
        assert_eq!(host.boot_id().len(), 36);
        let (pid, start) = (host.pid(), host.start_time());
        assert!(host.is_running(pid, start));
        assert!(!host.is_running(pid, start + 1));
        assert!(!host.is_running(0, start));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_ended_does_not_run() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let start = start_time_of(child.id()).unwrap();
        assert!(ProcHost.is_running(child.id(), start));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!ProcHost.is_running(child.id(), start));
    }

    #[test]
    fn the_cluster_id_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index").join("cluster-id");
        let identity = IdentityFile::new(&path);
        assert_eq!(identity.read().unwrap(), None);
        identity.write("Ej5FZ-ibS9OkVkJmFBdAAA").unwrap();
        identity.write("Ej5FZ-ibS9OkVkJmFBdAAB").unwrap();
        let again = IdentityFile::new(&path).read().unwrap();
        assert_eq!(again.as_deref(), Some("Ej5FZ-ibS9OkVkJmFBdAAB"));
    }
}
