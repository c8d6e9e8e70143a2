//! The bytes of a slot's file, from which the next ones are made: there may be very many ids, of
//! which a write changes few.

use bytes::Bytes;
use store_adapter::volume::sum::{SUM_LEN, add_sum};

/// A slot's file, with its checksum. Before the first there are no bytes.
///
/// It is a list of fields, one an id in the order of ids, that begin with a comma each:
/// `,"id":{…}`. In the file the comma of the first one is the brace.
#[derive(Debug, Clone, Default)]
pub struct SlotText {
    bytes: Bytes,
    /// Bytes of its fields.
    fields: usize,
}

/// The file that follows another, made field by field in the order of ids.
#[derive(Debug)]
pub struct SlotEdit<'a> {
    /// The fields of the one before that have not been kept or skipped.
    before: &'a [u8],
    text: Vec<u8>,
}

impl SlotText {
    /// The file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Begins the file that follows. `added`: bytes of the fields that are added to it.
    pub fn edit(&self, added: usize) -> SlotEdit<'_> {
        let before = &self.bytes[..self.fields];
        // Both braces, and the checksum.
        let room = before.len() + added + 2 + SUM_LEN;
        SlotEdit {
            before,
            text: Vec::with_capacity(room),
        }
    }
}

impl SlotEdit<'_> {
    /// Keeps the next fields of the file before, which are `len` bytes.
    pub fn keep(&mut self, len: usize) {
        let (kept, left) = self.before.split_at(len);
        self.before = left;
        self.add(kept);
    }

    /// Leaves out the next fields of the file before, which are `len` bytes.
    pub fn skip(&mut self, len: usize) {
        self.before = &self.before[len..];
    }

    /// Adds a field that [`TxnEntryFile::field`](super::TxnEntryFile::field) made.
    pub fn add(&mut self, field: &[u8]) {
        let begin = self.text.len();
        self.text.extend_from_slice(field);
        if let Some(comma) = self.text.get_mut(begin) {
            *comma = b',';
        }
    }

    /// Keeps what is left of the file before, and ends this one.
    pub fn finish(mut self) -> SlotText {
        self.keep(self.before.len());
        let mut text = self.text;
        let fields = text.len();
        match text.first_mut() {
            Some(comma) => *comma = b'{',
            None => text.push(b'{'),
        }
        text.push(b'}');
        add_sum(&mut text);
        SlotText {
            // Without the room of what was left out.
            bytes: text.into_boxed_slice().into(),
            fields,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use store_adapter::volume::sum::with_sum;

    use super::super::{TxnEntryFile, TxnSlotFile, encode};
    use super::*;

    fn entry(pid: i64) -> TxnEntryFile {
        TxnEntryFile {
            pid,
            ..TxnEntryFile::default()
        }
    }

    fn field(id: &str, pid: i64) -> Vec<u8> {
        entry(pid).field(id).unwrap()
    }

    fn file(ids: &[(&str, i64)]) -> Bytes {
        let ids = ids.iter().map(|(id, pid)| ((*id).to_owned(), entry(*pid)));
        let ids: BTreeMap<String, TxnEntryFile> = ids.collect();
        with_sum(&encode(&TxnSlotFile { ids }).unwrap())
    }

    #[test]
    fn a_file_follows_another() {
        let none = SlotText::default();
        let empty = none.edit(0).finish();
        assert_eq!(*empty.bytes(), file(&[]));
        assert_eq!(*empty.edit(0).finish().bytes(), file(&[]));
        let (b, d) = (field("b", 1), field("d\u{1}\"", 22));
        let mut edit = empty.edit(b.len() + d.len());
        edit.add(&b);
        edit.add(&d);
        let two = edit.finish();
        assert_eq!(*two.bytes(), file(&[("b", 1), ("d\u{1}\"", 22)]));
        // One before the first, in the middle and behind the last.
        let mut edit = two.edit(0);
        edit.add(&field("a", 3));
        edit.keep(b.len());
        edit.add(&field("c", 4));
        edit.keep(d.len());
        edit.add(&field("e", 5));
        let all = [("a", 3), ("b", 1), ("c", 4), ("d\u{1}\"", 22), ("e", 5)];
        assert_eq!(*edit.finish().bytes(), file(&all));
        // The first one goes, is exchanged, and all go.
        let mut edit = two.edit(0);
        edit.skip(b.len());
        assert_eq!(*edit.finish().bytes(), file(&[("d\u{1}\"", 22)]));
        let mut edit = two.edit(0);
        edit.skip(b.len());
        edit.add(&field("b", 100));
        let exchanged = [("b", 100), ("d\u{1}\"", 22)];
        assert_eq!(*edit.finish().bytes(), file(&exchanged));
        let mut edit = two.edit(0);
        edit.skip(b.len() + d.len());
        assert_eq!(*edit.finish().bytes(), file(&[]));
        assert_eq!(*two.edit(7).finish().bytes(), *two.bytes());
    }
}
