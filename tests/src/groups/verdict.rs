//! What at-least-once allows, computed from what members printed and what was committed.
//!
//! A *run* is what a member read of a partition since it was given it: consecutive offsets.
//!
//! - No record is skipped: the runs of a partition cover it from 0 to its end.
//! - A run begins at an offset that some member committed or was about to, or at 0.
//! - A run begins at or above the highest offset that was known to be committed before the
//!   partition was given: so a record is read twice only if it lay at or above the last committed
//!   offset of the previous owner.
//! - Nobody commits what it has not read.
//!
//! Tools say nothing of assignments and commits: of them only the committed offsets from before
//! their start are known, and a run ends where offsets are not consecutive.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};

use super::member::Gone;

/// One line of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event<'a> {
    /// Partitions were given at this time, in milliseconds since the epoch.
    Assigned(i64, &'a str),
    /// Partition, offset, value.
    Record(usize, i64, &'a [u8]),
    /// Partition and offset about to be committed.
    Commit(usize, i64),
    /// Time, partition and offset of a commit that was answered.
    Committed(i64, usize, i64),
}

/// Consecutive records of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    partition: usize,
    start: i64,
    end: i64,
    /// Before this time others may have committed; `None` for a tool.
    given_ms: Option<i64>,
    member: usize,
}

/// What a good verdict says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records printed by all members.
    pub delivered: u64,
    /// Of them, records that had been printed before; each lay above the last commit.
    pub twice: u64,
    /// Times a member began to read a partition.
    pub runs: usize,
    /// Commits that were answered.
    pub commits: usize,
}

/// Judges the members of a group that read a topic to its `end`, the same in each partition.
/// `value` is what was written to a partition at an offset.
///
/// # Errors
/// Says which rule is broken, where, and by which member.
pub fn judge<'a>(
    members: &[Gone],
    partitions: usize,
    end: i64,
    value: impl Fn(usize, i64) -> Option<&'a [u8]>,
) -> anyhow::Result<Report> {
    let (mut runs, mut attempts, mut answered) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (number, member) in members.iter().enumerate() {
        let events = events(member).with_context(|| who(members, number))?;
        for event in &events {
            match event {
                Event::Record(partition, offset, bytes) => {
                    let right = value(*partition, *offset) == Some(*bytes);
                    ensure!(
                        right,
                        "{}: partition {partition}, offset {offset}: not what was written",
                        who(members, number)
                    );
                }
                Event::Commit(partition, offset) => {
                    attempts.insert((*partition, *offset));
                }
                Event::Committed(at, partition, offset) => {
                    answered.push((*at, *partition, *offset));
                }
                Event::Assigned(..) => {}
            }
        }
        let own = runs_of(&events, number, member.client.is_tool());
        runs.extend(own.with_context(|| who(members, number))?);
    }
    let knows_all = members.iter().all(|member| !member.client.is_tool());
    for run in &runs {
        let floor = floor(run, members, &answered);
        let Run {
            partition, start, ..
        } = run;
        ensure!(
            *start >= floor,
            "{}: partition {partition}: began at {start}, but {floor} was committed before",
            who(members, run.member)
        );
        ensure!(
            !knows_all || *start == 0 || attempts.contains(&(*partition, *start)),
            "{}: partition {partition}: began at {start}, which nobody committed",
            who(members, run.member)
        );
    }
    for partition in 0..partitions {
        covers(&runs, partition, end)?;
    }
    let delivered: i64 = runs.iter().map(|run| run.end - run.start).sum();
    let distinct = end * i64::try_from(partitions)?;
    Ok(Report {
        delivered: delivered.unsigned_abs(),
        twice: (delivered - distinct).unsigned_abs(),
        runs: runs.len(),
        commits: answered.len(),
    })
}

fn who(members: &[Gone], number: usize) -> String {
    let name = members.get(number).map_or("?", |m| m.client.name());
    format!("member {number} ({name})")
}

/// Highest offset that was surely committed before the run's partition was given.
fn floor(run: &Run, members: &[Gone], answered: &[(i64, usize, i64)]) -> i64 {
    let before = members
        .get(run.member)
        .and_then(|member| member.floor.get(run.partition))
        .copied()
        .unwrap_or(-1);
    let known = answered.iter().filter(|(at, partition, _)| {
        *partition == run.partition && run.given_ms.is_some_and(|given| *at < given)
    });
    known.map(|(_, _, offset)| *offset).fold(before, i64::max)
}

fn covers(runs: &[Run], partition: usize, end: i64) -> anyhow::Result<()> {
    let mut own: Vec<&Run> = runs.iter().filter(|r| r.partition == partition).collect();
    own.sort_by_key(|run| run.start);
    let mut reached = 0;
    for run in own {
        ensure!(
            run.start <= reached,
            "partition {partition}: {reached} to {} were skipped",
            run.start
        );
        reached = reached.max(run.end);
    }
    ensure!(
        reached == end,
        "partition {partition}: read up to {reached}, written up to {end}"
    );
    Ok(())
}

fn runs_of(events: &[Event<'_>], member: usize, is_tool: bool) -> anyhow::Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    // Per partition: when it was given, and the run under way.
    let mut given: Vec<(usize, i64)> = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for event in events {
        match *event {
            Event::Assigned(at, partitions) => {
                for partition in numbers(partitions)? {
                    given.retain(|(p, _)| *p != partition);
                    given.push((partition, at));
                    open.retain(|(p, _)| *p != partition);
                }
            }
            Event::Record(partition, offset, _) => {
                let under_way = open.iter().find(|(p, _)| *p == partition).map(|(_, i)| *i);
                if let Some(run) = under_way.and_then(|index| runs.get_mut(index)) {
                    if run.end == offset {
                        run.end += 1;
                        continue;
                    }
                    ensure!(
                        is_tool,
                        "partition {partition}: {offset} follows {}",
                        run.end - 1
                    );
                }
                let time = given.iter().find(|(p, _)| *p == partition);
                ensure!(
                    is_tool || time.is_some(),
                    "partition {partition} was never given"
                );
                open.retain(|(p, _)| *p != partition);
                open.push((partition, runs.len()));
                runs.push(Run {
                    partition,
                    start: offset,
                    end: offset + 1,
                    given_ms: time.map(|(_, at)| *at),
                    member,
                });
            }
            Event::Commit(partition, offset) => {
                let read = runs.iter().any(|run| {
                    run.partition == partition && run.start < offset && offset <= run.end
                });
                ensure!(read, "partition {partition}: commits {offset} unread");
            }
            Event::Committed(..) => {}
        }
    }
    Ok(runs)
}

fn numbers(text: &str) -> anyhow::Result<Vec<usize>> {
    text.split(',')
        .filter(|number| !number.is_empty())
        .map(|number| Ok(number.parse()?))
        .collect()
}

/// Every whole line: of the member that was killed the last one may be a half.
fn events(member: &Gone) -> anyhow::Result<Vec<Event<'_>>> {
    let whole = member.output.iter().rposition(|byte| *byte == b'\n');
    let bytes = member.output.get(..whole.unwrap_or(0)).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let event = if member.client.is_tool() {
                tool_line(line)
            } else {
                own_line(line)
            };
            event.with_context(|| format!("line {:?}", String::from_utf8_lossy(line)))
        })
        .collect()
}

/// `partition TAB offset TAB key TAB value`.
fn tool_line(line: &[u8]) -> anyhow::Result<Event<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b'\t');
    let mut field = || fields.next().context("too few fields");
    let partition = number(field()?, "Partition:")?;
    let offset = number(field()?, "Offset:")?;
    field()?;
    Ok(Event::Record(usize::try_from(partition)?, offset, field()?))
}

fn own_line(line: &[u8]) -> anyhow::Result<Event<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b'\t');
    let mut field = || fields.next().context("too few fields");
    let word = std::str::from_utf8(field()?)?;
    let first = number(field()?, "")?;
    let partition = usize::try_from(first);
    Ok(match word {
        "assigned" => Event::Assigned(first, std::str::from_utf8(field()?)?),
        "record" => Event::Record(partition?, number(field()?, "")?, field()?),
        "commit" => Event::Commit(partition?, number(field()?, "")?),
        "committed" => {
            let partition = usize::try_from(number(field()?, "")?)?;
            Event::Committed(first, partition, number(field()?, "")?)
        }
        other => bail!("no such word: {other}"),
    })
}

fn number(field: &[u8], prefix: &str) -> anyhow::Result<i64> {
    let text = std::str::from_utf8(field)?;
    let text = text.strip_prefix(prefix).unwrap_or(text);
    text.parse()
        .with_context(|| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::super::member::Client;
    use super::*;

    fn gone(output: &str) -> Gone {
        Gone {
            client: Client::Rdkafka("range"),
            floor: vec![-1],
            output: output.replace(' ', "\t").into_bytes(),
        }
    }

    fn verdict(outputs: &[&str]) -> Result<Report, String> {
        let members: Vec<Gone> = outputs.iter().map(|output| gone(output)).collect();
        judge(&members, 1, 3, |_, offset| {
            [&b"a"[..], b"b", b"c"]
                .get(usize::try_from(offset).unwrap())
                .copied()
        })
        .map_err(|error| format!("{error:#}"))
    }

    const FIRST: &str = "assigned 10 0\nrecord 0 0 a\ncommit 0 1\ncommitted 20 0 1\nrecord 0 1 b\n";

    #[test]
    fn a_record_above_the_last_commit_may_come_twice() {
        let second = "assigned 30 0\nrecord 0 1 b\nrecord 0 2 c\ncommit 0 3\n";
        let report = verdict(&[FIRST, second]).unwrap();
        let expected = Report {
            delivered: 4,
            twice: 1,
            runs: 2,
            commits: 1,
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn every_rule_can_be_broken() {
        let broken = |second: &str| verdict(&[FIRST, second]).unwrap_err();
        let lost = broken("assigned 30 0\nrecord 0 0 a\nrecord 0 1 b\nrecord 0 2 c\n");
        assert!(lost.contains("but 1 was committed before"), "{lost}");
        // Not known to be committed when it began.
        let early = "assigned 20 0\nrecord 0 0 a\nrecord 0 1 b\nrecord 0 2 c\n";
        assert!(verdict(&[FIRST, early]).is_ok());
        let strange = broken("assigned 30 0\nrecord 0 2 c\n");
        assert!(strange.contains("which nobody committed"), "{strange}");
        let short = broken("assigned 30 0\nrecord 0 1 b\n");
        assert!(short.contains("read up to 2"), "{short}");
        let gap = verdict(&["assigned 1 0\nrecord 0 0 a\nrecord 0 2 c\n"]).unwrap_err();
        assert!(gap.contains("2 follows 0"), "{gap}");
        let skipped = [
            "assigned 1 0\nrecord 0 0 a\n",
            "assigned 1 0\nrecord 0 2 c\ncommit 0 3\n",
        ];
        let unread = broken("assigned 30 0\nrecord 0 1 b\ncommit 0 3\n");
        assert!(unread.contains("commits 3 unread"), "{unread}");
        assert!(verdict(&skipped).is_err());
        let wrong = broken("assigned 30 0\nrecord 0 1 x\n");
        assert!(wrong.contains("not what was written"), "{wrong}");
        let foreign = broken("record 0 1 b\n");
        assert!(foreign.contains("never given"), "{foreign}");
    }

    #[test]
    fn a_tool_is_held_to_what_was_committed_before_its_start() {
        let tool = |floor: i64, output: &str| Gone {
            client: Client::JavaConsole,
            floor: vec![floor],
            output: output.replace(' ', "\t").into_bytes(),
        };
        let value = |_: usize, offset: i64| {
            [&b"a"[..], b"b"]
                .get(usize::try_from(offset).unwrap())
                .copied()
        };
        let first = "Partition:0 Offset:0 null a\n";
        let second = "Partition:0 Offset:0 null a\nPartition:0 Offset:1 null b\nPart";
        let report = judge(&[tool(-1, first), tool(0, second)], 1, 2, value).unwrap();
        assert_eq!((report.delivered, report.twice), (3, 1));
        let lost = judge(&[tool(-1, first), tool(1, second)], 1, 2, value).unwrap_err();
        assert!(lost.to_string().contains("1 was committed"), "{lost}");
    }
}
