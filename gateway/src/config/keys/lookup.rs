//! Names of keys, and names that are nearly one.

use super::super::ignored::FAMILIES;
use super::{Effect, Key, all};

/// The row of a name or alias.
pub fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name || key.aliases.contains(&name))
}

/// Why a key of Kafka's has no effect, if it is one and has none.
pub fn ignored_because(name: &str) -> Option<&'static str> {
    match find(name) {
        Some(key) => match key.effect {
            Effect::Used => None,
            Effect::Ignored(why) => Some(why),
        },
        None => FAMILIES
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .map(|(_, why)| *why),
    }
}

/// The known name that `name` is most likely a typing mistake of.
pub fn closest(name: &str) -> Option<&'static str> {
    let names = all().flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()));
    names
        .map(|known| (distance(name, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 6)
        .min()
        .map(|(_, known)| known)
}

/// Insertions, deletions and substitutions between two names.
fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
