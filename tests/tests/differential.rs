//! The scripts of the wire contract on Apache Kafka and on Fencepost: the differences are exactly
//! those of `tests/differential/known.toml`. Needs Java and Maven.

use tests::differential::{ALL, load, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_differences_are_exactly_the_known_ones() {
    let known = load().unwrap();
    let found = run(ALL).await.unwrap();
    let played: Vec<&str> = ALL.iter().map(|vector| vector.id).collect();
    let complaints = known.complaints(&played, &found);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
