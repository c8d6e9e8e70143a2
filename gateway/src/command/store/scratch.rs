//! A directory for copies of databases, which goes with the command.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::super::output::Failure;

/// Names that are tried.
const NAMES_MAX: u32 = 100;

/// A directory of this process, for nobody else to look into.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, Failure> {
        let mut last = None;
        // A name may be taken: by what a process of this number left that was killed.
        for n in 0..NAMES_MAX {
            let name = format!("fencepost-store-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
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

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            let path = self.0.display();
            writeln!(io::stderr(), "{path}: it stays: {error}").unwrap_or_default();
        }
    }
}
