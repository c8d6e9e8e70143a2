//! The page for people: transactions, and why a partition's end is not seen. It is made from what
//! the API answers, needs no script, and shows nothing that is not escaped.

use std::fmt::{self, Write};

use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY};
use axum::http::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use coordinator::volume::format::rfc3339;

use crate::explain::{Looked, explain, segment};
use crate::model::{LsoView, OpenTxn, Remedy, Transaction, TransactionList};
use crate::query::next_query;
use crate::remedy::{Age, counted};
use crate::routes::transactions::{Filter, select};
use crate::{App, Problem};

/// Partitions that are explained.
const EXPLAINED_MAX: usize = 50;

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Fencepost</title>\
<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:1.5rem}\
table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.3rem .7rem;\
border-bottom:1px solid #8886}code,td.id{font-family:ui-monospace,monospace;\
overflow-wrap:anywhere}article{border-left:.3rem solid #b30;padding:.1rem 1rem;margin:1rem 0}\
.gap{color:#b30}dt{font-weight:600}dd{margin:0 0 .3rem 1rem}</style></head>\
<body><h1>Fencepost</h1>";

/// Text as it may stand in a page. Characters that are not seen, or turn the text around them, are
/// shown by their numbers.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}' => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// How the surface is reached, for commands that are shown.
struct Site {
    host: String,
    token: bool,
}

impl Site {
    fn of(app: &App, headers: &HeaderMap) -> Self {
        let named = headers.get(HOST).and_then(|value| value.to_str().ok());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        let named = named.filter(|host| host.chars().all(plain));
        Self {
            host: named.unwrap_or("127.0.0.1:9644").to_owned(),
            token: app.token.is_some(),
        }
    }

    /// The request of a remedy, as it is typed.
    fn curl(&self, remedy: &Remedy) -> Option<String> {
        let (method, path) = remedy.request.as_ref()?.split_once(' ')?;
        let token = if self.token {
            " -H \"Authorization: Bearer $(cat TOKEN-FILE)\""
        } else {
            ""
        };
        let how = match (method, &remedy.body) {
            ("GET", _) => String::new(),
            (_, Some(body)) => format!(" --json '{body}'"),
            (method, None) => format!(" -X {method}"),
        };
        Some(format!("curl -s{token}{how} 'http://{}{path}'", self.host))
    }
}

/// The page.
pub(crate) async fn page(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    let site = Site::of(&app, &headers);
    let made = app.beside(move |app| made(app, &uri, &site)).await;
    let failed = |problem| (StatusCode::SERVICE_UNAVAILABLE, wrong(&problem));
    let (status, body) = made.unwrap_or_else(failed);
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (status, headers, body).into_response()
}

fn made(app: &App, uri: &Uri, site: &Site) -> (StatusCode, String) {
    match Filter::read(&with_default_order(uri), &*app.txns) {
        Ok(filter) => {
            let list = select(&*app.txns, &filter);
            (StatusCode::OK, whole(app, uri, site, &list))
        }
        Err(problem) => (StatusCode::BAD_REQUEST, wrong(&problem)),
    }
}

/// People look for what has been open for long.
fn with_default_order(uri: &Uri) -> Uri {
    let query = uri.query().unwrap_or_default();
    if query.split('&').any(|pair| pair.starts_with("sort=")) {
        return uri.clone();
    }
    let joint = if query.is_empty() { "" } else { "&" };
    let with = format!("/?{query}{joint}sort=-age");
    with.parse().unwrap_or_else(|_| uri.clone())
}

fn wrong(problem: &Problem) -> String {
    let detail = Escaped(problem.detail());
    format!("{HEAD}<p>{detail}</p><p><a href=\"/\">All transactions</a></p></body></html>\n")
}

fn whole(app: &App, uri: &Uri, site: &Site, list: &TransactionList) -> String {
    let mut html = HEAD.to_owned();
    // Writing to a string cannot fail.
    body(&mut html, app, uri, site, list).unwrap_or_default();
    html.push_str("</body></html>\n");
    html
}

fn body(
    html: &mut String,
    app: &App,
    uri: &Uri,
    site: &Site,
    list: &TransactionList,
) -> fmt::Result {
    let source = &list.source;
    write!(
        html,
        "<p>Broker {} at {}. The same as data: <a href=\"/api/v1/transactions\">transactions</a>, \
         <a href=\"/api/v1/marker-queue\">marker queue</a>, <a href=\"/api/v1/fences\">fences</a>, \
         <a href=\"/api/v1/producer-ids\">producer ids</a>, <a href=\"/api/v1/audit\">audit</a>, \
         <a href=\"/openapi.json\">OpenAPI</a>, <a href=\"/readyz?verbose\">health</a>.</p>",
        source.broker,
        Escaped(&source.as_of)
    )?;
    stuck(html, app, site)?;
    transactions(html, uri, list)
}

/// Partitions of which readers of committed records do not see the end.
fn stuck(html: &mut String, app: &App, site: &Site) -> fmt::Result {
    let (held_back, count) = app.txns.held_back(EXPLAINED_MAX);
    html.write_str("<h2>Partitions that are held back</h2>")?;
    if held_back.is_empty() {
        return html.write_str(
            "<p>None: readers of committed records see the end of every partition.</p>",
        );
    }
    let shown = held_back.len();
    let looks = held_back.iter().filter_map(|(topic, partition)| {
        // It may have been deleted since.
        Looked::at(&*app.txns, topic, *partition).ok()
    });
    for view in explain(&*app.txns, looks.collect()) {
        explained(html, site, &view)?;
    }
    if count > shown {
        write!(html, "<p>And {} more.</p>", count - shown)?;
    }
    Ok(())
}

fn explained(html: &mut String, site: &Site, view: &LsoView) -> fmt::Result {
    let (topic, partition) = (Escaped(&view.topic), view.partition);
    write!(
        html,
        "<article><h3><a href=\"/api/v1/topics/{}/partitions/{partition}/lso\">{topic}, partition \
         {partition}</a></h3><p>{}</p>",
        segment(&view.topic),
        Escaped(&view.summary),
    )?;
    if let Some(holder) = &view.holder {
        facts(html, view, holder)?;
    }
    html.write_str("<ul>")?;
    for remedy in &view.remedies {
        write!(html, "<li>{}", Escaped(&remedy.text))?;
        for line in [&remedy.command, &site.curl(remedy)].into_iter().flatten() {
            write!(html, "<br><code>{}</code>", Escaped(line))?;
        }
        html.write_str("</li>")?;
    }
    html.write_str("</ul></article>")
}

/// Who holds a partition back, since when, what that means, and what happens next.
fn facts(html: &mut String, view: &LsoView, holder: &OpenTxn) -> fmt::Result {
    html.write_str("<dl><dt>Held by</dt><dd>")?;
    if let Some(id) = &holder.transactional_id {
        let (path, id) = (segment(id), Escaped(id));
        write!(
            html,
            "<code><a href=\"/api/v1/transactions/{path}\">{id}</a></code>, "
        )?;
    }
    let (pid, epoch) = (holder.producer_id, holder.producer_epoch);
    write!(html, "producer {pid}, epoch {epoch}")?;
    if let Some(client) = &holder.client {
        let (id, address) = (Escaped(&client.id), Escaped(&client.address));
        write!(
            html,
            ", client {id} at {address} {}",
            Escaped(&client.software)
        )?;
    }
    let last = rfc3339(holder.last_timestamp_ms);
    let since = match (&holder.start, holder.age_ms) {
        (Some(start), Some(age_ms)) => format!("{start}, {} ago", Age(age_ms)),
        _ => format!("nobody knows; its last record here is of {last}"),
    };
    let means = match holder.standing {
        "ongoing" => "Its client has it open and may still commit it.",
        "deciding" => "It is decided. Its marker is not written here yet.",
        "queued" => "It is decided. The broker that has to write its marker has not done so.",
        "hanging" => {
            "It hangs: its coordinator does not know that it is open here, so that neither its \
             client nor a timeout ends it."
        }
        _ => "Its coordinator can't be asked now: a slot of it is loading or damaged.",
    };
    let at = holder
        .next
        .at_ms
        .map_or_else(String::new, |at| format!(" ({})", rfc3339(at)));
    let waiting = counted(view.held_back, "offset waits", "offsets wait");
    let behind = i64::try_from(view.open_count.saturating_sub(1)).unwrap_or(i64::MAX);
    let behind = counted(behind, "more transaction is", "more transactions are");
    write!(
        html,
        "</dd><dt>Since</dt><dd>{}</dd><dt>Readers</dt><dd>{waiting}, from {} on; {behind} open \
         behind it</dd><dt>It means</dt><dd>{means}</dd><dt>Next</dt><dd>{}{at}</dd></dl>",
        Escaped(&since),
        view.last_stable_offset,
        Escaped(&holder.next.text),
    )
}

fn transactions(html: &mut String, uri: &Uri, list: &TransactionList) -> fmt::Result {
    html.write_str(
        "<h2>Transactional ids</h2><form><label>Id begins with <input name=\"id_prefix\"></label> \
         <button>Show</button></form>",
    )?;
    let counts: Vec<String> = list
        .by_state
        .iter()
        .map(|(state, count)| {
            let (path, state) = (segment(state), Escaped(state));
            format!("<a href=\"/?state={path}\">{count} {state}</a>")
        })
        .collect();
    write!(
        html,
        "<p>{} in all. {}</p>",
        list.matched,
        counts.join(", ")
    )?;
    for gap in &list.missing_slots {
        write!(
            html,
            "<p class=\"gap\">The ids of slot {} are not shown: {}.</p>",
            gap.slot,
            Escaped(gap.state)
        )?;
    }
    html.write_str(
        "<table><thead><tr><th scope=\"col\">Id</th><th scope=\"col\">State</th>\
         <th scope=\"col\">Began</th><th scope=\"col\">Timeout</th><th scope=\"col\">Producer</th>\
         <th scope=\"col\">Partitions</th><th scope=\"col\">Client</th>\
         <th scope=\"col\">What happens next</th></tr></thead><tbody>",
    )?;
    for one in &list.transactions {
        row(html, one)?;
    }
    html.write_str("</tbody></table>")?;
    if let Some(token) = &list.next_page_token {
        let query = next_query(uri, token);
        write!(
            html,
            "<p><a href=\"/?{}\">Next page</a></p>",
            Escaped(&query)
        )?;
    }
    Ok(())
}

fn row(html: &mut String, one: &Transaction) -> fmt::Result {
    let id = segment(&one.transactional_id);
    let partitions: usize = one
        .partitions
        .iter()
        .map(|topic| topic.partitions.len())
        .sum();
    let client = one.client.as_ref().map_or_else(String::new, |client| {
        format!("{} {}", client.id, client.address)
    });
    let began = one.start.as_deref().unwrap_or("");
    write!(
        html,
        "<tr><td class=\"id\"><a href=\"/api/v1/transactions/{id}\">{}</a> \
         (<a href=\"/api/v1/transactions/{id}/history\">history</a>)</td><td>{}</td><td>{}</td>\
         <td>{} ms</td><td>{}, epoch {}</td><td>{partitions}</td><td>{}</td><td>{}</td></tr>",
        Escaped(&one.transactional_id),
        Escaped(one.state),
        Escaped(began),
        one.timeout_ms,
        one.producer_id,
        one.producer_epoch,
        Escaped(&client),
        Escaped(&one.next.text),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_hostile_text_is_markup() {
        let hostile = "<script>alert('\"&')</script>\u{202e}\0\u{85}\n";
        let shown = Escaped(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{202e}', '\0', '\u{85}', '\n']));
        let start = "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;";
        assert_eq!(
            shown,
            format!("{start}\\u{{202e}}\\u{{0}}\\u{{85}}\\u{{a}}")
        );
    }
}
