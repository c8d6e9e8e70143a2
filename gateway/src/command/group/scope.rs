//! Which partitions of a group a verb is about.

use std::collections::BTreeMap;

use clap::Args;

use super::super::output::Failure;
use super::offsets::Place;

/// All partitions of a topic, in a list of places.
const ALL: i32 = -1;

/// Topics, or some of their partitions.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Topics {
    /// A topic, or some of its partitions; can be repeated
    #[arg(long = "topic", value_name = "TOPIC[:P,P...]")]
    topics: Vec<String>,
}

impl Topics {
    #[cfg(test)]
    pub(super) fn new(topics: &[&str]) -> Self {
        Self {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Places, with [`ALL`] for every partition of a topic.
    pub(super) fn wanted(&self) -> Result<Vec<Place>, Failure> {
        let mut wanted = Vec::new();
        for text in &self.topics {
            let Some((topic, partitions)) = text.split_once(':') else {
                wanted.push((text.clone(), ALL));
                continue;
            };
            for partition in partitions.split(',') {
                let number: i32 = partition.parse().ok().filter(|p| *p >= 0).ok_or_else(|| {
                    Failure::Usage(format!("--topic {text}: {partition} is no partition"))
                })?;
                wanted.push((topic.to_owned(), number));
            }
        }
        Ok(wanted)
    }
}

/// The topics of places, each once.
pub(super) fn topics(places: &[Place]) -> Vec<String> {
    let mut topics: Vec<String> = places.iter().map(|(topic, _)| topic.clone()).collect();
    topics.sort();
    topics.dedup();
    topics
}

/// The partitions that `wanted` means, of those that are `present`.
pub(super) fn expand<T>(wanted: &[Place], present: &BTreeMap<Place, T>) -> Vec<Place> {
    let mut places: Vec<Place> = wanted
        .iter()
        .flat_map(|(topic, partition)| match *partition {
            ALL => present
                .keys()
                .filter(|(name, _)| name == topic)
                .cloned()
                .collect(),
            _ => vec![(topic.clone(), *partition)],
        })
        .collect();
    places.sort();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_names_topics_or_partitions() {
        let wanted = Topics::new(&["a", "b:0,2"]).wanted().unwrap();
        let place = |topic: &str, partition| (topic.to_owned(), partition);
        assert_eq!(wanted, [place("a", ALL), place("b", 0), place("b", 2)]);
        assert!(Topics::new(&[]).is_empty());
        assert!(Topics::new(&["a:x"]).wanted().is_err());
        let present = [place("a", 0), place("a", 1), place("b", 0)];
        let present = present.map(|place| (place, ())).into();
        let places = expand(&wanted, &present);
        assert_eq!(
            places,
            [place("a", 0), place("a", 1), place("b", 0), place("b", 2)]
        );
        assert_eq!(topics(&places), ["a", "b"]);
    }
}
