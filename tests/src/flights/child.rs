//! A child process that cannot outlive its owner, with its standard error kept in a file.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::wall::{Deadline, LOOK_EVERY, pause};
use crate::oracle::{class_path, tool};
use crate::process::repository;

const TAIL_LINES: usize = 20;

/// A running program; dropped, it is killed and reaped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Where a child's standard streams lead; standard error always goes to the log.
#[derive(Debug)]
pub enum Streams {
    /// Standard input is a pipe, standard output joins the log.
    Fed,
    /// No standard input, standard output is a pipe.
    Heard,
    /// No standard input, standard output goes to this file.
    Stored(PathBuf),
    /// Standard input is a pipe, standard output goes to this file.
    Led(PathBuf),
}

impl Running {
    /// Starts `command`; `dir` gets the file `<name>.log`, which is appended to.
    ///
    /// # Errors
    /// If the program is not there or its files cannot be opened.
    pub fn start(
        name: &str,
        mut command: Command,
        streams: Streams,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        match streams {
            Streams::Fed => command.stdin(Stdio::piped()).stdout(file.try_clone()?),
            Streams::Heard => command.stdin(Stdio::null()).stdout(Stdio::piped()),
            Streams::Stored(path) => command.stdin(Stdio::null()).stdout(File::create(path)?),
            Streams::Led(path) => command.stdin(Stdio::piped()).stdout(File::create(path)?),
        };
        let child = command.stderr(file).spawn().with_context(|| {
            let program = Path::new(command.get_program()).display();
            format!("{program} does not start: run scripts/setup-clients.sh")
        })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Takes the pipe to the program's standard input.
    pub fn take_stdin(&mut self) -> anyhow::Result<ChildStdin> {
        self.child
            .stdin
            .take()
            .context("standard input is not a pipe or was taken before")
    }

    /// Takes the pipe from the program's standard output.
    pub fn take_stdout(&mut self) -> anyhow::Result<ChildStdout> {
        self.child
            .stdout
            .take()
            .context("standard output is not a pipe or was taken before")
    }

    /// The exit status, if the program has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// SIGKILL, and waits until the process is gone. Harmless if it has ended.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM. Harmless if it has ended.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        Ok(())
    }

    /// Waits for the program to end, however it does.
    ///
    /// # Errors
    /// If it takes longer; the message has the end of its log.
    pub fn end(&mut self, deadline: Deadline) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if let Err(late) = deadline.check("its end") {
                bail!("{}: {late}\n{}", self.name, self.tail());
            }
            pause(LOOK_EVERY);
        }
    }

    /// Waits for the program to end with success.
    ///
    /// # Errors
    /// If it fails or takes longer; the message has the end of its log.
    pub fn finish(&mut self, deadline: Deadline) -> anyhow::Result<()> {
        let status = self.end(deadline)?;
        ensure!(
            status.success(),
            "{} ended with {status}\n{}",
            self.name,
            self.tail()
        );
        Ok(())
    }

    /// The last lines of the log.
    pub fn tail(&self) -> String {
        let text = match std::fs::read(&self.log) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => return format!("{}: {error}", self.log.display()),
        };
        tail(&text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            tracing::warn!(name = self.name, %error, "a child process could not be ended");
        }
    }
}

/// The last lines of a log.
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// `class` of Apache Kafka's tools in a small JVM.
///
/// # Errors
/// If the jars are not there and can't be fetched.
pub fn java(class: &str) -> anyhow::Result<Command> {
    Ok(java_on(&class_path()?, class))
}

/// A program of ours among `classes`, with the jars of Apache Kafka.
pub fn java_from(classes: &Path, class: &str) -> anyhow::Result<Command> {
    let class_path = format!("{}:{}", classes.display(), class_path()?);
    Ok(java_on(&class_path, class))
}

fn java_on(class_path: &str, class: &str) -> Command {
    let mut command = tool(class_path, class);
    let logging = repository().join("tests/clients/java/log4j2.properties");
    // Without it the tools log to standard output, where a reader's records belong.
    let logging = format!("-Dlog4j2.configurationFile={}", logging.display());
    command.env("JDK_JAVA_OPTIONS", logging);
    command
}

/// Fails with advice unless `path` is a file.
pub fn need(path: &Path, advice: &str) -> anyhow::Result<()> {
    ensure!(path.is_file(), "{} is not there: {advice}", path.display());
    Ok(())
}

/// `command` with arguments, for building commands in one expression.
pub fn with<S: AsRef<OsStr>>(mut command: Command, args: impl IntoIterator<Item = S>) -> Command {
    command.args(args);
    command
}
