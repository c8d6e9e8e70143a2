//! Kafka Streams counts words. Each run of the program gets an empty directory, so what it counts
//! on from is the changelog alone.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::ensure;
use tests::flights::child::{Running, Streams, java_from, with};
use tests::process::cache_dir;

use super::{Scene, some};

const PARTITIONS: i32 = 4;
/// Words of each round of each partition.
const ROUND: usize = 1_000;
/// Different words.
const WORDS: usize = 40;

/// A program that counts.
fn counter(scene: &Scene<'_>, life: usize) -> anyhow::Result<Running> {
    let classes = cache_dir().join("clients/java");
    let state = scene.dir.join(format!("state-{life}"));
    let command = java_from(&classes, "WordCounts")?;
    let args = [
        &scene.address(),
        "counter",
        &state.display().to_string(),
        "words",
        "counts",
    ]
    .map(str::to_owned);
    Running::start("counter", with(command, args), Streams::Fed, scene.dir)
}

fn feed(scene: &mut Scene<'_>, all: &mut BTreeMap<String, u64>) -> anyhow::Result<()> {
    for partition in 0..PARTITIONS {
        let words: Vec<String> = (0..ROUND)
            .map(|_| format!("word-{}", scene.dice.usize(..WORDS)))
            .collect();
        for word in &words {
            *all.entry(word.clone()).or_default() += 1;
        }
        scene.produce("words", partition, &words)?;
    }
    Ok(())
}

fn count(dir: &Path) -> anyhow::Result<()> {
    // Compaction goes after every few rounds, in files as small as they may be.
    let mut scene = Scene::start(
        dir,
        &[
            ("group.initial.rebalance.delay.ms", "100"),
            ("log.cleaner.backoff.ms", "200"),
            ("log.cleaner.min.cleanable.ratio", "0"),
            ("log.retention.ms", "-1"),
        ],
    )?;
    for topic in ["words", "counts"] {
        scene.create(topic, PARTITIONS)?;
    }
    let mut expected = BTreeMap::new();
    let mut total = 0;
    let mut program = counter(&scene, 0)?;
    for life in 1..=scene.kills {
        feed(&mut scene, &mut expected)?;
        let round = ROUND * usize::try_from(PARTITIONS)?;
        let moment = total + some(&mut scene.dice, round / 2);
        scene.await_committed("counts", moment, &program)?;
        scene.restart_broker()?;
        let moment = moment + some(&mut scene.dice, round / 2);
        scene.await_committed("counts", moment, &program)?;
        program.kill()?;
        program = counter(&scene, life)?;
        total += round;
    }
    let found = scene.await_committed("counts", total, &program)?;
    // Every count of every word once and in order; with a result lost or repeated, or a state that
    // is not that of the last commit, a number would be left out or come again.
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for line in &found {
        let (word, count) = line.split_once('\t').unwrap_or_default();
        let last = seen.entry(word.to_owned()).or_default();
        ensure!(
            count.parse() == Ok(*last + 1),
            "{word}: {count} behind {last}"
        );
        *last += 1;
    }
    ensure!(seen == expected, "{seen:?}, not {expected:?}");
    scene.check_log()
}

#[test]
fn streams_count_exactly_once() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("streams-").tempdir()?;
    count(dir.path())
}
