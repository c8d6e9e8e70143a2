//! Looks at every partition now and then, and deletes what its topic does not keep.

use std::sync::Arc;

use store_adapter::runtime::BoxFuture;

use super::{Broker, HostedTopic};
use crate::partition::TrimError;

impl Broker {
    /// Applies retention after `log.initial.task.delay.ms`, and then every
    /// `log.retention.check.interval.ms`, with the topics' configs of then.
    pub(super) fn start_retention(self: &Arc<Self>) {
        let broker = Arc::downgrade(self);
        let clock = self.env.clock.clone();
        let interval = self.config.retention_check_interval;
        let mut wait = self.config.retention_initial_delay;
        let stopping = self.stopping.clone();
        let task: BoxFuture<'static, ()> = Box::pin(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => return,
                    () = clock.sleep(wait) => {}
                }
                wait = interval;
                let Some(broker) = broker.upgrade() else {
                    return;
                };
                for topic in broker.topics() {
                    broker.retain(&topic).await;
                }
            }
        });
        drop(self.env.runtime.spawn("retention", task));
    }

    async fn retain(&self, topic: &HostedTopic) {
        for partition in &topic.partitions {
            if self.stopping.is_cancelled() {
                return;
            }
            // As it is now: a look at many partitions takes long, and what an answered change keeps
            // must stay.
            let topic = self.topic_by_id(topic.id);
            let reclaimed = topic.filter(|topic| topic.rules.delete && topic.reclaims());
            let Some(topic) = reclaimed else {
                return;
            };
            let now_ms = self.env.clock.wall_ms();
            let log = partition.id();
            match partition
                .apply_retention(topic.rules.retention, now_ms)
                .await
            {
                Ok(Some(start)) => {
                    tracing::debug!(topic = %partition.topic(), %log, start, "records are deleted");
                }
                // Its storage or its leadership is gone, which is said elsewhere.
                Ok(None) | Err(TrimError::NotLeader | TrimError::Storage(_)) => {}
                Err(error) => {
                    tracing::warn!(%log, %error, "retention is tried again at the next look");
                }
            }
        }
    }
}
