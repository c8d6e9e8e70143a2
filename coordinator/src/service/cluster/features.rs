//! What `cluster.json` keeps beside the cluster's id: levels of finalized features (KIP-584), and
//! configs of brokers that were set while they ran.

use std::collections::BTreeMap;

use store_adapter::volume::owned::OwnedError;

use super::controller::Controller;
use super::error::NodeError;
use crate::volume::format::ClusterFile;
use crate::volume::layout::Place;

/// Levels of features by their Kafka names.
pub type Levels = BTreeMap<String, i16>;

/// Configs that were set, by Kafka's names.
pub type Configs = BTreeMap<String, String>;

/// Configs of brokers that were set while they ran: of each by its number, and under the empty
/// name those of every broker.
pub type BrokerConfigs = BTreeMap<String, Configs>;

/// The features that the cluster has finalized.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FinalizedFeatures {
    /// Their levels; 0 is off.
    pub levels: Levels,
    /// Grows with every change, from 0.
    pub epoch: i64,
}

impl FinalizedFeatures {
    pub(super) fn of(cluster: &ClusterFile) -> Self {
        Self {
            levels: cluster.features.clone(),
            epoch: cluster.features_epoch,
        }
    }
}

/// The file with the levels that it lacks; `None` if it lacks none.
pub(super) fn completed(cluster: &ClusterFile, initial: &Levels) -> Option<ClusterFile> {
    let mut next = cluster.clone();
    for (name, level) in initial {
        next.features.entry(name.clone()).or_insert(*level);
    }
    (next != *cluster).then_some(next)
}

impl Controller {
    /// Finalizes levels of features. They are not visible before [`Controller::commit`].
    pub(super) async fn finalize(&mut self, levels: Levels) -> Result<(), NodeError> {
        let change = |cluster: &mut ClusterFile| {
            let before = cluster.features.clone();
            cluster.features.extend(levels);
            if cluster.features != before {
                cluster.features_epoch += 1;
            }
        };
        self.change_cluster(change).await
    }

    /// Replaces the configs of a broker, or under the empty name of every broker. They are not
    /// visible before [`Controller::commit`].
    pub(super) async fn alter_broker(
        &mut self,
        broker: String,
        configs: Configs,
    ) -> Result<(), NodeError> {
        let change = |cluster: &mut ClusterFile| {
            if configs.is_empty() {
                cluster.broker_configs.remove(&broker);
            } else {
                cluster.broker_configs.insert(broker, configs);
            }
        };
        self.change_cluster(change).await
    }

    async fn change_cluster(
        &mut self,
        change: impl FnOnce(&mut ClusterFile) + Send,
    ) -> Result<(), NodeError> {
        if self.cluster_unsettled {
            let why = "the outcome of an earlier change is not known yet".to_owned();
            return Err(NodeError::Unavailable(why));
        }
        let mut next = self.cluster.clone();
        change(&mut next);
        if next == self.cluster {
            return Ok(());
        }
        let written = self.files.replace(&Place::Cluster.path(), &next).await;
        match &written {
            Ok(()) => {
                self.cluster = next;
                self.dirty = true;
            }
            Err(OwnedError::MaybeApplied(_)) => self.cluster_unsettled = true,
            Err(_) => {}
        }
        Ok(written?)
    }

    /// Reads `cluster.json` again where the outcome of a change is not known.
    pub(super) async fn settle_cluster(&mut self) {
        if !self.cluster_unsettled {
            return;
        }
        match self.files.read(&Place::Cluster.path()).await {
            Ok(Some(cluster)) => {
                self.cluster = cluster;
                self.cluster_unsettled = false;
                self.dirty = true;
            }
            Ok(None) => tracing::error!("cluster.json is missing"),
            Err(error) => tracing::debug!(%error, "cluster.json still not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::format::Extra;

    #[test]
    fn what_a_cluster_has_finalized_wins_over_where_it_would_begin() {
        let levels = |pairs: &[(&str, i16)]| -> Levels {
            let pairs = pairs.iter();
            pairs
                .map(|(name, level)| ((*name).to_owned(), *level))
                .collect()
        };
        let mut cluster = ClusterFile {
            version: 1,
            cluster_id: "c".to_owned(),
            txn_slots: 50,
            group_slots: 50,
            features: levels(&[("a", 1)]),
            features_epoch: 4,
            broker_configs: BrokerConfigs::new(),
            extra: Extra::new(),
        };
        assert_eq!(completed(&cluster, &levels(&[("a", 2)])), None);
        let more = completed(&cluster, &levels(&[("a", 2), ("b", 0)])).unwrap();
        cluster.features = levels(&[("a", 1), ("b", 0)]);
        assert_eq!(more, cluster);
    }
}
