//! Changes of what is served: configs of topics, how many partitions they have, features.

use std::sync::Arc;

use coordinator::service::cluster::{BrokerConfigs, Configs, Levels};
use uuid::Uuid;

use super::{Broker, BrokerConfig, TopicError};
use crate::features::{Features, transaction_version};
use crate::partition::validate::TopicRules;
use crate::topic_config::{self, Applied};

/// What topics have that set nothing of their own.
#[derive(Debug, Default)]
pub(super) struct TopicDefaults {
    pub(super) rules: TopicRules,
    /// Why some of what was set of brokers is not in force.
    pub(super) refused: Vec<String>,
    /// What was set of brokers while they ran.
    pub(super) configs: Arc<BrokerConfigs>,
}

impl TopicDefaults {
    /// What comes of `configs` at the broker of number `id`.
    pub(super) fn new(config: &BrokerConfig, id: i32, configs: Arc<BrokerConfigs>) -> Self {
        let Applied { rules, refused } = applied(config, id, &configs);
        Self {
            rules,
            refused,
            configs,
        }
    }

    /// Tells the log what is not in force.
    pub(super) fn tell(&self) {
        for why in &self.refused {
            tracing::error!(why, "{BROKER_KEPT}");
        }
    }
}

/// What comes of configs of a broker that are stored and do not apply.
pub(super) const BROKER_KEPT: &str = "a stored config of the broker is not in force: no record of \
     any topic is deleted or compacted until it is altered";

/// What was set of the broker is over what was set of all.
fn applied(config: &BrokerConfig, id: i32, configs: &BrokerConfigs) -> Applied {
    let mut both = configs.get("").cloned().unwrap_or_default();
    both.extend(configs.get(&id.to_string()).cloned().unwrap_or_default());
    topic_config::applied_to_broker(&config.topic_defaults, &both)
}

impl Broker {
    /// Whether a topic could have these configs.
    ///
    /// # Errors
    /// [`TopicError::InvalidConfig`] for the first that is not valid or has no mechanism.
    pub(crate) fn check_topic_configs(&self, configs: &Configs) -> Result<(), TopicError> {
        topic_config::rules(&self.topic_defaults().rules, configs).map(|_| ())
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
        let rules = &self.topic_defaults().rules;
        let applied = |configs| topic_config::applied(rules, configs);
        topic_config::check_change(&applied(&served.configs), &applied(&configs))
            .map_err(TopicError::InvalidConfig)?;
        if validate_only || configs == served.configs {
            return Ok(());
        }
        let topic = self.catalogue.alter_configs(id, configs).await?;
        self.refresh(topic).await;
        Ok(())
    }

    /// Changes what was set of this broker, or of every broker; with `validate_only` only checks.
    /// It is durable and in force when it returns.
    pub(crate) async fn alter_broker_configs(
        &self,
        of_all: bool,
        change: impl FnOnce(&Configs) -> Result<Configs, TopicError> + Send,
        validate_only: bool,
    ) -> Result<(), TopicError> {
        let _one_at_a_time = self.hosted.changing.lock().await;
        let (before, id) = (self.catalogue.broker_configs(), self.id.0);
        let name = if of_all {
            String::new()
        } else {
            id.to_string()
        };
        let current = before.get(&name).cloned().unwrap_or_default();
        let configs = change(&current)?;
        // By themselves: what is over them may hide what is wrong with them.
        let alone = |configs| topic_config::applied_to_broker(&self.config.topic_defaults, configs);
        let mut after = BrokerConfigs::clone(&before);
        after.insert(name.clone(), configs.clone());
        let in_force = |configs| applied(&self.config, id, configs);
        topic_config::check_change(&in_force(&before), &in_force(&after))
            .and_then(|()| topic_config::check_change(&alone(&current), &alone(&configs)))
            .map_err(TopicError::NotDynamic)?;
        if validate_only || configs == current {
            return Ok(());
        }
        self.catalogue.alter_broker_configs(name, configs).await?;
        self.follow_broker_configs().await;
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

    /// What topics have that set nothing of their own.
    pub(super) fn topic_defaults(&self) -> Arc<TopicDefaults> {
        self.topic_defaults.read().clone()
    }

    /// What was set of brokers while they ran, as it is in force.
    pub(crate) fn broker_configs(&self) -> Arc<BrokerConfigs> {
        self.topic_defaults().configs.clone()
    }

    /// Makes what was set of brokers that is on the volume that which is in force here. The caller
    /// holds [`Hosted::changing`](super::hosted::Hosted).
    pub(super) async fn follow_broker_configs(&self) {
        let configs = self.catalogue.broker_configs();
        if configs == self.broker_configs() {
            return;
        }
        let defaults = TopicDefaults::new(&self.config, self.id.0, configs);
        defaults.tell();
        *self.topic_defaults.write() = Arc::new(defaults);
        for topic in self.catalogue.topics() {
            if self.topic_by_id(topic.id).is_some() {
                self.refresh(topic).await;
            }
        }
    }

    /// Makes the levels that the cluster has finalized those that are in force here.
    pub(super) fn follow_features(&self) {
        let version = transaction_version(&self.catalogue.features());
        self.txns().set_version(i8::try_from(version).unwrap_or(0));
    }
}
