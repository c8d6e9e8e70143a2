//! A partition: why its end is not seen, and who wrote to it.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::Answer;
use crate::explain::explain;
use crate::model::{BatchView, LsoView, Producer, Producers, Source};
use crate::query::{Key, Page, Params, Segments};
use crate::{App, Problem};

/// Why readers of committed records do not see the end of a partition.
#[utoipa::path(
    get,
    path = "/api/v1/topics/{topic}/partitions/{partition}/lso",
    tag = "partitions",
    params(
        ("topic" = String, Path, description = "the topic"),
        ("partition" = i32, Path, description = "the partition")
    ),
    responses(
        (status = 200, body = LsoView),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn lso(
    State(app): State<App>,
    Segments((topic, partition)): Segments<(String, i32)>,
    uri: Uri,
) -> Answer<LsoView> {
    Params::read(&uri, &[])?;
    let view = app.txns.partition(&topic, partition)?;
    Ok(Json(explain(&*app.txns, &topic, partition, &view)))
}

/// The producers that a partition knows, with the windows by which repeats are told.
#[utoipa::path(
    get,
    path = "/api/v1/topics/{topic}/partitions/{partition}/producers",
    tag = "partitions",
    params(
        ("topic" = String, Path, description = "the topic"),
        ("partition" = i32, Path, description = "the partition"),
        ("producer_id" = Option<i64>, Query, description = "only this producer"),
        ("open" = Option<bool>, Query, description = "only those with an open transaction"),
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = Producers),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn producers(
    State(app): State<App>,
    Segments((topic, partition)): Segments<(String, i32)>,
    uri: Uri,
) -> Answer<Producers> {
    let known = ["producer_id", "open", "page_size", "page_token"];
    let params = Params::read(&uri, &known)?;
    let wanted: Option<i64> = params.number("producer_id")?;
    let open = params.flag("open")?;
    let mut page = Page::new(params.page("id")?);
    let view = app.txns.partition(&topic, partition)?;
    for (pid, entry) in &view.image.entries {
        let is_wanted = wanted.is_none_or(|wanted| wanted == pid.0);
        if !is_wanted || (open && entry.current_txn_first_offset.is_none()) {
            continue;
        }
        page.offer(Key(pid.0, String::new()), || {
            let expires_ms = entry.last_append_ms.saturating_add(view.expiration_ms);
            Producer {
                producer_id: pid.0,
                producer_epoch: entry.epoch.0,
                window: entry.window.batches().iter().map(BatchView::from).collect(),
                last_sequence: entry.window.last_seq().map_or(-1, |sequence| sequence.0),
                last_timestamp_ms: entry.last_timestamp,
                last_append_ms: entry.last_append_ms,
                expires_ms: entry
                    .current_txn_first_offset
                    .is_none()
                    .then_some(expires_ms),
                current_txn_start_offset: entry.current_txn_first_offset,
                coordinator_epoch: entry.coordinator_epoch,
                last_ended_txn_seq: entry.last_marker.map(|marker| marker.txn_seq),
                last_ended_committed: entry.last_marker.map(|marker| marker.commit),
            }
        });
    }
    let matched = page.matched;
    let (producers, next_page_token) = page.take("id");
    Ok(Json(Producers {
        source: Source::owner(&*app.txns),
        topic,
        partition,
        matched,
        producers,
        next_page_token,
    }))
}
