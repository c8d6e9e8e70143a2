//! The service around the machine: who is answered, by whom, and when nobody is left.

use store_adapter::ids::BrokerId;

use super::offset_state::Work;
use super::*;
use crate::machine::group::classic::{Caller, Join, JoinReply, Joined, Leaving, Protocol, Sync};
use crate::machine::group::offsets::Membership;

/// Everything is here, but for groups whose name says otherwise.
#[derive(Debug)]
struct ByName;

impl GroupRouting for ByName {
    fn route(&self, group: &str) -> Route {
        match group {
            "elsewhere" => Route::Broker(BrokerId(7)),
            "nobody" => Route::Nobody,
            _ => Route::Here { slot: 0, epoch: 1 },
        }
    }
}

fn groups(initial_rebalance_delay_ms: u32) -> Groups {
    Groups::start(
        &Env::real(),
        config(initial_rebalance_delay_ms),
        Arc::new(ByName),
    )
}

fn config(initial_rebalance_delay_ms: u32) -> GroupConfig {
    GroupConfig {
        classic: ClassicConfig {
            initial_rebalance_delay_ms,
            min_session_timeout_ms: 1,
            ..ClassicConfig::default()
        },
        ..GroupConfig::default()
    }
}

fn member(member_id: &str) -> Join {
    Join {
        member_id: member_id.into(),
        instance_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: bytes::Bytes::new(),
        }],
        requires_member_id: false,
        supports_skip_assignment: true,
        reason: None,
    }
}

fn later(reply: Reply<JoinReply>) -> oneshot::Receiver<JoinReply> {
    match reply {
        Reply::Later(reply) => reply,
        Reply::Now(reply) => panic!("{reply:?}"),
    }
}

async fn joined(reply: Reply<JoinReply>) -> Joined {
    later(reply).await.unwrap().unwrap()
}

fn refused(reply: Reply<JoinReply>) -> GroupError {
    match reply {
        Reply::Now(Err(refused)) => refused.error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_task_ends_the_join_phases_of_many_groups() {
    let groups = groups(20);
    let names: Vec<String> = (0..1_000).map(|n| format!("g{n}")).collect();
    let replies: Vec<_> = names
        .iter()
        .map(|name| later(groups.join(name, member(""))))
        .collect();
    assert_eq!(groups.list().unwrap().len(), 1_000);
    for reply in replies {
        assert_eq!(reply.await.unwrap().unwrap().generation, 1);
    }
    assert!(groups.shared.deadlines.lock().len() <= 1_000);
}

#[tokio::test]
async fn the_deadline_of_a_silent_member_frees_those_that_wait() {
    let groups = groups(0);
    let silent = Join {
        session_timeout_ms: 50,
        ..member("")
    };
    let first = joined(groups.join("g", silent)).await;
    // It waits for the first one, which says nothing any more.
    let second = joined(groups.join("g", member(""))).await;
    assert_eq!(second.generation, 2);
    assert_eq!(second.members.len(), 1);
    let caller = Caller {
        member_id: first.member_id.as_str(),
        instance_id: None,
    };
    let beat = groups.heartbeat("g", caller, 1);
    assert_eq!(beat, Err(GroupError::UnknownMemberId));
}

#[tokio::test]
async fn only_groups_of_this_broker_are_answered() {
    let groups = groups(0);
    for group in ["elsewhere", "nobody"] {
        let error = refused(groups.join(group, member("")));
        assert_eq!(error, GroupError::NotCoordinator);
        assert_eq!(groups.describe(group), Err(GroupError::NotCoordinator));
        assert_eq!(groups.leave(group, &[]), Err(GroupError::NotCoordinator));
    }
    assert_eq!(groups.list().unwrap(), []);
    assert_eq!(
        refused(groups.join("", member(""))),
        GroupError::InvalidGroupId
    );
    let hasty = Join {
        session_timeout_ms: 0,
        ..member("")
    };
    assert_eq!(
        refused(groups.join("g", hasty)),
        GroupError::InvalidSessionTimeout
    );
}

#[tokio::test]
async fn a_service_that_stops_answers_who_waits_and_parks_nobody() {
    let groups = groups(600_000);
    let waits = later(groups.join("g", member("")));
    groups.stop();
    let sent_away = waits.await.unwrap().unwrap_err();
    assert_eq!(sent_away.error, GroupError::NotCoordinator);
    let late = refused(groups.join("g", member("")));
    assert_eq!(late, GroupError::NotCoordinator);
    let other = refused(groups.join("h", member("")));
    assert_eq!(other, GroupError::NotCoordinator);
}

#[tokio::test]
async fn an_idle_group_is_forgotten_and_a_busy_one_is_not() {
    let groups = groups(0);
    let first = joined(groups.join("g", member(""))).await;
    assert!(!groups.forget("g"));
    let leaving = Leaving {
        member_id: first.member_id.0.clone(),
        instance_id: None,
        reason: None,
    };
    assert_eq!(groups.leave("g", &[leaving]), Ok(vec![Ok(())]));
    assert!(groups.describe("g").unwrap().is_some());
    let stale = groups.cell("g").unwrap();
    assert!(groups.forget("g"));
    assert_eq!(groups.describe("g"), Ok(None));
    // Who still holds the old cell is told to look again; the group begins anew.
    assert!(stale.lock().forgotten);
    assert_eq!(joined(groups.join("g", member(""))).await.generation, 1);
    assert!(!groups.forget("g"));
}

#[tokio::test]
async fn a_group_is_gone_from_the_moment_at_which_its_deletion_is_durable() {
    let groups = groups(0);
    let first = joined(groups.join("g", member(""))).await;
    let leaving = Leaving {
        member_id: first.member_id.0.clone(),
        instance_id: None,
        reason: None,
    };
    assert_eq!(groups.leave("g", &[leaving]), Ok(vec![Ok(())]));
    let cell = groups.cell("g").unwrap();
    let waits = {
        let mut state = cell.lock();
        let members = Membership {
            protocol_type: Some("consumer".into()),
            empty_since_ms: None,
        };
        assert!(state.offsets.book.begin(&members).is_some());
        let begun = state.offsets.book.image().unwrap();
        state.offsets.written(&begun);
        let deleted = state.offsets.book.delete_group();
        let waits = state.offsets.pending(deleted).unwrap();
        assert!(state.offsets.wants_queue());
        let Some(Work::Write(image, _)) = state.offsets.work() else {
            panic!("nothing to write");
        };
        state.offsets.written(&image);
        waits
    };
    // The writer has not looked for more work yet.
    assert_eq!(waits.durable().await, Ok(()));
    assert!(groups.forget("g"));
    assert!(groups.cell("g").is_none());
    assert!(cell.lock().offsets.work().is_none());
}

#[tokio::test]
async fn members_of_all_groups_share_their_memory() {
    let config = GroupConfig {
        members_bytes_max: 100_000,
        ..config(0)
    };
    let groups = Groups::start(&Env::real(), config, Arc::new(ByName));
    let large = |member_id: &str| Join {
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: vec![0; 40_000].into(),
        }],
        ..member(member_id)
    };
    let first = joined(groups.join("a", large(""))).await;
    let second = joined(groups.join("b", large(""))).await;
    let unavailable = GroupError::CoordinatorNotAvailable;
    assert_eq!(refused(groups.join("c", large(""))), unavailable);
    assert!(groups.cell("c").is_none(), "nothing is kept of it");
    let bringing = |joined: &Joined, length: usize| {
        let assignment = bytes::Bytes::from(vec![0; length]);
        vec![(joined.member_id.0.clone(), assignment)]
    };
    let sync = |joined: &Joined, length: usize| {
        let caller = Caller {
            member_id: joined.member_id.as_str(),
            instance_id: None,
        };
        let assignments = bringing(joined, length);
        let sync = Sync {
            caller,
            generation: joined.generation,
            protocol_type: None,
            protocol_name: None,
            assignments,
        };
        groups.sync("a", sync)
    };
    let Reply::Now(Err(error)) = sync(&first, 40_000) else {
        panic!("it has room");
    };
    assert_eq!(error, unavailable);
    assert!(matches!(sync(&first, 1_000), Reply::Later(_)));
    // Who is there goes on.
    let again = joined(groups.join("a", large(first.member_id.as_str()))).await;
    assert_eq!(again.generation, 2);
    assert!(matches!(sync(&again, 1_000), Reply::Later(_)));
    // Who leaves gives it back.
    let leaving = Leaving {
        member_id: second.member_id.0.clone(),
        instance_id: None,
        reason: None,
    };
    assert_eq!(groups.leave("b", &[leaving]), Ok(vec![Ok(())]));
    drop(joined(groups.join("c", large(""))).await);
}

#[tokio::test]
async fn first_joins_keep_nobody_out() {
    let config = GroupConfig {
        members_bytes_max: 10_000,
        pending_max: 100,
        ..config(0)
    };
    let groups = Groups::start(&Env::real(), config, Arc::new(ByName));
    let first = |group: &str| {
        let join = Join {
            requires_member_id: true,
            ..member("")
        };
        match groups.join(group, join) {
            Reply::Now(Err(refused)) => {
                assert_eq!(refused.error, GroupError::MemberIdRequired, "{group}");
                refused.member_id
            }
            other => panic!("{group}: {other:?}"),
        }
    };
    let forgotten = first("forgotten");
    let names: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    let given: Vec<_> = names.iter().map(|name| first(name)).collect();
    // Of too many the one that came first.
    assert!(groups.cell("forgotten").is_none());
    let unknown = refused(groups.join("forgotten", member(&forgotten)));
    assert_eq!(unknown, GroupError::UnknownMemberId);
    for number in [0, 99] {
        let again = groups.join(&names[number], member(&given[number]));
        assert_eq!(joined(again).await.generation, 1);
    }
}

#[tokio::test]
async fn a_refused_request_leaves_no_group() {
    let groups = groups(0);
    let empty = Join {
        protocols: Vec::new(),
        ..member("")
    };
    let error = refused(groups.join("g", empty));
    assert_eq!(error, GroupError::InconsistentGroupProtocol);
    assert!(groups.cell("g").is_none());
}

#[tokio::test]
async fn the_task_ends_with_the_service() {
    let groups = groups(600_000);
    let weak = Arc::downgrade(&groups.shared);
    let waits = later(groups.join("g", member("")));
    drop(groups);
    // The sender is gone with its cell.
    assert!(waits.await.is_err());
    assert!(weak.upgrade().is_none());
}
