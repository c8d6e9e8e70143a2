//! Points 8, 12 and 18 by processes: killed in the middle of pipelined appends, groups over several
//! logs, trims, and compaction.

use store_adapter::conformance::full_or;

use crate::process::{COMPACTED, SINGLE, Store, TOGETHER, start};
use crate::stores::{self, Layout};

/// Everything that a killed process showed or acknowledged is there, trims too, of a group over
/// three logs all or nothing, and of the log that was being compacted all that stays.
pub(crate) async fn killed_processes(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(layout as u64);
    let mut instance = 1;
    let (mut compacted, mut all_gone) = (0, 0);
    for round in 0..full_or(200, 50) {
        let mut child = start("write", layout, dir.path(), instance);
        instance += 1;
        let mut last = None;
        if round % 10 > 0 {
            assert_eq!(child.line().as_deref(), Some("ready"), "round {round}");
            if round % 3 == 0 {
                // In others it may not come to that.
                child.await_line("compacted");
                compacted += 1;
            }
            for _ in 0..random.u32(1..60) {
                last = child.line();
                assert!(last.is_some(), "round {round}: the child ended");
            }
        }
        // A last line may be torn by the kill; the one before it is not.
        let said: Vec<String> = last.into_iter().chain(child.kill()).collect();
        let whole = |line: &&String| line.split(' ').count() == 12;
        let acked: Vec<i64> = said
            .iter()
            .rev()
            .skip(usize::from(said.len() > 1))
            .find(whole)
            .map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect())
            .unwrap_or_default();
        let store = stores::open(layout, dir.path(), instance).await;
        instance += 1;
        let mut together = Vec::new();
        for partition in SINGLE.chain(TOGETHER) {
            if store.bounds(stores::log(partition)).is_none() {
                // Killed before it was made.
                assert!(acked.is_empty());
                continue;
            }
            let bounds = if partition == COMPACTED {
                let (bounds, gone) = stores::check_thirds(&store, partition).await.unwrap();
                all_gone += gone;
                bounds
            } else {
                stores::check(&store, partition).await.unwrap()
            };
            if let [start, end] = acked.chunks(2).nth(partition as usize).unwrap_or_default() {
                assert!(
                    bounds.start >= *start && bounds.end >= *end,
                    "round {round}"
                );
            }
            if TOGETHER.contains(&partition) {
                together.push(bounds.end);
            }
        }
        assert!(
            together.windows(2).all(|pair| pair[0] == pair[1]),
            "{together:?}"
        );
        trim(&store).await;
        stores::close(store).await;
    }
    println!(
        "12 {}: {compacted} killed behind a compaction and in the next, {all_gone} batches gone",
        layout.name()
    );
    assert!(compacted > 10 && all_gone > 0, "{compacted}");
}

/// What is kept stays small, so that the rounds do.
async fn trim(store: &Store) {
    for partition in SINGLE.chain(TOGETHER) {
        if let Some(bounds) = store.bounds(stores::log(partition)) {
            stores::add(store, partition).await;
            let start = (bounds.end - 20).max(bounds.start);
            store
                .submit(vec![stores::trim(partition, start)])
                .await
                .unwrap();
        }
    }
}
