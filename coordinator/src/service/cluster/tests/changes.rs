//! Changes of topics that are there: their configs and the number of their partitions.

use std::collections::BTreeMap;

use store_adapter::ids::{LeaderEpoch, LogId};
use uuid::Uuid;

use super::super::{CONFIGS_LEN_MAX, TOPIC_PARTITIONS_MAX, TopicError};
use super::world::{Site, World};
use super::{create, delete};

fn configs(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let entries = entries.iter();
    entries
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn configs_and_partitions_are_durable_and_visible() {
    let world = World::new(21);
    let site = Site::new(&world);
    let node = site.start(0);
    let made = create(&world, &node, "orders").unwrap();
    let id = made.id;
    let wanted = configs(&[("max.message.bytes", "5"), ("retention.ms", "-1")]);
    let (asker, new) = (node.clone(), wanted.clone());
    let altered = world.run(async move { asker.alter_topic_configs(id, new).await });
    let altered = altered.unwrap().unwrap();
    assert_eq!((&altered.configs, &altered.shards), (&wanted, &made.shards));
    assert_eq!(node.view().topics.by_id(id), Some(&altered));

    assert_eq!(node.check_more_partitions(id, 5), Ok(()));
    let asker = node.clone();
    let grown = world.run(async move { asker.add_partitions(id, 5).await });
    let grown = grown.unwrap().unwrap();
    assert_eq!((grown.partitions(), &grown.configs), (5, &wanted));
    assert_eq!(grown.shards[..2], made.shards[..]);
    let last = LogId {
        topic: id,
        partition: 4,
    };
    assert_eq!(node.leads(last), Some(LeaderEpoch(0)));

    world.kill(0);
    let node = site.start(1);
    assert_eq!(node.view().topics.get("orders"), Some(&grown));
    assert_eq!(node.leads(last), Some(LeaderEpoch(0)));
}

#[test]
fn changes_that_make_no_sense_are_told_why() {
    let world = World::new(22);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "orders").unwrap();
    let id = topic.id;
    let grow = |id: Uuid, total: u32| {
        let asker = node.clone();
        let outcome = world.run(async move { asker.add_partitions(id, total).await });
        let outcome = outcome.unwrap().map(|_| ());
        assert_eq!(node.check_more_partitions(id, total), outcome);
        outcome
    };
    let none = Uuid::from_u128(7);
    let max = TOPIC_PARTITIONS_MAX;
    let asked = max + 1;
    for (id, total, error) in [
        (id, 0, TopicError::NotMorePartitions { have: 2 }),
        (id, 1, TopicError::NotMorePartitions { have: 2 }),
        (id, 2, TopicError::NotMorePartitions { have: 2 }),
        (id, asked, TopicError::InvalidPartitions { asked, max }),
        (none, 3, TopicError::UnknownId { id: none }),
    ] {
        assert_eq!(grow(id, total), Err(error), "{total}");
    }
    let alter = |id: Uuid, value: String| {
        let asker = node.clone();
        let new = BTreeMap::from([("max.message.bytes".to_owned(), value)]);
        let outcome = world.run(async move { asker.alter_topic_configs(id, new).await });
        outcome.unwrap().map(|_| ())
    };
    let max = CONFIGS_LEN_MAX;
    let long = "5".repeat(max);
    assert_eq!(alter(id, long), Err(TopicError::ConfigsTooLarge { max }));
    assert_eq!(
        alter(none, "5".to_owned()),
        Err(TopicError::UnknownId { id: none })
    );
    assert_eq!(node.view().topics.by_id(id), Some(&topic));
    delete(&world, &node, id).unwrap();
    assert_eq!(alter(id, "5".to_owned()), Err(TopicError::UnknownId { id }));
    assert_eq!(grow(id, 9), Err(TopicError::UnknownId { id }));
}
