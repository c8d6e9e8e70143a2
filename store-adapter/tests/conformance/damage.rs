//! Points 14 to 16, of kv: flipped bits, files that are cut, missing, or of yesterday. The whole
//! shard is refused with its path, or serves what was sent; never a wrong batch, never less than
//! what was acknowledged.

use std::fs;
use std::path::{Path, PathBuf};

use store_adapter::conformance::full_or;

use crate::counts;
use crate::process::{FILLED, SINGLE, fill, start};
use crate::stores::{self, Layout};

const LAYOUT: Layout = Layout::Kv;

fn copy(from: &Path, to: &Path) {
    for path in stores::files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&path, target).unwrap();
    }
}

/// A store that was closed, or killed behind its last answer.
async fn written(killed: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    if killed {
        let mut child = start("fill", LAYOUT, dir.path(), 1);
        assert_eq!(child.line().as_deref(), Some("filled"));
        child.kill();
    } else {
        stores::close(fill(LAYOUT, dir.path(), 1).await).await;
    }
    let refused = damaged(dir.path(), "nothing", |_| ());
    assert!(!refused);
    dir
}

/// What became of a damaged store, as a process of its own finds it.
fn judge(dir: &Path, what: &str) -> bool {
    counts::FLIPS.add(1);
    let said = start("judge", LAYOUT, dir, 0).line();
    let said = said.unwrap_or_else(|| panic!("{what}: no word, a panic or an end"));
    let whole = vec![format!("{} {}", FILLED.start, FILLED.end); SINGLE.len()].join(" ");
    let refused = said.starts_with("corrupt __store/shard-0/kv");
    assert!(said == whole || refused, "{what}: {said}");
    refused
}

fn damaged(from: &Path, what: &str, damage: impl FnOnce(&Path)) -> bool {
    let dir = tempfile::tempdir().unwrap();
    copy(from, dir.path());
    damage(dir.path());
    judge(dir.path(), what)
}

/// The store's files: name and bytes.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let root = dir.join("__store");
    let files = stores::files(&root).into_iter();
    files
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path.strip_prefix(dir).unwrap().to_owned(), bytes)
        })
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect()
}

/// Seeded bits of every file are flipped, one at a time.
pub(crate) async fn flips(_: Layout) {
    let mut random = fastrand::Rng::with_seed(15);
    let mut refusals = 0;
    for killed in [false, true] {
        let from = written(killed).await;
        let files = files(from.path());
        for n in 0..full_or(1000, 50) {
            // Every third in one of the small files.
            let small = n % 3 == 0;
            let of: Vec<_> = files
                .iter()
                .filter(|(path, _)| path.ends_with("db") != small)
                .collect();
            let (path, bytes) = of[random.usize(0..of.len())];
            let mut at = random.usize(0..bytes.len());
            // Most of the large file is empty; a bit there is worth less.
            while bytes[at] == 0 {
                at = random.usize(0..bytes.len());
            }
            let bit = random.u32(0..8);
            let what = format!("bit {bit} of byte {at} of {}, flip {n}", path.display());
            refusals += u32::from(damaged(from.path(), &what, |dir| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                fs::write(dir.join(path), bytes).unwrap();
            }));
        }
    }
    println!("15 kv: {refusals} flips refused, the others changed nothing");
}

/// Files cut at seeded lengths, gone, empty, or as they were before more was acknowledged.
pub(crate) async fn cuts_and_losses(_: Layout) {
    let mut random = fastrand::Rng::with_seed(14);
    for killed in [false, true] {
        let from = written(killed).await;
        for (path, bytes) in files(from.path()) {
            let large = path.ends_with("db");
            for n in 0..full_or(100, if large { 12 } else { 3 }) {
                let used = bytes
                    .iter()
                    .rposition(|byte| *byte != 0)
                    .map_or(0, |at| at + 1);
                let len = if n == 0 { 0 } else { random.usize(0..used) };
                let what = format!("{} cut at {len} of {}", path.display(), bytes.len());
                let refused = damaged(from.path(), &what, |dir| {
                    fs::write(dir.join(&path), &bytes[..len]).unwrap();
                });
                assert!(refused || !large || len * 2 > used, "{what}: served");
            }
            let what = format!("{} gone", path.display());
            let refused = damaged(from.path(), &what, |dir| {
                fs::remove_file(dir.join(&path)).unwrap();
            });
            let needed = path.ends_with("db") || path.ends_with("rounds");
            assert!(refused || !needed, "{what}: served");
        }
    }
    yesterday().await;
}

/// A database of before the last acknowledged rounds is known by the file that counts them.
async fn yesterday() {
    let dir = tempfile::tempdir().unwrap();
    let store = stores::open(LAYOUT, dir.path(), 1).await;
    stores::add(&store, 0).await;
    store.submit(vec![stores::append(0, 0)]).await.unwrap();
    stores::close(store).await;
    let old = tempfile::tempdir().unwrap();
    copy(&dir.path().join("__store/shard-0/kv/sled"), old.path());
    let store = stores::open(LAYOUT, dir.path(), 2).await;
    store.submit(vec![stores::append(0, 1)]).await.unwrap();
    stores::close(store).await;
    let sled = dir.path().join("__store/shard-0/kv/sled");
    fs::remove_dir_all(&sled).unwrap();
    copy(old.path(), &sled);
    counts::FLIPS.add(1);
    let said = start("judge", LAYOUT, dir.path(), 0).line().unwrap();
    assert!(said.contains("was acknowledged"), "{said}");
}
