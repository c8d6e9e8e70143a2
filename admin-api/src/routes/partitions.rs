//! A partition: why its end is not seen, and who wrote to it.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::Answer;
use crate::explain::{Looked, explain};
use crate::model::{LsoView, Producer, Producers, Source};
use crate::query::{Key, Page, Params, Segments, listed};
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
    app.beside(move |app| {
        let look = Looked::at(&*app.txns, &topic, partition)?;
        let explained = explain(&*app.txns, vec![look]).pop();
        explained.map(Json).ok_or_else(Problem::not_found)
    })
    .await?
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
) -> Result<Response, Problem> {
    let known = ["producer_id", "open", "page_size", "page_token"];
    let params = Params::read(&uri, &known)?;
    let wanted: Option<i64> = params.number("producer_id")?;
    let open = params.flag("open")?;
    let mut page = Page::new(params.page("id")?);
    app.beside(move |app| {
        let view = app.txns.partition(&topic, partition, &mut |producers| {
            for (pid, entry) in producers.producers() {
                let is_wanted = wanted.is_none_or(|wanted| wanted == pid.0);
                if is_wanted && (!open || entry.current_txn_first_offset.is_some()) {
                    page.offer(Key(pid.0, String::new()), || entry.clone());
                }
            }
        })?;
        let matched = page.matched;
        let (found, next_page_token) = page.take_keyed("id");
        let producers = found.iter();
        let producers =
            producers.map(|(key, entry)| Producer::of(key.0, entry, view.expiration_ms));
        let producers = Producers {
            source: Source::owner(&*app.txns),
            topic,
            partition,
            matched,
            producers: producers.collect(),
            next_page_token,
        };
        Ok(listed(&uri, producers.next_page_token.as_ref(), &producers))
    })
    .await?
}
