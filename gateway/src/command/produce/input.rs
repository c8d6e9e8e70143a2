//! Reads records from standard input or a file, on a thread of its own, as they come.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use store_adapter::runtime::Env;
use tokio::sync::mpsc;

/// Most bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// Longest record, bytes.
const RECORD_LEN_MAX: usize = 32 << 20;
/// Parts of the input that wait to be sent.
const WAITING: usize = 4;

/// Records in order.
pub(super) type Part = Result<Vec<Bytes>, String>;

/// The input, while it is read.
#[derive(Debug)]
pub(super) struct Input {
    parts: mpsc::Receiver<Part>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Whether something was read that is not among the parts yet.
    holds: AtomicBool,
}

impl Input {
    /// Begins to read `source`. A record ends with `delimiter`, and the last one with the input.
    pub(super) fn begin(env: &Env, source: Box<dyn Read + Send>, delimiter: Vec<u8>) -> Self {
        let (sender, parts) = mpsc::channel(WAITING);
        let shared = Arc::new(Shared::default());
        let task = Box::pin(read(source, delimiter, sender, Arc::clone(&shared)));
        // Not awaited: it may be in the middle of a read that never ends.
        drop(env.runtime.spawn_io("input", task));
        Self { parts, shared }
    }

    /// The next part; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Part> {
        self.parts.recv().await
    }

    /// The next part, if one has been read already.
    pub(super) fn ready(&mut self) -> Option<Part> {
        self.parts.try_recv().ok()
    }

    /// Reads no further: what was read is still there, and nothing behind it.
    pub(super) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }

    /// What is left after [`Input::stop`].
    pub(super) async fn rest(&mut self) -> Option<Part> {
        match self.ready() {
            Some(part) => Some(part),
            // It is about to come, and after it the end.
            None if self.shared.holds.load(Ordering::SeqCst) => self.next().await,
            None => None,
        }
    }
}

async fn read(
    mut source: Box<dyn Read + Send>,
    delimiter: Vec<u8>,
    sender: mpsc::Sender<Part>,
    shared: Arc<Shared>,
) {
    let mut splitter = Splitter::new(delimiter);
    let mut buffer = vec![0; READ_LEN];
    while !shared.stop.load(Ordering::SeqCst) {
        let part = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                shared.holds.store(true, Ordering::SeqCst);
                splitter.push(buffer.get(..len).unwrap_or_default())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(format!("input: {error}")),
        };
        let failed = part.is_err();
        let is_empty = part.as_ref().is_ok_and(Vec::is_empty);
        if !is_empty && sender.send(part).await.is_err() || failed {
            return;
        }
        shared.holds.store(false, Ordering::SeqCst);
    }
    if !shared.stop.load(Ordering::SeqCst)
        && let Some(last) = splitter.finish()
    {
        // Whoever does not want it any more has closed the channel.
        sender.send(Ok(vec![last])).await.unwrap_or_default();
    }
}

/// Cuts what comes into records.
#[derive(Debug)]
struct Splitter {
    delimiter: Vec<u8>,
    /// What has no end yet.
    rest: BytesMut,
    /// Bytes of it in which no delimiter begins.
    searched: usize,
}

impl Splitter {
    fn new(delimiter: Vec<u8>) -> Self {
        Self {
            delimiter,
            rest: BytesMut::new(),
            searched: 0,
        }
    }

    /// The records that `bytes` completes.
    fn push(&mut self, bytes: &[u8]) -> Part {
        self.rest.extend_from_slice(bytes);
        let mut records = Vec::new();
        while let Some(end) = self.find() {
            let mut record = self.rest.split_to(end + self.delimiter.len());
            record.truncate(end);
            records.push(record.freeze());
            self.searched = 0;
        }
        if self.rest.len() > RECORD_LEN_MAX {
            return Err(format!(
                "input: a record of more than {RECORD_LEN_MAX} bytes: does it end with {:?}?",
                String::from_utf8_lossy(&self.delimiter)
            ));
        }
        Ok(records)
    }

    fn find(&mut self) -> Option<usize> {
        let unsearched = self.rest.get(self.searched..)?;
        let found = match self.delimiter.as_slice() {
            [byte] => unsearched.iter().position(|b| b == byte),
            delimiter => unsearched
                .windows(delimiter.len())
                .position(|window| window == delimiter),
        };
        if found.is_none() {
            // One may have begun.
            let begun = self.delimiter.len().saturating_sub(1);
            self.searched = self.rest.len().saturating_sub(begun);
        }
        found.map(|at| at + self.searched)
    }

    /// The last record, if the input does not end with a delimiter.
    fn finish(self) -> Option<Bytes> {
        (!self.rest.is_empty()).then(|| self.rest.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(delimiter: &[u8], pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut splitter = Splitter::new(delimiter.to_vec());
        let mut records = Vec::new();
        for piece in pieces {
            records.extend(splitter.push(piece).unwrap());
        }
        records.extend(splitter.finish());
        records.iter().map(|record| record.to_vec()).collect()
    }

    #[test]
    fn records_end_where_the_delimiter_is_however_the_input_is_cut() {
        let text = b"a||bb|c||||last|";
        let expected: [&[u8]; 4] = [b"a", b"bb|c", b"", b"last|"];
        for cut in 0..text.len() {
            let (one, two) = text.split_at(cut);
            assert_eq!(split(b"||", &[one, two]), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(b"||", &single), expected);
        assert_eq!(split(b"\n", &[b"a\n", b"b\n"]), [b"a", b"b"]);
        assert_eq!(split(b"\n", &[b""]), [] as [&[u8]; 0]);
    }

    #[test]
    fn a_record_without_end_is_refused() {
        let mut splitter = Splitter::new(b"\n".to_vec());
        let piece = vec![b'x'; RECORD_LEN_MAX / 2];
        assert!(splitter.push(&piece).is_ok());
        assert!(splitter.push(&piece).is_ok());
        assert!(splitter.push(b"x").unwrap_err().contains("33554432"));
    }
}
