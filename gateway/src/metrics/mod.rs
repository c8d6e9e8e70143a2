//! What the process counts, for `/metrics`.
//!
//! Handles are typed and resolved once at start: no lookup by name on the path of a request. No
//! label ever comes from a client: client ids and transactional ids would be unbounded.

mod compaction;
mod errors;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coordinator::machine::producer::Verdict;
use coordinator::service::groups::OffsetCounters;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use store_adapter::journal::JournalCounters;
use store_adapter::store::StoreError;
use store_adapter::volume::SyncCounters;

use crate::api::{ApiResponse, api_table};
use crate::txns::history::HistoryCounters;

pub use compaction::Compactions;
pub(crate) use errors::name as error_name;

type Label = (&'static str, &'static str);
type ErrorLabels = [(&'static str, String); 2];

/// Every handle; cheap to share.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// By key; see [`Metrics::api`].
    apis: Vec<Option<Arc<ApiMetrics>>>,
    /// Requests of keys that are not offered.
    unknown_api: Arc<ApiMetrics>,
    errors: Family<ErrorLabels, Counter>,
    /// Open connections.
    pub connections: Gauge,
    /// Connections accepted.
    pub connections_opened: Counter,
    /// Connections refused by a limit.
    pub connections_rejected: Counter,
    /// Connections closed without an answer to a request.
    pub connections_aborted: Counter,
    /// Bytes of complete frames received.
    pub bytes_in: Counter,
    /// Bytes written to sockets.
    pub bytes_out: Counter,
    /// Those of them that the system took from files.
    pub bytes_from_files: Counter,
    /// Bytes of requests in memory, in the units of the budget.
    pub inflight_bytes: Gauge,
    /// Bytes of large answers in memory.
    pub answer_bytes: Gauge,
    /// What of the broker serves.
    pub condition: ConditionGauges,
    journal: Option<JournalMetrics>,
    offsets: OffsetMetrics,
    history: HistoryMetrics,
    volume: VolumeMetrics,
}

/// What of the broker serves, brought up to date when it is shown.
#[derive(Debug)]
pub struct ConditionGauges {
    /// Partitions.
    pub partitions: Gauge,
    /// Partitions that their storage does not serve.
    pub partitions_offline: Gauge,
    /// Shards that are not open.
    pub shards_offline: Gauge,
    /// Files that were found damaged.
    pub damaged_files: Gauge,
    /// 1 while the disk is full.
    pub disk_full: Gauge,
}

impl ConditionGauges {
    fn new(r: &mut Registry) -> Self {
        let mut gauge = |name, help| gauge(r, name, help, None);
        Self {
            partitions: gauge("partitions", "Partitions"),
            partitions_offline: gauge(
                "partitions_offline",
                "Partitions that their storage does not serve",
            ),
            shards_offline: gauge("shards_offline", "Shards of the store that are not open"),
            damaged_files: gauge("damaged_files", "Files that were found damaged"),
            disk_full: gauge("disk_full", "1 while writes are refused for lack of space"),
        }
    }
}

/// Handles of one api.
#[derive(Debug)]
pub struct ApiMetrics {
    /// Requests, answered or not.
    pub requests: Counter,
    /// Requests between the end of their frame and their answer.
    pub inflight: Gauge,
    /// Seconds between the end of the frame and the answer.
    pub seconds: Histogram,
}

/// Batches of Produce by their class.
#[derive(Debug)]
pub struct ProduceClassified {
    family: Family<[Label; 1], Counter>,
    accept: Counter,
    duplicate: Counter,
    out_of_order: Counter,
    fenced: Counter,
    invalid: Counter,
}

impl Default for ProduceClassified {
    fn default() -> Self {
        let family = Family::<[Label; 1], Counter>::default();
        let class = |result| family.get_or_create_owned(&[("result", result)]);
        Self {
            accept: class("accept"),
            duplicate: class("duplicate"),
            out_of_order: class("out_of_order"),
            fenced: class("fenced"),
            invalid: class("invalid"),
            family,
        }
    }
}

impl ProduceClassified {
    /// Counts one batch.
    pub fn count(&self, verdict: &Verdict) {
        let class = match verdict {
            Verdict::Accept => &self.accept,
            Verdict::DuplicateDurable(_) | Verdict::DuplicateQueued(_) => &self.duplicate,
            Verdict::OutOfOrder => &self.out_of_order,
            Verdict::StaleEpoch => &self.fenced,
            Verdict::InvalidTxnState | Verdict::InvalidRecord => &self.invalid,
        };
        class.inc();
    }
}

/// What the store refused, by cause.
#[derive(Debug, Default)]
pub struct StoreRefusals {
    family: Family<[Label; 1], Counter>,
}

impl StoreRefusals {
    /// Counts one refusal.
    pub fn count(&self, error: &StoreError) {
        let cause = match error {
            StoreError::Fenced | StoreError::Uncertain { fenced: true } => "fenced",
            StoreError::Full { .. } => "full",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Uncertain { fenced: false } => "uncertain",
            StoreError::Corrupt { .. } => "corrupt",
            StoreError::Offline(_) => "offline",
            StoreError::EndMismatch { .. }
            | StoreError::NotFound
            | StoreError::OutOfRange { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Unsupported(_) => "request",
        };
        self.family.get_or_create(&[("cause", cause)]).inc();
    }
}

/// What the services count, taken over by [`Metrics::new`].
#[derive(Debug, Clone)]
pub struct Sources {
    /// The flush policy in force.
    pub durability: &'static str,
    /// Scheme of the store.
    pub store: &'static str,
    /// Of the partitions.
    pub produce_classified: Arc<ProduceClassified>,
    /// Of the partitions.
    pub store_refusals: Arc<StoreRefusals>,
    /// Of compaction.
    pub compactions: Arc<Compactions>,
    /// Of the journal; `None` for a store without one.
    pub journal: Option<Arc<JournalCounters>>,
    /// Of the offsets of groups.
    pub offsets: Arc<OffsetCounters>,
    /// Of the history of transactions.
    pub history: Arc<HistoryCounters>,
    /// Of the volume.
    pub syncs: Arc<SyncCounters>,
}

impl Sources {
    /// Counters of no service: for tests of the shell alone.
    pub fn none() -> Self {
        Self {
            durability: "fsync",
            store: "memory",
            produce_classified: Arc::default(),
            store_refusals: Arc::default(),
            compactions: Arc::default(),
            journal: None,
            offsets: Arc::default(),
            history: Arc::default(),
            syncs: Arc::default(),
        }
    }
}

/// Copies of [`SyncCounters`], brought up to date when they are shown.
#[derive(Debug)]
struct VolumeMetrics {
    source: Arc<SyncCounters>,
    syncs: Family<[Label; 1], Counter>,
}

impl VolumeMetrics {
    fn new(source: &Arc<SyncCounters>, r: &mut Registry) -> Self {
        let syncs = Family::default();
        r.register("volume_syncs", "Syncs of the volume", syncs.clone());
        let source = Arc::clone(source);
        Self { source, syncs }
    }

    fn refresh(&self) {
        let SyncCounters { files, directories } = &*self.source;
        for (kind, count) in [("file", files), ("directory", directories)] {
            copy(count, &self.syncs.get_or_create_owned(&[("kind", kind)]));
        }
    }
}

/// Copies of [`HistoryCounters`], brought up to date when they are shown.
#[derive(Debug)]
struct HistoryMetrics {
    source: Arc<HistoryCounters>,
    lost: Family<[Label; 1], Counter>,
}

impl HistoryMetrics {
    fn new(source: &Arc<HistoryCounters>, r: &mut Registry) -> Self {
        let lost = Family::default();
        let help = "Transitions of transactional ids that the history does not have";
        r.register("txn_history_lost", help, lost.clone());
        let source = Arc::clone(source);
        Self { source, lost }
    }

    fn refresh(&self) {
        let HistoryCounters { dropped, failed } = &*self.source;
        for (cause, count) in [("queue", dropped), ("volume", failed)] {
            copy(count, &self.lost.get_or_create_owned(&[("cause", cause)]));
        }
    }
}

/// Copies of [`JournalCounters`], brought up to date when they are shown.
#[derive(Debug)]
struct JournalMetrics {
    source: Arc<JournalCounters>,
    syncs: Counter,
    rounds: Counter,
    bytes: Counter,
    read_bytes: Counter,
    failed_reads: Counter,
}

/// Brings a copy up to date.
fn copy(from: &AtomicU64, to: &Counter) {
    to.inner()
        .store(from.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Copies of [`OffsetCounters`], brought up to date when they are shown.
#[derive(Debug)]
struct OffsetMetrics {
    source: Arc<OffsetCounters>,
    writes: Counter,
    failed: Counter,
}

impl OffsetMetrics {
    fn new(source: &Arc<OffsetCounters>, r: &mut Registry) -> Self {
        Self {
            source: Arc::clone(source),
            writes: counter(
                r,
                "offset_writes",
                "Files of groups replaced, by two syncs each",
                None,
            ),
            failed: counter(
                r,
                "offset_writes_failed",
                "Files of groups that were not replaced, or may not be",
                None,
            ),
        }
    }

    fn refresh(&self) {
        copy(&self.source.writes, &self.writes);
        copy(&self.source.failed_writes, &self.failed);
    }
}

impl JournalMetrics {
    fn new(source: Option<&Arc<JournalCounters>>, r: &mut Registry) -> Option<Self> {
        let bytes = Some(Unit::Bytes);
        let read = "Bytes read of journal files for readers, with what lies between batches";
        let written = "Bytes written by commit rounds";
        let failed = "Reads of journal files that failed";
        Some(Self {
            source: Arc::clone(source?),
            syncs: counter(r, "journal_syncs", "Syncs of journal files", None),
            rounds: counter(r, "journal_commits", "Commit rounds", None),
            bytes: counter(r, "journal_written", written, bytes.clone()),
            read_bytes: counter(r, "journal_read", read, bytes),
            failed_reads: counter(r, "journal_reads_failed", failed, None),
        })
    }

    fn refresh(&self) {
        copy(&self.source.syncs, &self.syncs);
        copy(&self.source.rounds, &self.rounds);
        copy(&self.source.bytes, &self.bytes);
        copy(&self.source.read_bytes, &self.read_bytes);
        copy(&self.source.failed_reads, &self.failed_reads);
    }
}

impl Metrics {
    /// Registers everything.
    pub fn new(sources: &Sources) -> Self {
        let mut registry = Registry::with_prefix("fencepost");
        let (apis, unknown_api) = register_apis(&mut registry);
        let errors = Family::<ErrorLabels, Counter>::default();
        let help = "Error codes in answers by api";
        registry.register("request_errors", help, errors.clone());
        register_info(&mut registry, sources);
        let classified = sources.produce_classified.family.clone();
        registry.register("produce_classified", "Batches by class", classified);
        let refusals = sources.store_refusals.family.clone();
        registry.register(
            "store_refusals",
            "What the store refused, by cause",
            refusals,
        );
        let r = &mut registry;
        Self {
            connections: gauge(r, "connections", "Open connections", None),
            connections_opened: counter(r, "connections_opened", "Connections accepted", None),
            connections_rejected: counter(
                r,
                "connections_rejected",
                "Connections refused by a limit",
                None,
            ),
            connections_aborted: counter(
                r,
                "connections_aborted",
                "Connections closed without an answer to a request",
                None,
            ),
            bytes_in: counter(r, "received", "Bytes of frames received", Some(Unit::Bytes)),
            bytes_out: counter(r, "sent", "Bytes written to clients", Some(Unit::Bytes)),
            bytes_from_files: counter(
                r,
                "sent_from_files",
                "Bytes written to clients that the system took from journal files",
                Some(Unit::Bytes),
            ),
            inflight_bytes: gauge(
                r,
                "requests_in_memory",
                "Bytes of requests that are not answered yet",
                Some(Unit::Bytes),
            ),
            answer_bytes: gauge(
                r,
                "responses_in_memory",
                "Bytes of large answers that are not written yet",
                Some(Unit::Bytes),
            ),
            condition: ConditionGauges::new(r),
            journal: JournalMetrics::new(sources.journal.as_ref(), r),
            offsets: OffsetMetrics::new(&sources.offsets, r),
            history: HistoryMetrics::new(&sources.history, r),
            volume: VolumeMetrics::new(&sources.syncs, r),
            apis,
            unknown_api,
            errors,
            registry,
        }
    }

    /// The handles of `key`; all keys that are not offered share one.
    pub fn api(&self, key: i16) -> &Arc<ApiMetrics> {
        let row = usize::try_from(key).ok().and_then(|key| self.apis.get(key));
        row.and_then(Option::as_ref).unwrap_or(&self.unknown_api)
    }

    /// Counts the error codes in `response`.
    pub fn count_errors(&self, response: &ApiResponse) {
        errors::for_each(response, &mut |code| {
            let labels = [
                ("api", response.name().to_owned()),
                ("error", errors::name(code)),
            ];
            self.errors.get_or_create(&labels).inc();
        });
    }

    /// The OpenMetrics text.
    ///
    /// # Errors
    /// Only if a formatter fails, which the standard ones do not.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        if let Some(journal) = &self.journal {
            journal.refresh();
        }
        self.offsets.refresh();
        self.history.refresh();
        self.volume.refresh();
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn register_apis(registry: &mut Registry) -> (Vec<Option<Arc<ApiMetrics>>>, Arc<ApiMetrics>) {
    let requests = Family::<[Label; 1], Counter>::default();
    let inflight = Family::<[Label; 1], Gauge>::default();
    // 100 us to 13 s.
    let seconds = Family::<[Label; 1], Histogram>::new_with_constructor(|| {
        Histogram::new(exponential_buckets(0.0001, 2.0, 18))
    });
    registry.register("requests", "Requests by api", requests.clone());
    let help = "Requests that are not answered yet";
    registry.register("requests_inflight", help, inflight.clone());
    let help = "Time from the last byte of a request to its answer";
    registry.register_with_unit("request", help, Unit::Seconds, seconds.clone());
    let handles = |name: &'static str| {
        let label = [("api", name)];
        Arc::new(ApiMetrics {
            requests: requests.get_or_create_owned(&label),
            inflight: inflight.get_or_create_owned(&label),
            seconds: seconds.get_or_create_owned(&label),
        })
    };
    let mut apis = Vec::new();
    for api in api_table() {
        let index = usize::try_from(api.key).unwrap_or(0);
        apis.resize(apis.len().max(index + 1), None);
        apis[index] = Some(handles(api.name));
    }
    (apis, handles("unknown"))
}

fn register_info(registry: &mut Registry, sources: &Sources) {
    sources.compactions.register(registry);
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of the process", build);
    let info = Info::new([
        ("flush_policy", sources.durability),
        ("store", sources.store),
    ]);
    registry.register("durability", "What an acknowledgement means", info);
}

fn counter(r: &mut Registry, name: &str, help: &str, unit: Option<Unit>) -> Counter {
    let counter = Counter::<u64, AtomicU64>::default();
    match unit {
        Some(unit) => r.register_with_unit(name, help, unit, counter.clone()),
        None => r.register(name, help, counter.clone()),
    }
    counter
}

fn gauge(r: &mut Registry, name: &str, help: &str, unit: Option<Unit>) -> Gauge {
    let gauge = Gauge::default();
    match unit {
        Some(unit) => r.register_with_unit(name, help, unit, gauge.clone()),
        None => r.register(name, help, gauge.clone()),
    }
    gauge
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::ApiVersionsResponse;

    use super::*;
    use crate::partition::Compacted;

    #[test]
    fn the_text_holds_true_numbers() {
        let sources = Sources {
            store: "sled",
            journal: Some(Arc::default()),
            ..Sources::none()
        };
        let metrics = Metrics::new(&sources);
        metrics.api(3).requests.inc();
        metrics.api(9999).requests.inc();
        metrics.bytes_in.inc_by(12);
        metrics.bytes_from_files.inc_by(13);
        sources.produce_classified.count(&Verdict::Accept);
        let journal = sources.journal.as_ref().unwrap();
        journal.syncs.store(4, Ordering::Relaxed);
        journal.read_bytes.store(7, Ordering::Relaxed);
        journal.failed_reads.store(8, Ordering::Relaxed);
        sources.offsets.writes.store(5, Ordering::Relaxed);
        sources.history.dropped.store(6, Ordering::Relaxed);
        sources.syncs.directories.store(7, Ordering::Relaxed);
        let rewritten = store_adapter::store::Rewritten {
            upto: 1,
            bytes_before: 9,
            bytes_after: 8,
        };
        let sealed = false;
        sources.compactions.count(&Compacted { rewritten, sealed });
        let denied = ApiVersionsResponse::default().with_error_code(35);
        metrics.count_errors(&ApiResponse::ApiVersions(Box::new(denied)));
        metrics.count_errors(&ApiResponse::Metadata(Box::default()));
        let text = metrics.encode().unwrap();
        for line in [
            "fencepost_requests_total{api=\"Metadata\"} 1",
            "fencepost_requests_total{api=\"unknown\"} 1",
            "fencepost_received_bytes_total 12",
            "fencepost_sent_from_files_bytes_total 13",
            "fencepost_produce_classified_total{result=\"accept\"} 1",
            "fencepost_request_errors_total{api=\"ApiVersions\",error=\"UNSUPPORTED_VERSION\"} 1",
            "fencepost_durability_info{flush_policy=\"fsync\",store=\"sled\"} 1",
            "fencepost_compactions_total 1",
            "fencepost_compaction_looked_at_bytes_total 9",
            "fencepost_compaction_kept_bytes_total 8",
            "fencepost_journal_syncs_total 4",
            "fencepost_journal_read_bytes_total 7",
            "fencepost_journal_reads_failed_total 8",
            "fencepost_offset_writes_total 5",
            "fencepost_txn_history_lost_total{cause=\"queue\"} 6",
            "fencepost_volume_syncs_total{kind=\"directory\"} 7",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("api=\"Metadata\",error"));
    }
}
