//! What a run measured.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and quantiles are reported to few digits"
)]

use std::time::Instant;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that is told apart, in microseconds: ten minutes.
const LATENCY_MAX_US: u64 = 600_000_000;

/// Counts of a run under way.
#[derive(Debug)]
pub(super) struct Tally {
    /// Bytes of batches asked for: sent when producing, received when fetching.
    pub(super) asked: u64,
    /// Requests that were told to come again.
    pub(super) retries: u64,
    measure_from: Instant,
    last: Instant,
    /// Bytes whose answer came within the measured span.
    bytes: u64,
    records: u64,
    all_records: u64,
    requests: u64,
    latency_us: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(measure_from: Instant) -> Result<Self> {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)
            .map_err(|e| anyhow!("histogram: {e}"))?;
        Ok(Self {
            asked: 0,
            retries: 0,
            measure_from,
            last: measure_from,
            bytes: 0,
            records: 0,
            all_records: 0,
            requests: 0,
            latency_us,
        })
    }

    /// Counts one request, due or sent at `since` and answered at `now`.
    pub(super) fn count(&mut self, now: Instant, since: Instant, bytes: u64, records: u64) {
        self.all_records += records;
        if now < self.measure_from {
            return;
        }
        self.last = self.last.max(now);
        self.bytes += bytes;
        self.records += records;
        self.requests += 1;
        if since >= self.measure_from {
            let us = now.saturating_duration_since(since).as_micros();
            self.latency_us
                .saturating_record(u64::try_from(us).unwrap_or(u64::MAX));
        }
    }

    pub(super) fn report(&self) -> Report {
        let seconds = self.last.duration_since(self.measure_from).as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let ms = |quantile| self.latency_us.value_at_quantile(quantile) as f64 / 1e3;
        Report {
            seconds,
            bytes: self.bytes,
            records: self.records,
            all_records: self.all_records,
            requests: self.requests,
            retries: self.retries,
            mb_per_second: per_second(self.bytes as f64 / 1e6),
            records_per_second: per_second(self.records as f64),
            latency_ms: Latency {
                p50: ms(0.5),
                p99: ms(0.99),
                p999: ms(0.999),
                max: self.latency_us.max() as f64 / 1e3,
            },
            client_cpu_seconds: 0.0,
        }
    }
}

/// Result of a run, printed as one JSON line. A run with any error has none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// From the first measured moment to the last answer.
    pub seconds: f64,
    /// Bytes of acknowledged or fetched batches, headers included.
    pub bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Records of the whole run, warm-up included.
    pub all_records: u64,
    /// Requests answered, or transactions committed.
    pub requests: u64,
    /// Requests of the whole run that were told to come again: mostly because the transaction
    /// before was not finished.
    pub retries: u64,
    /// `bytes` over `seconds`, in 10^6 bytes.
    pub mb_per_second: f64,
    /// `records` over `seconds`.
    pub records_per_second: f64,
    /// From when a request was due (fixed rate) or queued (full speed) to its answer.
    pub latency_ms: Latency,
    /// User and system time of this process over the whole run.
    pub client_cpu_seconds: f64,
}

impl Report {
    /// `requests` over `seconds`.
    pub fn requests_per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.requests as f64 / self.seconds
        } else {
            0.0
        }
    }
}

/// Quantiles in milliseconds, to three digits.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}
