//! Finalized features: where a cluster begins, and that a change survives.

use super::super::{FinalizedFeatures, Levels, NodeError};
use super::world::{Site, World};

const NAME: &str = "transaction.version";

fn level(level: i16) -> Levels {
    Levels::from([(NAME.to_owned(), level)])
}

#[test]
fn levels_are_durable_and_visible() {
    let world = World::new(41);
    let site = Site::new(&world);
    let node = site.start(0);
    assert_eq!(*node.view().features, FinalizedFeatures::default());
    for (wanted, epoch) in [(2, 1), (2, 1), (0, 2), (1, 3)] {
        let asker = node.clone();
        let done = world.run(async move { asker.finalize(level(wanted)).await });
        assert_eq!(done, Some(Ok(())));
        let levels = level(wanted);
        let seen = FinalizedFeatures { levels, epoch };
        assert_eq!(*node.view().features, seen);
    }
    world.kill(0);
    let node = site.start(1);
    let levels = level(1);
    let seen = FinalizedFeatures { levels, epoch: 3 };
    assert_eq!(*node.view().features, seen);
}

#[test]
fn a_stopped_node_finalizes_nothing() {
    let world = World::new(42);
    let site = Site::new(&world);
    let node = site.start(0);
    let asker = node.clone();
    let stopped = world.run(async move { asker.stop().await });
    assert_eq!(stopped, Some(Ok(())));
    let asker = node.clone();
    let refused = world.run(async move { asker.finalize(level(1)).await });
    assert_eq!(refused, Some(Err(NodeError::Stopped)));
}
