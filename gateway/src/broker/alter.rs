//! Changes of what is served: configs of topics, how many partitions they have, features.

use std::collections::BTreeMap;

use coordinator::service::cluster::Levels;
use uuid::Uuid;

use super::{Broker, TopicError};
use crate::features::{Features, transaction_version};
use crate::topic_config;

/// Configs of a topic that were set, by name.
type Configs = BTreeMap<String, String>;

impl Broker {
    /// Whether a topic could have these configs.
    ///
    /// # Errors
    /// [`TopicError::InvalidConfig`] for the first that is not valid or has no mechanism.
    pub(crate) fn check_topic_configs(&self, configs: &Configs) -> Result<(), TopicError> {
        topic_config::rules(&self.config.topic_defaults, configs).map(|_| ())
    }

    /// Changes the configs of a topic to what `change` makes of them; with `validate_only` only
    /// checks. They are durable and in force when it returns.
    pub(crate) async fn alter_topic_configs(
        &self,
        id: Uuid,
        change: impl FnOnce(&Configs) -> Result<Configs, TopicError> + Send,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let _one_at_a_time = self.hosted.changing.lock().await;
        let served = self.topic_by_id(id).ok_or(TopicError::Unknown)?;
        let configs = change(&served.configs)?;
        self.check_topic_configs(&configs)?;
        if validate_only || configs == served.configs {
            return Ok(());
        }
        let topic = self.catalogue.alter_configs(id, configs).await?;
        self.refresh(topic).await;
        Ok(())
    }

    /// Gives a topic more partitions, `total` in all; with `validate_only` only checks. They are
    /// durable and served when it returns.
    pub(crate) async fn add_partitions(
        &self,
        id: Uuid,
        total: u32,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let _one_at_a_time = self.hosted.changing.lock().await;
        self.catalogue.check_more_partitions(id, total)?;
        if validate_only {
            return Ok(());
        }
        let topic = self.catalogue.add_partitions(id, total).await?;
        self.refresh(topic).await;
        Ok(())
    }

    /// The features that the cluster offers, and their levels.
    pub fn features(&self) -> Features {
        Features::of(&self.catalogue.features())
    }

    /// Finalizes levels of features, which were checked. They are durable and in force when it
    /// returns.
    pub(crate) async fn finalize_features(&self, levels: Levels) -> Result<(), TopicError> {
        self.catalogue.finalize(levels).await?;
        self.follow_features();
        Ok(())
    }

    /// Makes the levels that the cluster has finalized those that are in force here.
    pub(super) fn follow_features(&self) {
        let version = transaction_version(&self.catalogue.features());
        self.txns().set_version(i8::try_from(version).unwrap_or(0));
    }
}
