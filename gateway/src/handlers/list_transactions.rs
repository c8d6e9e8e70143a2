//! ListTransactions (key 66), versions 0 to 2: the transactional ids that this broker coordinates.
//! v1 by how long they are open; v2 by a pattern that a whole id must match (KIP-1152).
//!
//! Filters are joined by and. The name of a state that nobody knows is told back, and matches no
//! id. Who asks for producers wants to know what their open transactions wait for, and concludes
//! from an id that is not listed that nobody ends them: while a slot is damaged that is answered
//! with 15. Other lists have what can be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::machine::txn::{self, Outline, TxnEntry, TxnState};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use super::{ROOM_FROM, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;
use crate::wire::codec;

/// States that Kafka knows besides ours. No id is ever seen in them.
const OTHER_STATES: [&str; 2] = ["Dead", "PrepareEpochFence"];
/// Bytes that a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Levels of nesting of a pattern.
const PATTERN_DEPTH_MAX: u32 = 64;

/// What an id must be like.
struct Wanted {
    states: Option<BTreeSet<TxnState>>,
    producers: BTreeSet<i64>,
    /// Ids that began a transaction longer ago, ms; negative for all.
    longer_than_ms: i64,
    pattern: Option<Regex>,
    now_ms: i64,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ListTransactionsRequest,
) -> Staged<ApiResponse> {
    let (broker, version) = (Arc::clone(broker), context.version);
    Staged::Later(Box::pin(async move {
        let answer = answer(&broker, &request).await;
        let bytes = codec::body_len(&answer, version);
        if bytes < ROOM_FROM {
            return answer;
        }
        // Not kept while it waits.
        drop(answer);
        let room = broker.answers().room(bytes).await;
        let mut again = self::answer(&broker, &request).await;
        again.put_room(room.into());
        again
    }))
}

async fn answer(broker: &Broker, request: &ListTransactionsRequest) -> ApiResponse {
    let mut response = ListTransactionsResponse::default();
    match list(broker, request).await {
        Ok((unknown, listed)) => {
            response.unknown_state_filters = unknown;
            response.transaction_states = listed;
        }
        Err(code) => response.error_code = code.code(),
    }
    ApiResponse::ListTransactions(Box::new(response))
}

/// The names of states that nobody knows, and the ids.
async fn list(
    broker: &Broker,
    request: &ListTransactionsRequest,
) -> Result<(Vec<StrBytes>, Vec<TransactionState>), ResponseError> {
    let (states, unknown) = states(&request.state_filters);
    let wanted = Wanted {
        states,
        producers: request.producer_id_filters.iter().map(|id| id.0).collect(),
        longer_than_ms: request.duration_filter,
        pattern: pattern(request.transactional_id_pattern.as_deref().unwrap_or(""))?,
        now_ms: broker.env().clock.wall_ms(),
    };
    let take = |id: &Arc<str>, entry: &TxnEntry| {
        let outline = txn::outline(entry);
        wanted.takes(id, &outline).then(|| {
            TransactionState::default()
                .with_transactional_id(TransactionalId(text(id)))
                .with_producer_id(ProducerId(outline.pid.0))
                .with_transaction_state(text(outline.state.name()))
        })
    };
    let whole = !wanted.producers.is_empty();
    let listed = broker.txns().list(whole, take).await;
    let mut listed = listed.map_err(error_code::txn)?;
    listed.sort_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
    Ok((unknown, listed))
}

/// The states of a filter, `None` for all; and the names that are none.
fn states(names: &[StrBytes]) -> (Option<BTreeSet<TxnState>>, Vec<StrBytes>) {
    if names.is_empty() {
        return (None, Vec::new());
    }
    let known = names.iter().filter_map(|name| TxnState::from_name(name));
    let is_unknown =
        |name: &&StrBytes| TxnState::from_name(name).is_none() && !OTHER_STATES.contains(&&***name);
    let unknown = names.iter().filter(is_unknown).map(|name| text(name));
    (Some(known.collect()), unknown.collect())
}

/// The pattern, which a whole id must match; `None` for the empty one.
pub(crate) fn pattern(pattern: &str) -> Result<Option<Regex>, ResponseError> {
    if pattern.is_empty() {
        return Ok(None);
    }
    let compile = |pattern: &str| {
        let config = Regex::config().nfa_size_limit(Some(PATTERN_BYTES_MAX));
        Regex::builder()
            .configure(config)
            .syntax(syntax::Config::new().nest_limit(PATTERN_DEPTH_MAX))
            .build(pattern)
            .map_err(|_| ResponseError::InvalidRegularExpression)
    };
    // Alone first: what is put around it must not complete it.
    compile(pattern)?;
    compile(&format!(r"\A(?:{pattern})\z")).map(Some)
}

impl Wanted {
    fn takes(&self, id: &str, outline: &Outline) -> bool {
        let of_state = |states: &BTreeSet<_>| states.contains(&outline.state);
        let age_ms = self.now_ms.saturating_sub(outline.start_ms.unwrap_or(-1));
        self.states.as_ref().is_none_or(of_state)
            && (self.producers.is_empty() || self.producers.contains(&outline.pid.0))
            && (self.longer_than_ms < 0 || age_ms > self.longer_than_ms)
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(id))
    }
}

#[cfg(test)]
mod tests {
    use store_adapter::ids::ProducerId as Pid;

    use super::*;

    fn matches(of: &str, id: &str) -> Option<bool> {
        let pattern = pattern(of).ok()?;
        Some(pattern.is_none_or(|pattern| pattern.is_match(id)))
    }

    #[test]
    fn a_pattern_matches_whole_ids() {
        for (of, id, expected) in [
            ("", "anything", Some(true)),
            ("app", "app", Some(true)),
            ("app", "app-1", Some(false)),
            ("app.*", "app-1", Some(true)),
            ("a|ab", "ab", Some(true)),
            ("b", "abc", Some(false)),
            ("\u{e9}+", "\u{e9}\u{e9}", Some(true)),
            ("(", "(", None),
            ("a)|(b", "a", None),
            ("a{99999}{99999}", "a", None),
        ] {
            assert_eq!(matches(of, id), expected, "{of:?} of {id:?}");
        }
        assert_eq!(matches(&"(".repeat(100_000), "("), None);
    }

    #[test]
    fn filters_are_joined_by_and() {
        let entry = TxnEntry {
            state: TxnState::Ongoing,
            start_ms: Some(1_000),
            ..TxnEntry::new(Pid(7), 60_000, 0)
        };
        let outline = txn::outline(&entry);
        let all = || Wanted {
            states: None,
            producers: BTreeSet::new(),
            longer_than_ms: -1,
            pattern: None,
            now_ms: 1_500,
        };
        let takes = |wanted: Wanted| wanted.takes("app", &outline);
        assert!(takes(all()));
        for (longer_than_ms, expected) in [(0, true), (499, true), (500, false)] {
            let wanted = Wanted {
                longer_than_ms,
                ..all()
            };
            assert_eq!(takes(wanted), expected, "{longer_than_ms}");
        }
        for (state, expected) in [(TxnState::Ongoing, true), (TxnState::Empty, false)] {
            let states = Some(BTreeSet::from([state]));
            assert_eq!(takes(Wanted { states, ..all() }), expected);
        }
        for (pid, expected) in [(7, true), (8, false)] {
            let producers = BTreeSet::from([pid]);
            assert_eq!(takes(Wanted { producers, ..all() }), expected);
        }
        let states = Some(BTreeSet::new());
        assert!(!takes(Wanted { states, ..all() }), "only unknown names");
    }

    #[test]
    fn names_of_states_are_told_back_if_nobody_knows_them() {
        let names = ["Ongoing", "ongoing", "Dead", "Gone"].map(text);
        let (known, unknown) = states(&names);
        assert_eq!(known, Some(BTreeSet::from([TxnState::Ongoing])));
        assert_eq!(unknown, ["ongoing", "Gone"].map(text));
        assert_eq!(states(&[]), (None, Vec::new()));
    }
}
