//! Every state of a group against every request: `coordinator/golden/classic_group_matrix.txt`.
//! `UPDATE_GOLDEN=1` rewrites it; a change of it is a change of behaviour.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::scene::{Scene, caller, fixed, leaving, member, protocols};
use super::*;

/// Kafka's number of a reason.
fn code(error: GroupError) -> i16 {
    match error {
        GroupError::CoordinatorLoading => 14,
        GroupError::CoordinatorNotAvailable => 15,
        GroupError::NotCoordinator => 16,
        GroupError::IllegalGeneration => 22,
        GroupError::InconsistentGroupProtocol => 23,
        GroupError::OffsetsTooLarge => 28,
        GroupError::InvalidGroupId => 24,
        GroupError::UnknownMemberId => 25,
        GroupError::InvalidSessionTimeout => 26,
        GroupError::RebalanceInProgress => 27,
        GroupError::NonEmptyGroup => 68,
        GroupError::GroupIdNotFound => 69,
        GroupError::MemberIdRequired => 79,
        GroupError::GroupMaxSizeReached => 81,
        GroupError::FencedInstanceId => 82,
        GroupError::SubscribedToTopic => 86,
    }
}

/// The states. `c-1` leads where there is a leader, `c-2` follows, `i-3` is the static member.
fn states() -> Vec<(&'static str, Scene)> {
    let empty = Scene::new();

    let mut pending = empty.clone();
    drop(pending.join(member("")));

    let mut initial = empty.clone();
    drop(initial.join_v2(member("")));
    let mut late = initial.clone();
    drop(late.join_v2(member("")));
    drop(late.join_v2(fixed("", "i")));

    let mut completing = late.clone();
    drop(completing.pass(6_000));
    let mut waiting = completing.clone();
    drop(waiting.sync("c-2", 1, &[]));
    let mut stable = waiting.clone();
    drop(stable.sync("i-3", 1, &[]));
    drop(stable.sync("c-1", 1, &[("c-1", "a"), ("c-2", "b"), ("i-3", "c")]));

    let mut preparing = stable.clone();
    drop(preparing.join_v2(Join {
        protocols: protocols(&["range"]),
        ..member("c-2")
    }));

    let mut emptied = stable.clone();
    let all = [
        leaving("c-1", None),
        leaving("c-2", None),
        leaving("", Some("i")),
    ];
    drop(emptied.leave(&all));

    let mut full = stable.clone();
    full.config.max_size = 3;

    let mut dead = stable.clone();
    drop(dead.group.die(GroupError::NotCoordinator, dead.now));

    vec![
        ("Empty, new", empty),
        ("Empty, c-1 pending", pending),
        ("Empty, everyone left", emptied),
        ("PreparingRebalance, first delay, c-1 waits", initial),
        ("PreparingRebalance, c-2 waits", preparing),
        ("CompletingRebalance, nobody synced", completing),
        ("CompletingRebalance, c-2 waits", waiting),
        ("Stable", stable),
        ("Stable, group.max.size reached", full),
        ("Dead", dead),
    ]
}

type Act = Box<dyn Fn(&mut Scene) -> (String, Effects)>;

/// A request, where its row comes from, and what it does.
struct Request {
    name: &'static str,
    source: &'static str,
    act: Act,
}

fn joins(name: &'static str, source: &'static str, join: Join) -> Request {
    let act = move |scene: &mut Scene| {
        let (staged, effects) = scene.join(join.clone());
        (staged_join(&staged), effects)
    };
    request(name, source, act)
}

fn syncs(
    name: &'static str,
    source: &'static str,
    sync: impl Fn(i32) -> Sync<'static> + 'static,
) -> Request {
    let act = move |scene: &mut Scene| {
        let sync = sync(scene.group.generation());
        let (staged, effects) = scene.group.sync(&scene.config, sync, scene.now);
        let reply = match &staged {
            Staged::Parked(token) => format!("waits #{}", token.0),
            Staged::Now(reply) => sync_reply(reply),
        };
        (reply, effects)
    };
    request(name, source, act)
}

fn asks(
    name: &'static str,
    source: &'static str,
    ask: impl Fn(&mut Scene) -> Result<(), GroupError> + 'static,
) -> Request {
    let act = move |scene: &mut Scene| (outcome(ask(scene)), Effects::default());
    request(name, source, act)
}

fn leaves(name: &'static str, source: &'static str, leaving: Leaving) -> Request {
    let act = move |scene: &mut Scene| {
        let leaving = std::slice::from_ref(&leaving);
        let (reply, effects) = scene.group.leave(&scene.config, leaving, scene.now);
        let reply = match reply {
            Err(error) => outcome(Err(error)),
            Ok(outcomes) => {
                let outcomes: Vec<String> = outcomes.into_iter().map(outcome).collect();
                format!("[{}]", outcomes.join(", "))
            }
        };
        (reply, effects)
    };
    request(name, source, act)
}

fn waits(name: &'static str, source: &'static str, ms: u64) -> Request {
    request(name, source, move |scene: &mut Scene| {
        ("-".to_owned(), scene.pass(ms))
    })
}

fn request(
    name: &'static str,
    source: &'static str,
    act: impl Fn(&mut Scene) -> (String, Effects) + 'static,
) -> Request {
    Request {
        name,
        source,
        act: Box::new(act),
    }
}

fn join_requests() -> Vec<Request> {
    let v2 = |join: Join| Join {
        requires_member_id: false,
        supports_skip_assignment: false,
        ..join
    };
    let with = |join: Join, names: &[&str]| Join {
        protocols: protocols(names),
        ..join
    };
    let connect = Join {
        protocol_type: "connect".into(),
        ..member("")
    };
    vec![
        joins("Join v9 \"\"", "Join v4+ dynamic; G01", member("")),
        joins("Join v2 \"\"", "Join v0-3 dynamic; G02", v2(member(""))),
        joins("Join unknown id", "Join id unknown; G04", member("x")),
        joins(
            "Join only sticky",
            "Join no common protocol; G05",
            with(member(""), &["sticky"]),
        ),
        joins(
            "Join no protocols",
            "Join empty protocols",
            with(member(""), &[]),
        ),
        joins("Join type connect", "Join protocol type", connect),
        joins("Join c-1, same", "Join leader rejoins", member("c-1")),
        joins("Join c-2, same", "Join unchanged follower", member("c-2")),
        joins(
            "Join c-2, changed",
            "Join metadata changed",
            with(member("c-2"), &["range"]),
        ),
        joins("Join static new", "Join static with \"\"", fixed("", "j")),
        joins(
            "Join v9 static i \"\"",
            "Join static known; G08",
            fixed("", "i"),
        ),
        joins(
            "Join v8 static i \"\"",
            "Join static known, v<9",
            v2(fixed("", "i")),
        ),
        joins(
            "Join static i \"\", only roundrobin",
            "Join static known, other protocol",
            with(fixed("", "i"), &["roundrobin"]),
        ),
        joins("Join c-2 as static i", "Join static 82", fixed("c-2", "i")),
        joins("Join i-3 as static i", "Join static", fixed("i-3", "i")),
    ]
}

fn sync_requests() -> Vec<Request> {
    let sync = |member, instance, older: i32, protocol| {
        move |generation| Sync {
            caller: caller(member, instance),
            generation: generation - older,
            protocol_type: Some("consumer"),
            protocol_name: Some(protocol),
            assignments: vec![("c-1".into(), bytes::Bytes::from_static(b"x"))],
        }
    };
    vec![
        syncs(
            "Sync leader c-1",
            "Sync leader",
            sync("c-1", None, 0, "range"),
        ),
        syncs(
            "Sync follower c-2",
            "Sync follower",
            sync("c-2", None, 0, "range"),
        ),
        syncs("Sync unknown id", "Sync 25", sync("x", None, 0, "range")),
        syncs(
            "Sync c-2 as static i",
            "Sync 82",
            sync("c-2", Some("i"), 0, "range"),
        ),
        syncs(
            "Sync older generation",
            "Sync 22",
            sync("c-2", None, 1, "range"),
        ),
        syncs(
            "Sync other protocol",
            "Sync 23",
            sync("c-2", None, 0, "sticky"),
        ),
    ]
}

fn member_requests() -> Vec<Request> {
    let beat = |member: &'static str, instance: Option<&'static str>, older: i32| {
        move |scene: &mut Scene| {
            let generation = scene.group.generation() - older;
            let caller = caller(member, instance);
            scene.group.heartbeat(caller, generation, scene.now)
        }
    };
    vec![
        asks("Heartbeat c-2", "Heartbeat; G07", beat("c-2", None, 0)),
        asks("Heartbeat unknown id", "Heartbeat 25", beat("x", None, 0)),
        asks(
            "Heartbeat c-2 as static i",
            "Heartbeat 82; G08",
            beat("c-2", Some("i"), 0),
        ),
        asks(
            "Heartbeat older generation",
            "Heartbeat 22",
            beat("c-2", None, 1),
        ),
        leaves("Leave c-1", "Leave", leaving("c-1", None)),
        leaves("Leave c-2", "Leave", leaving("c-2", None)),
        leaves(
            "Leave instance i",
            "Leave by instance id",
            leaving("", Some("i")),
        ),
        leaves("Leave unknown id", "Leave 25", leaving("x", None)),
        leaves(
            "Leave c-2 as static i",
            "Leave 82",
            leaving("c-2", Some("i")),
        ),
    ]
}

fn other_requests() -> Vec<Request> {
    let commit = |member: &'static str, instance: Option<&'static str>, generation: Option<i32>| {
        move |scene: &mut Scene| {
            let generation = generation.unwrap_or(scene.group.generation());
            scene
                .group
                .check_commit(caller(member, instance), generation)
        }
    };
    let txn = |member: &'static str, generation: Option<i32>| {
        move |scene: &mut Scene| {
            let generation = generation.unwrap_or(scene.group.generation());
            scene
                .group
                .check_txn_commit(caller(member, None), generation)
        }
    };
    vec![
        asks(
            "Commit c-2",
            "OffsetCommit 27; G07",
            commit("c-2", None, None),
        ),
        asks(
            "Commit c-2, generation 9",
            "OffsetCommit 22",
            commit("c-2", None, Some(9)),
        ),
        asks(
            "Commit unknown id",
            "OffsetCommit 25",
            commit("x", None, None),
        ),
        asks(
            "Commit c-2 as static i",
            "OffsetCommit 82",
            commit("c-2", Some("i"), None),
        ),
        asks(
            "Commit generation -1",
            "OffsetCommit gen<0; G10",
            commit("", None, Some(-1)),
        ),
        asks("TxnCommit c-2", "TxnOffsetCommit; T58", txn("c-2", None)),
        asks(
            "TxnCommit c-2, generation 9",
            "TxnOffsetCommit 22; T56",
            txn("c-2", Some(9)),
        ),
        asks(
            "TxnCommit unknown id",
            "TxnOffsetCommit 25; T56",
            txn("x", None),
        ),
        asks(
            "TxnCommit generation -1",
            "TxnOffsetCommit; T59",
            txn("", Some(-1)),
        ),
        asks("Delete", "DeleteGroups; G11", |scene| {
            scene.group.can_delete()
        }),
        asks("DeleteOffsets", "OffsetDelete", |scene| {
            scene.group.can_delete_offsets()
        }),
        waits("3 s pass", "Join initial delay", 3_000),
        waits("10 s pass", "timers: session", 10_000),
        waits("60 s pass", "timers: rebalance, sync; G13", 60_000),
        waits("300 s pass", "timers: new member", 300_000),
    ]
}

fn outcome(outcome: Result<(), GroupError>) -> String {
    match outcome {
        Ok(()) => "0".to_owned(),
        Err(error) => code(error).to_string(),
    }
}

fn staged_join(staged: &Staged<JoinReply>) -> String {
    match staged {
        Staged::Parked(token) => format!("waits #{}", token.0),
        Staged::Now(reply) => join_reply(reply),
    }
}

fn join_reply(reply: &JoinReply) -> String {
    match reply {
        Err(refused) => format!("{} {:?}", code(refused.error), refused.member_id),
        Ok(joined) => {
            let ids: Vec<&str> = joined
                .members
                .iter()
                .map(|m| m.member_id.as_str())
                .collect();
            let skip = if joined.skip_assignment { " skip" } else { "" };
            format!(
                "0 {} gen {} {} leader {} [{}]{skip}",
                joined.member_id,
                joined.generation,
                joined.protocol_name.as_deref().unwrap_or("-"),
                joined.leader,
                ids.join(" "),
            )
        }
    }
}

fn sync_reply(reply: &SyncReply) -> String {
    match reply {
        Err(error) => code(*error).to_string(),
        Ok(synced) => format!("0 {:?}", String::from_utf8_lossy(&synced.assignment)),
    }
}

fn effects_text(effects: &Effects) -> String {
    let mut parts = Vec::new();
    for answer in &effects.answers {
        parts.push(match answer {
            Answer::Join(token, reply) => format!("#{} join {}", token.0, join_reply(reply)),
            Answer::Sync(token, reply) => format!("#{} sync {}", token.0, sync_reply(reply)),
        });
    }
    for fact in &effects.facts {
        parts.push(match fact {
            Fact::Rebalancing { reason, .. } => format!("rebalance ({reason})"),
            Fact::Generation {
                generation,
                members,
            } => format!("generation {generation} of {members}"),
            Fact::Stable { generation } => format!("stable {generation}"),
            Fact::Empty { generation } => format!("empty {generation}"),
            Fact::Removed { member, reason } => format!("removed {member} ({reason})"),
            Fact::Replaced { old, new, .. } => format!("replaced {old} by {new}"),
            Fact::Unassigned { members, .. } => format!("{members} unassigned"),
        });
    }
    if parts.is_empty() {
        parts.push("-".to_owned());
    }
    parts.join("; ")
}

fn next_state(scene: &Scene) -> String {
    let group = &scene.group;
    let ids: Vec<String> = group
        .members
        .ids()
        .iter()
        .map(ToString::to_string)
        .collect();
    format!(
        "{} gen {} [{}] pending {}",
        group.state().name(),
        group.generation(),
        ids.join(" "),
        group.pending.len()
    )
}

#[test]
fn the_matrix_is_as_written() {
    let mut text = String::from(
        "Classic groups: state x request -> reply, next state, effects.\n\
         Sources are rows of the group coordinator's contract and its vectors (G, T). Numbers are\n\
         Kafka's codes; #n is a request that waits. Written by a test: UPDATE_GOLDEN=1.\n",
    );
    for (name, scene) in states() {
        writeln!(text, "\n== {name}\n   {}", next_state(&scene)).unwrap();
        let requests = join_requests().into_iter().chain(sync_requests());
        let requests = requests.chain(member_requests());
        for request in requests.chain(other_requests()) {
            let mut scene = scene.clone();
            let (reply, effects) = (request.act)(&mut scene);
            writeln!(
                text,
                "{:<36}-> {reply}\n    {}\n    {}\n    ({})",
                request.name,
                next_state(&scene),
                effects_text(&effects),
                request.source
            )
            .unwrap();
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/classic_group_matrix.txt");
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
