use std::sync::Arc;
use std::sync::atomic::Ordering;

use coordinator::machine::txn::{OwedEntry, TxnState};
use coordinator::service::txns::{SlotGap, SlotState};
use coordinator::volume::format::HistoryLine;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::double::{Double, HOSTILE, NOW, Site, entry, ongoing, pid};

fn ids(list: &Value) -> Vec<&str> {
    let list = list["transactions"].as_array().unwrap().iter();
    list.map(|one| one["transactionalId"].as_str().unwrap())
        .collect()
}

pub(super) fn path_of(id: &str) -> String {
    let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
    format!("/api/v1/transactions/{id}")
}

#[tokio::test]
async fn filters_are_combined_and_wrong_ones_are_refused() {
    let site = Site::new(Double::new());
    let everything = [HOSTILE, "done", "open", "prepared"];
    for (query, expected) in [
        ("", &everything[..]),
        ("sort=-age", &[HOSTILE, "open", "prepared", "done"]),
        ("state=Ongoing", &[HOSTILE, "open"]),
        (
            "state=Ongoing&state=PrepareCommit",
            &[HOSTILE, "open", "prepared"],
        ),
        ("state=Ongoing&id_prefix=o", &["open"]),
        ("id_contains=%3Cscript%3E", &[HOSTILE]),
        ("producer_id=1099511627777", &["open"]),
        ("topic=orders&partition=2", &[HOSTILE]),
        ("topic=orders", &[HOSTILE, "open", "prepared"]),
        ("topic=none", &[]),
        ("id_pattern=open&state=Ongoing", &["open"]),
        ("id_pattern=", &everything),
        ("coordinator=0&state=Empty", &[]),
        ("coordinator=1", &[]),
        // Strictly older; what never began passes; negative is off.
        ("min_age_ms=50000", &[HOSTILE, "done"]),
        ("min_age_ms=49999", &[HOSTILE, "done", "open"]),
        ("min_age_ms=-1", &everything),
        ("overdue=true", &[HOSTILE]),
    ] {
        let answer = site.get(&format!("/api/v1/transactions?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text);
        let list = answer.json();
        assert_eq!(ids(&list), expected, "{query}");
        assert_eq!(list["matched"], expected.len(), "{query}");
        assert_eq!(list["source"], "owner");
        assert_eq!(list["asOf"], "2026-09-21T14:14:20.000Z");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    for (query, name) in [
        ("state=ongoing", "state"),
        ("states=Ongoing", "states"),
        ("partition=1", "partition"),
        ("sort=state", "sort"),
        ("id_pattern=(", "id_pattern"),
        ("page_size=0", "page_size"),
        ("min_age_ms=1s", "min_age_ms"),
        ("producer_id=x", "producer_id"),
        ("producer_id=-1", "producer_id"),
        ("topic=orders&partition=-1", "partition"),
        ("coordinator=-1", "coordinator"),
        ("id_prefix=%ff", "id_prefix"),
    ] {
        let answer = site.get(&format!("/api/v1/transactions?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.json()["invalidParams"][0]["name"], name, "{query}");
    }
}

/// Ids of 10,000 transactions, of which every second is open.
fn many() -> Double {
    let double = Double::default();
    for n in 0..10_000 {
        let state = if n % 2 == 0 {
            TxnState::Ongoing
        } else {
            TxnState::Empty
        };
        let mut entry = entry(n, state);
        entry.start_ms = (n % 2 == 0).then_some(NOW - n % 100);
        let id = format!("tx {n}/\u{1f980}").into();
        double.ids.lock().insert(id, entry);
    }
    double
}

#[tokio::test]
async fn pages_have_every_id_once_and_links_lead_on() {
    let site = Site::new(many());
    for (query, count, pages) in [
        ("page_size=1000&sort=id", 10_000, 10),
        ("page_size=999&sort=-age", 10_000, 11),
        ("page_size=1000&state=Ongoing&sort=-age", 5_000, 5),
        ("page_size=1000&id_prefix=tx%201", 1_111, 2),
    ] {
        let mut next = Some(format!("/api/v1/transactions?{query}"));
        let (mut seen, mut asked) = (Vec::new(), 0);
        while let Some(path) = next {
            let answer = site.get(&path).await;
            let list = answer.json();
            assert_eq!(list["matched"], count, "{path}");
            seen.extend(ids(&list).into_iter().map(str::to_owned));
            next = answer.next();
            assert_eq!(next.is_some(), list.get("nextPageToken").is_some());
            asked += 1;
        }
        let (first, last) = (seen[0].clone(), seen[count - 1].clone());
        if query.contains("sort=-age") {
            // The longest open of the smallest name.
            assert_eq!(first, "tx 1098/\u{1f980}");
        } else {
            assert!(seen.is_sorted(), "{first} {last}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!((seen.len(), asked), (count, pages), "{query}");
    }
    let list = site.get("/api/v1/transactions?page_size=1").await.json();
    assert_eq!(list["byState"], json!({"Empty": 5_000, "Ongoing": 5_000}));
    // A token of another order is not taken for one of this.
    let token = list["nextPageToken"].as_str().unwrap();
    let other = format!("/api/v1/transactions?sort=-age&page_token={token}");
    assert_eq!(site.get(&other).await.status, 400);
}

#[tokio::test]
async fn one_id_says_what_it_does_and_what_comes_next() {
    let site = Site::new(Double::new());
    let answer = site.get("/api/v1/transactions/open").await;
    let one = answer.json();
    assert_eq!(answer.headers["etag"].to_str().unwrap(), one["etag"]);
    assert_eq!(one["state"], "Ongoing");
    assert_eq!(one["producerId"], pid(1));
    assert_eq!(one["ageMs"], 50_000);
    assert_eq!(one["deadlineMs"], NOW + 10_000);
    assert_eq!(one["next"]["action"], "abort-by-timeout");
    assert_eq!(one["next"]["atMs"], NOW + 10_000);
    assert_eq!(one["client"]["software"], "librdkafka 2");
    let on = &one["partitionStates"][0];
    assert_eq!(on["holdsLastStableOffset"], true);
    assert_eq!(
        (&on["firstOffset"], &on["highWatermark"]),
        (&json!(0), &json!(6))
    );
    let prepared = site.get("/api/v1/transactions/prepared").await.json();
    assert_eq!(prepared["next"]["action"], "write-markers");
    // Hostile names come back as they are.
    let hostile = site.get(&path_of(HOSTILE)).await.json();
    assert_eq!(hostile["transactionalId"], HOSTILE);
    for unknown in [path_of("nobody"), path_of("open/abort"), path_of("..%2f")] {
        assert_eq!(site.get(&unknown).await.status, 404, "{unknown}");
    }
    assert_eq!(
        site.get("/api/v1/transactions/%ff").await.json()["status"],
        400
    );
    assert_eq!(
        site.get("/api/v1/transactions/open?x=1").await.json()["status"],
        400
    );
}

#[tokio::test]
async fn what_a_damaged_slot_has_is_said_to_be_missing() {
    let gap = SlotGap {
        slot: 7,
        state: SlotState::Damaged,
    };
    let site = Site::new(Double {
        gaps: vec![gap],
        ..Double::new()
    });
    let list = site.get("/api/v1/transactions").await.json();
    assert_eq!(
        list["missingSlots"],
        json!([{"slot": 7, "state": "damaged"}])
    );
    let answer = site.get("/api/v1/transactions/damaged").await;
    let problem = answer.json();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(problem["kafkaErrorCode"], 15);
    assert_eq!(problem["kafkaErrorName"], "COORDINATOR_NOT_AVAILABLE");
    assert!(problem["detail"].as_str().unwrap().contains("slot 7"));
    // An open transaction that no coordinator owns up to may be of that slot.
    let lso = site
        .get("/api/v1/topics/orders/partitions/3/lso")
        .await
        .json();
    assert_eq!(lso["holder"]["standing"], "unknown");
    assert_eq!(lso["missingSlots"][0]["slot"], 7);
}

#[tokio::test]
async fn the_last_stable_offset_is_explained() {
    let site = Site::new(Double::new());
    let ask = async |partition: i32| {
        let path = format!("/api/v1/topics/orders/partitions/{partition}/lso");
        site.get(&path).await.json()
    };
    let open = ask(0).await;
    assert_eq!(
        (&open["lastStableOffset"], &open["heldBack"]),
        (&json!(0), &json!(6))
    );
    assert_eq!(open["holder"]["transactionalId"], "open");
    assert_eq!(open["holder"]["standing"], "ongoing");
    assert_eq!(open["holder"]["startMs"], NOW - 50_000);
    assert_eq!(open["holder"]["client"]["address"], "10.0.0.7:52114");
    assert_eq!(open["openTransactions"][1]["standing"], "hanging");
    assert_eq!(
        open["summary"],
        "6 offsets are held back by an open transaction of \"open\" (producer 1099511627777), open \
         for 50 s, which began at offset 0 here; unless its client ends it, it is aborted by \
         timeout in 10 s."
    );
    assert_eq!(
        open["remedies"][1]["request"],
        "POST /api/v1/transactions/open/abort"
    );
    let deciding = ask(1).await;
    assert_eq!(deciding["holder"]["standing"], "deciding");
    assert_eq!(
        deciding["remedies"][0]["request"],
        "POST /api/v1/reconcile/run"
    );
    let hostile = ask(2).await;
    let remedy = &hostile["remedies"][1];
    assert_eq!(
        remedy["request"],
        format!("POST {}/abort", path_of_segment(HOSTILE))
    );
    // It can't be typed safely.
    assert!(remedy.get("command").is_none());
    let hanging = ask(3).await;
    assert_eq!(hanging["holder"]["standing"], "hanging");
    assert_eq!(hanging["holder"]["next"]["action"], "nothing");
    assert_eq!(
        hanging["remedies"][0]["command"],
        "fencepost txn -b 127.0.0.1:9092 abort --topic orders --partition 3 --start-offset 0"
    );
    let quiet = ask(4).await;
    assert_eq!((&quiet["heldBack"], quiet.get("holder")), (&json!(0), None));
    for (path, status) in [
        ("/api/v1/topics/orders/partitions/9/lso", 404),
        ("/api/v1/topics/orders/partitions/-1/lso", 404),
        ("/api/v1/topics/orders/partitions/x/lso", 400),
        ("/api/v1/topics/..%2F..%2Fetc/partitions/0/lso", 404),
        ("/api/v1/topics/damaged/partitions/0/lso", 503),
        ("/api/v1/topics/offline/partitions/0/producers", 503),
    ] {
        assert_eq!(site.get(path).await.json()["status"], status, "{path}");
    }
}

#[tokio::test]
async fn why_a_decision_is_not_carried_out_is_told_wherever_it_is_shown() {
    let site = Site::new(Double {
        why_stuck: Some("the offsets of group \"g\": it is damaged".into()),
        ..Double::new()
    });
    let text = "it is not carried out: the offsets of group \"g\": it is damaged; what fails is \
                tried again by every reconcile pass";
    let one = site.get("/api/v1/transactions/prepared").await.json();
    let list = "/api/v1/transactions?id_prefix=prepared";
    let list = site.get(list).await.json();
    let lso = "/api/v1/topics/orders/partitions/1/lso";
    let lso = site.get(lso).await.json();
    for shown in [&one, &list["transactions"][0], &lso["holder"]] {
        assert_eq!(shown["next"]["action"], "write-markers", "{shown}");
        assert_eq!(shown["next"]["text"], text);
    }
    // What is open is not stuck.
    let open = site.get("/api/v1/transactions/open").await.json();
    assert_eq!(open["next"]["action"], "abort-by-timeout");
}

#[tokio::test]
async fn no_age_is_negative_where_the_clock_has_stepped_back() {
    let double = Double::new();
    let later = ongoing(1, "orders", 0, -5_000);
    double.ids.lock().insert("open".into(), later);
    let site = Site::new(double);
    let one = site.get("/api/v1/transactions/open").await.json();
    assert_eq!(
        (&one["startMs"], &one["ageMs"]),
        (&json!(NOW + 5_000), &json!(0))
    );
    let lso = "/api/v1/topics/orders/partitions/0/lso";
    let lso = site.get(lso).await.json();
    assert_eq!(lso["holder"]["ageMs"], 0);
}

/// What stays as it is where as little as may be is escaped.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn path_of_segment(id: &str) -> String {
    format!("/api/v1/transactions/{}", utf8_percent_encode(id, PLAIN))
}

#[tokio::test]
async fn producers_show_their_windows() {
    let site = Site::new(Double::new());
    let path = "/api/v1/topics/orders/partitions/0/producers";
    let all = site.get(path).await.json();
    assert_eq!(all["matched"], 2);
    let one = site
        .get(&format!("{path}?producer_id={}", pid(9)))
        .await
        .json();
    let producer = &one["producers"][0];
    assert_eq!(
        producer["window"],
        json!([{"firstSequence": 0, "lastSequence": 2, "baseOffset": 3, "lastOffset": 5,
                "timestampMs": NOW - 50_000}])
    );
    assert_eq!(producer["currentTxnStartOffset"], 3);
    assert!(producer.get("expiresMs").is_none());
    let first = site
        .get(&format!("{path}?page_size=1&open=true"))
        .await
        .json();
    let token = first["nextPageToken"].as_str().unwrap();
    let second = site
        .get(&format!("{path}?page_size=1&open=true&page_token={token}"))
        .await;
    assert_eq!(second.json()["producers"][0]["producerId"], pid(9));
}

#[tokio::test]
async fn files_of_brokers_are_shown_and_so_is_their_damage() {
    let site = Site::new(Double::new());
    let fences = site.get("/api/v1/fences?producer_id=7").await.json();
    assert_eq!(fences["source"], "file");
    assert_eq!(
        fences["brokers"][0]["fences"],
        json!([{"producerId": 7, "producerEpoch": 3, "seenMs": 5}])
    );
    assert_eq!(fences["brokers"][0]["count"], 2);
    assert_eq!(fences["brokers"][1]["error"], "torn");
    let queue = site.get("/api/v1/marker-queue?broker=1").await.json();
    let counts = (&queue["waiting"], &queue["confirmed"], &queue["notShown"]);
    assert_eq!(counts, (&json!(1), &json!(1), &json!(5)));
    assert_eq!(queue["entries"][0]["ageMs"], 3_000);
    assert_eq!(queue["entries"][1]["txnSeq"], 3);
    let none = site.get("/api/v1/marker-queue?broker=2").await.json();
    assert_eq!(none["entries"], json!([]));
    let blocks = site.get("/api/v1/producer-ids").await.json();
    assert_eq!(blocks["brokers"][0]["nextProducerId"], pid(3_000));
}

#[tokio::test]
async fn a_group_shows_what_is_staged() {
    let site = Site::new(Double::new());
    let group = site.get("/api/v1/groups/g%2F1/offsets").await.json();
    assert_eq!(group["group"], "g/1");
    let offset = &group["offsets"][0];
    assert_eq!(
        (&offset["offset"], &offset["pending"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(
        (&offset["lag"], &offset["lagToLastStable"]),
        (&json!(5), &json!(0))
    );
    let pending = &group["pending"][0];
    assert_eq!(pending["transactionalId"], "open");
    assert_eq!(pending["offsets"][0]["offset"], 3);
    assert_eq!(
        site.get("/api/v1/groups/none/offsets").await.json()["status"],
        404
    );
    assert_eq!(
        site.get("/api/v1/groups/loading/offsets").await.json()["status"],
        503
    );
}

#[tokio::test]
async fn history_shows_its_gaps() {
    let line = |ts: i64, seq: u64, from, to, cause: &str| {
        let text = json!({"ts": ts, "transactionalId": HOSTILE, "pid": 7, "epoch": 1,
            "txnSeq": seq, "from": from, "to": to, "cause": cause});
        serde_json::from_value::<HistoryLine>(text).unwrap()
    };
    let lines = vec![
        line(1, 0, "Empty", "Empty", "client"),
        line(2, 1, "Empty", "Ongoing", "client"),
        line(3, 1, "Ongoing", "PrepareAbort", "reaper"),
        line(4, 1, "PrepareAbort", "CompleteAbort", "finished"),
        // A restart did it again.
        line(5, 1, "PrepareAbort", "CompleteAbort", "finished"),
        line(6, 3, "Ongoing", "PrepareCommit", "client"),
        line(7, 3, "PrepareCommit", "CompleteCommit", "finished"),
        // Another session each: that happened twice.
        line(8, 3, "CompleteCommit", "Empty", "client"),
        line(9, 3, "Empty", "Empty", "client"),
        line(10, 3, "Empty", "Empty", "client"),
    ];
    let site = Site::new(Double {
        lines,
        ..Double::new()
    });
    let path = format!("{}/history", path_of(HOSTILE));
    let history = site.get(&path).await.json();
    let shown = history["transitions"].as_array().unwrap();
    let gaps: Vec<_> = shown.iter().map(|one| one["gapBefore"] == true).collect();
    assert_eq!(gaps, [1, 2, 3, 4, 6, 7, 8, 9, 10].map(|at| at == 6));
    let times: Vec<_> = shown.iter().map(|one| &one["atMs"]).collect();
    assert_eq!(times, [1_i64, 2, 3, 4, 6, 7, 8, 9, 10]);
    assert_eq!(shown[2]["cause"], "reaper");
    assert_eq!(
        (&history["unreadable"], &history["lost"]),
        (&json!(1), &json!(2))
    );
    // Backwards, page by page, as far as is asked for.
    let mut next = Some(format!("{path}?since=2&limit=2"));
    let mut pages: Vec<Vec<i64>> = Vec::new();
    while let Some(path) = next {
        let answer = site.get(&path).await;
        let page = answer.json();
        let shown = page["transitions"].as_array().unwrap().iter();
        pages.push(shown.map(|one| one["atMs"].as_i64().unwrap()).collect());
        next = answer.next();
        assert_eq!(page["truncated"], next.is_some());
    }
    assert_eq!(pages, [vec![9, 10], vec![7, 8], vec![4, 6], vec![2, 3]]);
    // Nothing is kept of an id that exists; the other does not.
    let open = site.get("/api/v1/transactions/open/history").await.json();
    assert_eq!(open["transitions"], json!([]));
    let none = site.get("/api/v1/transactions/none/history").await;
    assert_eq!(none.json()["status"], 404);
}

#[tokio::test]
async fn what_ends_between_two_looks_does_not_hang() {
    let site = Site::new(Double {
        ends: Some("open".into()),
        ..Double::new()
    });
    let lso = site
        .get("/api/v1/topics/orders/partitions/0/lso")
        .await
        .json();
    // Producer 9 really hangs there, behind it.
    let open = lso["openTransactions"].as_array().unwrap();
    let standing = open
        .iter()
        .map(|one| (one["producerId"].as_i64().unwrap(), one["standing"].clone()));
    assert_eq!(
        standing.collect::<Vec<_>>(),
        [(pid(9), json!("hanging"))],
        "{lso:#}"
    );
    assert_eq!(lso["lastStableOffset"], 3);
    assert_eq!(lso["openCount"], 1);
}

#[tokio::test]
async fn what_is_still_owed_is_shown_with_its_partitions_and_groups() {
    let mut complete = entry(3, TxnState::CompleteCommit);
    let owed = coordinator::machine::txn::Owed {
        txn_seq: 1,
        producer_id: complete.pid,
        record_epoch: complete.epoch,
        marker_epoch: complete.epoch,
        commit: true,
        entries: [(
            store_adapter::ids::BrokerId(1),
            OwedEntry {
                partitions: [(Arc::from("orders"), [1, 7].into())].into(),
                groups: [Arc::from("g/1"), Arc::from("loading")].into(),
                ..OwedEntry::default()
            },
        )]
        .into(),
    };
    // The slot has what came behind it.
    complete.pid = entry(8, TxnState::Empty).pid;
    complete.owed = vec![owed];
    let double = Double::new();
    double.ids.lock().insert("owed".into(), complete);
    let site = Site::new(double);
    let one = site.get("/api/v1/transactions/owed").await.json();
    assert_eq!(
        (&one["state"], &one["slotState"], &one["producerId"]),
        (
            &json!("PrepareCommit"),
            &json!("CompleteCommit"),
            &json!(pid(3))
        )
    );
    let on = &one["partitionStates"][0];
    assert_eq!(
        (&on["partition"], &on["open"], &on["holdsLastStableOffset"]),
        (&json!(1), &json!(true), &json!(true))
    );
    assert_eq!(one["partitionsMissing"][0]["partition"], 7);
    assert_eq!(one["staged"][0], json!({"group": "g/1", "offsets": 0}));
    let staged = &one["staged"][1];
    assert_eq!(staged["group"], "loading");
    assert!(staged.get("offsets").is_none() && staged["reason"].is_string());
    // By the producer that is shown, too.
    let path = format!("/api/v1/transactions?producer_id={}", pid(3));
    let list = site.get(&path).await.json();
    assert_eq!(ids(&list), ["owed", "prepared"]);
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a caller")]
async fn probes_do_not_wait_for_what_takes_long() {
    for path in [
        "/",
        "/api/v1/transactions",
        "/api/v1/topics/orders/partitions/0/lso",
    ] {
        let double = Arc::new(Double::new());
        let (gate, site) = (Arc::clone(&double.gate), Site::shared(&double));
        gate.close();
        let caller = site.clone();
        let caller = tokio::spawn(async move { caller.get(path).await.status });
        gate.waits.notified().await;
        assert_eq!(site.get("/livez").await.status, 200);
        assert!(!gate.gave_up.load(Ordering::SeqCst), "{path} was first");
        gate.open();
        assert_eq!(caller.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn files_have_pages() {
    let site = Site::new(Double::new());
    for (path, lists, count) in [
        ("/api/v1/marker-queue", "/entries", 2),
        ("/api/v1/fences", "/brokers/0/fences", 2),
    ] {
        let mut next = Some(format!("{path}?page_size=1"));
        let mut seen = Vec::new();
        while let Some(path) = next {
            let answer = site.get(&path).await;
            let page = answer.json();
            let list = page.pointer(lists).unwrap().as_array().unwrap();
            assert_eq!(list.len(), 1, "{page:#}");
            seen.extend(list.iter().cloned());
            next = answer.next();
        }
        seen.dedup();
        assert_eq!(seen.len(), count, "{path}");
    }
}
