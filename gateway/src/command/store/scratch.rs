//! A directory for copies of databases, which goes with the command.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::mem;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::super::output::Failure;

/// How the names begin.
const PREFIX: &str = "fencepost-store-";
/// A file in the directory that is locked as long as the process lives.
const LOCK: &str = "in-use";
/// Names that are tried.
const NAMES_MAX: u32 = 100;
/// How often it is removed while something is still put into it.
const REMOVALS_MAX: u32 = 1000;

/// A directory of this process, for nobody else to look into. Made when it is needed.
#[derive(Debug, Default)]
pub(super) struct Scratch(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Made(PathBuf, #[allow(dead_code, reason = "it is held")] File),
    Gone,
}

impl Scratch {
    /// Makes it, once.
    pub(super) fn make(&self) -> Result<PathBuf, Failure> {
        let mut state = self.0.lock();
        if matches!(*state, State::Gone) {
            return Err(Failure::Refused("the command has ended".to_owned()));
        }
        let within = std::env::temp_dir();
        remove_left(&within);
        let mut last = None;
        for n in 0..NAMES_MAX {
            let name = format!("{PREFIX}{}-{n}", std::process::id());
            let path = within.join(name);
            let made = fs::DirBuilder::new().mode(0o700).create(&path);
            match made.and_then(|()| lock(&path)) {
                Ok(lock) => {
                    *state = State::Made(path.clone(), lock);
                    return Ok(path);
                }
                Err(error) => last = Some((path, error)),
            }
            let taken = last.as_ref().map(|(_, error)| error.kind());
            if taken != Some(io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        let why = last.map(|(path, error)| format!("{}: {error}", path.display()));
        Err(Failure::Refused(format!(
            "{}; a database is copied there before it is read (TMPDIR)",
            why.unwrap_or_default()
        )))
    }

    /// Removes it, though another thread may still write to it; none is made any more.
    pub(super) fn remove(&self) {
        let State::Made(path, _lock) = mem::replace(&mut *self.0.lock(), State::Gone) else {
            return;
        };
        let mut removed = Ok(());
        for _ in 0..REMOVALS_MAX {
            removed = fs::remove_dir_all(&path);
            let full = |error: &io::Error| error.kind() == io::ErrorKind::DirectoryNotEmpty;
            if !removed.as_ref().is_err_and(full) {
                break;
            }
        }
        if let Err(error) = removed {
            let path = path.display();
            writeln!(io::stderr(), "{path}: it stays: {error}").unwrap_or_default();
        }
    }
}

/// Locks a directory that nobody else knows yet.
#[allow(
    clippy::disallowed_methods,
    reason = "it is in a local directory for temporary files"
)]
fn lock(dir: &Path) -> io::Result<File> {
    let begun = dir.join("begun");
    let file = File::create_new(&begun)?;
    file.try_lock()?;
    // Locked before it has the name by which others look.
    fs::rename(begun, dir.join(LOCK))?;
    Ok(file)
}

/// Removes the copies that processes left which were killed, as far as that is allowed.
fn remove_left(within: &Path) {
    let Ok(entries) = fs::read_dir(within) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        // Nobody has a directory any more whose lock can be had.
        let left = File::open(path.join(LOCK)).is_ok_and(|file| file.try_lock().is_ok());
        if left && let Err(error) = fs::remove_dir_all(&path) {
            let path = path.display();
            writeln!(io::stderr(), "{path}: it stays: {error}").unwrap_or_default();
        }
    }
}
