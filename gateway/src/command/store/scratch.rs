//! A directory for copies of databases, which goes with the command.

use std::fs;
use std::io::{self, Write as _};
use std::mem;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::super::output::Failure;

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
    Made(PathBuf),
    Gone,
}

impl Scratch {
    /// Makes it, once.
    pub(super) fn make(&self) -> Result<PathBuf, Failure> {
        let mut state = self.0.lock();
        if matches!(*state, State::Gone) {
            return Err(Failure::Refused("the command has ended".to_owned()));
        }
        let mut last = None;
        // A name may be taken: by what a process of this number left that was killed.
        for n in 0..NAMES_MAX {
            let name = format!("fencepost-store-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    *state = State::Made(path.clone());
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
        let State::Made(path) = mem::replace(&mut *self.0.lock(), State::Gone) else {
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
