//! The ids of a slot as they are in force, and the slot's file as it was last read or written.
//!
//! A file may have very many ids of which a write changes few. Its bytes are kept, and the next
//! ones are copied from them, but for the fields that differ.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::machine::txn::TxnEntry;
use crate::volume::format::{Extra, FormatError, SlotText, TxnEntryFile, TxnSlotFile};

#[derive(Debug)]
struct Known {
    entry: TxnEntry,
    /// Fields that this version does not know, where there are any.
    extra: Option<Box<Extra>>,
    /// The decision is being carried out.
    finishing: bool,
}

/// An id. Nobody may use most of them: what is known of one is behind a pointer, for in a map there
/// is nearly a free place for each that is taken.
#[derive(Debug)]
struct Cell {
    known: Box<Known>,
    /// Bytes of its field in the file; 0 if it is not there yet.
    len: usize,
}

/// The field of an entry that is in force and not in the file.
#[derive(Debug)]
struct Unwritten {
    field: Vec<u8>,
    /// It is in the write that is under way.
    taken: bool,
}

/// The write that is under way.
#[derive(Debug)]
struct Writing {
    text: SlotText,
    /// Bytes of the fields in which it differs from the file.
    lens: Vec<(Arc<str>, usize)>,
}

/// The ids.
#[derive(Debug, Default)]
pub(super) struct Ids {
    cells: BTreeMap<Arc<str>, Cell>,
    unwritten: BTreeMap<Arc<str>, Unwritten>,
    /// The file: the fields of `cells`, in their order.
    text: SlotText,
    writing: Option<Writing>,
}

impl Ids {
    /// Those of a file that was read.
    pub(super) fn of(file: TxnSlotFile, now_ms: i64) -> Result<Self, FormatError> {
        let mut cells = Vec::with_capacity(file.ids.len());
        let none = SlotText::default();
        let mut edit = none.edit(0);
        for (id, entry) in file.ids {
            let field = entry.field(&id)?;
            edit.add(&field);
            let (entry, extra) = entry.into_entry(now_ms);
            cells.push((Arc::from(id), Cell::new(entry, extra, field.len())));
        }
        Ok(Self {
            cells: cells.into_iter().collect(),
            text: edit.finish(),
            ..Self::default()
        })
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Bytes of the file that would have what is in force.
    pub(super) fn bytes(&self) -> usize {
        let len = |id: &Arc<str>| self.cells.get(id).map_or(0, |cell| cell.len);
        let before: usize = self.unwritten.keys().map(len).sum();
        let after: usize = self.unwritten.values().map(|it| it.field.len()).sum();
        (self.text.bytes().len() + after).saturating_sub(before)
    }

    pub(super) fn entry(&self, id: &str) -> Option<&TxnEntry> {
        self.cells.get(id).map(|cell| &cell.known.entry)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Arc<str>, &TxnEntry)> {
        let cells = self.cells.iter();
        cells.map(|(id, cell)| (id, &cell.known.entry))
    }

    /// Marks whether the decision of an id is being carried out; what it was. `None`: there is no
    /// such id.
    pub(super) fn finishing(&mut self, id: &str, finishing: bool) -> Option<bool> {
        let cell = self.cells.get_mut(id)?;
        Some(std::mem::replace(&mut cell.known.finishing, finishing))
    }

    /// The field that an id would have with this entry.
    pub(super) fn field(&self, id: &str, entry: &TxnEntry) -> Result<Vec<u8>, FormatError> {
        let known = self.cells.get(id).map(|cell| &cell.known);
        let none = Extra::new();
        let extra = known.and_then(|known| known.extra.as_deref());
        TxnEntryFile::of(entry, extra.unwrap_or(&none)).field(id)
    }

    /// Bytes of the field of what is in force of an id.
    pub(super) fn field_len(&self, id: &str) -> usize {
        match self.unwritten.get(id) {
            Some(unwritten) => unwritten.field.len(),
            None => self.cells.get(id).map_or(0, |cell| cell.len),
        }
    }

    /// Puts an entry into force that the file does not have, of an id that there is.
    pub(super) fn put_unwritten(&mut self, id: &str, entry: TxnEntry, field: Vec<u8>) {
        let it = (Bound::Included(id), Bound::Included(id));
        if let Some((id, cell)) = self.cells.range_mut::<str, _>(it).next() {
            cell.known.entry = entry;
            let taken = false;
            let unwritten = Unwritten { field, taken };
            self.unwritten.insert(id.clone(), unwritten);
        }
    }

    /// Begins a write of what is in force and of `changed`, which are the fields of the ids that
    /// will be in force when it is done; an empty one is of an id that goes.
    pub(super) fn write<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a Arc<str>, &'a [u8])>,
    ) -> SlotText {
        let mut fields: BTreeMap<&Arc<str>, &[u8]> = BTreeMap::new();
        for (id, unwritten) in &mut self.unwritten {
            unwritten.taken = true;
            fields.insert(id, &unwritten.field);
        }
        for (id, field) in changed {
            fields.insert(id, field);
        }
        let added = fields.values().map(|field| field.len()).sum();
        let mut edit = self.text.edit(added);
        let mut lens = Vec::with_capacity(fields.len());
        let mut from = Bound::Unbounded;
        for (id, field) in fields {
            let to = Bound::Excluded(&**id);
            let kept = self.cells.range::<str, _>((from, to));
            edit.keep(kept.map(|(_, cell)| cell.len).sum());
            edit.skip(self.cells.get(id).map_or(0, |cell| cell.len));
            edit.add(field);
            lens.push((id.clone(), field.len()));
            from = to;
        }
        let text = edit.finish();
        let writing = text.clone();
        self.writing = Some(Writing { text, lens });
        writing
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The write was done: what was to change is in force now. `None`: the id goes.
    pub(super) fn written(
        &mut self,
        changed: impl IntoIterator<Item = (Arc<str>, Option<TxnEntry>)>,
    ) {
        self.unwritten.retain(|_, unwritten| !unwritten.taken);
        for (id, next) in changed {
            // What was put meanwhile is of the entry before.
            self.unwritten.remove(&id);
            let Some(entry) = next else {
                self.cells.remove(&id);
                continue;
            };
            match self.cells.get_mut(&id) {
                Some(cell) => cell.known.entry = entry,
                None => drop(self.cells.insert(id, Cell::new(entry, Extra::new(), 0))),
            }
        }
        if let Some(writing) = self.writing.take() {
            self.text = writing.text;
            for (id, len) in writing.lens {
                if let Some(cell) = self.cells.get_mut(&id) {
                    cell.len = len;
                }
            }
        }
    }

    /// The write was not done.
    pub(super) fn not_written(&mut self) {
        self.writing = None;
        for unwritten in self.unwritten.values_mut() {
            unwritten.taken = false;
        }
    }
}

impl Cell {
    fn new(entry: TxnEntry, extra: Extra, len: usize) -> Self {
        let extra = (!extra.is_empty()).then(|| Box::new(extra));
        let finishing = false;
        let known = Known {
            entry,
            extra,
            finishing,
        };
        Self {
            known: Box::new(known),
            len,
        }
    }
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;
