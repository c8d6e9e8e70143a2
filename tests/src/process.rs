//! A broker process: what it uses, and how it ends. Killed when its handle is dropped. And ports
//! for brokers.

#![allow(
    clippy::cast_precision_loss,
    reason = "seconds and ratios are reported to few digits"
)]

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::wallclock::{now, poll_until};

/// How long a broker may take to end after SIGTERM.
const DRAIN: Duration = Duration::from_mins(1);
/// Longest line that is read of a child, in bytes.
const LINE_LEN_MAX: usize = 64 * 1024;
/// Ports below the range that the kernel gives away: while a broker is not running, nobody is given
/// its port, and no client that dials it is given it as its own and meets itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Where downloads and builds of the kit are kept: `$FENCEPOST_CACHE`, else `.cache` in the
/// repository.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("FENCEPOST_CACHE").map_or_else(|| repository().join(".cache"), PathBuf::from)
}

/// The root of the checkout that this was built from.
pub fn repository() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// A TCP port of 127.0.0.1 on which nobody listens, and that [`free_port`] gives to nobody else, in
/// any process, until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// The UDP port of the same number, for which nobody here has a use.
    _held: UdpSocket,
}

impl Port {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A port for a broker, or one on which nobody listens.
///
/// # Errors
/// If none is found.
pub fn free_port() -> Result<Port> {
    for _ in 0..1_000 {
        let number = fastrand::u16(PORTS);
        let Ok(held) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else {
            continue;
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
            return Ok(Port {
                number,
                _held: held,
            });
        }
    }
    bail!("no free port from {} to {}", PORTS.start, PORTS.end)
}

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Takes charge of a child.
    pub fn new(child: Child) -> Self {
        Self { child }
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// User and system time of all its threads so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(&path).context(path)?;
        // The name in parentheses may hold anything; fields are counted behind its end.
        let (_, fields) = stat.rsplit_once(')').context("no name in /proc stat")?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut ticks = 0_u64;
        for name in ["utime", "stime"] {
            ticks += fields.next().context(name)?.parse::<u64>().context(name)?;
        }
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Resident memory now, in bytes.
    pub fn rss_bytes(&self) -> Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Highest resident memory so far, in bytes.
    pub fn rss_peak_bytes(&self) -> Result<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(&path).context(path)?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = kib
            .with_context(|| format!("no {name} in /proc status"))?
            .parse()?;
        Ok(kib * 1024)
    }

    /// Kills it with -9 and reaps it.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// Sends SIGTERM and awaits the end, which must come within a minute.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let mut status = None;
        let ended = poll_until(DRAIN, Duration::from_millis(5), || {
            status = self.child.try_wait().transpose();
            status.is_some()
        });
        match status {
            Some(status) if ended => status.context("wait"),
            _ => bail!(
                "process {} did not end within {DRAIN:?} of SIGTERM",
                self.pid()
            ),
        }
    }

    /// Sends a signal, such as STOP and CONT.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).with_context(|| format!("signal {signal:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell if it can't be reaped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The next line that a child prints, without its end; nothing behind it is read. An error when
/// none comes within `patience`, and when the child closes its output instead.
pub fn read_line(stdout: &mut ChildStdout, patience: Duration) -> Result<String> {
    let end = now() + patience;
    let mut line = Vec::new();
    while line.len() < LINE_LEN_MAX {
        let left = end.saturating_duration_since(now());
        let wait = Timespec {
            tv_sec: i64::try_from(left.as_secs())?,
            tv_nsec: 1,
        };
        let mut ready = [PollFd::new(stdout, PollFlags::IN)];
        if poll(&mut ready, Some(&wait))? == 0 {
            bail!("no line within {patience:?}");
        }
        let mut byte = [0];
        if stdout.read(&mut byte)? == 0 {
            bail!("it ended before it printed a line");
        }
        if byte == *b"\n" {
            return String::from_utf8(line).context("a line that is not UTF-8");
        }
        line.extend_from_slice(&byte);
    }
    bail!("more than {LINE_LEN_MAX} bytes in a line")
}
