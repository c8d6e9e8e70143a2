//! Every state against every request and relation of epochs: `coordinator/golden/txn_matrix.txt`.
//! `UPDATE_GOLDEN=1` rewrites it; a change of it is a change of behaviour.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::scene::*;
use super::*;

/// The states, each with the epoch that its client holds.
fn states() -> Vec<(String, Option<TxnEntry>, i16)> {
    let mut all = vec![("unknown".to_owned(), None, 1)];
    for epoch in [1, 32_766] {
        let mut add = |name: String, entry, held| all.push((name, Some(entry), held));
        add(format!("Empty e={epoch}"), empty(epoch), epoch);
        // At the last epoch the producer id changes.
        let claimed = empty(epoch);
        let early = Ctx {
            now_ms: NOW - 1_000,
            ..ctx(2)
        };
        let new = init_producer_id(Some(&claimed), &init(5, (PID, epoch)), &early);
        let name = format!("Empty, claimed at e={epoch}");
        add(name, after(&claimed, &new), epoch);
        add(format!("Ongoing e={epoch}"), ongoing(epoch), epoch);
        for (version, protocol) in [(4, "TV1"), (5, "TV2")] {
            for commit in [true, false] {
                let way = if commit { "Commit" } else { "Abort" };
                let name = |what: &str| format!("{what}{way} of e={epoch}, {protocol}");
                add(name("Prepare"), prepared(epoch, version, commit), epoch);
                add(name("Complete"), completed(epoch, version, commit), epoch);
                let owed = owed(epoch, version, commit);
                add(format!("{}, owed", name("Complete")), owed, epoch);
            }
        }
        for (level, protocol) in [(1, "TV1"), (2, "TV2")] {
            let open = ongoing(epoch);
            let new = init_producer_id(Some(&open), &init(5, NONE), &ctx(level));
            let fenced = after(&open, &new);
            let name = format!("of e={epoch}, fenced, {protocol}");
            add(format!("PrepareAbort {name}"), fenced.clone(), epoch);
            add(
                format!("CompleteAbort {name}"),
                finish(&fenced, &ctx(level)),
                epoch,
            );
        }
    }
    all
}

type Row = (String, String, String);

fn row<R: Clone>(
    before: Option<&TxnEntry>,
    name: String,
    decision: &Decision<R>,
    show: impl Fn(&R) -> String,
    source: &str,
) -> Row {
    let mut text = told(decision, show);
    if let Decision::Persist(change, _) = decision {
        let next = change.next.as_ref().map_or("gone".to_owned(), state);
        write!(text, "\n    -> {next}").unwrap();
        for fence in &change.fences {
            write!(text, "; fences {} below {}", fence.pid.0, fence.epoch.0).unwrap();
        }
        if let Some(owed) = change.next.as_ref().and_then(owed_by) {
            write!(text, "; {}", markers(&owed)).unwrap();
        }
        assert_ne!(change.next.as_ref(), before, "{name}: nothing changes");
    }
    (name, text, source.to_owned())
}

fn markers(owed: &Dispatch) -> String {
    format!(
        "{} of #{} at ({}, {}) for {:?} {:?}",
        if owed.commit { "COMMIT" } else { "ABORT" },
        owed.txn_seq,
        owed.pid.0,
        owed.marker_epoch.0,
        owed.partitions,
        owed.groups
    )
}

fn state(entry: &TxnEntry) -> String {
    let epoch = |epoch: Option<ProducerEpoch>| epoch.map_or(-1, |epoch| epoch.0);
    let pid = |pid: Option<ProducerId>| pid.map_or(-1, |pid| pid.0);
    format!(
        "{} ({}, {}) #{} last {} previous {} next {} owed {}",
        entry.state.name(),
        entry.pid.0,
        entry.epoch.0,
        entry.txn_seq,
        epoch(entry.last_epoch),
        pid(entry.prev_pid),
        pid(entry.next_pid),
        entry.owed.len()
    )
}

/// A row of the second level, and one of the first where that is another.
fn levels(rows: &mut Vec<Row>, make: impl Fn(&Ctx) -> Row) {
    let (first, second) = (make(&ctx(1)), make(&ctx(2)));
    if first.1 != second.1 {
        let name = format!("{}, at transaction.version 1", first.0);
        rows.push((name, first.1, first.2));
    }
    rows.push(second);
}

/// What a client asks with a session.
fn asked(entry: Option<&TxnEntry>, relation: &str, at: Session) -> Vec<Row> {
    let (pid, epoch) = (at.pid.0, at.epoch.0);
    let of = |what: &str| format!("{what}, {relation} ({pid}, {epoch})");
    let mut rows = Vec::new();
    for version in [3, 4] {
        levels(&mut rows, |ctx| {
            let decision = init_producer_id(entry, &init(version, (pid, epoch)), ctx);
            let name = of(&format!("InitProducerId v{version}"));
            row(entry, name, &decision, show_session, "2.2, T05 T07 T08 T10")
        });
    }
    for version in [1, 4, 5] {
        for commit in [true, false] {
            levels(&mut rows, |ctx| {
                let decision = end_txn(entry, &end(version, pid, epoch, commit), ctx);
                let way = if commit { "commit" } else { "abort" };
                let name = of(&format!("EndTxn v{version} {way}"));
                row(entry, name, &decision, show_end, "3.2, 3.3, T19-T31")
            });
        }
    }
    for (class, what) in [
        (AddClass::Client(1), "AddPartitionsToTxn v1 A-0"),
        (AddClass::Client(3), "AddPartitionsToTxn v3 A-0"),
        (AddClass::Implicit, "implicit A-0"),
    ] {
        levels(&mut rows, |ctx| {
            let decision = add_partitions(entry, at, &[named("A", 0)], class, None, ctx);
            let source = "3.2, 1.5, T13-T17 T37 T44";
            row(entry, of(what), &decision, show_added, source)
        });
    }
    let group: Arc<str> = "h".into();
    for (class, what) in [
        (AddClass::Client(3), "AddOffsetsToTxn v3 h"),
        (AddClass::Implicit, "implicit h"),
    ] {
        levels(&mut rows, |ctx| {
            let decision = add_groups(entry, at, &group, class, None, ctx);
            row(entry, of(what), &decision, show_added, "3.2")
        });
    }
    let decision = verify_partitions(entry, at, &[named("A", 0), named("A", 1)]);
    let show = |verified: &Verified| format!("but {:?}", verified.missing);
    rows.push(row(
        entry,
        of("verify A-0 A-1"),
        &decision,
        show,
        "3.2, 1.5",
    ));
    for group in ["g", "h"] {
        let decision = verify_group(entry, at, group);
        let show = |found: &Option<u64>| match found {
            Some(seq) => format!("in #{seq}"),
            None => "not in it".to_owned(),
        };
        let name = of(&format!("verify {group}"));
        rows.push(row(entry, name, &decision, show, "3.2, T61"));
    }
    rows
}

/// What happens without a client.
fn by_itself(entry: &TxnEntry) -> Vec<Row> {
    let late = |ctx: &Ctx| Ctx {
        now_ms: NOW + 604_800_000,
        ..*ctx
    };
    let nothing = |(): &()| "-".to_owned();
    let mut rows = Vec::new();
    levels(&mut rows, |ctx| {
        let decision = time_out(entry, &late(ctx));
        let name = "the reaper, late".to_owned();
        let aborted = |aborted: &bool| if *aborted { "aborted" } else { "-" }.to_owned();
        row(Some(entry), name, &decision, aborted, "3.7")
    });
    levels(&mut rows, |ctx| {
        let decision = expire(entry, 604_800_000, &late(ctx));
        let name = "expiry, late".to_owned();
        row(Some(entry), name, &decision, nothing, "2.2, T52")
    });
    for (relation, epoch) in [("current", entry.epoch.0), ("stale", entry.epoch.0 - 1)] {
        levels(&mut rows, |ctx| {
            let session = session(entry.pid.0, epoch);
            let decision = abort(Some(entry), Some(session), None, ctx);
            let name = format!("an administrator aborts it, {relation}");
            row(Some(entry), name, &decision, nothing, "3.7")
        });
    }
    if owed_by(entry).is_some() {
        let change = complete(entry, &local(entry), &ctx(2)).unwrap();
        let decision = Decision::Persist(Box::new(change), Then::Answer(()));
        let name = "every marker is durable".to_owned();
        rows.push(row(
            Some(entry),
            name,
            &decision,
            nothing,
            "3.4, T20 T23 T28",
        ));
    }
    rows
}

fn rows(entry: Option<&TxnEntry>, held: i16) -> Vec<Row> {
    let mut rows = Vec::new();
    for level in [1, 2] {
        let decision = init_producer_id(entry, &init(5, NONE), &ctx(level));
        let name = format!("InitProducerId v5, none, version {level}");
        rows.push(row(
            entry,
            name,
            &decision,
            show_session,
            "2.1, 2.2, 3.8, T01 T02 T11 T67",
        ));
    }
    let current = entry.map_or((PID, held), |entry| (entry.pid.0, entry.epoch.0));
    let mut claims = vec![("current", current), ("held", (PID, held))];
    claims.push(("stale", (PID, held - 1)));
    claims.push(("other pid", (77, held)));
    claims.extend(
        current
            .1
            .checked_add(1)
            .map(|next| ("ahead", (current.0, next))),
    );
    let next = entry.and_then(|entry| entry.next_pid);
    claims.extend(next.map(|next| ("next", (next.0, 0))));
    let mut seen = BTreeSet::new();
    claims.retain(|claim| seen.insert(claim.1));
    for (relation, (pid, epoch)) in claims {
        rows.extend(asked(entry, relation, session(pid, epoch)));
    }
    rows.extend(entry.map(by_itself).unwrap_or_default());
    rows
}

#[test]
fn the_matrix_is_as_written() {
    let mut text = String::from(
        "Transactions: state x request x epochs -> reply, next state, effects.\n\
         Sources are sections of the coordinator's contract and its vectors (T). Numbers at the\n\
         beginning of a reply are Kafka's codes; #n is the number of a transaction. Written by a\n\
         test: UPDATE_GOLDEN=1.\n",
    );
    for (name, entry, held) in states() {
        let is = entry.as_ref().map_or("-".to_owned(), state);
        writeln!(text, "\n== {name}\n   {is}").unwrap();
        for (name, told, source) in rows(entry.as_ref(), held) {
            writeln!(text, "{name}: {told}  ({source})").unwrap();
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/txn_matrix.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        #[allow(
            clippy::disallowed_methods,
            reason = "a golden file is no file of the volume"
        )]
        fs::write(&file, &text).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    for (number, (was, is)) in found.lines().zip(text.lines()).enumerate() {
        assert_eq!(was, is, "line {} of the matrix", number + 1);
    }
    assert_eq!(found.len(), text.len(), "the matrix has other rows");
}
