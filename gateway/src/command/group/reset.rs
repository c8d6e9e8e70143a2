//! `fencepost group reset-offsets`: Kafka's strategies, decided by pure functions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Format, Row, check, render};
use super::offsets::{self, Committed, EARLIEST, LATEST, Place};
use super::plan::{self, Plan};
use super::scope::{self, Topics};
use super::{Chosen, partly};

/// Arguments of `fencepost group reset-offsets`.
#[derive(Debug, Clone, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags")]
pub(super) struct Reset {
    #[command(flatten)]
    groups: Chosen,
    /// Only show what would be committed; what happens without --execute, too
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
    /// Commit the new offsets
    #[arg(long)]
    execute: bool,
    /// Print the plan as a file for --from-file instead
    #[arg(long)]
    export: bool,
    #[command(flatten)]
    topics: Topics,
    /// Every partition for which the group has committed
    #[arg(long, conflicts_with = "topics")]
    all_topics: bool,
    #[command(flatten)]
    strategy: Strategy,
}

/// Where to.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
struct Strategy {
    /// To the start of each log
    #[arg(long)]
    to_earliest: bool,
    /// To the end of each log
    #[arg(long)]
    to_latest: bool,
    /// To where it is; to the end of each log where nothing is committed
    #[arg(long)]
    to_current: bool,
    /// To this offset
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<i64>,
    /// By so many records, forward or (negative) back
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    shift_by: Option<i64>,
    /// To the first record at or after a time: 2026-11-30T12:00:00.000, UTC unless it says another
    #[arg(long, value_name = "DATETIME")]
    to_datetime: Option<String>,
    /// To the first record of the time so long ago, ISO 8601: P1DT2H
    #[arg(long, value_name = "DURATION")]
    by_duration: Option<String>,
    /// To the offsets of a file of lines TOPIC,PARTITION,OFFSET, or GROUP,TOPIC,PARTITION,OFFSET
    /// for several groups
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
}

/// A strategy that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Earliest,
    Latest,
    Current,
    Offset(i64),
    Shift(i64),
    /// Milliseconds since the epoch.
    Time(i64),
    Listed(Plan),
}

/// What is known of a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    earliest: i64,
    latest: i64,
    committed: Option<i64>,
    /// The first offset at the time asked for; `None` if no record is so late.
    timed: Option<i64>,
    /// What the file says.
    listed: Option<i64>,
}

/// A partition's old and new offset.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Moved {
    group: String,
    topic: String,
    partition: i32,
    current_offset: Option<i64>,
    new_offset: i64,
    committed: bool,
}

impl Row for Moved {
    const HEADINGS: &'static [&'static str] = &[
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "NEW-OFFSET",
        "COMMITTED",
    ];

    fn cells(&self) -> Vec<String> {
        let current = self.current_offset;
        vec![
            self.group.clone(),
            self.topic.clone(),
            self.partition.to_string(),
            current.map_or("-".to_owned(), |offset| offset.to_string()),
            self.new_offset.to_string(),
            self.committed.to_string(),
        ]
    }
}

impl Reset {
    pub(super) async fn run(&self, client: &mut Client, format: Format) -> Result<String, Failure> {
        let target = self.strategy.target(client.now_ms())?;
        let listed = matches!(target, Target::Listed(_));
        if self.topics.is_empty() && !self.all_topics && !listed {
            let what = "one of --topic and --all-topics is needed";
            return Err(Failure::Usage(what.to_owned()));
        }
        let groups = self.groups.names(client).await?;
        let several = self.groups.all_groups || groups.len() > 1;
        if let Target::Listed(plan) = &target
            && several
            && plan.is_of_one_group()
        {
            let what = "--from-file: for several groups each line begins with its group";
            return Err(Failure::Usage(what.to_owned()));
        }
        let mut rows = Vec::new();
        let mut failed = None;
        for group in &groups {
            match self.one(client, group, &target).await {
                Ok((moved, refused)) => {
                    rows.extend(moved);
                    failed = failed.or(refused);
                }
                Err(failure) if failure.is_of_the_connection() => {
                    failed = Some(failure);
                    break;
                }
                // The others are moved all the same.
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        let output = if self.export {
            let lines = rows.iter().map(|row| {
                let group = several.then_some(&*row.group);
                plan::line(group, &row.topic, row.partition, row.new_offset)
            });
            lines.collect()
        } else {
            render(&rows, format)?
        };
        match failed {
            Some(failure) if rows.is_empty() => Err(failure),
            failed => partly(output, failed),
        }
    }

    async fn one(
        &self,
        client: &mut Client,
        group: &str,
        target: &Target,
    ) -> Result<(Vec<Moved>, Option<Failure>), Failure> {
        let described = offsets::describe(client, group).await?;
        let state = described.group_state.as_str();
        if !matches!(state, "Empty" | "Dead") {
            return Err(Failure::Refused(format!(
                "group {group} is in state {state}: its offsets can be moved when it has no members"
            )));
        }
        let committed = offsets::committed(client, group).await?;
        let listed = match target {
            Target::Listed(plan) => plan.of(group),
            _ => BTreeMap::new(),
        };
        let known = self.known(client, target, &committed, &listed).await?;
        let mut moved = BTreeMap::new();
        for (place, known) in &known {
            if let Some(offset) = decide(target, place, *known)? {
                moved.insert(place.clone(), offset);
            }
        }
        let refused = if self.execute && !moved.is_empty() {
            Some(offsets::commit(client, group, &moved).await?)
        } else {
            None
        };
        Ok(outcome(group, moved, &committed, refused.as_ref()))
    }

    /// What there is to know of every partition in the scope.
    async fn known(
        &self,
        client: &mut Client,
        target: &Target,
        committed: &BTreeMap<Place, Committed>,
        listed: &BTreeMap<Place, i64>,
    ) -> Result<BTreeMap<Place, Known>, Failure> {
        let wanted = if self.all_topics {
            committed.keys().cloned().collect()
        } else if self.topics.is_empty() {
            listed.keys().cloned().collect()
        } else {
            self.topics.wanted()?
        };
        let topics = scope::topics(&wanted);
        let leaders = offsets::leaders(client, Some(&topics)).await?;
        let places = scope::expand(&wanted, &leaders);
        let earliest = offsets::at(client, &leaders, &places, EARLIEST).await?;
        let latest = offsets::at(client, &leaders, &places, LATEST).await?;
        let timed = match target {
            Target::Time(time) => offsets::at(client, &leaders, &places, *time).await?,
            _ => BTreeMap::new(),
        };
        let of =
            |map: &BTreeMap<Place, Option<i64>>, place: &Place| map.get(place).copied().flatten();
        let known = places.into_iter().map(|place| {
            let known = Known {
                earliest: of(&earliest, &place).unwrap_or(0),
                latest: of(&latest, &place).unwrap_or(0),
                committed: committed.get(&place).map(|committed| committed.offset),
                timed: of(&timed, &place),
                listed: listed.get(&place).copied(),
            };
            (place, known)
        });
        Ok(known.collect())
    }
}

impl Strategy {
    fn target(&self, now_ms: i64) -> Result<Target, Failure> {
        let Self {
            to_earliest,
            to_latest,
            ..
        } = *self;
        Ok(if let Some(offset) = self.to_offset {
            Target::Offset(offset)
        } else if let Some(by) = self.shift_by {
            Target::Shift(by)
        } else if let Some(text) = &self.to_datetime {
            Target::Time(time(text)?)
        } else if let Some(text) = &self.by_duration {
            Target::Time(before(now_ms, text)?)
        } else if let Some(path) = &self.from_file {
            let failed = |error| Failure::Usage(format!("{}: {error}", path.display()));
            let text = std::fs::read_to_string(path).map_err(failed)?;
            Target::Listed(Plan::parse(&text)?)
        } else if to_earliest {
            Target::Earliest
        } else if to_latest {
            Target::Latest
        } else {
            Target::Current
        })
    }
}

/// Milliseconds of a date and time, in UTC unless it names an offset.
fn time(text: &str) -> Result<i64, Failure> {
    let stamp = text.parse::<Timestamp>().or_else(|_| {
        let civil: DateTime = text.parse()?;
        civil.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp())
    });
    let stamp = stamp.map_err(|error| Failure::Usage(format!("--to-datetime {text}: {error}")))?;
    Ok(stamp.as_millisecond())
}

/// Milliseconds of the time that lies a duration before `now_ms`; a day has 24 hours.
fn before(now_ms: i64, text: &str) -> Result<i64, Failure> {
    let refuse = |why: String| Failure::Usage(format!("--by-duration {text}: {why}"));
    let span: Span = text
        .parse()
        .map_err(|error: jiff::Error| refuse(error.to_string()))?;
    let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours());
    let duration = duration.map_err(|error| refuse(error.to_string()))?;
    if duration.is_negative() {
        return Err(refuse("it is negative".to_owned()));
    }
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Ok(now_ms.saturating_sub(ms))
}

/// The new offset of a partition; `None` leaves it as it is. Within the log, but for one that is
/// committed and stays, as with Kafka's tool.
fn decide(target: &Target, place: &Place, known: Known) -> Result<Option<i64>, Failure> {
    let Known {
        earliest,
        latest,
        committed,
        timed,
        listed,
    } = known;
    let offset = match target {
        Target::Earliest => earliest,
        Target::Latest => latest,
        Target::Current => return Ok(Some(committed.unwrap_or(latest))),
        Target::Offset(offset) => *offset,
        Target::Shift(by) => {
            let Some(committed) = committed else {
                return Err(Failure::Refused(format!(
                    "--shift-by: no offset is committed for {}-{}",
                    place.0, place.1
                )));
            };
            committed.saturating_add(*by)
        }
        Target::Time(_) => timed.unwrap_or(latest),
        Target::Listed(_) => match listed {
            Some(offset) => offset,
            None => return Ok(None),
        },
    };
    Ok(Some(offset.min(latest).max(earliest)))
}

/// What is told of the partitions that were moved, or would be: `refused` has the codes of those
/// whose commit was tried and refused. They fail the command, and the others are told all the same.
fn outcome(
    group: &str,
    moved: BTreeMap<Place, i64>,
    before: &BTreeMap<Place, Committed>,
    refused: Option<&BTreeMap<Place, i16>>,
) -> (Vec<Moved>, Option<Failure>) {
    let first = refused.and_then(|refused| refused.iter().next());
    let failed = first.and_then(|((topic, partition), code)| {
        let what = || format!("commit of {topic}-{partition} for group {group}");
        check(*code, what).err()
    });
    let rows = moved.into_iter().map(|(place, new_offset)| Moved {
        group: group.to_owned(),
        current_offset: before.get(&place).map(|committed| committed.offset),
        committed: refused.is_some_and(|refused| !refused.contains_key(&place)),
        topic: place.0,
        partition: place.1,
        new_offset,
    });
    (rows.collect(), failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_does_not_hide_who_is_moved() {
        let place = |partition| ("t".to_owned(), partition);
        let moved: BTreeMap<Place, i64> = [(place(0), 5), (place(1), 6), (place(2), 7)].into();
        let told = |refused: Option<&BTreeMap<Place, i16>>| {
            let (rows, failed) = outcome("g", moved.clone(), &BTreeMap::new(), refused);
            let rows: Vec<_> = rows.iter().map(|r| (r.partition, r.committed)).collect();
            (rows, failed)
        };
        let planned = told(None);
        assert_eq!(planned.0, [(0, false), (1, false), (2, false)]);
        assert!(planned.1.is_none());
        let (rows, failed) = told(Some(&[(place(1), 3)].into()));
        assert_eq!(rows, [(0, true), (1, false), (2, true)]);
        let text = format!("{:?}", failed.unwrap());
        assert!(
            text.contains("t-1 for group g") && text.contains("(3)"),
            "{text}"
        );
        let (rows, failed) = told(Some(&BTreeMap::new()));
        assert!(rows.iter().all(|(_, committed)| *committed) && failed.is_none());
    }

    fn decided(target: &Target, committed: Option<i64>, timed: Option<i64>) -> Option<i64> {
        let known = Known {
            earliest: 10,
            latest: 100,
            committed,
            timed,
            listed: None,
        };
        decide(target, &("t".to_owned(), 0), known).unwrap()
    }

    #[test]
    fn every_strategy_but_the_current_offset_stays_within_the_log() {
        assert_eq!(decided(&Target::Earliest, Some(50), None), Some(10));
        assert_eq!(decided(&Target::Latest, Some(50), None), Some(100));
        assert_eq!(decided(&Target::Current, Some(50), None), Some(50));
        assert_eq!(decided(&Target::Current, Some(5), None), Some(5));
        assert_eq!(decided(&Target::Current, None, None), Some(100));
        assert_eq!(decided(&Target::Offset(7), None, None), Some(10));
        assert_eq!(decided(&Target::Offset(101), None, None), Some(100));
        assert_eq!(decided(&Target::Shift(-20), Some(50), None), Some(30));
        assert_eq!(decided(&Target::Shift(i64::MAX), Some(50), None), Some(100));
        assert_eq!(decided(&Target::Time(0), None, Some(60)), Some(60));
        assert_eq!(decided(&Target::Time(0), None, None), Some(100));
        let place = ("t".to_owned(), 0);
        let file = Target::Listed(Plan::default());
        assert_eq!(decided(&file, Some(50), None), None);
        let known = Known {
            latest: 100,
            listed: Some(101),
            ..Known::default()
        };
        assert_eq!(decide(&file, &place, known), Ok(Some(100)));
        let known = Known::default();
        assert!(decide(&Target::Shift(1), &place, known).is_err());
    }

    #[test]
    fn times_are_utc_unless_they_say_otherwise() {
        assert_eq!(time("1970-01-01T00:00:01.500").unwrap(), 1_500);
        assert_eq!(time("1970-01-01T01:00:00.000+01:00").unwrap(), 0);
        assert_eq!(time("1970-01-01T00:00:02Z").unwrap(), 2_000);
        assert!(matches!(time("yesterday"), Err(Failure::Usage(_))));
    }

    #[test]
    fn durations_are_iso_8601() {
        let day = 86_400_000;
        assert_eq!(before(2 * day, "P1D").unwrap(), day);
        assert_eq!(before(day, "PT1H30M").unwrap(), day - 5_400_000);
        assert!(matches!(before(0, "-P1D"), Err(Failure::Usage(_))));
        assert!(matches!(before(0, "1 day ago"), Err(Failure::Usage(_))));
    }
}
