//! Instants as text.

const DAY_MS: i64 = 86_400_000;
/// Last millisecond of the year 9999; later instants have no RFC 3339 form.
const MAX_MS: i64 = 253_402_300_799_999;

/// Milliseconds since the Unix epoch as RFC 3339 in UTC, such as `2026-09-21T14:13:20.000Z`.
/// Instants outside the years 1970 to 9999 are moved to the nearest end.
pub fn rfc3339(ms: i64) -> String {
    let ms = ms.clamp(0, MAX_MS);
    let (days, of_day) = (ms / DAY_MS, ms % DAY_MS);
    let (year, month, day) = civil(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year and the lengths of
/// months repeat every five: 31 30 31 30 31.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_400_Y: i64 = 146_097;
    const DAYS_FROM_0000_03_01: i64 = 719_468;
    let since = days + DAYS_FROM_0000_03_01;
    let (era, of_era) = (since / DAYS_400_Y, since % DAYS_400_Y);
    let leap_days = of_era / 1460 - of_era / 36_524 + of_era / (DAYS_400_Y - 1);
    let year_of_era = (of_era - leap_days) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (400 * era + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_790_000_000_123, "2026-09-21T14:13:20.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (MAX_MS, "9999-12-31T23:59:59.999Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
            (-5, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for days in 1..200_000 {
            let now = civil(days);
            let leap = before.0 % 4 == 0 && (before.0 % 100 != 0 || before.0 % 400 == 0);
            let last = match before.1 {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match before {
                (y, 12, 31) => (y + 1, 1, 1),
                (y, m, d) if d == last => (y, m + 1, 1),
                (y, m, d) => (y, m, d + 1),
            };
            assert_eq!(now, expected);
            before = now;
        }
    }
}
