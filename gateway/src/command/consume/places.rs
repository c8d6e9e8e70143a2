//! Where reading begins and where it ends, for each partition.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::super::client::{Client, RETRY_PAUSE, passes};
use super::super::ends::{EARLIEST, Isolation, LATEST, ask};
use super::super::output::{Failure, check};
use super::super::topics::{Cluster, Place};

/// A place in a log, as the user says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// The start of the log.
    Beginning,
    /// Its end.
    End,
    /// This offset.
    At(i64),
    /// So many offsets before the end.
    BeforeEnd(i64),
    /// The first record that is not older, milliseconds since the epoch.
    Since(i64),
    /// The same as the place to stop at, which is left out.
    Until(i64),
}

/// What a bound may be.
pub(super) const BOUNDS: &str =
    "beginning, end, an offset, -N for the last N, s@MS to start or e@MS to stop at a time";

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("allowed are {BOUNDS}");
        let number = |text: &str| match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(number),
            _ => Err(refuse()),
        };
        match text {
            "beginning" | "earliest" | "start" => Ok(Self::Beginning),
            "end" | "latest" => Ok(Self::End),
            text => match text.as_bytes() {
                [b's', b'@', ..] => number(text.get(2..).unwrap_or_default()).map(Self::Since),
                [b'e', b'@', ..] => number(text.get(2..).unwrap_or_default()).map(Self::Until),
                [b'-', ..] => number(text.get(1..).unwrap_or_default()).map(Self::BeforeEnd),
                _ => number(text).map(Self::At),
            },
        }
    }
}

/// From where to where all partitions are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Bound,
    /// `None`: for ever.
    pub(super) until: Option<Bound>,
}

impl Span {
    /// Of what was given with `--offset`, and whether reading stops at the end.
    ///
    /// # Errors
    /// If that says two things.
    pub(super) fn new(bounds: &[Bound], stops: bool) -> Result<Self, Failure> {
        let mut span = Self {
            from: Bound::Beginning,
            until: stops.then_some(Bound::End),
        };
        let (mut starts, mut ends) = (0, 0);
        for bound in bounds {
            if matches!(bound, Bound::Until(_)) {
                span.until = Some(*bound);
                ends += 1;
            } else {
                span.from = *bound;
                starts += 1;
            }
        }
        if starts > 1 || ends > 1 {
            return Err(Failure::Usage(
                "--offset: allowed are one to start at and one (e@MS) to stop at".to_owned(),
            ));
        }
        Ok(span)
    }
}

/// Where a partition is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    /// First offset.
    pub(super) from: i64,
    /// The offset to stop at, which is left out.
    pub(super) stop: i64,
}

/// Where each of `places` is read by a reader of `isolation`. Asks again while an error passes, as
/// long as one answer may take.
pub(super) async fn ranges(
    client: &mut Client,
    topic: &str,
    places: &[Place],
    span: Span,
    isolation: Isolation,
) -> Result<BTreeMap<Place, Range>, Failure> {
    let late = client.monotonic() + client.patience();
    loop {
        let cluster = Cluster::ask(client, Some(&[topic.to_owned()])).await?;
        match try_ranges(client, &cluster.leaders(), places, span, isolation).await? {
            Ok(ranges) => return Ok(ranges),
            Err((place, code)) if !passes(code) || client.monotonic() >= late => {
                check(code, || format!("{}-{}", place.0, place.1))?;
            }
            Err(_) => client.pause(RETRY_PAUSE).await,
        }
    }
}

/// The ranges, or the error code of a partition.
async fn try_ranges(
    client: &mut Client,
    leaders: &BTreeMap<Place, String>,
    places: &[Place],
    span: Span,
    isolation: Isolation,
) -> Result<Result<BTreeMap<Place, Range>, (Place, i16)>, Failure> {
    let mut times = vec![EARLIEST, LATEST];
    let wanted = [Some(span.from), span.until];
    times.extend(wanted.iter().flatten().filter_map(|bound| match bound {
        Bound::Since(ms) | Bound::Until(ms) => Some(*ms),
        _ => None,
    }));
    let mut offsets: BTreeMap<i64, BTreeMap<Place, Option<i64>>> = BTreeMap::new();
    for time in times {
        let mut found = BTreeMap::new();
        for (place, (code, offset)) in ask(client, leaders, places, time, isolation).await? {
            if code != 0 {
                return Ok(Err((place, code)));
            }
            found.insert(place, offset);
        }
        offsets.insert(time, found);
    }
    let mut ranges = BTreeMap::new();
    for place in places {
        let at = |time| offsets.get(&time)?.get(place).copied().flatten();
        let bounds = (at(EARLIEST).unwrap_or(0), at(LATEST).unwrap_or(0));
        ranges.insert(place.clone(), range(place, span, bounds, at)?);
    }
    Ok(Ok(ranges))
}

fn range(
    place: &Place,
    span: Span,
    (start, end): (i64, i64),
    at: impl Fn(i64) -> Option<i64>,
) -> Result<Range, Failure> {
    let offset = |bound| match bound {
        Bound::Beginning => start,
        Bound::End => end,
        Bound::At(offset) => offset,
        Bound::BeforeEnd(count) => end.saturating_sub(count).max(start),
        // No record is so late.
        Bound::Since(ms) | Bound::Until(ms) => at(ms).unwrap_or(end).min(end),
    };
    let from = offset(span.from);
    if from < start || from > end {
        return Err(Failure::Refused(outside(place, from, start, end)));
    }
    Ok(Range {
        from,
        stop: span.until.map_or(i64::MAX, offset),
    })
}

/// Why an offset can't be read.
pub(super) fn outside(place: &Place, offset: i64, start: i64, end: i64) -> String {
    let (topic, partition) = place;
    format!("{topic}-{partition} has no offset {offset}: it has {start} to {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_kcat() {
        for (text, expected) in [
            ("beginning", Bound::Beginning),
            ("end", Bound::End),
            ("0", Bound::At(0)),
            ("-10", Bound::BeforeEnd(10)),
            ("s@5", Bound::Since(5)),
            ("e@6", Bound::Until(6)),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for wrong in [
            "",
            "stored",
            "1x",
            "--1",
            "s@",
            "s@-1",
            "9223372036854775808",
        ] {
            assert!(
                wrong.parse::<Bound>().unwrap_err().contains("e@MS"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_span_has_one_start_and_one_stop() {
        let span = Span::new(&[Bound::Until(7), Bound::At(3)], false).unwrap();
        assert_eq!(
            (span.from, span.until),
            (Bound::At(3), Some(Bound::Until(7)))
        );
        let span = Span::new(&[], true).unwrap();
        assert_eq!(
            (span.from, span.until),
            (Bound::Beginning, Some(Bound::End))
        );
        assert!(Span::new(&[Bound::At(1), Bound::End], false).is_err());
        assert!(Span::new(&[Bound::Until(1), Bound::Until(2)], false).is_err());
    }

    #[test]
    fn ranges_lie_within_the_log() {
        let place = ("t".to_owned(), 0);
        let of = |from, until| {
            let span = Span { from, until };
            let at = |ms| (ms < 100).then_some(15);
            range(&place, span, (10, 20), at).map(|range| (range.from, range.stop))
        };
        assert_eq!(of(Bound::Beginning, None), Ok((10, i64::MAX)));
        assert_eq!(of(Bound::BeforeEnd(3), Some(Bound::End)), Ok((17, 20)));
        assert_eq!(of(Bound::BeforeEnd(99), None), Ok((10, i64::MAX)));
        assert_eq!(of(Bound::Since(5), Some(Bound::Until(200))), Ok((15, 20)));
        assert_eq!(of(Bound::At(20), None), Ok((20, i64::MAX)));
        for outside in [9, 21] {
            let error = of(Bound::At(outside), None).unwrap_err();
            assert!(error.to_string().ends_with("it has 10 to 20"), "{error}");
        }
    }
}
