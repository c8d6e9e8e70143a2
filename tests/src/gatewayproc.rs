//! A `fencepost` process under test: started on free ports, killed, stopped and started again on
//! the same data.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use crate::process::{Port, Process, free_port, read_line, repository};
use crate::wallclock::{now, poll_until};

/// How long the gateway may take to print its addresses.
const STARTUP: Duration = Duration::from_mins(2);
/// How long its coordinators are awaited, and how long while no slot comes to be answered for.
const COORDINATORS: Duration = Duration::from_mins(2);
const COORDINATORS_STILL: Duration = Duration::from_secs(20);
const PACE: Duration = Duration::from_millis(10);

/// How a gateway is started.
#[derive(Debug, Clone, Default)]
pub struct GatewayOptions {
    /// `--override` values, `key=value`; they come after the ones that set the listener and turn
    /// retention by time off.
    pub overrides: Vec<String>,
    /// Further arguments of `serve`.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// The binary, if it is not the one under test.
    pub binary: Option<PathBuf>,
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    /// Held open so that the gateway can still print.
    stdout: ChildStdout,
    data_dir: PathBuf,
    options: GatewayOptions,
    addresses: Addresses,
    /// Of its Kafka listener, while it runs and while it does not.
    _port: Port,
}

#[derive(Debug, Clone, Deserialize)]
struct Addresses {
    kafka: String,
    admin: String,
}

impl Gateway {
    /// Starts the gateway on `data_dir`, and awaits its addresses and its coordinators. Its log
    /// goes to `<data_dir>.log`, appended.
    pub fn start(data_dir: &Path, options: &GatewayOptions) -> Result<Self> {
        let port = free_port()?;
        let listen = format!("127.0.0.1:{}", port.number());
        let (process, mut stdout) = launch(data_dir, options, &listen)?;
        let addresses = addresses(&mut stdout, data_dir)?;
        let data_dir = data_dir.to_owned();
        let started = Self {
            process,
            stdout,
            data_dir,
            options: options.clone(),
            addresses,
            _port: port,
        };
        started.await_coordinators();
        Ok(started)
    }

    /// Awaits that the coordinators answer for what the broker has: before, they say 14. Goes on
    /// after a while in which nothing changes: what can't be read keeps them from it.
    fn await_coordinators(&self) {
        let mut last = (String::new(), now());
        let answering = || {
            let Ok(ready) = self.get("/readyz?verbose") else {
                return false;
            };
            let of_coordinators = |line: &&str| line.starts_with("[~]coordinators ");
            let Some(waiting) = ready.lines().find(of_coordinators) else {
                return true;
            };
            if waiting != last.0 {
                last = (waiting.to_owned(), now());
            }
            now() - last.1 > COORDINATORS_STILL
        };
        poll_until(COORDINATORS, PACE, answering);
    }

    /// An answer of the admin port, with its head.
    fn get(&self, path: &str) -> Result<String> {
        let address = self.admin_address();
        let mut stream = TcpStream::connect(&address).context("admin port")?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// HOST:PORT for Kafka clients.
    pub fn address(&self) -> String {
        self.addresses.kafka.clone()
    }

    /// HOST:PORT of the admin API.
    pub fn admin_address(&self) -> String {
        self.addresses.admin.clone()
    }

    /// The sum of a counter of `/metrics` over all its labels; `name` as it is shown, with
    /// `_total`.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let mut sum = None;
        for line in self.get("/metrics")?.lines() {
            let Some((labelled, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if labelled.split('{').next() == Some(name) {
                sum = Some(sum.unwrap_or(0) + value.parse::<u64>().context(labelled.to_owned())?);
            }
        }
        sum.with_context(|| format!("no {name} in /metrics"))
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// How its next start is.
    pub fn options(&mut self) -> &mut GatewayOptions {
        &mut self.options
    }

    /// Starts the gateway again on the same data and the same Kafka port, after it was killed or
    /// stopped.
    pub fn restart(&mut self) -> Result<()> {
        self.begin_restart()?;
        self.await_start()?;
        self.await_coordinators();
        Ok(())
    }

    /// The same, but for awaiting that it is up and answers for what it coordinates: see
    /// [`Gateway::await_start`].
    pub fn begin_restart(&mut self) -> Result<()> {
        let address = self.address();
        (self.process, self.stdout) = launch(&self.data_dir, &self.options, &address)?;
        Ok(())
    }

    /// Awaits the addresses of a gateway that was started again.
    pub fn await_start(&mut self) -> Result<()> {
        self.addresses = addresses(&mut self.stdout, &self.data_dir)?;
        Ok(())
    }

    /// Ends the gateway with SIGTERM.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.terminate()
    }

    /// Everything that it has logged on this data directory.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(log_path(&self.data_dir))?)
    }
}

/// The binary under test: `$FENCEPOST_BIN`, else what `cargo build --profile ci` makes of this
/// checkout, built once per process.
pub fn binary() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(path) = std::env::var_os("FENCEPOST_BIN") {
        return Ok(PathBuf::from(path));
    }
    BUILT
        .get_or_init(|| build("ci").map_err(|e| format!("{e:#}")))
        .clone()
        .map_err(|e| anyhow!(e))
}

/// Builds the gateway of this checkout in a profile of cargo's, and names the binary. Where
/// `$FENCEPOST_RELEASE_BIN` names one, that is the one of the profile `release`.
pub fn build(profile: &str) -> Result<PathBuf> {
    if profile == "release"
        && let Some(path) = std::env::var_os("FENCEPOST_RELEASE_BIN")
    {
        return Ok(PathBuf::from(path));
    }
    let root = repository();
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", profile, "-p", "gateway"])
        .current_dir(&root)
        .stdout(Stdio::null())
        .status()
        .context("cargo")?;
    if !status.success() {
        bail!("cargo build of the gateway: {status}");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target
        .unwrap_or_else(|| root.join("target"))
        .join(profile)
        .join("fencepost"))
}

fn log_path(data_dir: &Path) -> PathBuf {
    let mut path = data_dir.as_os_str().to_owned();
    path.push(".log");
    PathBuf::from(path)
}

fn launch(
    data_dir: &Path,
    options: &GatewayOptions,
    listen: &str,
) -> Result<(Process, ChildStdout)> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log_path(data_dir))?;
    let program = match &options.binary {
        Some(path) => path.clone(),
        None => binary()?,
    };
    let mut command = Command::new(program);
    command.arg("serve").arg("--data-dir").arg(data_dir);
    command.args(["--override", &format!("listeners=PLAINTEXT://{listen}")]);
    command.args(["--admin-listen", "127.0.0.1:0", "--print-addresses"]);
    // Records of tests are from whatever year; retention by time is for those that are about it.
    command.args(["--override", "log.retention.ms=-1"]);
    for setting in &options.overrides {
        command.args(["--override", setting]);
    }
    command
        .args(&options.args)
        .envs(options.env.iter().cloned());
    // The gateway takes every FENCEPOST_* for a setting; these are the kit's own.
    for name in ["FENCEPOST_BIN", "FENCEPOST_CACHE", "FENCEPOST_WIRE_TARGET"] {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut process = Process::new(command.spawn().context("fencepost")?);
    let stdout = process.child().stdout.take();
    Ok((process, stdout.context("no standard output")?))
}

/// The addresses that a gateway prints when it is up.
fn addresses(stdout: &mut ChildStdout, data_dir: &Path) -> Result<Addresses> {
    let line = read_line(stdout, STARTUP).with_context(|| {
        let log = std::fs::read_to_string(log_path(data_dir)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "fencepost did not start:\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        )
    })?;
    serde_json::from_str(&line).with_context(|| format!("addresses: {line}"))
}
