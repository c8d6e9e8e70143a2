//! The tree of a memory volume: names as the cache shows them, and as the disk would keep them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::content::Content;
use super::hook::{Step, StepOp};
use crate::volume::{DirEntry, Space, VolumeError, VolumePath};

/// The longest file, bytes.
const FILE_MAX: u64 = 1 << 32;
/// Name changes that wait for an fsync. Half of them reach the disk by themselves above it, as
/// a kernel's write-back does.
const WAITING_MAX: usize = 4096;
/// Bytes in all, unless said otherwise.
const TOTAL: u64 = 1 << 40;

type DirId = u64;
/// A name in a directory.
type Name = (DirId, String);

/// A file, apart from its names.
#[derive(Debug, Default)]
pub(super) struct File {
    content: Content,
    /// Whether a name leads to it, so that its bytes count as used.
    linked: bool,
}

pub(super) type FileRef = Arc<Mutex<File>>;

#[derive(Debug, Clone)]
enum Node {
    File(FileRef),
    Dir(DirId),
}

#[derive(Debug, Default)]
struct Dir {
    live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
}

/// A change of names that is not durable yet. A rename is one change: a crash leaves the state
/// before it or after it.
#[derive(Debug)]
struct Change {
    gone: Option<Name>,
    new: Option<(Name, Node)>,
}

impl Change {
    fn names(&self) -> impl Iterator<Item = &Name> {
        self.gone
            .iter()
            .chain(self.new.as_ref().map(|(name, _)| name))
    }
}

/// All of a memory volume.
#[derive(Debug)]
pub(super) struct Tree {
    dirs: BTreeMap<DirId, Dir>,
    next_dir: DirId,
    waiting: VecDeque<Change>,
    /// Renames and removals that were answered by an error and are not executed yet.
    pub(super) late: Vec<Step>,
    /// Grows with each power cut.
    pub(super) generation: u64,
    total: u64,
    used: u64,
}

const ROOT: DirId = 0;

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            next_dir: ROOT + 1,
            waiting: VecDeque::new(),
            late: Vec::new(),
            generation: 0,
            total: TOTAL,
            used: 0,
        }
    }

    pub(super) fn set_total(&mut self, total: u64) {
        self.total = total;
    }

    pub(super) fn space(&self) -> Space {
        Space {
            free: self.total.saturating_sub(self.used),
            total: self.total,
        }
    }

    fn live(&self, dir: DirId) -> Option<&BTreeMap<String, Node>> {
        self.dirs.get(&dir).map(|dir| &dir.live)
    }

    fn lookup(&self, path: &VolumePath) -> Result<Node, VolumeError> {
        let mut node = Node::Dir(ROOT);
        for name in path.as_str().split('/').filter(|name| !name.is_empty()) {
            let Node::Dir(id) = node else {
                return Err(io(path, "look up", "not a directory"));
            };
            let found = self.live(id).and_then(|names| names.get(name)).cloned();
            node = found.ok_or_else(|| not_found(path))?;
        }
        Ok(node)
    }

    fn lookup_dir(&self, path: &VolumePath) -> Result<DirId, VolumeError> {
        match self.lookup(path)? {
            Node::Dir(id) => Ok(id),
            Node::File(_) => Err(io(path, "look up", "not a directory")),
        }
    }

    pub(super) fn file(&self, path: &VolumePath) -> Result<FileRef, VolumeError> {
        match self.lookup(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(io(path, "open", "is a directory")),
        }
    }

    fn split(&self, path: &VolumePath) -> Result<Name, VolumeError> {
        match self.lookup_dir(&path.parent()) {
            Ok(dir) => Ok((dir, path.file_name().to_owned())),
            Err(VolumeError::NotFound { .. }) => Err(not_found(path)),
            Err(error) => Err(error),
        }
    }

    /// Changes names in the cache, and notes the change for the disk.
    fn change(&mut self, gone: Option<Name>, new: Option<(Name, Node)>) {
        if let Some((dir, name)) = &gone
            && let Some(dir) = self.dirs.get_mut(dir)
        {
            dir.live.remove(name);
        }
        if let Some(((dir, name), node)) = &new
            && let Some(dir) = self.dirs.get_mut(dir)
        {
            dir.live.insert(name.clone(), node.clone());
        }
        self.waiting.push_back(Change { gone, new });
        if self.waiting.len() > WAITING_MAX {
            for change in self.waiting.drain(..WAITING_MAX / 2) {
                apply(&mut self.dirs, change);
            }
        }
    }

    pub(super) fn create(&mut self, path: &VolumePath) -> Result<FileRef, VolumeError> {
        let name = self.split(path)?;
        if self.lookup(path).is_ok() {
            let path = path.to_string();
            return Err(VolumeError::AlreadyExists { path });
        }
        let file = FileRef::default();
        file.lock().linked = true;
        self.change(None, Some((name, Node::File(file.clone()))));
        Ok(file)
    }

    fn unlinked(&mut self, file: &FileRef) {
        let mut file = file.lock();
        file.linked = false;
        self.used = self.used.saturating_sub(file.content.len() as u64);
    }

    pub(super) fn rename(&mut self, from: &VolumePath, to: &VolumePath) -> Result<(), VolumeError> {
        let file = self.file(from)?;
        let (old, new) = (self.split(from)?, self.split(to)?);
        if old == new {
            return Ok(());
        }
        match self.lookup(to) {
            Ok(Node::Dir(_)) => return Err(io(to, "rename", "is a directory")),
            Ok(Node::File(replaced)) => self.unlinked(&replaced),
            Err(_) => {}
        }
        self.change(Some(old), Some((new, Node::File(file))));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &VolumePath) -> Result<(), VolumeError> {
        let file = self.file(path)?;
        let name = self.split(path)?;
        self.unlinked(&file);
        self.change(Some(name), None);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &VolumePath) -> Result<(), VolumeError> {
        let dir = self.lookup_dir(path)?;
        if dir == ROOT || self.live(dir).is_some_and(|names| !names.is_empty()) {
            return Err(io(path, "remove directory", "not empty"));
        }
        let name = self.split(path)?;
        self.change(Some(name), None);
        Ok(())
    }

    pub(super) fn list(&self, path: &VolumePath) -> Result<Vec<DirEntry>, VolumeError> {
        let dir = self.lookup_dir(path)?;
        let names = self.live(dir).into_iter().flatten();
        Ok(names
            .map(|(name, node)| DirEntry {
                name: name.clone(),
                is_dir: matches!(node, Node::Dir(_)),
            })
            .collect())
    }

    pub(super) fn create_dirs(&mut self, path: &VolumePath) -> Result<(), VolumeError> {
        let mut above = VolumePath::root();
        for name in path.as_str().split('/').filter(|name| !name.is_empty()) {
            let next = above.join(name);
            match self.lookup_dir(&next) {
                Ok(_) => {}
                Err(VolumeError::NotFound { .. }) => {
                    let id = self.next_dir;
                    self.next_dir += 1;
                    self.dirs.insert(id, Dir::default());
                    let name = self.split(&next)?;
                    self.change(None, Some((name, Node::Dir(id))));
                }
                Err(error) => return Err(error),
            }
            self.sync_dir(&above)?;
            above = next;
        }
        Ok(())
    }

    /// Makes the changes in `path` durable, with those that they build on.
    pub(super) fn sync_dir(&mut self, path: &VolumePath) -> Result<(), VolumeError> {
        let dir = self.lookup_dir(path)?;
        self.persist(|change| change.names().any(|(id, _)| *id == dir));
        Ok(())
    }

    /// Makes the changes durable that `chosen` picks, and every earlier one of the same names.
    fn persist(&mut self, mut chosen: impl FnMut(&Change) -> bool) {
        let mut needed: BTreeSet<Name> = BTreeSet::new();
        let mut durable = vec![false; self.waiting.len()];
        for (index, change) in self.waiting.iter().enumerate().rev() {
            if chosen(change) || change.names().any(|name| needed.contains(name)) {
                durable[index] = true;
                needed.extend(change.names().cloned());
            }
        }
        if needed.is_empty() {
            return;
        }
        for (index, change) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            if durable[index] {
                apply(&mut self.dirs, change);
            } else {
                self.waiting.push_back(change);
            }
        }
    }

    /// Writes at most `limit` bytes of `parts`.
    pub(super) fn write(
        &mut self,
        path: &VolumePath,
        file: &FileRef,
        offset: u64,
        parts: &[Bytes],
        limit: u64,
    ) -> Result<(), VolumeError> {
        let mut file = file.lock();
        let (mut at, mut left) = (offset, limit);
        for part in parts {
            let take = left.min(part.len() as u64);
            let end = at.checked_add(take).filter(|end| *end <= FILE_MAX);
            let (Some(end), Ok(start)) = (end, usize::try_from(at)) else {
                return Err(io(path, "write", "file too large"));
            };
            let growth = end.saturating_sub(file.content.len() as u64);
            if file.linked && self.used.saturating_add(growth) > self.total {
                let path = path.to_string();
                return Err(VolumeError::NoSpace { path });
            }
            if take > 0 {
                let kept = usize::try_from(take).unwrap_or(usize::MAX);
                file.content.write(start, part.slice(..kept));
                self.used += if file.linked { growth } else { 0 };
            }
            (at, left) = (end, left - take);
        }
        Ok(())
    }

    pub(super) fn allocate(
        &self,
        path: &VolumePath,
        file: &FileRef,
        len: u64,
    ) -> Result<(), VolumeError> {
        let more = len.saturating_sub(file.lock().content.len() as u64);
        if self.used.saturating_add(more) > self.total {
            let path = path.to_string();
            return Err(VolumeError::NoSpace { path });
        }
        Ok(())
    }

    /// Executes a rename or removal that was answered by an error before.
    pub(super) fn run_late(&mut self, index: usize) -> Result<(), VolumeError> {
        if index >= self.late.len() {
            return Err(not_found(&VolumePath::root()));
        }
        let step = self.late.remove(index);
        match (step.op, &step.to) {
            (StepOp::Rename, Some(to)) => self.rename(&step.path, to),
            _ => self.remove(&step.path),
        }
    }

    /// The power is cut: what is not durable survives or not, by `seed`. Every mount and handle
    /// is dead afterwards.
    pub(super) fn power_cut(&mut self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        match rng.u8(0..4) {
            0 => {}
            1 => self.persist(|_| true),
            2 => {
                // `persist` looks from the newest to the oldest.
                let mut lost = rng.usize(0..=self.waiting.len());
                self.persist(|_| {
                    let kept = lost == 0;
                    lost = lost.saturating_sub(1);
                    kept
                });
            }
            _ => self.persist(|_| rng.bool()),
        }
        self.waiting.clear();
        self.late.clear();
        self.generation += 1;
        self.used = 0;
        let mut old = std::mem::take(&mut self.dirs);
        let mut reached = VecDeque::from([ROOT]);
        while let Some(id) = reached.pop_front() {
            let names = old.remove(&id).unwrap_or_default().durable;
            let names: BTreeMap<String, Node> = names
                .into_iter()
                .map(|(name, node)| (name, self.revive(node, &mut rng)))
                .collect();
            reached.extend(names.values().filter_map(|node| match node {
                Node::Dir(id) => Some(*id),
                Node::File(_) => None,
            }));
            let dir = Dir {
                live: names.clone(),
                durable: names,
            };
            self.dirs.insert(id, dir);
        }
    }

    fn revive(&mut self, node: Node, rng: &mut fastrand::Rng) -> Node {
        let Node::File(file) = node else {
            return node;
        };
        let disk = file.lock().content.after_power_cut(rng);
        self.used += disk.len() as u64;
        Node::File(Arc::new(Mutex::new(File {
            content: Content::durable(disk),
            linked: true,
        })))
    }

    /// A hash of every name and byte that the cache shows, and of what is late.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash_dir(ROOT, &mut hasher);
        self.late.hash(&mut hasher);
        hasher.finish()
    }

    fn hash_dir(&self, dir: DirId, hasher: &mut DefaultHasher) {
        for (name, node) in self.live(dir).into_iter().flatten() {
            name.hash(hasher);
            match node {
                Node::File(file) => file.lock().content.bytes().hash(hasher),
                Node::Dir(id) => self.hash_dir(*id, hasher),
            }
        }
        // Closes the directory.
        0xff_u8.hash(hasher);
    }
}

impl File {
    pub(super) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Bytes {
        self.content
            .read(usize::try_from(offset).unwrap_or(usize::MAX), len)
    }

    pub(super) fn sync(&mut self) {
        self.content.sync();
    }

    pub(super) fn fail_sync(&mut self) {
        self.content.fail_sync();
    }
}

fn apply(dirs: &mut BTreeMap<DirId, Dir>, change: Change) {
    if let Some((dir, name)) = change.gone
        && let Some(dir) = dirs.get_mut(&dir)
    {
        dir.durable.remove(&name);
    }
    if let Some(((dir, name), node)) = change.new
        && let Some(dir) = dirs.get_mut(&dir)
    {
        dir.durable.insert(name, node);
    }
}

pub(super) fn not_found(path: &VolumePath) -> VolumeError {
    VolumeError::NotFound {
        path: path.to_string(),
    }
}

pub(super) fn io(path: &VolumePath, what: &'static str, cause: &str) -> VolumeError {
    VolumeError::Io {
        path: path.to_string(),
        what,
        cause: cause.to_owned(),
    }
}
