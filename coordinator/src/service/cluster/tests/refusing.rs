//! A volume that takes nothing for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store_adapter::runtime::BoxFuture;
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOutcome};

use super::world::{Site, World};

/// Refuses every change while it is told to.
#[derive(Debug)]
struct Refusing(AtomicBool, StepFault);

impl StepHook for Refusing {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let refuses = step.op.changes() && self.0.load(Ordering::Relaxed);
        let outcome = if refuses {
            StepOutcome::Fail(self.1)
        } else {
            StepOutcome::Proceed
        };
        Box::pin(std::future::ready(outcome))
    }
}

#[test]
fn what_a_volume_refuses_is_shown_until_it_takes_it_again() {
    let said = |fault| {
        let site = Site::new(&World::new(7));
        let hook = Arc::new(Refusing(AtomicBool::new(false), fault));
        let node = site.try_start(0, Arc::clone(&hook) as Arc<dyn StepHook>);
        let node = node.unwrap().unwrap();
        site.world.pass(Duration::from_secs(3));
        assert_eq!(node.refused(), None);
        hook.0.store(true, Ordering::Relaxed);
        site.world.pass(Duration::from_secs(3));
        let refused = node.refused();
        hook.0.store(false, Ordering::Relaxed);
        site.world.pass(Duration::from_secs(3));
        assert_eq!(node.refused(), None);
        refused
    };
    let refused = said(StepFault::ReadOnly).unwrap();
    let named = refused.contains("__cluster/brokers/kaas-0.json: not writable");
    assert!(named, "{refused}");
    assert!(said(StepFault::Io).is_some());
    // Said by those who watch the space.
    assert_eq!(said(StepFault::NoSpace), None);
}
