//! The kit judged by Apache Kafka: what fails here is the kit's fault. Needs Maven and Java.

use std::time::Duration;

use clap::Parser;
use tests::loadgen::{Args, Report, run};
use tests::oracle::apis::KAFKA_APIS;
use tests::oracle::{KafkaNode, OracleOptions};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};
use tests::wallclock::poll_until;

fn load(address: &str, command: &str) -> anyhow::Result<Report> {
    let mut line = vec!["loadgen"];
    line.extend(command.split_whitespace());
    line.extend(["--bootstrap", address]);
    run(&Args::try_parse_from(line)?)
}

#[test]
fn apache_kafka_accepts_the_load_and_survives_a_kill() {
    let mut node = KafkaNode::start(&OracleOptions::default()).unwrap();
    let address = node.address();

    let wrote = load(
        &address,
        "produce --topic t --partitions 3 --connections 2 --batches-per-request 2 \
         --batch-bytes 5000 --record-bytes 100 --bytes 2000000",
    )
    .unwrap();
    assert!(wrote.bytes >= 2_000_000, "{wrote:?}");
    let paced = load(
        &address,
        "produce --topic t --partitions 3 --batch-bytes 5000 --record-bytes 100 \
         --rate-mb 1 --seconds 1",
    )
    .unwrap();
    let read = load(
        &address,
        "fetch --topic t --partitions 3 --connections 2 --verify",
    )
    .unwrap();
    assert_eq!(read.records, wrote.records + paced.records);
    assert_eq!(read.bytes, wrote.bytes + paced.bytes);

    for version in [1, 2] {
        transactions(&address, version);
    }

    let missing = load(
        &address,
        "fetch --topic t --partitions 3 --bytes 0 --rate-mb 1",
    );
    assert!(missing.is_err());

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let advertised = runtime.block_on(async {
        let mut client = RawClient::connect(&address).await.unwrap();
        ops::api_versions(&mut client).await.unwrap()
    });
    let advertised: Vec<_> = advertised
        .iter()
        .map(|api| (api.api_key, api.min_version, api.max_version))
        .collect();
    let table = KAFKA_APIS.map(|(key, _, min, max)| (key, min, max));
    assert_eq!(
        advertised, table,
        "docs/compatibility.md compares with these"
    );

    node.process().kill().unwrap();
    node.restart().unwrap();
    assert_eq!(node.address(), address);
    let again = load(&address, "fetch --topic t --partitions 3 --verify").unwrap();
    assert_eq!(again.records, read.records);
    assert!(
        node.stop()
            .unwrap()
            .code()
            .is_some_and(|code| code == 143 || code == 0)
    );
}

/// Every transaction that the generator counts is in the logs: two records and a marker each.
fn transactions(address: &str, version: u8) {
    let shape = format!("--topic txn{version} --partitions 3 --connections 2");
    let ran = load(
        address,
        &format!(
            "transact {shape} --ids 7 --id-prefix txn{version} --transaction-records 2 \
             --transaction-version {version} --record-bytes 100 --warmup-seconds 2 --seconds 3"
        ),
    )
    .unwrap();
    assert!(ran.requests > 0 && ran.latency_ms.p50 > 0.0, "{ran:?}");
    let offsets = ran.all_records / 2 * 3;
    // Kafka writes markers behind its answers.
    let mut found = 0;
    let decided = poll_until(Duration::from_mins(2), Duration::from_millis(50), || {
        found = load(address, &format!("fetch {shape} --verify"))
            .unwrap()
            .records;
        found >= offsets
    });
    assert!(decided, "{found} of {offsets}");
    assert_eq!(found, offsets);
}

#[tokio::test]
async fn the_raw_client_hides_no_answer() {
    let node = tokio::task::spawn_blocking(|| KafkaNode::start(&OracleOptions::default()));
    let node = node.await.unwrap().unwrap();
    let mut client = RawClient::connect(node.address()).await.unwrap();
    assert!(
        ops::api_versions(&mut client)
            .await
            .unwrap()
            .iter()
            .any(|api| api.api_key == 0)
    );
    ops::create_topic(&mut client, "t", 1, &[("retention.ms", "-1")])
        .await
        .unwrap();
    let (producer_id, producer_epoch) = ops::init_producer_id(&mut client).await.unwrap();
    let batch = |base_sequence| {
        let records = vec![Record::value("a"), Record::value("b")];
        let spec = BatchSpec {
            producer_id,
            producer_epoch,
            base_sequence,
            records,
            ..BatchSpec::default()
        };
        spec.build()
    };
    for (sequence, code, offset) in [(0, 0, 0), (0, 0, 0), (2, 0, 2), (9, 45, -1)] {
        let answer = ops::produce(&mut client, "t", 0, batch(sequence))
            .await
            .unwrap();
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (code, offset),
            "{sequence}"
        );
    }
    assert_eq!(
        ops::list_offsets(&mut client, "t", 1, ops::LATEST)
            .await
            .unwrap(),
        [4]
    );

    // A frame that is no request closes the connection.
    client.send_frame(&[0xff; 16]).await.unwrap();
    assert!(client.receive_frame().await.unwrap().is_none());
}
