//! Frames that are mostly elements of one array, each as small as it can be: what takes most memory
//! for its bytes. For every array of every request, in the oldest and the newest version offered.

use bytes::BufMut;

use super::schema::{self, Kind, Struct};
use crate::api::api_table;

/// Elements of the array that is crowded.
const CROWD: u32 = 400;

/// An array of a request, by its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) key: i16,
    pub(super) element: Kind,
}

/// Every array of every request that is offered.
pub(super) fn places() -> Vec<Place> {
    let mut places = Vec::new();
    for row in api_table() {
        let body = &schema::message(row.key).unwrap().body;
        in_struct(row.key, body, &mut places);
    }
    places
}

fn in_struct(key: i16, of: &Struct, places: &mut Vec<Place>) {
    let tagged = of.tags.iter().map(|(_, field)| field);
    for field in of.fields.iter().chain(tagged) {
        in_kind(key, field.kind, places);
    }
}

fn in_kind(key: i16, kind: Kind, places: &mut Vec<Place>) {
    match kind {
        Kind::Fixed(_) | Kind::String | Kind::Bytes => {}
        Kind::Struct(of) | Kind::MaybeStruct(of) => in_struct(key, of, places),
        Kind::Array(element) => {
            places.push(Place {
                key,
                element: *element,
            });
            in_kind(key, *element, places);
        }
    }
}

/// Name and body of each frame, with its key and version.
pub(super) fn crowds() -> Vec<(String, i16, i16, Vec<u8>)> {
    let mut found = Vec::new();
    for row in api_table() {
        let (oldest, newest) = (*row.versions.start(), *row.versions.end());
        let mut versions = vec![oldest, newest];
        versions.dedup();
        for version in versions {
            let message = schema::message(row.key).unwrap();
            for target in 0.. {
                let mut writer = Writer {
                    version,
                    flexible: version >= message.flexible_from,
                    arrays_until_target: Some(target),
                    body: Vec::new(),
                };
                writer.fields(&message.body);
                if writer.arrays_until_target.is_some() {
                    break;
                }
                let name = format!("crowd-{}-v{version}-{target}", row.name);
                found.push((name, row.key, version, writer.body));
            }
        }
    }
    found
}

struct Writer {
    version: i16,
    flexible: bool,
    /// Arrays to pass until the one that is crowded; `None` behind it.
    arrays_until_target: Option<u32>,
    body: Vec<u8>,
}

impl Writer {
    /// A struct's fields; known tags are left out.
    fn fields(&mut self, of: &Struct) {
        let version = self.version;
        for field in of.fields.iter().filter(|field| field.exists_in(version)) {
            self.value(field.kind);
        }
        if self.flexible {
            self.body.push(0);
        }
    }

    fn value(&mut self, kind: Kind) {
        match kind {
            Kind::Fixed(len) => self.body.put_bytes(0, len),
            Kind::String if self.flexible => self.body.push(1),
            Kind::String => self.body.put_u16(0),
            Kind::Bytes => self.count(0),
            Kind::Struct(of) => self.fields(of),
            Kind::MaybeStruct(of) => {
                self.body.push(1);
                self.fields(of);
            }
            Kind::Array(element) => self.array(*element),
        }
    }

    /// One element on the way to the target, many at it, none behind it.
    fn array(&mut self, element: Kind) {
        let count = match self.arrays_until_target {
            None => 0,
            Some(0) => {
                self.arrays_until_target = None;
                CROWD
            }
            Some(left) => {
                self.arrays_until_target = Some(left - 1);
                1
            }
        };
        self.count(count);
        for _ in 0..count {
            self.value(element);
        }
    }

    fn count(&mut self, count: u32) {
        if !self.flexible {
            self.body.put_u32(count);
            return;
        }
        let mut rest = count + 1;
        while rest >= 0x80 {
            self.body.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        self.body.push(u8::try_from(rest).unwrap());
    }
}
