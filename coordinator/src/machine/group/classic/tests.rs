//! Sequences that a single row of the matrix cannot show.

use super::scene::{Scene, caller, fixed, leaving, member, protocols};
use super::*;

fn joined(effects: &Effects, token: Token) -> &JoinReply {
    let found = effects.answers.iter().find_map(|answer| match answer {
        Answer::Join(at, reply) if *at == token => Some(reply),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{token:?} not answered: {effects:?}"))
}

fn synced(effects: &Effects, token: Token) -> &SyncReply {
    let found = effects.answers.iter().find_map(|answer| match answer {
        Answer::Sync(at, reply) if *at == token => Some(reply),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{token:?} not answered: {effects:?}"))
}

/// A stable group of `c-1`, which leads, and `c-2`.
fn stable() -> Scene {
    let mut scene = Scene::new();
    drop(scene.join_v2(member("")));
    drop(scene.join_v2(member("")));
    drop(scene.pass(6_000));
    drop(scene.sync("c-2", 1, &[]));
    drop(scene.sync("c-1", 1, &[("c-1", "a"), ("c-2", "b")]));
    assert_eq!(scene.group.state(), ClassicState::Stable);
    scene
}

#[test]
fn g01_a_member_gets_its_id_first_and_then_its_generation() {
    let mut scene = Scene::new();
    let (staged, _) = scene.join(member(""));
    let Staged::Now(Err(refused)) = staged else {
        panic!("{staged:?}");
    };
    assert_eq!(refused.error, GroupError::MemberIdRequired);
    assert_eq!(&*refused.member_id, "c-1");
    let (staged, _) = scene.join(member("c-1"));
    let Staged::Parked(token) = staged else {
        panic!("{staged:?}");
    };
    assert_eq!(scene.pass(2_999), Effects::default());
    let effects = scene.pass(1);
    let reply = joined(&effects, token).clone().unwrap();
    assert_eq!((reply.generation, reply.leader.as_str()), (1, "c-1"));
    assert_eq!(reply.members.len(), 1);
}

#[test]
fn the_initial_delay_is_extended_while_members_arrive_and_no_longer() {
    let mut scene = Scene::new();
    let (first, _) = scene.join_v2(Join {
        rebalance_timeout_ms: 7_000,
        ..member("")
    });
    let mut last = first;
    // A member every 2 s: 3 s, 3 s more, and the 1 s that is left of the rebalance timeout.
    for _ in 0..3 {
        assert!(scene.pass(2_000).answers.is_empty());
        last = scene
            .join_v2(Join {
                rebalance_timeout_ms: 7_000,
                ..member("")
            })
            .0;
    }
    assert!(scene.pass(999).answers.is_empty());
    let effects = scene.pass(1);
    assert_eq!(joined(&effects, first).as_ref().unwrap().generation, 1);
    assert_eq!(joined(&effects, last).as_ref().unwrap().generation, 1);
    assert_eq!(effects.answers.len(), 4);
}

#[test]
fn a_pending_member_holds_a_rebalance_until_its_session_ends() {
    let mut scene = stable();
    drop(scene.join(member("")));
    let (staged, _) = scene.join(member("c-1"));
    let Staged::Parked(leader) = staged else {
        panic!("{staged:?}");
    };
    let (staged, effects) = scene.join(member("c-2"));
    assert!(matches!(staged, Staged::Parked(_)));
    assert!(effects.answers.is_empty(), "the pending member is awaited");
    let effects = scene.pass(10_000);
    assert_eq!(joined(&effects, leader).as_ref().unwrap().generation, 2);
}

#[test]
fn who_does_not_come_back_is_removed_and_a_static_member_is_kept() {
    let mut scene = Scene::new();
    drop(scene.join_v2(Join {
        session_timeout_ms: 600_000,
        ..member("")
    }));
    drop(scene.join_v2(Join {
        session_timeout_ms: 600_000,
        ..fixed("", "i")
    }));
    drop(scene.pass(6_000));
    drop(scene.sync("i-2", 1, &[]));
    drop(scene.sync("c-1", 1, &[]));
    // A third one comes; the other two are silent.
    let (third, _) = scene.join_v2(member(""));
    assert!(scene.pass(59_999).answers.is_empty());
    let effects = scene.pass(1);
    let reply = joined(&effects, third).clone().unwrap();
    let ids: Vec<&str> = reply.members.iter().map(|m| m.member_id.as_str()).collect();
    assert_eq!(ids, ["c-3", "i-2"]);
    assert_eq!(
        reply.leader.as_str(),
        "c-3",
        "the leader is one that is there"
    );
}

#[test]
fn g13_a_member_that_never_syncs_is_removed() {
    let mut scene = Scene::new();
    drop(scene.join_v2(member("")));
    drop(scene.join_v2(member("")));
    drop(scene.pass(6_000));
    let (staged, _) = scene.sync("c-1", 1, &[("c-1", "a"), ("c-2", "b")]);
    assert!(matches!(staged, Staged::Parked(_)));
    for _ in 0..11 {
        drop(scene.pass(5_000));
        assert_eq!(scene.heartbeat("c-1", 1), Ok(()));
        assert_eq!(scene.heartbeat("c-2", 1), Ok(()));
    }
    drop(scene.pass(5_000));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(
        scene.heartbeat("c-1", 1),
        Err(GroupError::RebalanceInProgress)
    );
    assert_eq!(scene.heartbeat("c-2", 1), Err(GroupError::UnknownMemberId));
}

#[test]
fn heartbeats_and_commits_keep_a_session_and_silence_ends_it() {
    let mut scene = stable();
    for _ in 0..5 {
        drop(scene.pass(9_000));
        assert_eq!(scene.heartbeat("c-1", 1), Ok(()));
        scene.group.touch("c-2", scene.now);
    }
    assert_eq!(scene.group.state(), ClassicState::Stable);
    drop(scene.pass(9_000));
    assert_eq!(scene.heartbeat("c-1", 1), Ok(()));
    let effects = scene.pass(1_000);
    assert!(effects.facts.iter().any(|fact| matches!(
        fact,
        Fact::Removed { member, .. } if member.as_str() == "c-2"
    )));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
}

#[test]
fn g08_a_static_member_comes_back_without_a_rebalance() {
    let mut scene = Scene::new();
    drop(scene.join_v2(fixed("", "i")));
    drop(scene.join_v2(member("")));
    drop(scene.pass(6_000));
    drop(scene.sync("c-2", 1, &[]));
    drop(scene.sync("i-1", 1, &[("i-1", "a"), ("c-2", "b")]));
    let (staged, effects) = scene.join(fixed("", "i"));
    let Staged::Now(Ok(reply)) = staged else {
        panic!("{staged:?}");
    };
    assert_eq!((reply.member_id.as_str(), reply.generation), ("i-3", 1));
    assert_eq!(reply.leader.as_str(), "i-3");
    assert!(reply.skip_assignment);
    assert_eq!(reply.members.len(), 2);
    assert!(effects.answers.is_empty());
    let old = caller("i-1", Some("i"));
    let beat = scene.group.heartbeat(old, 1, scene.now);
    assert_eq!(beat, Err(GroupError::FencedInstanceId));
    let (staged, _) = scene.sync("i-3", 1, &[]);
    let Staged::Now(Ok(reply)) = staged else {
        panic!("{staged:?}");
    };
    assert_eq!(&reply.assignment[..], b"a", "it goes on with what it had");
}

/// Kafka would know the member; here a client that repeats a commit of before the restart would end
/// for good.
#[test]
fn the_id_that_a_static_member_had_before_this_process_is_unknown_and_not_fenced() {
    let mut scene = Scene::new();
    scene.group.note_former_members();
    drop(scene.join_v2(fixed("", "i")));
    drop(scene.pass(6_000));
    drop(scene.sync("i-1", 1, &[]));
    let old = |scene: &mut Scene, id| {
        let old = caller(id, Some("i"));
        let (group, now) = (&mut scene.group, scene.now);
        [
            group.check_commit(old, 1),
            group.check_txn_commit(old, 1),
            group.heartbeat(old, 1, now),
        ]
    };
    assert_eq!(
        old(&mut scene, "i-0"),
        [Err(GroupError::UnknownMemberId); 3]
    );
    assert_eq!(old(&mut scene, "i-1"), [Ok(()); 3]);
    // Who took its place in this process fences it.
    drop(scene.join(fixed("", "i")));
    for id in ["i-0", "i-1"] {
        assert_eq!(old(&mut scene, id), [Err(GroupError::FencedInstanceId); 3]);
    }
}

#[test]
fn what_a_fenced_member_waits_in_is_answered() {
    let mut scene = Scene::new();
    let (waits, _) = scene.join_v2(fixed("", "i"));
    let (staged, effects) = scene.join(fixed("", "i"));
    let refused = joined(&effects, waits).clone().unwrap_err();
    assert_eq!(refused.error, GroupError::FencedInstanceId);
    let Staged::Parked(new) = staged else {
        panic!("{staged:?}");
    };
    let effects = scene.pass(6_000);
    assert_eq!(
        joined(&effects, new).as_ref().unwrap().member_id.as_str(),
        "i-2"
    );
    let (staged, _) = scene.sync("i-2", 1, &[]);
    assert!(matches!(staged, Staged::Parked(_)), "{staged:?}");
}

#[test]
fn a_rebalance_refuses_those_that_wait_for_an_assignment() {
    let mut scene = Scene::new();
    drop(scene.join_v2(member("")));
    drop(scene.join_v2(member("")));
    drop(scene.pass(6_000));
    let (staged, _) = scene.sync("c-2", 1, &[]);
    let Staged::Parked(follower) = staged else {
        panic!("{staged:?}");
    };
    let (outcomes, effects) = scene.leave(&[leaving("c-1", None)]);
    assert_eq!(outcomes, [Ok(())]);
    assert_eq!(
        synced(&effects, follower),
        &Err(GroupError::RebalanceInProgress)
    );
}

#[test]
fn a_request_that_a_later_one_replaces_is_answered() {
    let mut scene = stable();
    let changed = || Join {
        protocols: protocols(&["range"]),
        ..member("c-2")
    };
    let (first, _) = scene.join_v2(changed());
    let (second, effects) = scene.join_v2(changed());
    let refused = joined(&effects, first).clone().unwrap_err();
    assert_eq!(refused.error, GroupError::RebalanceInProgress);
    let (staged, effects) = scene.join(member("c-1"));
    assert!(matches!(staged, Staged::Parked(_)));
    assert_eq!(joined(&effects, second).as_ref().unwrap().generation, 2);
    let (staged, _) = scene.sync("c-2", 2, &[]);
    let Staged::Parked(first) = staged else {
        panic!("{staged:?}");
    };
    let (staged, effects) = scene.sync("c-2", 2, &[]);
    assert!(matches!(staged, Staged::Parked(_)));
    assert_eq!(
        synced(&effects, first),
        &Err(GroupError::RebalanceInProgress)
    );
}

#[test]
fn the_most_voted_protocol_wins_among_those_that_all_have() {
    let mut scene = Scene::new();
    for names in [
        &["a", "b", "c"][..],
        &["c", "b"][..],
        &["b", "c"][..],
        &["c", "b", "a"][..],
    ] {
        drop(scene.join_v2(Join {
            protocols: protocols(names),
            ..member("")
        }));
    }
    let effects = scene.pass(60_000);
    for answer in &effects.answers {
        if let Answer::Join(_, Ok(joined)) = answer {
            // `a` is not everyone's; `b` and `c` have two votes each, and the leader prefers `b`.
            assert_eq!(joined.protocol_name.as_deref(), Some("b"));
        }
    }
    assert!(effects.answers.len() >= 4);
}

#[test]
fn a_full_group_turns_away_who_comes_back_last() {
    let mut scene = stable();
    scene.config.max_size = 1;
    let (staged, _) = scene.join(member("c-1"));
    let Staged::Parked(leader) = staged else {
        panic!("{staged:?}");
    };
    let (staged, effects) = scene.join(member("c-2"));
    let Staged::Now(Err(refused)) = staged else {
        panic!("{staged:?}");
    };
    assert_eq!(refused.error, GroupError::GroupMaxSizeReached);
    assert_eq!(&*refused.member_id, "");
    assert_eq!(joined(&effects, leader).as_ref().unwrap().members.len(), 1);
}

#[test]
fn subscriptions_are_those_of_the_generation() {
    let mut scene = Scene::new();
    assert!(!scene.group.is_subscribed_to("t"));
    drop(scene.join_v2(member("")));
    assert!(
        scene.group.is_subscribed_to("u"),
        "not known yet: it may be"
    );
    drop(scene.pass(3_000));
    assert!(scene.group.is_subscribed_to("t"));
    assert!(!scene.group.is_subscribed_to("u"));
    drop(scene.leave(&[leaving("c-1", None)]));
    assert_eq!(scene.group.empty_since(), Some(scene.now.wall_ms));
    assert!(!scene.group.is_subscribed_to("t"));
    assert!(scene.group.knows_subscriptions());

    let mut noise = Scene::new();
    drop(noise.join_v2(Join {
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: bytes::Bytes::from_static(b"\0\0\x7f\xff\xff\xff"),
        }],
        ..member("")
    }));
    drop(noise.pass(3_000));
    assert!(
        noise.group.is_subscribed_to("anything"),
        "not readable: it may be"
    );
}

#[test]
fn a_member_that_waits_for_its_first_generation_is_given_up_after_five_minutes() {
    let mut scene = Scene::new();
    scene.config.initial_rebalance_delay_ms = 1_000_000;
    let (waits, _) = scene.join_v2(Join {
        rebalance_timeout_ms: 2_000_000,
        ..member("")
    });
    assert!(scene.pass(299_999).answers.is_empty());
    let effects = scene.pass(1);
    let refused = joined(&effects, waits).clone().unwrap_err();
    assert_eq!(refused.error, GroupError::UnknownMemberId);
    assert_eq!(scene.group.state(), ClassicState::Empty);
    assert_eq!(scene.group.next_deadline(), None);
}

#[test]
fn a_dead_group_has_told_everyone() {
    let mut scene = stable();
    let (waits, _) = scene.join_v2(Join {
        protocols: protocols(&["range"]),
        ..member("c-2")
    });
    let effects = scene.group.die(GroupError::NotCoordinator, scene.now);
    let refused = joined(&effects, waits).clone().unwrap_err();
    assert_eq!(refused.error, GroupError::NotCoordinator);
    assert_eq!(&*refused.member_id, "c-2");
    assert_eq!(scene.group.next_deadline(), None);
    assert_eq!(
        scene.heartbeat("c-1", 1),
        Err(GroupError::CoordinatorNotAvailable)
    );
}

fn with_metadata(member_id: &str, length: usize) -> Join {
    Join {
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: vec![0; length].into(),
        }],
        ..member(member_id)
    }
}

#[test]
fn members_of_a_group_take_no_more_than_they_may() {
    let mut scene = Scene::new();
    scene.config.bytes_max = 100_000;
    let (first, _) = scene.join_v2(with_metadata("", 40_000));
    drop(scene.join_v2(with_metadata("", 40_000)));
    let full = |scene: &mut Scene, join: Join| match scene.join(join).0 {
        Staged::Now(Err(refused)) => assert_eq!(refused.error, GroupError::GroupMaxSizeReached),
        other => panic!("{other:?}"),
    };
    full(&mut scene, with_metadata("", 40_000));
    let effects = scene.pass(6_000);
    let reply = joined(&effects, first).clone().unwrap();
    assert_eq!(
        reply.members.len(),
        2,
        "the leader is told of those that fit"
    );
    // One that is there may not grow beyond it, and stays as it was.
    let before = scene.group.bytes();
    full(&mut scene, with_metadata("c-2", 90_000));
    assert_eq!(scene.group.bytes(), before);
    let (staged, _) = scene.join(with_metadata("c-2", 40_000));
    assert!(matches!(staged, Staged::Now(Ok(_))), "{staged:?}");
    drop(scene.pass(600_000));
    assert_eq!(scene.group.bytes(), 0, "nobody is left");
}

#[test]
fn of_too_many_pending_members_the_oldest_go() {
    let mut scene = Scene::new();
    let long = |member_id: &str| Join {
        client_id: "c".repeat(32_000).into(),
        session_timeout_ms: 1_800_000,
        ..member(member_id)
    };
    let mut ids = Vec::new();
    for _ in 0..1_000 {
        match scene.join(long("")).0 {
            Staged::Now(Err(refused)) => {
                assert_eq!(refused.error, GroupError::MemberIdRequired);
                ids.push(refused.member_id);
            }
            other => panic!("{other:?}"),
        }
        assert!(scene.group.bytes() <= PENDING_BYTES_MAX);
    }
    let forgotten = scene.join(long(&ids[0])).0;
    let Staged::Now(Err(refused)) = forgotten else {
        panic!("{forgotten:?}");
    };
    assert_eq!(refused.error, GroupError::UnknownMemberId);
    let newest = scene.join(long(&ids[999])).0;
    assert!(matches!(newest, Staged::Parked(_)), "{newest:?}");
}
