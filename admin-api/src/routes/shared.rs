//! Files that brokers write for each other: marker queues, fences, blocks of producer ids.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use coordinator::service::cluster::Found;
use coordinator::volume::format::FencesFile;

use super::Answer;
use crate::model::{FenceFile, Fences, IdBlock, MarkerEntry, MarkerQueue, ProducerIds, Source};
use crate::query::{Key, Page, Params, listed};
use crate::{App, Problem};

/// Markers and group decisions that are queued for brokers.
#[utoipa::path(
    get,
    path = "/api/v1/marker-queue",
    tag = "files",
    params(
        ("broker" = Option<i32>, Query, description = "only those for this broker"),
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = MarkerQueue),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn marker_queue(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["broker", "page_size", "page_token"])?;
    let wanted: Option<i32> = params.number("broker")?;
    let mut page = Page::new(params.page("entry")?);
    let (found, not_shown) = app.txns.marker_queue().await.map_err(Problem::later)?;
    app.beside(move |app| {
        let source = Source::file(&*app.txns);
        let mut confirmed = 0;
        let found = found.into_iter();
        for entry in found.filter(|entry| wanted.is_none_or(|wanted| wanted == entry.to.0)) {
            confirmed += usize::from(entry.done.is_some());
            let (pid, epoch, done) = (entry.pid.0, entry.epoch.0, entry.done);
            let place = format!("{pid:020} {epoch:06} {:021}", done.map_or(0, |seq| seq + 1));
            page.offer(Key(entry.to.0.into(), place), || {
                MarkerEntry::of(entry, source.as_of_ms)
            });
        }
        let waiting = page.matched - confirmed;
        let (entries, next_page_token) = page.take("entry");
        let queue = MarkerQueue {
            source,
            waiting,
            confirmed,
            not_shown,
            entries,
            next_page_token,
        };
        Ok(listed(&uri, queue.next_page_token.as_ref(), &queue))
    })
    .await?
}

/// Producers that are refused everywhere below an epoch, by the broker that published it.
#[utoipa::path(
    get,
    path = "/api/v1/fences",
    tag = "files",
    params(
        ("broker" = Option<i32>, Query, description = "only what this broker published"),
        ("producer_id" = Option<i64>, Query, description = "only this producer"),
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = Fences),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn fences(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["broker", "producer_id", "page_size", "page_token"])?;
    let wanted: Option<i32> = params.number("broker")?;
    let producer: Option<i64> = params.number("producer_id")?;
    let mut page = Page::new(params.page("fence")?);
    let mut files = app.txns.fences().await.map_err(Problem::later)?;
    app.beside(move |app| {
        files.retain(|file| wanted.is_none_or(|wanted| wanted == file.broker.0));
        for file in &files {
            let fences = file.content.iter().flat_map(|file| &file.fences);
            let fences = fences.filter(|(pid, _)| producer.is_none_or(|wanted| wanted == **pid));
            for (pid, _) in fences {
                page.offer(Key(file.broker.0.into(), format!("{pid:020}")), || *pid);
            }
        }
        let (shown, next_page_token) = page.take_keyed("fence");
        let of = |file: &Found<FencesFile>| {
            let broker = i64::from(file.broker.0);
            let shown = shown.iter().filter(|(key, _)| key.0 == broker);
            FenceFile::of(file, shown.map(|(_, pid)| *pid))
        };
        let fences = Fences {
            source: Source::file(&*app.txns),
            brokers: files.iter().map(of).collect(),
            next_page_token,
        };
        Ok(listed(&uri, fences.next_page_token.as_ref(), &fences))
    })
    .await?
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
