//! `fencepost group reset-offsets`: Kafka's strategies, decided by pure functions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Format, Row, render};
use super::offsets::{self, EARLIEST, LATEST, Place};

/// Arguments of `fencepost group reset-offsets`.
#[derive(Debug, Clone, Args)]
pub(super) struct Reset {
    /// The group
    group: String,
    /// Only show what would be committed; what happens without --execute, too
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
    /// Commit the new offsets
    #[arg(long)]
    execute: bool,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    strategy: Strategy,
}

/// Which partitions.
#[derive(Debug, Clone, Args)]
struct Scope {
    /// A topic, or some of its partitions; can be repeated
    #[arg(
        long = "topic",
        value_name = "TOPIC[:P,P...]",
        conflicts_with = "all_topics"
    )]
    topics: Vec<String>,
    /// Every topic for which the group has committed
    #[arg(long)]
    all_topics: bool,
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
    /// To where it is: fixes an offset outside of the log
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
    /// To the offsets of a file of lines TOPIC,PARTITION,OFFSET
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
    Listed(BTreeMap<Place, i64>),
}

/// What is known of a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    earliest: i64,
    latest: i64,
    committed: Option<i64>,
    /// The first offset at the time asked for; `None` if no record is so late.
    timed: Option<i64>,
}

/// A partition's old and new offset.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
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
        let described = offsets::describe(client, &self.group).await?;
        let state = described.group_state.as_str();
        if !matches!(state, "Empty" | "Dead") {
            return Err(Failure::Refused(format!(
                "group {} is in state {state}: its offsets can be moved when it has no members",
                self.group
            )));
        }
        let committed = offsets::committed(client, &self.group).await?;
        let known = self.known(client, &target, &committed).await?;
        let mut moved = BTreeMap::new();
        for (place, known) in &known {
            if let Some(offset) = decide(&target, place, *known)? {
                moved.insert(place.clone(), offset);
            }
        }
        if self.execute && !moved.is_empty() {
            offsets::commit(client, &self.group, &moved).await?;
        }
        let rows: Vec<Moved> = moved
            .into_iter()
            .map(|((topic, partition), new_offset)| Moved {
                group: self.group.clone(),
                current_offset: committed.get(&(topic.clone(), partition)).copied(),
                topic,
                partition,
                new_offset,
                committed: self.execute,
            })
            .collect();
        render(&rows, format)
    }

    /// What there is to know of every partition in the scope.
    async fn known(
        &self,
        client: &mut Client,
        target: &Target,
        committed: &BTreeMap<Place, i64>,
    ) -> Result<BTreeMap<Place, Known>, Failure> {
        let wanted = match target {
            Target::Listed(listed) if self.scope.is_empty() => listed.keys().cloned().collect(),
            _ => self.scope.wanted(committed)?,
        };
        let mut topics: Vec<String> = wanted.iter().map(|(topic, _)| topic.clone()).collect();
        topics.sort();
        topics.dedup();
        let leaders = offsets::leaders(client, Some(&topics)).await?;
        let places = expand(&wanted, &leaders);
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
                committed: committed.get(&place).copied(),
                timed: of(&timed, &place),
            };
            (place, known)
        });
        Ok(known.collect())
    }
}

/// All partitions of a topic, in a list of places.
const ALL: i32 = -1;

impl Scope {
    fn is_empty(&self) -> bool {
        self.topics.is_empty() && !self.all_topics
    }

    /// Places, with [`ALL`] for every partition of a topic.
    fn wanted(&self, committed: &BTreeMap<Place, i64>) -> Result<Vec<Place>, Failure> {
        if self.all_topics {
            return Ok(committed
                .keys()
                .map(|(topic, _)| (topic.clone(), ALL))
                .collect());
        }
        if self.topics.is_empty() {
            let what = "one of --topic and --all-topics is needed";
            return Err(Failure::Usage(what.to_owned()));
        }
        let mut wanted = Vec::new();
        for text in &self.topics {
            let Some((topic, partitions)) = text.split_once(':') else {
                wanted.push((text.clone(), ALL));
                continue;
            };
            for partition in partitions.split(',') {
                let number: i32 = partition.parse().ok().filter(|p| *p >= 0).ok_or_else(|| {
                    Failure::Usage(format!("--topic {text}: {partition} is no partition"))
                })?;
                wanted.push((topic.to_owned(), number));
            }
        }
        Ok(wanted)
    }
}

/// The partitions that `wanted` means, of those that are `present`.
fn expand(wanted: &[Place], present: &BTreeMap<Place, String>) -> Vec<Place> {
    let mut places: Vec<Place> = wanted
        .iter()
        .flat_map(|(topic, partition)| match *partition {
            ALL => present
                .keys()
                .filter(|(name, _)| name == topic)
                .cloned()
                .collect(),
            _ => vec![(topic.clone(), *partition)],
        })
        .collect();
    places.sort();
    places.dedup();
    places
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
            Target::Listed(listed(&text)?)
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

/// Lines TOPIC,PARTITION,OFFSET.
fn listed(text: &str) -> Result<BTreeMap<Place, i64>, Failure> {
    let mut offsets = BTreeMap::new();
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty());
    for (line, number) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let parsed = match fields[..] {
            [topic, partition, offset] => partition
                .parse()
                .ok()
                .zip(offset.parse().ok())
                .map(|(partition, offset)| ((topic.to_owned(), partition), offset)),
            _ => None,
        };
        let (place, offset) = parsed.ok_or_else(|| {
            Failure::Usage(format!(
                "line {number}: {line:?} is not TOPIC,PARTITION,OFFSET"
            ))
        })?;
        offsets.insert(place, offset);
    }
    Ok(offsets)
}

/// The new offset of a partition, within its log; `None` leaves it as it is.
fn decide(target: &Target, place: &Place, known: Known) -> Result<Option<i64>, Failure> {
    let Known {
        earliest,
        latest,
        committed,
        timed,
    } = known;
    let offset = match target {
        Target::Earliest => earliest,
        Target::Latest => latest,
        Target::Current => committed.unwrap_or(latest),
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
        Target::Listed(listed) => match listed.get(place) {
            Some(offset) => *offset,
            None => return Ok(None),
        },
    };
    Ok(Some(offset.clamp(earliest, latest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(target: &Target, committed: Option<i64>, timed: Option<i64>) -> Option<i64> {
        let known = Known {
            earliest: 10,
            latest: 100,
            committed,
            timed,
        };
        decide(target, &("t".to_owned(), 0), known).unwrap()
    }

    #[test]
    fn every_strategy_stays_within_the_log() {
        assert_eq!(decided(&Target::Earliest, Some(50), None), Some(10));
        assert_eq!(decided(&Target::Latest, Some(50), None), Some(100));
        assert_eq!(decided(&Target::Current, Some(50), None), Some(50));
        assert_eq!(decided(&Target::Current, Some(5), None), Some(10));
        assert_eq!(decided(&Target::Current, None, None), Some(100));
        assert_eq!(decided(&Target::Offset(7), None, None), Some(10));
        assert_eq!(decided(&Target::Offset(101), None, None), Some(100));
        assert_eq!(decided(&Target::Shift(-20), Some(50), None), Some(30));
        assert_eq!(decided(&Target::Shift(i64::MAX), Some(50), None), Some(100));
        assert_eq!(decided(&Target::Time(0), None, Some(60)), Some(60));
        assert_eq!(decided(&Target::Time(0), None, None), Some(100));
        let place = ("t".to_owned(), 0);
        let listed = Target::Listed(BTreeMap::from([(place.clone(), 33)]));
        assert_eq!(decided(&listed, None, None), Some(33));
        let other = Target::Listed(BTreeMap::new());
        assert_eq!(decided(&other, None, None), None);
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

    #[test]
    fn a_file_is_read_line_by_line() {
        let read = listed("a,0,5\n\n b , 1 , 6 \n").unwrap();
        assert_eq!(read.get(&("a".to_owned(), 0)), Some(&5));
        assert_eq!(read.get(&("b".to_owned(), 1)), Some(&6));
        let refused = listed("a,0,5\na,0\n").unwrap_err().to_string();
        assert!(refused.starts_with("line 2"), "{refused}");
    }

    #[test]
    fn a_scope_names_topics_or_partitions() {
        let scope = |topics: &[&str]| Scope {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            all_topics: false,
        };
        let committed = BTreeMap::new();
        let wanted = scope(&["a", "b:0,2"]).wanted(&committed).unwrap();
        let place = |topic: &str, partition| (topic.to_owned(), partition);
        assert_eq!(wanted, [place("a", ALL), place("b", 0), place("b", 2)]);
        assert!(scope(&[]).wanted(&committed).is_err());
        assert!(scope(&["a:x"]).wanted(&committed).is_err());
        let present = [place("a", 0), place("a", 1), place("b", 0)];
        let present = present.map(|place| (place, String::new())).into();
        let places = expand(&wanted, &present);
        assert_eq!(
            places,
            [place("a", 0), place("a", 1), place("b", 0), place("b", 2)]
        );
    }
}
