//! Where the simulation takes hold of a memory volume: before and after each step.

use std::fmt::Debug;

use bytes::Bytes;

use crate::runtime::BoxFuture;
use crate::volume::{DirEntry, VolumeError, VolumePath};

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepOp {
    /// `Volume::create_new`.
    CreateNew,
    /// `Volume::open` and `Volume::open_write`.
    Open,
    /// `Volume::read`.
    Read,
    /// `Volume::rename`.
    Rename,
    /// `Volume::remove`.
    Remove,
    /// `Volume::remove_dir`.
    RemoveDir,
    /// `Volume::list`.
    List,
    /// `Volume::create_dir_all`.
    CreateDirAll,
    /// `Volume::sync_dir`.
    SyncDir,
    /// `Volume::space`.
    Space,
    /// `VolumeFile::write_at`.
    WriteAt,
    /// `VolumeFile::read_at`.
    ReadAt,
    /// `VolumeFile::sync_data`.
    SyncData,
    /// `VolumeFile::allocate`.
    Allocate,
    /// `VolumeFile::size`.
    Size,
}

impl StepOp {
    /// Whether the step may change what a later step or a power cut shows.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Open | Self::Read | Self::List | Self::Space | Self::ReadAt | Self::Size
        )
    }
}

/// One step of one mount.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step {
    /// What it does.
    pub op: StepOp,
    /// The name; of a file, the one by which it was opened.
    pub path: VolumePath,
    /// The new name of a rename.
    pub to: Option<VolumePath>,
    /// Where a positioned read or write begins; otherwise 0.
    pub offset: u64,
    /// How many bytes are read, written or reserved; otherwise 0.
    pub len: u64,
}

impl Step {
    pub(super) fn new(op: StepOp, path: &VolumePath) -> Self {
        Self {
            op,
            path: path.clone(),
            to: None,
            offset: 0,
            len: 0,
        }
    }

    pub(super) fn range(self, offset: u64, len: u64) -> Self {
        Self {
            offset,
            len,
            ..self
        }
    }
}

/// An error that a step can be made to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepFault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EROFS.
    ReadOnly,
    /// EMFILE.
    TooManyOpenFiles,
}

impl StepFault {
    /// As the step at `path` answers it.
    pub(crate) fn error(self, path: &VolumePath) -> VolumeError {
        let name = path.to_string();
        match self {
            Self::Io => super::tree::io(path, "do", "input/output error"),
            Self::NoSpace => VolumeError::NoSpace { path: name },
            Self::ReadOnly => VolumeError::ReadOnly { path: name },
            Self::TooManyOpenFiles => VolumeError::TooManyOpenFiles { path: name },
        }
    }
}

/// What becomes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepOutcome {
    /// It is done.
    Proceed,
    /// It is not done and answers an error. A sync that fails so loses its data for good: later
    /// syncs do not write it.
    Fail(StepFault),
    /// It is done and answers an error.
    FailAfter(StepFault),
    /// A write does its first bytes and answers an error; any other step is not done.
    FailPartly {
        /// How many bytes are written.
        bytes: u64,
        /// The error.
        fault: StepFault,
    },
    /// A rename or removal answers an error now and is executed by `MemoryVolume::run_late`, or
    /// never; any other step is not done.
    Late(StepFault),
    /// It is not done and never answers: the process stops before it.
    Stop,
    /// It is done and never answers: the process stops behind it.
    StopAfter,
}

/// What a step answered.
#[derive(Debug)]
pub enum StepAnswer<'a> {
    /// Success, with nothing to show.
    Done,
    /// A length, in bytes.
    Number(u64),
    /// The content that was read.
    Bytes(&'a Bytes),
    /// The names that were listed.
    Names(&'a [DirEntry]),
    /// A failure.
    Failed(&'a VolumeError),
}

/// Decides about every step of a mount.
pub trait StepHook: Send + Sync + Debug + 'static {
    /// Called before a step; the step waits for the future, and does what it says.
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome>;

    /// Called behind a step that answers.
    fn after(&self, step: &Step, answer: StepAnswer<'_>) {
        // Who only decides needs no answers.
        let (_, _) = (step, answer);
    }
}
