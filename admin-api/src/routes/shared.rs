//! Files that brokers write for each other: marker queues, fences, blocks of producer ids.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::Answer;
use crate::model::{
    FenceFile, Fences, IdBlock, MarkerEntry, MarkerQueue, ProducerIds, Source,
    confirmed_and_waiting,
};
use crate::query::Params;
use crate::{App, Problem};

/// Markers and group decisions that are queued for brokers.
#[utoipa::path(
    get,
    path = "/api/v1/marker-queue",
    tag = "files",
    params(("broker" = Option<i32>, Query, description = "only those for this broker")),
    responses(
        (status = 200, body = MarkerQueue),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn marker_queue(State(app): State<App>, uri: Uri) -> Answer<MarkerQueue> {
    let params = Params::read(&uri, &["broker"])?;
    let wanted: Option<i32> = params.number("broker")?;
    let (entries, not_shown) = app.txns.marker_queue().await.map_err(Problem::later)?;
    let source = Source::file(&*app.txns);
    let entries = entries.into_iter();
    let entries = entries.filter(|entry| wanted.is_none_or(|wanted| wanted == entry.to.0));
    let entries: Vec<_> = entries
        .map(|entry| MarkerEntry::of(entry, source.as_of_ms))
        .collect();
    let (confirmed, waiting) = confirmed_and_waiting(&entries);
    Ok(Json(MarkerQueue {
        source,
        waiting,
        confirmed,
        not_shown,
        entries,
    }))
}

/// Producers that are refused everywhere below an epoch, by the broker that published it.
#[utoipa::path(
    get,
    path = "/api/v1/fences",
    tag = "files",
    params(
        ("broker" = Option<i32>, Query, description = "only what this broker published"),
        ("producer_id" = Option<i64>, Query, description = "only this producer")
    ),
    responses(
        (status = 200, body = Fences),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn fences(State(app): State<App>, uri: Uri) -> Answer<Fences> {
    let params = Params::read(&uri, &["broker", "producer_id"])?;
    let wanted: Option<i32> = params.number("broker")?;
    let producer: Option<i64> = params.number("producer_id")?;
    let files = app.txns.fences().await.map_err(Problem::later)?.into_iter();
    let files = files.filter(|file| wanted.is_none_or(|wanted| wanted == file.broker.0));
    Ok(Json(Fences {
        source: Source::file(&*app.txns),
        brokers: files.map(|file| FenceFile::of(file, producer)).collect(),
    }))
}

/// The producer ids that each broker has reserved.
#[utoipa::path(
    get,
    path = "/api/v1/producer-ids",
    tag = "files",
    responses(
        (status = 200, body = ProducerIds),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn producer_ids(State(app): State<App>, uri: Uri) -> Answer<ProducerIds> {
    Params::read(&uri, &[])?;
    let files = app.txns.id_blocks().await.map_err(Problem::later)?;
    Ok(Json(ProducerIds {
        source: Source::file(&*app.txns),
        brokers: files.into_iter().map(IdBlock::from).collect(),
    }))
}
