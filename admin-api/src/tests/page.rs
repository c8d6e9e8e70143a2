//! The page for people.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;

use super::double::{Double, Site, ongoing, partition};
use crate::views::TxnViews as _;

#[tokio::test]
async fn the_page_explains_and_escapes() {
    let site = Site::new(Double::new());
    let answer = site.get("/").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let html = &answer.text;
    for expected in [
        "6 offsets are held back by an open transaction of &quot;open&quot;",
        "orders, partition 3",
        "fencepost txn -b 127.0.0.1:9092 abort --topic orders --partition 3",
        "&lt;script&gt;",
        "\\u{202e}",
        "<a href=\"/?state=Ongoing\">2 Ongoing</a>",
    ] {
        assert!(html.contains(expected), "{expected}\n{html}");
    }
    for never in ["<script", "\u{202e}", "href=\"/api/v1/transactions/a/b"] {
        assert!(!html.contains(never), "{never}");
    }
    // The longest open is first in the list.
    let (_, list) = html.split_once("<tbody>").unwrap();
    let place = |text: &str| list.find(text).unwrap();
    assert!(place("\\u{202e}") < place(">open</a>"));
    let first = site.get("/?page_size=1&id_prefix=o").await.text;
    assert!(first.contains(">open</a>") && !first.contains(">done</a>"));
    let wrong = site.get("/?state=%3Cscript%3E").await;
    assert_eq!(wrong.status, 400);
    assert!(!wrong.text.contains("<script"));
}

#[tokio::test]
async fn a_page_looks_at_ids_twice_whatever_is_held_back() {
    let double = Arc::new(Double::new());
    for n in 5..60 {
        let at = ("orders".to_owned(), n);
        double
            .partitions
            .lock()
            .insert(at, partition(&[i64::from(n) + 100]));
    }
    let site = Site::shared(&double);
    let page = site.get("/").await.text;
    assert!(page.contains("orders, partition 40") && page.contains("And 9 more."));
    assert_eq!(double.visits.load(Ordering::SeqCst), 2);
}

/// Every tag of a page, without its attributes; and every link.
fn tags_and_links(html: &str) -> (Vec<&str>, Vec<&str>) {
    let tags = html.split('<').skip(1);
    let tags = tags.map(|tag| tag.split([' ', '>']).next().unwrap());
    let links = html.split("href=\"").skip(1);
    let links = links.map(|link| link.split('"').next().unwrap());
    (tags.collect(), links.collect())
}

#[tokio::test]
async fn no_id_gets_into_the_markup_of_the_page() {
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "'></td></table><svg/onload=alert(1)>",
        "javascript:alert(1)",
        "//evil.example/x",
        "&lt;b&gt;&#x3c;b&#x3e;",
        "]]><!--",
        "{{7*7}}${7*7}",
        "\u{202e}\u{200b}\u{feff}\0\r\n\t",
        "a\u{301}\u{1f980}",
    ];
    let double = Double::new();
    for (n, id) in (20..).zip(hostile) {
        let mut held = ongoing(n, "orders", i32::try_from(n).unwrap(), 1_000);
        held.client = Some(coordinator::machine::txn::Client {
            id: id.into(),
            address: id.into(),
            software: id.into(),
        });
        double.ids.lock().insert(id.into(), held);
        let at = ("orders".to_owned(), i32::try_from(n).unwrap());
        double.partitions.lock().insert(at, partition(&[n]));
    }
    let site = Site::new(double);
    let request = Request::get("/").header("host", "127.0.0.1:1\"><b>");
    let refused = site.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.status, 403);
    let html = site.get("/").await.text;
    let known = [
        "!doctype", "a", "article", "body", "br", "button", "code", "dd", "dl", "dt", "form", "h1",
        "h2", "h3", "head", "html", "input", "label", "li", "meta", "p", "style", "table", "tbody",
        "td", "th", "thead", "title", "tr", "ul",
    ];
    let (tags, links) = tags_and_links(&html);
    for tag in tags {
        assert!(known.contains(&tag.trim_start_matches('/')), "<{tag}");
    }
    for link in links {
        // Of this site, and of no other.
        assert!(link.starts_with('/') && !link.starts_with("//"), "{link}");
        assert!(link.bytes().all(|byte| byte.is_ascii_graphic()), "{link}");
    }
    for never in ["src=", "url(", "@import", " on", "http-equiv"] {
        let outside = html
            .split('<')
            .skip(1)
            .filter_map(|tag| tag.split('>').next());
        assert!(
            !outside.into_iter().any(|tag| tag.contains(never)),
            "{never}"
        );
    }
    for id in hostile {
        let shown = format!(">{}</a>", crate::page::Escaped(id));
        assert!(html.contains(&shown), "{id:?}");
    }
}

#[tokio::test]
async fn the_page_says_what_to_do_and_how_it_is_typed() {
    let double = Double::new();
    double.hold(Some("prepared")).unwrap();
    let site = Site::new(double);
    let request = Request::get("/").header("host", "localhost:7777");
    let html = site.send(request.body(Body::empty()).unwrap()).await.text;
    for expected in [
        // Who holds it, since when, what it means, what happens next and when.
        "<dt>Held by</dt><dd><code><a href=\"/api/v1/transactions/open\">open</a></code>, producer \
         1099511627777, epoch 0, client app at 10.0.0.7:52114 librdkafka 2</dd>",
        "<dt>Since</dt><dd>2026-09-21T14:13:30.000Z, 50 s ago</dd>",
        "<dd>6 offsets wait, from 0 on; 1 more transaction is open behind it</dd>",
        "Its client has it open and may still commit it.",
        "it is aborted by timeout in 10 s (2026-09-21T14:14:30.000Z)</dd>",
        // What to do.
        "<code>fencepost txn -b 127.0.0.1:9092 force-terminate --transactional-id open</code>",
        "<code>curl -s --json &#39;{&quot;reason&quot;:&quot;WHY&quot;}&#39; \
         &#39;http://localhost:7777/api/v1/transactions/open/abort&#39;</code>",
        "It is decided. Its marker is not written here yet.",
        "<dd>its markers are held by fault 1, until it is released</dd>",
        "<li>Release fault 1, which holds its markers.<br>",
        "<code>curl -s -X DELETE &#39;http://localhost:7777/api/v1/faults/1&#39;</code>",
        "It hangs: its coordinator does not know that it is open here",
        "<code>fencepost txn -b 127.0.0.1:9092 abort --topic orders --partition 3 --start-offset 0\
         </code>",
    ] {
        assert!(html.contains(expected), "{expected}\n{html}");
    }
}
