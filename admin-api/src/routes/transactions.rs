//! Transactional ids: a list, one, and its past.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header::ETAG;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use coordinator::machine::txn::{Shown, TxnEntry, TxnState, shown};
use coordinator::volume::format::HistoryLine;

use crate::model::{
    History, HistoryEntry, MissingPartition, PartitionState, SlotGapView, Source, StagedGroup,
    Transaction, TransactionDetail, TransactionList, once, shown_state,
};
use crate::query::{Key, Page, PageAsk, Params, Segments, listed};
use crate::views::{IdPattern, TxnViews};
use crate::{App, Problem};

/// Partitions of a transaction that are looked at.
pub(super) const PARTITIONS_SHOWN_MAX: usize = 1000;
/// Transitions that are shown, unless the query says otherwise.
const HISTORY_LIMIT: usize = 200;

const FILTERS: [&str; 14] = [
    "state",
    "producer_id",
    "id_pattern",
    "id_prefix",
    "topic",
    "partition",
    "group",
    "coordinator",
    "min_age_ms",
    "overdue",
    "sort",
    "page_size",
    "page_token",
    "id_contains",
];

/// How a list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Id,
    /// The longest open first; those that never began last.
    Age,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Age => "-age",
        }
    }

    fn key(self, id: &str, entry: &TxnEntry) -> Key {
        let rank = match self {
            Self::Id => 0,
            Self::Age => {
                let shown = shown_state(entry);
                let active = shown == TxnState::Ongoing || shown.prepared().is_some();
                let start = entry.start_ms.filter(|_| active);
                start.unwrap_or(i64::MAX)
            }
        };
        Key(rank, id.to_owned())
    }
}

/// What ids a list has.
pub(crate) struct Filter {
    states: Vec<TxnState>,
    producers: Vec<i64>,
    pattern: Option<IdPattern>,
    prefix: Option<String>,
    contains: Option<String>,
    topic: Option<String>,
    partition: Option<i32>,
    group: Option<String>,
    coordinator: Option<i32>,
    min_age_ms: Option<i64>,
    overdue: bool,
    order: Order,
    page: PageAsk,
}

impl Filter {
    pub(crate) fn read(uri: &Uri, views: &dyn TxnViews) -> Result<Self, Problem> {
        let params = Params::read(uri, &FILTERS)?;
        let text = |name| Ok::<_, Problem>(params.one(name)?.map(str::to_owned));
        let mut states = Vec::new();
        for name in params.all("state") {
            let names = TxnState::ALL.map(TxnState::name).join(", ");
            let state = TxnState::from_name(name);
            states.push(state.ok_or_else(|| Problem::invalid("state", format!("one of {names}")))?);
        }
        let order = match params.one("sort")? {
            None | Some("id") => Order::Id,
            Some("-age") => Order::Age,
            Some(_) => return Err(Problem::invalid("sort", "id or -age")),
        };
        let pattern = params.one("id_pattern")?.filter(|text| !text.is_empty());
        let pattern = pattern.map(|text| {
            let pattern = views.id_pattern(text);
            pattern.map_err(|why| Problem::invalid("id_pattern", why))
        });
        let partition = params.number("partition")?;
        let topic = text("topic")?;
        if partition.is_some() && topic.is_none() {
            return Err(Problem::invalid("partition", "it needs topic"));
        }
        Ok(Self {
            states,
            producers: params.numbers("producer_id")?,
            pattern: pattern.transpose()?,
            prefix: text("id_prefix")?,
            contains: text("id_contains")?,
            topic,
            partition,
            group: text("group")?,
            coordinator: params.number("coordinator")?,
            min_age_ms: params.signed("min_age_ms")?.filter(|age| *age >= 0),
            overdue: params.flag("overdue")?,
            order,
            page: params.page(order.name())?,
        })
    }

    fn lets(&self, id: &str, entry: &TxnEntry, now_ms: i64) -> bool {
        let states = &self.states;
        let is_owed = entry.is_gated().then(|| shown(entry));
        let (pid, partitions, groups) = match &is_owed {
            Some(shown) => (shown.pid, &shown.partitions, &shown.groups),
            None => (entry.pid, &entry.partitions, &entry.groups),
        };
        let topic_has = |topic: &String| {
            let numbers = partitions.get(topic.as_str());
            let number = self.partition;
            numbers.is_some_and(|has| number.is_none_or(|number| has.contains(&number)))
        };
        let prefix = self.prefix.as_ref();
        let contains = self.contains.as_ref();
        // An id that never began passes, as with Kafka's duration filter.
        let old = |min: i64| {
            entry
                .start_ms
                .is_none_or(|at| now_ms.saturating_sub(at) > min)
        };
        let pattern = self.pattern.as_ref();
        (states.is_empty() || states.contains(&shown_state(entry)))
            && (self.producers.is_empty() || self.producers.contains(&pid.0))
            && pattern.is_none_or(|is_like| is_like(id))
            && prefix.is_none_or(|prefix| id.starts_with(prefix.as_str()))
            && contains.is_none_or(|part| id.contains(part.as_str()))
            && self.topic.as_ref().is_none_or(topic_has)
            && self
                .group
                .as_ref()
                .is_none_or(|group| groups.contains(group.as_str()))
            && self.min_age_ms.is_none_or(old)
            && (!self.overdue || coordinator::machine::txn::is_overdue(entry, now_ms))
    }
}

/// The page of a list that a filter asks for.
pub(crate) fn select(views: &dyn TxnViews, filter: &Filter) -> TransactionList {
    let source = Source::owner(views);
    let (broker, now_ms) = (source.broker, source.as_of_ms);
    let here = filter.coordinator.is_none_or(|wanted| wanted == broker);
    let mut page = Page::new(filter.page.clone());
    let mut by_state = BTreeMap::new();
    let gaps = views.visit(&mut |id, entry| {
        if here && filter.lets(id, entry, now_ms) {
            *by_state
                .entry(shown_state(entry).name().to_owned())
                .or_default() += 1;
            let key = filter.order.key(id, entry);
            page.offer(key, || (id.clone(), entry.clone()));
        }
    });
    let matched = page.matched;
    let (found, next_page_token) = page.take(filter.order.name());
    let shown = found.iter();
    let shown = shown.map(|(id, entry)| Transaction::of(views, &source, id, entry));
    TransactionList {
        matched,
        by_state,
        transactions: shown.collect(),
        next_page_token,
        missing_slots: gaps.into_iter().map(SlotGapView::from).collect(),
        source,
    }
}

/// Transactional ids.
///
/// Filters are combined: an id has to pass each kind of them.
#[utoipa::path(
    get,
    path = "/api/v1/transactions",
    tag = "transactions",
    params(
        ("state" = Option<Vec<String>>, Query, description = "Kafka's name of a state; repeatable"),
        ("producer_id" = Option<Vec<i64>>, Query, description = "producer id; repeatable"),
        ("id_pattern" = Option<String>, Query,
            description = "a regular expression that the whole id matches"),
        ("id_prefix" = Option<String>, Query, description = "what the id begins with"),
        ("id_contains" = Option<String>, Query, description = "what the id contains"),
        ("topic" = Option<String>, Query, description = "a topic of the transaction"),
        ("partition" = Option<i32>, Query, description = "a partition of that topic"),
        ("group" = Option<String>, Query, description = "a group of the transaction"),
        ("coordinator" = Option<i32>, Query, description = "the broker that coordinates the id"),
        ("min_age_ms" = Option<i64>, Query,
            description = "began longer ago than this, or never began; negative lets all through"),
        ("overdue" = Option<bool>, Query, description = "open for longer than its timeout"),
        ("sort" = Option<String>, Query, description = "`id`, or `-age`: the longest open first"),
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = TransactionList),
        (status = 400, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    app.beside(move |app| {
        let filter = Filter::read(&uri, &*app.txns)?;
        let list = select(&*app.txns, &filter);
        Ok(listed(&uri, list.next_page_token.as_ref(), &list))
    })
    .await?
}

/// Finds an id, or says why it can't be shown.
pub(super) fn find(app: &App, id: &str) -> Result<TxnEntry, Problem> {
    match app.txns.transaction(id) {
        Ok(Some(entry)) => Ok(entry),
        Ok(None) => Err(Problem::no_such("there is no such transactional id")),
        Err(error) => {
            let slot = app.txns.slot_of(id);
            let detail = format!("slot {slot}: {error}; /readyz?verbose names damaged files");
            Err(Problem::transaction(
                error,
                app.txns.kafka_code(error),
                detail,
            ))
        }
    }
}

/// One transactional id, and what it does on partitions and in groups.
#[utoipa::path(
    get,
    path = "/api/v1/transactions/{id}",
    tag = "transactions",
    params(("id" = String, Path, description = "the transactional id, percent-encoded")),
    responses(
        (status = 200, body = TransactionDetail),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn one(
    State(app): State<App>,
    Segments(id): Segments<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    Params::read(&uri, &[])?;
    app.beside(move |app| detail(app, &id)).await?
}

fn detail(app: &App, id: &str) -> Result<Response, Problem> {
    let entry = find(app, id)?;
    let views = &*app.txns;
    let source = Source::owner(views);
    let transaction = Transaction::of(views, &source, id, &entry);
    // What others owe is of the transaction, whatever the slot has by now.
    let shown = shown(&entry);
    let (partition_states, partitions_missing) = states(views, &shown);
    let groups = shown.groups.iter();
    let staged = groups.map(|group| staged(views, group, &shown)).collect();
    let etag = HeaderValue::from_str(&transaction.etag).ok();
    let detail = TransactionDetail {
        source,
        transaction,
        partition_states,
        partitions_missing,
        staged,
    };
    let mut answer = Json(detail).into_response();
    if let Some(etag) = etag {
        answer.headers_mut().insert(ETAG, etag);
    }
    Ok(answer)
}

/// What a transaction has staged in a group.
fn staged(views: &dyn TxnViews, group: &str, txn: &Shown) -> StagedGroup {
    let (offsets, reason) = match views.group(group) {
        Ok(table) => {
            let staged = table.as_ref().map(|table| table.staged());
            let staged = staged.and_then(|staged| staged.get(&txn.pid));
            let offsets = staged.map_or(0, |txn| txn.offsets.values().map(BTreeMap::len).sum());
            (Some(offsets), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    StagedGroup {
        group: group.to_owned(),
        offsets,
        reason,
    }
}

/// The partitions of a transaction as their leader sees them.
pub(super) fn states(
    views: &dyn TxnViews,
    txn: &Shown,
) -> (Vec<PartitionState>, Vec<MissingPartition>) {
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    let partitions = txn.partitions.iter();
    let all = partitions.flat_map(|(topic, numbers)| numbers.iter().map(move |n| (topic, *n)));
    for (topic, partition) in all.take(PARTITIONS_SHOWN_MAX) {
        let mut first_offset = None;
        let view = views.partition(topic, partition, &mut |producers| {
            let producer = producers.producer(txn.pid);
            first_offset = producer.and_then(|one| one.current_txn_first_offset);
        });
        match view {
            Ok(view) => {
                let holds = first_offset == Some(view.last_stable);
                shown.push(PartitionState {
                    topic: topic.to_string(),
                    partition,
                    open: first_offset.is_some(),
                    first_offset,
                    holds_last_stable_offset: holds && view.last_stable < view.high_watermark,
                    last_stable_offset: view.last_stable,
                    high_watermark: view.high_watermark,
                });
            }
            Err(reason) => missing.push(MissingPartition {
                topic: topic.to_string(),
                partition,
                reason: Problem::from(reason).detail().to_owned(),
            }),
        }
    }
    (shown, missing)
}

/// What became of a transactional id, also of one that is forgotten. The newest first page; a next
/// page has what was before.
#[utoipa::path(
    get,
    path = "/api/v1/transactions/{id}/history",
    tag = "transactions",
    params(
        ("id" = String, Path, description = "the transactional id, percent-encoded"),
        ("since" = Option<i64>, Query, description = "not before this, ms since the Unix epoch"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; 200 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = History),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn history(
    State(app): State<App>,
    Segments(id): Segments<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["since", "limit", "page_token"])?;
    let since: i64 = params.number("since")?.unwrap_or(i64::MIN);
    let limit = params.number("limit")?.unwrap_or(HISTORY_LIMIT);
    if !(1..=crate::query::PAGE_SIZE_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", "it must be 1 to 1000"));
    }
    let before = params.after("history")?;
    let mut read = app.txns.history(&id).await.map_err(Problem::later)?;
    once(&mut read.lines);
    if read.lines.is_empty() {
        // Nothing is kept of it: is there such an id at all?
        find(&app, &id)?;
    }
    let end = before.and_then(|key| usize::try_from(key.0).ok());
    let lines = &read.lines;
    let lines = lines.get(..end.unwrap_or(lines.len())).unwrap_or(lines);
    let mut begin = lines.len().saturating_sub(limit);
    let since_is = |line: &HistoryLine| line.ts >= since;
    begin += lines
        .iter()
        .skip(begin)
        .take_while(|line| !since_is(line))
        .count();
    let transitions = (begin..).zip(lines.iter().skip(begin));
    let transitions = transitions.filter(|(_, line)| since_is(line));
    let transitions = transitions
        .map(|(index, line)| {
            HistoryEntry::of(line, index.checked_sub(1).and_then(|i| lines.get(i)))
        })
        .collect();
    let truncated = lines.iter().take(begin).any(since_is);
    let token = i64::try_from(begin).unwrap_or(i64::MAX);
    let history = History {
        source: Source::file(&*app.txns),
        transactional_id: id,
        transitions,
        truncated,
        next_page_token: truncated.then(|| Key(token, String::new()).token("history")),
        unreadable: read.unreadable,
        lost: read.lost,
    };
    Ok(listed(&uri, history.next_page_token.as_ref(), &history))
}
