//! The offsets of a group, staged ones too.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use coordinator::machine::group::offsets::OffsetTable;

use crate::model::{GroupOffset, GroupOffsets, PendingOffset, PendingTxn, Source};
use crate::query::{Key, Page, Params, Segments, listed};
use crate::{App, Problem};

/// Transactions of a group whose staged offsets are looked at.
const PENDING_SHOWN_MAX: usize = 1000;

/// What a group has committed, and what its transactions have staged.
#[utoipa::path(
    get,
    path = "/api/v1/groups/{group}/offsets",
    tag = "groups",
    params(
        ("group" = String, Path, description = "the group, percent-encoded"),
        ("topic" = Option<String>, Query, description = "only offsets of this topic"),
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = GroupOffsets),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn offsets(
    State(app): State<App>,
    Segments(group): Segments<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    app.beside(move |app| page(app, group, &uri)).await?
}

fn page(app: &App, group: String, uri: &Uri) -> Result<Response, Problem> {
    let params = Params::read(uri, &["topic", "page_size", "page_token"])?;
    let wanted = params.one("topic")?;
    let is_wanted = |topic: &str| wanted.is_none_or(|wanted| wanted == topic);
    let mut page = Page::new(params.page("name")?);
    let table = app.txns.group(&group).map_err(Problem::group)?;
    let table = table.ok_or_else(|| Problem::no_such("there is no such group"))?;
    let topics = table.committed().iter();
    for (topic, partitions) in topics.filter(|(topic, _)| is_wanted(topic)) {
        for (partition, committed) in partitions {
            // No legal name of a topic has a space.
            let key = Key(0, format!("{topic} {partition:010}"));
            page.offer(key, || {
                let bounds = app.txns.bounds(topic, *partition);
                let lag = |end: i64| end.saturating_sub(committed.offset).max(0);
                GroupOffset {
                    topic: topic.to_string(),
                    partition: *partition,
                    offset: committed.offset,
                    leader_epoch: committed.leader_epoch,
                    metadata: committed.metadata.to_string(),
                    commit_ms: committed.commit_ms,
                    lag: bounds.map(|bounds| lag(bounds.high_watermark)),
                    lag_to_last_stable: bounds.map(|bounds| lag(bounds.last_stable)),
                    pending: is_pending(&table, topic, *partition),
                }
            });
        }
    }
    let matched = page.matched;
    let (offsets, next_page_token) = page.take("name");
    let offsets = GroupOffsets {
        source: Source::owner(&*app.txns),
        pending_count: table.staged().len(),
        pending: pending(&table, &is_wanted),
        group,
        matched,
        offsets,
        next_page_token,
    };
    Ok(listed(uri, offsets.next_page_token.as_ref(), &offsets))
}

fn is_pending(table: &OffsetTable, topic: &str, partition: i32) -> bool {
    let staged = table.staged().values();
    staged.into_iter().any(|txn| {
        let partitions = txn.offsets.get(topic);
        partitions.is_some_and(|partitions| partitions.contains_key(&partition))
    })
}

fn pending(table: &OffsetTable, is_wanted: &dyn Fn(&str) -> bool) -> Vec<PendingTxn> {
    let mut pending = Vec::new();
    for (pid, txn) in table.staged().iter().take(PENDING_SHOWN_MAX) {
        let mut offsets = Vec::new();
        for (topic, partitions) in txn.offsets.iter().filter(|(topic, _)| is_wanted(topic)) {
            offsets.extend(partitions.iter().map(|(partition, staged)| PendingOffset {
                topic: topic.to_string(),
                partition: *partition,
                offset: staged.offset,
                leader_epoch: staged.leader_epoch,
                metadata: staged.metadata.to_string(),
            }));
        }
        if !offsets.is_empty() {
            pending.push(PendingTxn {
                producer_id: pid.0,
                producer_epoch: txn.producer_epoch.0,
                transactional_id: txn.transactional_id.clone(),
                txn_seq: txn.txn_seq,
                offsets,
            });
        }
    }
    pending
}
