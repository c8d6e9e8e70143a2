//! What retention and compaction look at, while there is nothing to be done: as good as nothing,
//! however much is stored.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::overtaken_tests::{HeldStore, append, lead, store};
use super::*;

const BATCHES: i64 = 200;
/// The time of the first batch; the others follow, one a ms.
const BEGAN_MS: i64 = 100_000_000;

async fn filled() -> (Arc<HeldStore>, Arc<Partition>) {
    let store = store().await;
    let led = lead(&store, 1).await;
    for n in 0..BATCHES {
        append(&led, None, BEGAN_MS + n).await;
    }
    (store, led)
}

#[tokio::test]
async fn retention_looks_at_one_piece_once_while_nothing_goes() {
    let (store, led) = filled().await;
    let told = || store.told.swap(0, Ordering::Relaxed);
    let rules = RetentionRules {
        retention_ms: 1_000,
        ..RetentionRules::default()
    };
    // The first batches are old enough already, but not those in the same segment behind them.
    for (since, expected) in [(500, 1), (1_001, 0), (1_150, 0)] {
        let looked = led.apply_retention(rules, BEGAN_MS + since).await;
        assert_eq!((looked, told()), (Ok(None), expected), "{since}");
    }
    // By size: each is less than that, and all are.
    let most = RetentionRules {
        retention_bytes: 1 << 30,
        ..rules
    };
    let looked = led.apply_retention(most, BEGAN_MS + 500).await;
    assert_eq!((looked, told()), (Ok(None), 0));
    // A segment that is smaller than what is old goes.
    let small = RetentionRules {
        segment_bytes: 1_000,
        ..rules
    };
    let looked = led.apply_retention(small, BEGAN_MS + 1_100).await;
    let start = looked.unwrap().unwrap();
    assert!((50..=100).contains(&start), "{start}");
    // From there on it is looked again, once.
    told();
    for expected in [1, 0] {
        let looked = led.apply_retention(rules, BEGAN_MS + 1_100).await;
        assert_eq!((looked, told()), (Ok(None), expected));
    }
    let end = BEGAN_MS + BATCHES;
    let looked = led.apply_retention(rules, end + 1_001).await;
    assert_eq!(looked, Ok(Some(BATCHES)));
}

#[tokio::test]
async fn compaction_looks_at_no_piece_while_too_little_is_new() {
    let (store, led) = filled().await;
    let told = || store.told.swap(0, Ordering::Relaxed);
    let pass = |min_dirty_ratio, max_lag_ms| CompactionPass {
        rules: CompactionRules {
            min_dirty_ratio,
            max_lag_ms,
            ..CompactionRules::default()
        },
        retention: RetentionRules::default(),
        budget: 1 << 20,
        may_seal: true,
    };
    for _ in 0..2 {
        let done = led.compact(pass(WHOLE, i64::MAX)).await;
        assert_eq!((done, told()), (Ok(None), 0));
    }
    // That nothing has waited too long, the first piece says, and it is asked once.
    let until_now = Env::real().clock.wall_ms() - BEGAN_MS;
    for expected in [1, 0] {
        let done = led.compact(pass(WHOLE, until_now + 3_600_000)).await;
        assert_eq!((done, told()), (Ok(None), expected));
    }
    let done = led.compact(pass(0, i64::MAX)).await;
    assert!(done.unwrap().is_some());
    assert!(told() > 1);
}

#[tokio::test]
async fn what_is_not_to_be_compacted_any_more_stays() {
    let pass = |min_lag_ms| CompactionPass {
        rules: CompactionRules {
            min_dirty_ratio: 0,
            min_lag_ms,
            ..CompactionRules::default()
        },
        retention: RetentionRules::default(),
        budget: 1 << 20,
        may_seal: true,
    };
    let (_, led) = filled().await;
    // What the configs are when it is looked at, and before anything goes.
    for (looked, then, goes) in [
        (Some(0), None, false),
        (Some(0), Some(5), false),
        (None, Some(0), false),
        (Some(0), Some(0), true),
    ] {
        let answers = Mutex::new(vec![then, looked]);
        let pass_of = |_: &Partition| answers.lock().pop().flatten().map(pass);
        let mut done = Vec::new();
        let mut tell = |_: &Partition, one: Result<Option<Compacted>, TrimError>| done.push(one);
        compact_together([Arc::clone(&led)], &pass_of, &mut tell).await;
        let gone = done.iter().any(|one| matches!(one, Ok(Some(_))));
        assert_eq!(gone, goes, "{looked:?}, {then:?}: {done:?}");
    }
}
