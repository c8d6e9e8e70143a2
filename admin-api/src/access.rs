//! Who may ask, how many at a time, and how long a request may take.
//!
//! With a token everything but the probes `/livez` and `/readyz` needs it. Without one the surface
//! is on loopback, which its caller sees to; then a request must name a loopback host, so that no
//! web page of another name can read it through a browser (DNS rebinding). `/metrics` is data like
//! any. The probes answer everybody, as those who run a process know it by many names, and tell the
//! reasons, which name topics and files, only to who may ask for the rest.

use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{HttpBody as _, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST};
use axum::http::{HeaderValue, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::audit::Caller;
use crate::body::BODY_MAX;
use crate::listener::Line;
use crate::{App, Problem};

/// How long a request may take.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Requests that are answered at a time, probes apart: fewer than connections, so that one that
/// waits for its client can always make room.
pub(crate) const ANSWERING_MAX: usize = 32;
/// Shortest token that is taken, bytes.
pub const TOKEN_LEN_MIN: usize = 16;
/// Longest token that is taken, bytes.
pub const TOKEN_LEN_MAX: usize = 1024;

/// What a caller has to show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A token, without the white space around it.
    ///
    /// # Errors
    /// If it is shorter than [`TOKEN_LEN_MIN`] or longer than [`TOKEN_LEN_MAX`], or has characters
    /// that a header can't have.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&text.len()) {
            return Err(format!(
                "a token has {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} bytes, this one {}",
                text.len()
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token has printable ASCII characters only".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// Whether `shown` is it, in a time that depends on the length of `shown` only.
    fn is(&self, shown: &str) -> bool {
        let token = self.0.as_bytes();
        let mut differs = token.len() ^ shown.len();
        for (index, byte) in shown.bytes().enumerate() {
            let own = token.get(index % token.len()).copied().unwrap_or_default();
            differs |= usize::from(own ^ byte);
        }
        black_box(differs) == 0
    }
}

/// Whether a caller may see more than that the process is well or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trusted(pub(crate) bool);

/// Notes what a caller may see, and lets every request through.
pub(crate) async fn know(
    State(token): State<Option<Token>>,
    mut request: Request,
    next: Next,
) -> Response {
    let trusted = match &token {
        Some(token) => shows(&request, token),
        None => foreign(&request).is_none(),
    };
    request.extensions_mut().insert(Trusted(trusted));
    next.run(request).await
}

/// Lets a request through that may pass, reads it, and bounds its time.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let probe = matches!(request.uri().path(), "/livez" | "/readyz");
    let refused = match &app.token {
        Some(token) => (!shows(&request, token)).then(Problem::unauthorized),
        None => foreign(&request),
    };
    let known = request.extensions().get::<ConnectInfo<Caller>>();
    let line = known.map(|ConnectInfo(caller)| Arc::clone(&caller.line));
    let trusted = Trusted(refused.is_none());
    if let Some(problem) = refused.filter(|_| !probe) {
        // Nothing more of it is read.
        drop(line.as_ref().map(Line::answer));
        return problem.into_response();
    }
    request.extensions_mut().insert(trusted);
    let places = Arc::clone(&app.answering);
    let answered = async {
        let request = whole(request).await?;
        let _answering = line.as_ref().map(Line::answer);
        let _place = match places.try_acquire() {
            Ok(place) => Some(place),
            Err(_) if probe => None,
            Err(_) => return Err(Problem::later("too many requests are being answered")),
        };
        Ok(next.run(request).await)
    };
    let late = app.txns.sleep(REQUEST_MAX);
    let answered = tokio::select! {
        biased;
        answered = answered => answered,
        () = late => Err(Problem::later(
            "the request took more than 30 s; what it began goes on",
        )),
    };
    let mut response = answered.unwrap_or_else(Problem::into_response);
    // What is shown is of one moment, and may be secret.
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, no_store);
    response
}

/// The request with its whole body: until that is there the client is waited for.
async fn whole(request: Request) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    // What it says of its length is believed where that is too much.
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(Problem::too_large());
    }
    let body = to_bytes(body, BODY_MAX).await;
    let body = body.map_err(|_| Problem::too_large())?;
    Ok(Request::from_parts(parts, body.into()))
}

fn shows(request: &Request, token: &Token) -> bool {
    let header = request.headers().get(AUTHORIZATION);
    let header = header.and_then(|value| value.to_str().ok());
    let shown = header.and_then(|value| {
        let (scheme, shown) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(shown)
    });
    shown.is_some_and(|shown| token.is(shown.trim()))
}

/// Whether a request was meant for another host.
fn foreign(request: &Request) -> Option<Problem> {
    let named = request.headers().get(HOST)?;
    let host = named
        .to_str()
        .ok()
        .filter(|text| !text.contains('@'))
        .and_then(|text| text.parse::<Authority>().ok());
    let host = host.as_ref().map_or("", Authority::host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>();
    let loopback = match address {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    };
    (!loopback).then(|| {
        Problem::forbidden(
            "without --admin-token-file only a loopback host may be named, such as 127.0.0.1",
        )
    })
}
