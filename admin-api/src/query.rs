//! Parameters of a query, and pages of a list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::header::LINK;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Problem;

/// Entries of a page, unless the query says otherwise.
const PAGE_SIZE: usize = 100;
/// Most entries of a page.
pub(crate) const PAGE_SIZE_MAX: usize = 1000;
/// Most parameters of a query.
const PARAMS_MAX: usize = 200;

/// The parameters of a query. A name that is not known is an error: a filter that is mistyped must
/// not pass for one that lets everything through.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads a query that may have the parameters in `known`.
    pub(crate) fn read(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(pairs) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
        if pairs.len() > PARAMS_MAX {
            let why = format!("the query has more than {PARAMS_MAX} parameters");
            return Err(Problem::bad_request(why));
        }
        let mut raw = uri.query().unwrap_or_default().split('&');
        let not_text = |pair: &&str| percent_decode_str(pair).decode_utf8().is_err();
        if let Some(pair) = raw.find(not_text) {
            let name = pair.split('=').next().unwrap_or_default();
            return Err(Problem::invalid(name, "its bytes must be UTF-8"));
        }
        for (name, _) in &pairs {
            if !known.contains(&name.as_str()) {
                let known = match known {
                    [] => "this path has no parameters".to_owned(),
                    known => format!("known are {}", known.join(", ")),
                };
                return Err(Problem::invalid(name, known));
            }
        }
        Ok(Self(pairs))
    }

    /// Every value of a parameter that may be repeated.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.iter();
        pairs.filter_map(move |(is, value)| (is == name).then_some(value.as_str()))
    }

    /// The value of a parameter that may be given once.
    pub(crate) fn one<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, Problem> {
        let mut values = self.all(name);
        let first = values.next();
        match values.next() {
            None => Ok(first),
            Some(_) => Err(Problem::invalid(name, "it may be given once")),
        }
    }

    /// A number that is not negative.
    pub(crate) fn number<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: FromStr + PartialOrd + Default,
    {
        self.one(name)?.map(|text| natural(name, text)).transpose()
    }

    /// Numbers that are not negative, of a parameter that may be repeated.
    pub(crate) fn numbers<T>(&self, name: &str) -> Result<Vec<T>, Problem>
    where
        T: FromStr + PartialOrd + Default,
    {
        self.all(name).map(|text| natural(name, text)).collect()
    }

    /// A number that may be negative.
    pub(crate) fn signed(&self, name: &str) -> Result<Option<i64>, Problem> {
        let number = self.one(name)?.map(str::parse::<i64>).transpose();
        number.map_err(|_| Problem::invalid(name, "it must be a whole number"))
    }

    /// Whether something is asked for: `true` or `false`, and without a value true.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.one(name)? {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(_) => Err(Problem::invalid(name, "it must be true or false")),
        }
    }

    /// What page of a list in this `order` is asked for.
    pub(crate) fn page(&self, order: &str) -> Result<PageAsk, Problem> {
        let size = self.number("page_size")?.unwrap_or(PAGE_SIZE);
        if !(1..=PAGE_SIZE_MAX).contains(&size) {
            let allowed = format!("it must be 1 to {PAGE_SIZE_MAX}");
            return Err(Problem::invalid("page_size", allowed));
        }
        let after = self.after(order)?;
        Ok(PageAsk { size, after })
    }

    /// The entry of a list in this `order` behind which the page begins.
    pub(crate) fn after(&self, order: &str) -> Result<Option<Key>, Problem> {
        match self.one("page_token")? {
            None | Some("") => Ok(None),
            Some(token) => {
                let wrong = "it must be the nextPageToken of an answer to the same query";
                let key = Key::from_token(order, token);
                key.map(Some)
                    .ok_or_else(|| Problem::invalid("page_token", wrong))
            }
        }
    }
}

fn natural<T: FromStr + PartialOrd + Default>(name: &str, text: &str) -> Result<T, Problem> {
    let number = text
        .parse::<T>()
        .ok()
        .filter(|number| *number >= T::default());
    number.ok_or_else(|| Problem::invalid(name, "it must be a whole number, 0 or more"))
}

/// Where an entry stands in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) i64, pub(crate) String);

impl Key {
    pub(crate) fn token(&self, order: &str) -> String {
        let text = format!("{order} {} {}", self.0, self.1);
        let mut token = String::with_capacity(text.len() * 2);
        for byte in text.bytes() {
            // Writing to a string cannot fail.
            write!(token, "{byte:02x}").unwrap_or_default();
        }
        token
    }

    fn from_token(order: &str, token: &str) -> Option<Self> {
        let digits = token.as_bytes();
        if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let bytes = digits.chunks_exact(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        let text = String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()?;
        let mut parts = text.splitn(3, ' ');
        if parts.next()? != order {
            return None;
        }
        let number = parts.next()?.parse().ok()?;
        Some(Self(number, parts.next()?.to_owned()))
    }
}

/// What page is asked for.
#[derive(Debug, Clone)]
pub(crate) struct PageAsk {
    size: usize,
    after: Option<Key>,
}

/// Takes the entries of one page out of many, in any order, and keeps no more than it needs.
#[derive(Debug)]
pub(crate) struct Page<T> {
    ask: PageAsk,
    kept: BTreeMap<Key, T>,
    /// How many entries were offered, on all pages.
    pub(crate) matched: usize,
}

impl<T> Page<T> {
    pub(crate) fn new(ask: PageAsk) -> Self {
        Self {
            ask,
            kept: BTreeMap::new(),
            matched: 0,
        }
    }

    /// Offers an entry, which is made only if it may be on the page.
    pub(crate) fn offer(&mut self, key: Key, make: impl FnOnce() -> T) {
        self.matched += 1;
        if self.ask.after.as_ref().is_some_and(|after| key <= *after) {
            return;
        }
        let last = self.kept.last_key_value().map(|(last, _)| last);
        if self.kept.len() > self.ask.size && last.is_some_and(|last| key > *last) {
            return;
        }
        self.kept.insert(key, make());
        // One more than is shown says that there is a next page.
        if self.kept.len() > self.ask.size + 1 {
            self.kept.pop_last();
        }
    }

    /// The entries, and the token of the next page.
    pub(crate) fn take(self, order: &str) -> (Vec<T>, Option<String>) {
        let (kept, token) = self.take_keyed(order);
        (kept.into_values().collect(), token)
    }

    /// The same with the places of the entries.
    pub(crate) fn take_keyed(mut self, order: &str) -> (BTreeMap<Key, T>, Option<String>) {
        let more = self.kept.len() > self.ask.size;
        if more {
            self.kept.pop_last();
        }
        let last = self.kept.last_key_value().map(|(last, _)| last);
        let token = last.filter(|_| more).map(|last| last.token(order));
        (self.kept, token)
    }
}

/// The query again, with another token.
pub(crate) fn next_query(uri: &Uri, token: &str) -> String {
    let query = uri.query().unwrap_or_default().split('&');
    let others = query.filter(|pair| !pair.is_empty() && !pair.starts_with("page_token="));
    let mut next: String = others.flat_map(|pair| [pair, "&"]).collect();
    next.push_str("page_token=");
    next.extend(utf8_percent_encode(token, NON_ALPHANUMERIC));
    next
}

/// A page as an answer, with a link to the next one.
pub(crate) fn listed<T: Serialize>(uri: &Uri, next: Option<&String>, page: T) -> Response {
    let link = next.and_then(|token| {
        let link = format!("<{}?{}>; rel=\"next\"", uri.path(), next_query(uri, token));
        HeaderValue::from_str(&link).ok()
    });
    let mut answer = Json(page).into_response();
    if let Some(link) = link {
        answer.headers_mut().insert(LINK, link);
    }
    answer
}

/// The parameters of a path; one that can't be read is a problem like any.
#[derive(Debug)]
pub(crate) struct Segments<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        let Path(path) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
        Ok(Self(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_whatever_the_order_of_offers() {
        let ids: Vec<String> = (0..25)
            .map(|n| format!("id {:02}\u{e9}", n * 7 % 25))
            .collect();
        let mut token = String::new();
        let mut seen = Vec::new();
        for round in 0.. {
            let uri = format!("/?page_size=10&page_token={token}");
            let params = Params::read(&uri.parse().unwrap(), &["page_size", "page_token"]);
            let mut page = Page::new(params.unwrap().page("id").unwrap());
            for id in &ids {
                page.offer(Key(0, id.clone()), || id.clone());
            }
            assert_eq!(page.matched, 25);
            let (entries, next) = page.take("id");
            seen.extend(entries);
            let Some(next) = next else {
                assert_eq!(round, 2);
                break;
            };
            token = next;
        }
        let mut sorted = ids;
        sorted.sort();
        assert_eq!(seen, sorted);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let known = ["page_size", "page_token", "flag"];
        for (query, name) in [
            ("page_size=0", "page_size"),
            ("page_size=1001", "page_size"),
            ("page_size=x", "page_size"),
            ("page_size=1&page_size=1", "page_size"),
            ("page_token=zz", "page_token"),
            ("page_token=6", "page_token"),
            ("page_token=ff", "page_token"),
            ("page_token=616765203120", "page_token"),
            ("page_token=%F0%9F%A6%80%F0", "page_token"),
            ("other=1", "other"),
        ] {
            let uri = format!("/?{query}").parse().unwrap();
            let page = Params::read(&uri, &known).and_then(|params| params.page("id"));
            let problem = page.unwrap_err();
            assert_eq!(problem.status(), 400, "{query}");
            assert!(problem.detail().starts_with(name), "{}", problem.detail());
        }
        let uri = "/?flag=perhaps".parse().unwrap();
        let params = Params::read(&uri, &known).unwrap();
        assert_eq!(params.flag("flag").unwrap_err().status(), 400);
    }
}
