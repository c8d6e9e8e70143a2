//! `txn_history/slot-<n>/<epoch>-<seq>.jsonl`: what became of transactions and why, a line a
//! transition. The end of a file may be torn by a crash, which loses that line and no other.

use serde::{Deserialize, Serialize};

use super::txn_slot::{ClientEntry, TopicPartitionsEntry, list, state_name};
use super::{Extra, FormatError};
use crate::machine::txn::{Transition, TxnState};

/// Longest line that is read, bytes.
pub const HISTORY_LINE_MAX: usize = 16 << 20;

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryLine {
    /// When, ms since the Unix epoch.
    pub ts: i64,
    /// The transactional id.
    pub transactional_id: String,
    /// Its producer id afterwards.
    pub pid: i64,
    /// Its epoch afterwards.
    pub epoch: i16,
    /// Number of its last transaction.
    pub txn_seq: u64,
    /// The state before.
    #[serde(with = "state_name")]
    pub from: TxnState,
    /// The state afterwards.
    #[serde(with = "state_name")]
    pub to: TxnState,
    /// Why.
    pub cause: String,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientEntry>,
    /// Partitions of the transaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<TopicPartitionsEntry>,
    /// Groups of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl HistoryLine {
    /// The line of a transition.
    pub fn of(transactional_id: &str, at: &Transition) -> Self {
        Self {
            ts: at.at_ms,
            transactional_id: transactional_id.to_owned(),
            pid: at.pid.0,
            epoch: at.epoch.0,
            txn_seq: at.txn_seq,
            from: at.from,
            to: at.to,
            cause: at.cause.name().to_owned(),
            client: at.client.as_ref().map(ClientEntry::of),
            partitions: list(&at.partitions),
            groups: at.groups.iter().map(ToString::to_string).collect(),
            extra: Extra::new(),
        }
    }

    /// Its bytes, with the line's end.
    ///
    /// # Errors
    /// When it can't be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut line = serde_json::to_vec(self).map_err(|error| FormatError(error.to_string()))?;
        line.push(b'\n');
        Ok(line)
    }

    /// The lines of a file, and how many could not be read: gaps.
    pub fn read(bytes: &[u8]) -> (Vec<Self>, usize) {
        let mut lines = Vec::new();
        let mut gaps = 0;
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let fits = line.len() <= HISTORY_LINE_MAX;
            match serde_json::from_slice(line) {
                Ok(line) if fits => lines.push(line),
                _ => gaps += 1,
            }
        }
        (lines, gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"ts":1790000000000,"transactionalId":"tx","pid":7,"epoch":2,"txnSeq":1,"#,
        r#""from":"Ongoing","to":"PrepareAbort","cause":"reaper","partitions":[{"topic":"out","#,
        r#""partitions":[0]}],"groups":["g"],"zz":1}"#
    );

    #[test]
    fn lines_read_back_and_torn_ones_are_gaps() {
        let text = format!("{SAMPLE}\n{SAMPLE}\n{}", &SAMPLE[..40]);
        let (lines, gaps) = HistoryLine::read(text.as_bytes());
        assert_eq!((lines.len(), gaps), (2, 1));
        assert_eq!(lines[0].to, TxnState::PrepareAbort);
        assert_eq!(lines[1].encode().unwrap(), format!("{SAMPLE}\n").as_bytes());
        assert_eq!(HistoryLine::read(b"\n\0\n{}\n"), (Vec::new(), 2));
    }
}
