//! Sessions by their pure functions.

use super::*;

fn key(partition: i32) -> FetchKey {
    FetchKey {
        topic_id: Uuid::nil(),
        name: StrBytes::from_static_str("t"),
        partition,
    }
}

fn wish(fetch_offset: i64) -> FetchWish {
    FetchWish {
        fetch_offset,
        max_bytes: 1,
        current_leader_epoch: -1,
        last_fetched_epoch: -1,
    }
}

fn request(session_id: i32, epoch: i32, partitions: &[i32]) -> SessionRequest {
    SessionRequest {
        session_id,
        epoch,
        by_id: false,
        wishes: partitions.iter().map(|p| (key(*p), wish(0))).collect(),
        forgotten: Vec::new(),
    }
}

fn idle(high_watermark: i64) -> Answered {
    Answered {
        high_watermark,
        log_start: 0,
        has_records: false,
        has_error: false,
    }
}

#[test]
fn a_sessionless_fetch_has_no_session() {
    let mut cache = FetchSessions::new(2);
    let plan = cache.plan(request(0, -1, &[0, 1]), 0, 7).unwrap();
    assert_eq!(
        (plan.session_id, plan.incremental, plan.wishes.len()),
        (0, false, 2)
    );
    assert!(cache.is_empty());
}

#[test]
fn epochs_count_up_and_wrap_to_one() {
    let mut cache = FetchSessions::new(2);
    let id = cache.plan(request(0, 0, &[0]), 0, 7).unwrap().session_id;
    assert_eq!(id, 7);
    assert_eq!(
        cache.plan(request(8, 1, &[]), 0, 0),
        Err(SessionError::NotFound)
    );
    assert_eq!(
        cache.plan(request(7, 2, &[]), 0, 0),
        Err(SessionError::InvalidEpoch)
    );
    assert!(cache.plan(request(7, 1, &[]), 0, 0).unwrap().incremental);
    assert_eq!(
        cache.plan(request(7, 1, &[]), 0, 0),
        Err(SessionError::InvalidEpoch)
    );
    cache.sessions.get_mut(&7).unwrap().epoch = i32::MAX;
    assert!(cache.plan(request(7, i32::MAX, &[]), 0, 0).is_ok());
    assert!(cache.plan(request(7, 1, &[]), 0, 0).is_ok());
    assert_eq!(
        cache.plan(request(7, -1, &[0]), 0, 0).unwrap().session_id,
        0
    );
    assert!(cache.is_empty());
}

#[test]
fn a_session_keeps_one_way_of_naming() {
    let mut cache = FetchSessions::new(2);
    cache.plan(request(0, 0, &[0]), 0, 7).unwrap();
    let crossed = SessionRequest {
        by_id: true,
        ..request(7, 1, &[])
    };
    assert_eq!(
        cache.plan(crossed, 0, 0),
        Err(SessionError::TopicIdMismatch)
    );
}

#[test]
fn only_what_changed_is_answered_and_served_partitions_go_last() {
    let mut cache = FetchSessions::new(2);
    cache.plan(request(0, 0, &[0, 1, 2]), 0, 7).unwrap();
    for partition in 0..3 {
        assert!(
            cache.answer(7, &key(partition), idle(5)),
            "the first answer names all"
        );
    }
    cache.plan(request(7, 1, &[]), 0, 0).unwrap();
    assert!(!cache.answer(7, &key(0), idle(5)));
    assert!(
        cache.answer(7, &key(1), idle(6)),
        "a moved high watermark is news"
    );
    let records = Answered {
        has_records: true,
        ..idle(6)
    };
    assert!(cache.answer(7, &key(0), records));
    let order: Vec<i32> = cache
        .plan(request(7, 2, &[]), 0, 0)
        .unwrap()
        .wishes
        .iter()
        .map(|(key, _)| key.partition)
        .collect();
    assert_eq!(order, [1, 2, 0]);
    let failed = Answered {
        has_error: true,
        ..idle(6)
    };
    assert!(cache.answer(7, &key(2), failed));
    assert!(
        cache.answer(7, &key(2), idle(6)),
        "the first answer after an error names it"
    );
}

#[test]
fn forgotten_partitions_are_gone_and_new_offsets_are_taken() {
    let mut cache = FetchSessions::new(2);
    cache.plan(request(0, 0, &[0, 1]), 0, 7).unwrap();
    let mut next = request(7, 1, &[]);
    next.forgotten = vec![key(0)];
    next.wishes = vec![(key(1), wish(9)), (key(4), wish(3))];
    let plan = cache.plan(next, 0, 0).unwrap();
    assert_eq!(plan.wishes, [(key(1), wish(9)), (key(4), wish(3))]);
    let mut both = request(7, 2, &[]);
    both.forgotten = vec![key(1), key(5)];
    both.wishes = vec![(key(1), wish(2)), (key(5), wish(2))];
    let plan = cache.plan(both, 0, 0).unwrap();
    assert_eq!(plan.wishes, [(key(4), wish(3))]);
}

#[test]
fn a_full_cache_gives_way_only_to_idle_or_smaller_sessions() {
    let mut cache = FetchSessions::new(1);
    assert_eq!(cache.plan(request(0, 0, &[0]), 0, 7).unwrap().session_id, 7);
    assert_eq!(
        cache
            .plan(request(0, 0, &[0, 1]), 1_000, 8)
            .unwrap()
            .session_id,
        0
    );
    cache.plan(request(7, 1, &[]), 119_000, 0).unwrap();
    assert_eq!(
        cache
            .plan(request(0, 0, &[0]), 121_000, 8)
            .unwrap()
            .session_id,
        0
    );
    assert_eq!(
        cache
            .plan(request(0, 0, &[0, 1]), 121_000, 8)
            .unwrap()
            .session_id,
        8
    );
    assert_eq!(
        cache
            .plan(request(0, 0, &[0]), 300_000, 9)
            .unwrap()
            .session_id,
        9
    );
    assert_eq!(cache.len(), 1);
    assert_eq!(
        FetchSessions::new(0)
            .plan(request(0, 0, &[0]), 0, 9)
            .unwrap()
            .session_id,
        0
    );
}

#[test]
fn a_session_that_forgets_its_last_partition_ends() {
    let mut cache = FetchSessions::new(2);
    cache.plan(request(0, 0, &[0, 1]), 0, 7).unwrap();
    let mut last = request(7, 1, &[]);
    last.forgotten = vec![key(0), key(1)];
    let plan = cache.plan(last, 0, 0).unwrap();
    assert_eq!((plan.session_id, plan.incremental), (0, false));
    assert!(plan.wishes.is_empty() && cache.is_empty() && cache.bytes == 0);
    assert_eq!(
        cache.plan(request(7, 2, &[]), 0, 0),
        Err(SessionError::NotFound)
    );
}

/// A request for partitions whose entries take `bytes` in all.
fn of_bytes(session_id: i32, epoch: i32, first: i32, bytes: usize) -> SessionRequest {
    let count = i32::try_from(bytes / key(0).bytes()).unwrap();
    let partitions: Vec<i32> = (first..first + count).collect();
    request(session_id, epoch, &partitions)
}

#[test]
fn sessions_share_a_bounded_amount_of_memory() {
    let mut cache = FetchSessions::new(1000);
    // More than one session may have: answered without one.
    let plan = cache.plan(of_bytes(0, 0, 0, SESSION_MAX + 1000), 0, 5);
    let plan = plan.unwrap();
    assert_eq!(plan.session_id, 0);
    assert!(plan.wishes.len() > 30_000);
    // Eight at their limit are all there is.
    for id in 1..=8 {
        let plan = cache.plan(of_bytes(0, 0, 0, SESSION_MAX), 0, id);
        assert_eq!(plan.unwrap().session_id, i32::try_from(id).unwrap());
    }
    let plan = cache
        .plan(of_bytes(0, 0, 0, SESSION_MAX), 60_000, 9)
        .unwrap();
    assert_eq!(plan.session_id, 0, "the others are in use");
    assert!(cache.bytes <= TOTAL_MAX);
    // Idle ones give way, the one that is used stays.
    cache.plan(request(3, 1, &[]), 100_000, 0).unwrap();
    let plan = cache
        .plan(of_bytes(0, 0, 0, SESSION_MAX), 121_000, 9)
        .unwrap();
    assert_eq!((plan.session_id, cache.len()), (9, 8));
    assert!(cache.plan(request(3, 2, &[]), 121_000, 0).is_ok());
    let held: usize = cache.sessions.values().map(|session| session.bytes).sum();
    assert_eq!(cache.bytes, held);
}

#[test]
fn a_session_that_outgrows_its_room_ends() {
    let mut cache = FetchSessions::new(1000);
    cache.plan(request(0, 0, &[0]), 0, 7).unwrap();
    assert!(cache.plan(of_bytes(7, 1, 1, SESSION_MAX / 2), 0, 0).is_ok());
    let more = of_bytes(7, 2, 1_000_000, SESSION_MAX / 2);
    assert_eq!(cache.plan(more, 0, 0), Err(SessionError::NotFound));
    assert!(cache.is_empty() && cache.bytes == 0);
}

#[test]
fn long_names_count() {
    let mut cache = FetchSessions::new(1000);
    let mut long = request(0, 0, &[0, 1, 2]);
    for (key, _) in &mut long.wishes {
        key.name = StrBytes::from_string("n".repeat(SESSION_MAX / 3));
    }
    assert_eq!(cache.plan(long, 0, 7).unwrap().session_id, 0);
}
