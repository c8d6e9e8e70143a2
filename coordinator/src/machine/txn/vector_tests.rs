//! The vectors T01 to T67 of the contract that concern the coordinator, with literal codes.

use store_adapter::ids::BrokerId;

use super::scene::*;
use super::*;

fn init_told(entry: Option<&TxnEntry>, request: &InitProducerId, version: i8) -> String {
    let decision = init_producer_id(entry, request, &ctx(version));
    told(&decision, show_session)
}

fn end_told(entry: Option<&TxnEntry>, request: &EndTxn) -> String {
    told(&end_txn(entry, request, &ctx(2)), show_end)
}

fn add_at(entry: Option<&TxnEntry>, pid: i64, epoch: i16, version: i16, named: &[Named]) -> String {
    let class = AddClass::Client(version);
    let decision = add_partitions(entry, session(pid, epoch), named, class, None, &ctx(1));
    told(&decision, show_added)
}

#[test]
fn t01_to_t08_new_sessions() {
    assert_eq!(init_told(None, &init(4, NONE), 2), "0 (900, 0)");
    let e0 = empty(0);
    let decision = init_producer_id(Some(&e0), &init(4, NONE), &ctx(2));
    assert_eq!(told(&decision, show_session), "0 (100, 1)");
    assert_eq!(after(&e0, &decision).last_epoch, None);
    let nameless = InitProducerId {
        id_is_empty: true,
        ..init(4, NONE)
    };
    assert_eq!(init_told(Some(&e0), &nameless, 2), "42");
    assert_eq!(init_told(Some(&e0), &init(4, (PID, -1)), 2), "42");
    assert_eq!(init_told(Some(&e0), &init(4, (-1, 0)), 2), "42");
    let e3 = empty(3);
    let once = init_producer_id(Some(&e3), &init(4, (PID, 3)), &ctx(2));
    assert_eq!(told(&once, show_session), "0 (100, 4)");
    let e4 = after(&e3, &once);
    assert_eq!(init_told(Some(&e4), &init(4, (PID, 3)), 2), "0 (100, 4)");
    assert_eq!(init_told(Some(&e3), &init(4, (77, 3)), 2), "90");
    assert_eq!(init_told(Some(&e3), &init(3, (77, 3)), 2), "47");
    assert_eq!(init_told(Some(&e3), &init(4, (PID, 1)), 2), "90");
    assert_eq!(init_told(None, &init(4, (99, 3)), 2), "0 (900, 0)");
    for (timeout_ms, told) in [
        (0, "50"),
        (-1, "50"),
        (900_001, "50"),
        (900_000, "0 (100, 1)"),
    ] {
        let request = InitProducerId {
            timeout_ms,
            ..init(4, NONE)
        };
        assert_eq!(init_told(Some(&e0), &request, 2), told);
    }
}

#[test]
fn t10_one_rotation_at_32766() {
    let last = empty(32_766);
    let decision = init_producer_id(Some(&last), &init(4, (PID, 32_766)), &ctx(2));
    assert_eq!(told(&decision, show_session), "0 (900, 0)");
    let Decision::Persist(change, _) = &decision else {
        panic!("nothing is written");
    };
    let fence = Fence {
        pid: ProducerId(PID),
        epoch: ProducerEpoch(32_767),
    };
    assert_eq!(change.fences, [fence]);
    let rotated = after(&last, &decision);
    assert_eq!(
        init_told(Some(&rotated), &init(4, (PID, 32_766)), 2),
        "0 (900, 0)"
    );
    // What the first answer did not come to publish, the next ones do, whoever asks.
    for claim in [(PID, 32_766), NONE] {
        let again = init_producer_id(Some(&rotated), &init(4, claim), &ctx(2));
        let Decision::Persist(change, _) = &again else {
            panic!("nothing is written");
        };
        assert!(change.fences.contains(&fence), "{:?}", change.fences);
    }
    // A claim that nobody was ever told.
    assert_eq!(
        init_told(Some(&rotated), &init(4, (SPARE, 32_766)), 2),
        "90"
    );
    assert_eq!(init_told(Some(&last), &init(4, (PID, 5)), 2), "-1");
    let without = Ctx {
        spare: None,
        ..ctx(2)
    };
    let decision = init_producer_id(Some(&last), &init(4, NONE), &without);
    assert_eq!(decision, Decision::NeedsId);
}

#[test]
fn t11_a_new_session_aborts_what_is_open() {
    for version in [0, 1, 2] {
        let open = ongoing(1);
        let decision = init_producer_id(Some(&open), &init(4, NONE), &ctx(version));
        assert_eq!(
            told(&decision, show_session),
            "as after the abort, 51 if late"
        );
        let aborting = after(&open, &decision);
        assert_eq!(
            (aborting.state, aborting.epoch.0),
            (TxnState::PrepareAbort, 2)
        );
        let owed = owed_by(&aborting).unwrap();
        assert_eq!(
            (owed.marker_epoch.0, owed.record_epoch.0, owed.commit),
            (2, 1, false)
        );
        assert_eq!(owed.partitions, open.partitions);
        assert_eq!(owed.txn_seq, 5);
        let waits = init_told(Some(&aborting), &init(4, NONE), version);
        assert_eq!(waits, "waits 100 ms, then 51");
        let aborted = finish(&aborting, &ctx(version));
        assert_eq!(
            init_told(Some(&aborted), &init(4, NONE), version),
            "0 (100, 3)"
        );
        // The session that was fenced: it may go on only where its protocol lets it.
        let resumed = init_told(Some(&aborted), &init(4, (PID, 1)), version);
        assert_eq!(resumed, if version == 2 { "0 (100, 2)" } else { "90" });
    }
}

#[test]
fn a_fence_at_the_last_epoch() {
    for (version, next) in [(1, "0 (900, 0)"), (2, "0 (900, 1)")] {
        let open = ongoing(32_766);
        let aborting = after(
            &open,
            &init_producer_id(Some(&open), &init(4, NONE), &ctx(version)),
        );
        assert_eq!((aborting.pid.0, aborting.epoch.0), (PID, 32_767));
        let aborted = finish(&aborting, &ctx(version));
        let request = init(4, NONE);
        assert_eq!(init_told(Some(&aborted), &request, version), next);
        // Nobody ever gets 32767.
        let retried = end_told(Some(&aborted), &end(5, PID, 32_766, false));
        assert_eq!(retried, if version == 2 { "0 (900, 0)" } else { "90" });
        let other = end_told(Some(&aborted), &end(5, PID, 32_766, true));
        assert_eq!(other, "48");
    }
}

#[test]
fn t13_to_t17_adding_partitions() {
    let a = [named("A", 0)];
    assert_eq!(add_at(None, PID, 1, 3, &a), "49");
    assert_eq!(add_at(Some(&ongoing(1)), 77, 1, 3, &a), "49");
    assert_eq!(add_at(Some(&ongoing(1)), PID, 0, 1, &a), "47");
    assert_eq!(add_at(Some(&ongoing(1)), PID, 0, 3, &a), "90");
    let some = [named("A", 0), named("missing", 4)];
    assert_eq!(
        add_at(Some(&empty(0)), PID, 0, 3, &some),
        "0 55, but 3 for {\"missing\": {4}}"
    );
    let again = add_partitions(
        Some(&ongoing(1)),
        session(PID, 1),
        &a,
        AddClass::Client(0),
        None,
        &ctx(1),
    );
    assert_eq!(again, Decision::Answer(Added::InTxn(5)));
    let fresh = completed(1, 0, true);
    let added = add_partitions(
        Some(&fresh),
        session(PID, 1),
        &[named("B", 1)],
        AddClass::Client(0),
        None,
        &ctx(1),
    );
    let next = after(&fresh, &added);
    assert_eq!((next.state, next.txn_seq), (TxnState::Ongoing, 6));
    assert_eq!(
        (next.start_ms, next.partitions),
        (Some(NOW), partitions("B", &[1]))
    );
    let implicit = add_partitions(
        Some(&fresh),
        session(PID, 0),
        &a,
        AddClass::Implicit,
        None,
        &ctx(2),
    );
    assert_eq!(told(&implicit, show_added), "47");
}

#[test]
fn a_transaction_has_bounds() {
    let many: Vec<Named> = (0..=10_000).map(|n| named("A", n)).collect();
    assert_eq!(add_at(Some(&empty(0)), PID, 0, 3, &many), "42");
    assert_eq!(
        add_at(Some(&empty(0)), PID, 0, 3, &many[..10_000]),
        "0 in #1"
    );
    assert_eq!(add_at(Some(&empty(0)), PID, 0, 3, &[]), "0 in #0");
    let open = ongoing(1);
    let add = |class, count: usize| {
        let many = &many[..count];
        add_partitions(Some(&open), session(PID, 1), many, class, None, &ctx(2))
    };
    let refused = add(AddClass::Implicit, 10_001);
    assert_eq!(told(&refused, show_added), "120");
    let mut full = open.clone();
    full.groups = (0..1_000).map(|n| Arc::from(format!("g-{n}"))).collect();
    for (class, known, new) in [
        (AddClass::Client(3), "0 in #5", "42"),
        (AddClass::Client(4), "0 in #5", "120"),
        (AddClass::Implicit, "0 in #5", "120"),
    ] {
        for (group, expected) in [("g-7", known), ("another", new)] {
            let group = Arc::from(group);
            let added = add_groups(Some(&full), session(PID, 1), &group, class, None, &ctx(2));
            assert_eq!(told(&added, show_added), expected, "{class:?} {group}");
        }
    }
}

#[test]
fn t19_to_t22_ending_below_version_5() {
    for commit in [true, false] {
        assert_eq!(end_told(Some(&empty(1)), &end(3, PID, 1, commit)), "48");
        assert_eq!(end_told(None, &end(3, PID, 1, commit)), "49");
        let told = end_told(Some(&ongoing(1)), &end(3, PID, 1, commit));
        assert_eq!(told, "0 (-1, -1) when finished, 15 if late");
        let preparing = prepared(1, 3, commit);
        let owed = owed_by(&preparing).unwrap();
        assert_eq!(
            (owed.marker_epoch.0, owed.record_epoch.0, owed.commit),
            (1, 1, commit)
        );
        let same = end_told(Some(&preparing), &end(3, PID, 1, commit));
        assert_eq!(same, "waits 2000 ms, then 15");
        assert_eq!(end_told(Some(&preparing), &end(3, PID, 1, !commit)), "51");
        let done = completed(1, 3, commit);
        assert_eq!(end_told(Some(&done), &end(3, PID, 1, commit)), "0 (-1, -1)");
        assert_eq!(end_told(Some(&done), &end(3, PID, 1, !commit)), "48");
    }
}

#[test]
fn t23_to_t26_ending_with_version_5() {
    let told = end_told(Some(&ongoing(1)), &end(5, PID, 1, true));
    assert_eq!(told, "0 (100, 2) when finished, 15 if late");
    let preparing = prepared(1, 5, true);
    assert_eq!(owed_by(&preparing).unwrap().marker_epoch, ProducerEpoch(2));
    let retried = end_told(Some(&preparing), &end(5, PID, 1, true));
    assert_eq!(retried, "waits 2000 ms, then 15");
    assert_eq!(end_told(Some(&preparing), &end(5, PID, 1, false)), "51");
    let current = end_told(Some(&preparing), &end(5, PID, 2, true));
    assert_eq!(current, "waits 100 ms, then 51");
    let done = completed(1, 5, true);
    assert_eq!(end_told(Some(&done), &end(5, PID, 1, true)), "0 (100, 2)");
    assert_eq!(end_told(Some(&done), &end(5, PID, 1, false)), "48");
    assert_eq!(end_told(Some(&done), &end(5, PID, 2, true)), "48");
    let cycle = end_txn(Some(&done), &end(5, PID, 2, false), &ctx(2));
    assert_eq!(told2(&cycle), "0 (100, 3) when finished, 15 if late");
    let aborting = after(&done, &cycle);
    assert!(owed_by(&aborting).unwrap().partitions.is_empty());
    assert_eq!((aborting.txn_seq, aborting.start_ms), (6, Some(NOW)));
    let aborted = finish(&aborting, &ctx(2));
    assert_eq!(
        end_told(Some(&aborted), &end(5, PID, 2, false)),
        "0 (100, 3)"
    );
    assert_eq!(end_told(Some(&aborted), &end(5, PID, 2, true)), "48");
    assert_eq!(end_told(Some(&empty(2)), &end(5, PID, 2, true)), "48");
    assert_eq!(end_told(Some(&empty(2)), &end(5, PID, 1, true)), "90");
    assert_eq!(end_told(Some(&empty(0)), &end(5, PID, -1, true)), "90");
}

fn told2(decision: &Decision<EndReply>) -> String {
    told(decision, show_end)
}

#[test]
fn version_5_behind_a_decision_of_version_3() {
    for commit in [true, false] {
        let done = completed(1, 3, commit);
        // The opposite is told from the epoch alone; what was decided is another session's, which
        // gives away neither its outcome nor its epoch.
        assert_eq!(end_told(Some(&done), &end(5, PID, 0, !commit)), "48");
        assert_eq!(end_told(Some(&done), &end(5, PID, 0, commit)), "90");
        assert_eq!(end_told(Some(&done), &end(5, PID, 1, true)), "48");
        let told = end_told(Some(&done), &end(5, PID, 1, false));
        assert_eq!(told, "0 (100, 2) when finished, 15 if late");
        assert_eq!(end_told(Some(&done), &end(5, PID, 2, commit)), "90");
        // A session that went on by itself (KIP-360) had the epoch before.
        let own = TxnEntry {
            last_epoch: Some(ProducerEpoch(0)),
            ..done
        };
        assert_eq!(end_told(Some(&own), &end(5, PID, 0, commit)), "0 (100, 1)");
        assert_eq!(end_told(Some(&own), &end(5, PID, 0, !commit)), "48");
    }
}

#[test]
fn t28_and_t29_ending_at_the_last_epoch() {
    let decision = end_txn(Some(&ongoing(32_766)), &end(5, PID, 32_766, true), &ctx(2));
    assert_eq!(told2(&decision), "0 (900, 0) when finished, 15 if late");
    let preparing = after(&ongoing(32_766), &decision);
    let owed = owed_by(&preparing).unwrap();
    assert_eq!((owed.pid.0, owed.marker_epoch.0), (PID, 32_767));
    let waits = end_told(Some(&preparing), &end(5, PID, 32_766, true));
    assert_eq!(waits, "waits 2000 ms, then 15");
    // The answer outran a crash: the client has the new id, the file not yet.
    let told = "waits 100 ms, then 51";
    assert_eq!(end_told(Some(&preparing), &end(5, SPARE, 0, false)), told);
    assert_eq!(
        add_at(Some(&preparing), SPARE, 0, 3, &[named("A", 0)]),
        told
    );
    assert_eq!(init_told(Some(&preparing), &init(5, (SPARE, 0)), 2), told);
    let done = finish(&preparing, &ctx(2));
    let retried = end_told(Some(&done), &end(5, PID, 32_766, true));
    assert_eq!(retried, "0 (900, 0)");
    assert_eq!(done.txn_seq, 5);
    let stranger = end_told(Some(&done), &end(5, PID, 32_765, true));
    assert_eq!(stranger, "49");
}

#[test]
fn t31_and_the_reaper() {
    for version in [1, 2] {
        let open = ongoing(1);
        let at = |now_ms| Ctx {
            now_ms,
            ..ctx(version)
        };
        let start = open.start_ms.unwrap();
        assert_eq!(
            time_out(&open, &at(start + 60_000)),
            Decision::Answer(false)
        );
        let decision = time_out(&open, &at(start + 60_001));
        let aborting = after(&open, &decision);
        assert_eq!(
            (aborting.state, aborting.epoch.0),
            (TxnState::PrepareAbort, 2)
        );
        let Decision::Persist(change, _) = decision else {
            panic!("nothing is written");
        };
        assert_eq!(change.transition.unwrap().cause, Cause::Reaper);
        let aborted = finish(&aborting, &ctx(version));
        assert_eq!(end_told(Some(&aborted), &end(3, PID, 1, true)), "90");
        assert_eq!(end_told(Some(&aborted), &end(1, PID, 1, true)), "47");
        assert_eq!(end_told(Some(&aborted), &end(5, PID, 1, true)), "48");
        let repeat = end_told(Some(&aborted), &end(5, PID, 1, false));
        assert_eq!(repeat, if version == 2 { "0 (100, 2)" } else { "90" });
        let add = add_at(Some(&aborted), PID, 1, 3, &[named("A", 0)]);
        assert_eq!(add, "90");
    }
}

#[test]
fn t37_and_t44_nothing_begins_before_the_last_is_finished() {
    for entry in [prepared(1, 3, true), owed(1, 3, true), owed(1, 3, false)] {
        let c = [named("C", 0)];
        assert_eq!(add_at(Some(&entry), PID, 1, 3, &c), "waits 100 ms, then 51");
        let implicit = add_partitions(
            Some(&entry),
            session(PID, 1),
            &c,
            AddClass::Implicit,
            None,
            &ctx(2),
        );
        assert_eq!(told(&implicit, show_added), "waits 100 ms, then 51");
        let group: Arc<str> = "g".into();
        let offsets = add_groups(
            Some(&entry),
            session(PID, 1),
            &group,
            AddClass::Client(3),
            None,
            &ctx(1),
        );
        assert_eq!(told(&offsets, show_added), "waits 100 ms, then 51");
        let verify = verify_partitions(Some(&entry), session(PID, 1), &c);
        let waits = told(&verify, |verified| format!("{verified:?}"));
        assert_eq!(waits, "waits 100 ms, then 51");
        let init = init_told(Some(&entry), &init(4, NONE), 1);
        assert_eq!(init, "waits 100 ms, then 51");
    }
    // The retry of what is finished is answered, whatever is owed.
    let done = owed(1, 3, true);
    assert_eq!(end_told(Some(&done), &end(3, PID, 1, true)), "0 (-1, -1)");
    let done = owed(1, 5, true);
    assert_eq!(end_told(Some(&done), &end(5, PID, 1, true)), "0 (100, 2)");
    let cycle = end_told(Some(&done), &end(5, PID, 2, false));
    assert_eq!(cycle, "waits 100 ms, then 51");
}

#[test]
fn t52_idle_ids_are_forgotten() {
    let week = 604_800_000;
    let done = completed(1, 3, true);
    let late = Ctx {
        now_ms: NOW + week,
        ..ctx(2)
    };
    assert!(!is_expired(&done, NOW + week - 1, week));
    let Decision::Persist(change, _) = expire(&done, week, &late) else {
        panic!("nothing is written");
    };
    assert_eq!(change.next, None);
    assert_eq!(add_at(None, PID, 1, 3, &[named("A", 0)]), "49");
    assert_eq!(init_told(None, &init(4, (PID, 1)), 2), "0 (900, 0)");
    for busy in [ongoing(1), prepared(1, 3, true), owed(1, 3, true)] {
        assert_eq!(expire(&busy, week, &late), Decision::Answer(()));
    }
}

#[test]
fn t61_groups_that_were_not_added() {
    let verify = |entry: &TxnEntry, group: &str| verify_group(Some(entry), session(PID, 1), group);
    assert_eq!(verify(&ongoing(1), "g"), Decision::Answer(Some(5)));
    assert_eq!(verify(&ongoing(1), "other"), Decision::Answer(None));
    assert_eq!(verify(&completed(1, 3, true), "g"), Decision::Answer(None));
    let stale = verify_group(Some(&ongoing(2)), session(PID, 1), "g");
    assert_eq!(stale, Decision::Refuse(TxnError::InvalidProducerEpoch));
}

#[test]
fn t67_force_termination() {
    // It is a new session, which its administrator does not use.
    let open = ongoing(1);
    let decision = init_producer_id(Some(&open), &init(5, NONE), &ctx(2));
    let aborted = finish(&after(&open, &decision), &ctx(2));
    let again = init_producer_id(Some(&aborted), &init(5, NONE), &ctx(2));
    assert_eq!(told(&again, show_session), "0 (100, 3)");
    let ended = after(&aborted, &again);
    assert_eq!((ended.state, ended.timeout_ms), (TxnState::Empty, 60_000));
}

#[test]
fn offsets_alone_are_decided_like_records() {
    let group: Arc<str> = "g".into();
    let begun = after(
        &empty(0),
        &add_groups(
            Some(&empty(0)),
            session(PID, 0),
            &group,
            AddClass::Client(0),
            None,
            &ctx(1),
        ),
    );
    let ended = after(
        &begun,
        &end_txn(Some(&begun), &end(1, PID, 0, true), &ctx(1)),
    );
    let owed = owed_by(&ended).unwrap();
    assert!(owed.partitions.is_empty() && owed.groups.contains("g"));
    let nobody = plan(&owed, |_, _, _| Home::Here, |_| Home::Unknown);
    assert_eq!(complete(&ended, &nobody, &ctx(1)), None);
    let plan = plan(&owed, |_, _, _| Home::Here, |_| Home::Here);
    assert!(complete(&ended, &plan, &ctx(1)).is_some());
}

#[test]
fn what_is_owed_goes_only_with_proof() {
    let entry = owed(32_766, 5, true);
    assert_eq!((entry.pid.0, entry.epoch.0), (SPARE, 0));
    let one = &entry.owed[0];
    assert_eq!((one.producer_id.0, one.record_epoch.0), (PID, 32_766));
    let done = EntryName {
        broker: BrokerId(1),
        pid: ProducerId(PID),
        record_epoch: ProducerEpoch(32_766),
    };
    let all = &one.entries[&BrokerId(1)];
    assert_eq!(confirm(&entry, &done, 4, all), None);
    let wrong = [
        EntryName {
            broker: BrokerId(2),
            ..done
        },
        EntryName {
            pid: ProducerId(PID + 1),
            ..done
        },
        EntryName {
            record_epoch: ProducerEpoch(32_765),
            ..done
        },
    ];
    for wrong in wrong {
        assert_eq!(confirm(&entry, &wrong, 5, all), None, "{wrong:?}");
    }
    // A partition of a topic that had the name before, or none of it.
    let mut other = all.clone();
    for id in other.topic_ids.values_mut() {
        *id = Uuid::from_u128(99);
    }
    for nothing in [other, OwedEntry::default()] {
        assert_eq!(confirm(&entry, &done, 5, &nothing), None);
    }
    let confirmed = confirm(&entry, &done, 5, all).unwrap().next.unwrap();
    assert!(!confirmed.is_gated());
    assert_eq!(forget_deleted(&entry, |id| id != topic_id()), None);
    let void = forget_deleted(&entry, |id| id == topic_id()).unwrap();
    assert!(!void.next.unwrap().is_gated());
    let to_two = |_: &str, _: Option<Uuid>, _: i32| Home::Broker(BrokerId(2));
    let (moved, doomed) = reroute(&entry, BrokerId(0), to_two, |_| Home::Here).unwrap();
    assert_eq!(doomed, [done]);
    let moved = moved.next.unwrap();
    assert_eq!(
        moved.owed[0].entries.keys().collect::<Vec<_>>(),
        [&BrokerId(2)]
    );
    assert_eq!(reroute(&moved, BrokerId(0), to_two, |_| Home::Here), None);
    let lost = |_: &str, _: Option<Uuid>, _: i32| Home::Unknown;
    assert_eq!(reroute(&entry, BrokerId(0), lost, |_| Home::Unknown), None);
}

#[test]
fn a_deleted_topic_voids_its_marker_and_a_missing_one_does_not() {
    let preparing = prepared(1, 3, true);
    let owed = owed_by(&preparing).unwrap();
    let missing = plan(&owed, |_, _, _| Home::Unknown, |_| Home::Here);
    assert_eq!(complete(&preparing, &missing, &ctx(1)), None);
    let deleted = plan(&owed, |_, _, _| Home::Deleted, |_| Home::Here);
    assert_eq!(deleted.void, partitions("A", &[0]));
    assert!(complete(&preparing, &deleted, &ctx(1)).is_some());
    // Of an older volume, which knows no id.
    let mut owed = owed;
    owed.topic_ids.clear();
    let deleted = plan(&owed, |_, _, _| Home::Deleted, |_| Home::Here);
    assert_eq!(complete(&preparing, &deleted, &ctx(1)), None);
}

/// A name says nothing once its topic was deleted and made anew: markers go by the topic's id.
#[test]
fn a_topic_that_was_made_anew_is_another_one() {
    let entry = ongoing(1);
    let [(topic, old)] = &entry.partitions.iter().collect::<Vec<_>>()[..1] else {
        panic!("an open transaction has a partition");
    };
    let (topic, number) = (Arc::clone(topic), *old.first().unwrap());
    let anew = Uuid::from_u128(99);
    let asked: TopicPartitions = [(topic.clone(), [number].into())].into();
    let verify = |id: Uuid| {
        let named = Named {
            topic: topic.clone(),
            topic_id: Some(id),
            partition: number,
        };
        match verify_partitions(Some(&entry), session(PID, 1), &[named]) {
            Decision::Answer(verified) => verified.missing,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(verify(entry.topic_ids[&topic]), TopicPartitions::new());
    assert_eq!(verify(anew), asked);
    let other = Named {
        topic: topic.clone(),
        topic_id: Some(anew),
        partition: 77,
    };
    let class = AddClass::Implicit;
    let added = add_partitions(
        Some(&entry),
        session(PID, 1),
        &[other],
        class,
        None,
        &ctx(2),
    );
    let next = after(&entry, &added);
    assert_eq!(next.partitions[&topic], [77].into());
    assert_eq!(next.topic_ids[&topic], anew);
}
