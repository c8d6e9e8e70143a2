//! The keys that Apache Kafka 4.3.1 shows of a broker, with its types and defaults: DescribeConfigs
//! shows those, too, that have no effect here.

use crate::topic_config::keys::ConfigType;

/// A key as Kafka has it.
#[derive(Debug, Clone, Copy)]
pub struct KafkaKey {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub config_type: ConfigType,
    /// Its default, if it has one.
    pub default: Option<&'static str>,
}

macro_rules! default {
    () => {
        None
    };
    ($default:literal) => {
        Some($default)
    };
}

macro_rules! keys {
    ($($name:literal $kind:ident $($default:literal)?;)*) => {
        /// All of them, in order of names.
        pub const KAFKA_KEYS: &[KafkaKey] = &[$(KafkaKey {
            name: $name,
            config_type: ConfigType::$kind,
            default: default!($($default)?),
        },)*];
    };
}

/// The row of a name.
pub fn find(name: &str) -> Option<&'static KafkaKey> {
    let at = KAFKA_KEYS.binary_search_by_key(&name, |key| key.name);
    at.ok().and_then(|at| KAFKA_KEYS.get(at))
}

keys! {
    "add.partitions.to.txn.retry.backoff.max.ms" Int "100";
    "add.partitions.to.txn.retry.backoff.ms" Int "20";
    "advertised.listeners" List;
    "alter.config.policy.class.name" Class;
    "alter.log.dirs.replication.quota.window.num" Int "11";
    "alter.log.dirs.replication.quota.window.size.seconds" Int "1";
    "authorizer.class.name" String "";
    "auto.create.topics.enable" Boolean "true";
    "auto.leader.rebalance.enable" Boolean "true";
    "background.threads" Int "10";
    "broker.heartbeat.interval.ms" Int "2000";
    "broker.id" Int "-1";
    "broker.rack" String;
    "broker.session.timeout.ms" Int "9000";
    "client.quota.callback.class" Class;
    "compression.gzip.level" Int "-1";
    "compression.lz4.level" Int "9";
    "compression.type" String "producer";
    "compression.zstd.level" Int "3";
    "config.providers" List "";
    "connection.failed.authentication.delay.ms" Int "100";
    "connections.max.idle.ms" Long "600000";
    "connections.max.reauth.ms" Long "0";
    "controlled.shutdown.enable" Boolean "true";
    "controller.listener.names" List;
    "controller.quorum.append.linger.ms" Int "25";
    "controller.quorum.auto.join.enable" Boolean "false";
    "controller.quorum.bootstrap.servers" List "";
    "controller.quorum.election.backoff.max.ms" Int "1000";
    "controller.quorum.election.timeout.ms" Int "1000";
    "controller.quorum.fetch.max.bytes" Int "1048576";
    "controller.quorum.fetch.snapshot.max.bytes" Int "1048576";
    "controller.quorum.fetch.timeout.ms" Int "2000";
    "controller.quorum.request.timeout.ms" Int "2000";
    "controller.quorum.retry.backoff.ms" Int "20";
    "controller.quorum.voters" List "";
    "controller.quota.window.num" Int "11";
    "controller.quota.window.size.seconds" Int "1";
    "controller.socket.timeout.ms" Int "30000";
    "cordoned.log.dirs" List "";
    "create.topic.policy.class.name" Class;
    "default.replication.factor" Int "1";
    "delegation.token.expiry.check.interval.ms" Long "3600000";
    "delegation.token.expiry.time.ms" Long "86400000";
    "delegation.token.max.lifetime.ms" Long "604800000";
    "delegation.token.secret.key" Password;
    "delete.records.purgatory.purge.interval.requests" Int "1";
    "delete.topic.enable" Boolean "true";
    "early.start.listeners" List;
    "fetch.max.bytes" Int "57671680";
    "fetch.purgatory.purge.interval.requests" Int "1000";
    "follower.fetch.last.tiered.offset.enable" Boolean "false";
    "group.consumer.assignment.interval.ms" Int "1000";
    "group.consumer.assignors" List "uniform,range";
    "group.consumer.heartbeat.interval.ms" Int "5000";
    "group.consumer.max.assignment.interval.ms" Int "15000";
    "group.consumer.max.heartbeat.interval.ms" Int "15000";
    "group.consumer.max.session.timeout.ms" Int "60000";
    "group.consumer.max.size" Int "2147483647";
    "group.consumer.migration.policy" String "bidirectional";
    "group.consumer.min.assignment.interval.ms" Int "0";
    "group.consumer.min.heartbeat.interval.ms" Int "5000";
    "group.consumer.min.session.timeout.ms" Int "45000";
    "group.consumer.session.timeout.ms" Int "45000";
    "group.coordinator.append.linger.ms" Int "-1";
    "group.coordinator.background.threads" Int "2";
    "group.coordinator.cached.buffer.max.bytes" Int "1048588";
    "group.coordinator.rebalance.protocols" List "classic,consumer,streams";
    "group.coordinator.threads" Int "4";
    "group.initial.rebalance.delay.ms" Int "3000";
    "group.max.session.timeout.ms" Int "1800000";
    "group.max.size" Int "2147483647";
    "group.min.session.timeout.ms" Int "6000";
    "group.share.assignment.interval.ms" Int "1000";
    "group.share.assignors" List "simple";
    "group.share.delivery.count.limit" Int "5";
    "group.share.heartbeat.interval.ms" Int "5000";
    "group.share.max.assignment.interval.ms" Int "15000";
    "group.share.max.delivery.count.limit" Int "10";
    "group.share.max.heartbeat.interval.ms" Int "15000";
    "group.share.max.partition.max.record.locks" Int "4000";
    "group.share.max.record.lock.duration.ms" Int "60000";
    "group.share.max.session.timeout.ms" Int "60000";
    "group.share.max.share.sessions" Int "2000";
    "group.share.max.size" Int "200";
    "group.share.min.assignment.interval.ms" Int "0";
    "group.share.min.delivery.count.limit" Int "2";
    "group.share.min.heartbeat.interval.ms" Int "5000";
    "group.share.min.partition.max.record.locks" Int "100";
    "group.share.min.record.lock.duration.ms" Int "15000";
    "group.share.min.session.timeout.ms" Int "45000";
    "group.share.partition.max.record.locks" Int "2000";
    "group.share.record.lock.duration.ms" Int "30000";
    "group.share.session.timeout.ms" Int "45000";
    "group.streams.assignment.interval.ms" Int "1000";
    "group.streams.heartbeat.interval.ms" Int "5000";
    "group.streams.initial.rebalance.delay.ms" Int "3000";
    "group.streams.max.assignment.interval.ms" Int "15000";
    "group.streams.max.heartbeat.interval.ms" Int "15000";
    "group.streams.max.session.timeout.ms" Int "60000";
    "group.streams.max.size" Int "2147483647";
    "group.streams.max.standby.replicas" Int "2";
    "group.streams.min.assignment.interval.ms" Int "0";
    "group.streams.min.heartbeat.interval.ms" Int "5000";
    "group.streams.min.session.timeout.ms" Int "45000";
    "group.streams.num.standby.replicas" Int "0";
    "group.streams.session.timeout.ms" Int "45000";
    "initial.broker.registration.timeout.ms" Int "60000";
    "inter.broker.listener.name" String;
    "kafka.metrics.polling.interval.secs" Int "10";
    "kafka.metrics.reporters" List "";
    "leader.imbalance.check.interval.seconds" Long "300";
    "listener.security.protocol.map" String
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT";
    "listeners" List "PLAINTEXT://:9092";
    "log.cleaner.backoff.ms" Long "15000";
    "log.cleaner.dedupe.buffer.size" Long "134217728";
    "log.cleaner.delete.retention.ms" Long "86400000";
    "log.cleaner.enable" Boolean "true";
    "log.cleaner.io.buffer.load.factor" Double "0.9";
    "log.cleaner.io.buffer.size" Int "524288";
    "log.cleaner.io.max.bytes.per.second" Double "1.7976931348623157E308";
    "log.cleaner.max.compaction.lag.ms" Long "9223372036854775807";
    "log.cleaner.min.cleanable.ratio" Double "0.5";
    "log.cleaner.min.compaction.lag.ms" Long "0";
    "log.cleaner.threads" Int "1";
    "log.cleanup.policy" List "delete";
    "log.dir" List "/tmp/kafka-logs";
    "log.dir.failure.timeout.ms" Long "30000";
    "log.dirs" List;
    "log.flush.interval.messages" Long "9223372036854775807";
    "log.flush.interval.ms" Long;
    "log.flush.offset.checkpoint.interval.ms" Int "60000";
    "log.flush.scheduler.interval.ms" Long "9223372036854775807";
    "log.flush.start.offset.checkpoint.interval.ms" Int "60000";
    "log.index.interval.bytes" Int "4096";
    "log.index.size.max.bytes" Int "10485760";
    "log.local.retention.bytes" Long "-2";
    "log.local.retention.ms" Long "-2";
    "log.message.timestamp.after.max.ms" Long "3600000";
    "log.message.timestamp.before.max.ms" Long "9223372036854775807";
    "log.message.timestamp.type" String "CreateTime";
    "log.preallocate" Boolean "false";
    "log.retention.bytes" Long "-1";
    "log.retention.check.interval.ms" Long "300000";
    "log.retention.hours" Int "168";
    "log.retention.minutes" Int;
    "log.retention.ms" Long;
    "log.roll.hours" Int "168";
    "log.roll.jitter.hours" Int "0";
    "log.roll.jitter.ms" Long;
    "log.roll.ms" Long;
    "log.segment.bytes" Int "1073741824";
    "log.segment.delete.delay.ms" Long "60000";
    "max.connection.creation.rate" Int "2147483647";
    "max.connections" Int "2147483647";
    "max.connections.per.ip" Int "2147483647";
    "max.connections.per.ip.overrides" String "";
    "max.incremental.fetch.session.cache.slots" Int "1000";
    "max.request.partition.size.limit" Int "2000";
    "message.max.bytes" Int "1048588";
    "metadata.log.dir" String;
    "metadata.log.max.record.bytes.between.snapshots" Long "20971520";
    "metadata.log.max.snapshot.interval.ms" Long "3600000";
    "metadata.log.segment.bytes" Int "1073741824";
    "metadata.log.segment.ms" Long "604800000";
    "metadata.max.idle.interval.ms" Int "500";
    "metadata.max.retention.bytes" Long "104857600";
    "metadata.max.retention.ms" Long "604800000";
    "metric.reporters" List "org.apache.kafka.common.metrics.JmxReporter";
    "metrics.num.samples" Int "2";
    "metrics.recording.level" String "INFO";
    "metrics.sample.window.ms" Long "30000";
    "min.insync.replicas" Int "1";
    "node.id" Int;
    "num.io.threads" Int "8";
    "num.network.threads" Int "3";
    "num.partitions" Int "1";
    "num.recovery.threads.per.data.dir" Int "2";
    "num.replica.alter.log.dirs.threads" Int;
    "num.replica.fetchers" Int "1";
    "offset.metadata.max.bytes" Int "4096";
    "offsets.commit.timeout.ms" Int "5000";
    "offsets.load.buffer.size" Int "5242880";
    "offsets.retention.check.interval.ms" Long "600000";
    "offsets.retention.minutes" Int "10080";
    "offsets.topic.compression.codec" Int "0";
    "offsets.topic.num.partitions" Int "50";
    "offsets.topic.replication.factor" Short "3";
    "offsets.topic.segment.bytes" Int "104857600";
    "principal.builder.class" Class
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder";
    "process.roles" List;
    "producer.id.expiration.ms" Int "86400000";
    "producer.purgatory.purge.interval.requests" Int "1000";
    "queued.max.request.bytes" Long "-1";
    "queued.max.requests" Int "500";
    "quota.window.num" Int "11";
    "quota.window.size.seconds" Int "1";
    "remote.fetch.max.wait.ms" Int "500";
    "remote.list.offsets.request.timeout.ms" Long "30000";
    "remote.log.index.file.cache.total.size.bytes" Long "1073741824";
    "remote.log.manager.copier.thread.pool.size" Int "10";
    "remote.log.manager.copy.max.bytes.per.second" Long "9223372036854775807";
    "remote.log.manager.copy.quota.window.num" Int "11";
    "remote.log.manager.copy.quota.window.size.seconds" Int "1";
    "remote.log.manager.expiration.thread.pool.size" Int "10";
    "remote.log.manager.fetch.max.bytes.per.second" Long "9223372036854775807";
    "remote.log.manager.fetch.quota.window.num" Int "11";
    "remote.log.manager.fetch.quota.window.size.seconds" Int "1";
    "remote.log.manager.follower.thread.pool.size" Int "2";
    "remote.log.manager.task.interval.ms" Long "30000";
    "remote.log.manager.thread.pool.size" Int "2";
    "remote.log.metadata.custom.metadata.max.bytes" Int "128";
    "remote.log.metadata.manager.class.name" String
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager";
    "remote.log.metadata.manager.class.path" String;
    "remote.log.metadata.manager.impl.prefix" String "rlmm.config.";
    "remote.log.metadata.manager.listener.name" String;
    "remote.log.reader.max.pending.tasks" Int "100";
    "remote.log.reader.threads" Int "10";
    "remote.log.storage.manager.class.name" String;
    "remote.log.storage.manager.class.path" String;
    "remote.log.storage.manager.impl.prefix" String "rsm.config.";
    "remote.log.storage.system.enable" Boolean "false";
    "replica.fetch.backoff.ms" Int "1000";
    "replica.fetch.max.bytes" Int "1048576";
    "replica.fetch.min.bytes" Int "1";
    "replica.fetch.response.max.bytes" Int "10485760";
    "replica.fetch.wait.max.ms" Int "500";
    "replica.high.watermark.checkpoint.interval.ms" Long "5000";
    "replica.lag.time.max.ms" Long "30000";
    "replica.selector.class" String;
    "replica.socket.receive.buffer.bytes" Int "65536";
    "replica.socket.timeout.ms" Int "30000";
    "replication.quota.window.num" Int "11";
    "replication.quota.window.size.seconds" Int "1";
    "request.timeout.ms" Int "30000";
    "sasl.client.callback.handler.class" Class;
    "sasl.enabled.mechanisms" List "GSSAPI";
    "sasl.jaas.config" Password;
    "sasl.kerberos.kinit.cmd" String "/usr/bin/kinit";
    "sasl.kerberos.min.time.before.relogin" Long "60000";
    "sasl.kerberos.principal.to.local.rules" List "DEFAULT";
    "sasl.kerberos.service.name" String;
    "sasl.kerberos.ticket.renew.jitter" Double "0.05";
    "sasl.kerberos.ticket.renew.window.factor" Double "0.8";
    "sasl.login.callback.handler.class" Class;
    "sasl.login.class" Class;
    "sasl.login.connect.timeout.ms" Int;
    "sasl.login.read.timeout.ms" Int;
    "sasl.login.refresh.buffer.seconds" Short "300";
    "sasl.login.refresh.min.period.seconds" Short "60";
    "sasl.login.refresh.window.factor" Double "0.8";
    "sasl.login.refresh.window.jitter" Double "0.05";
    "sasl.login.retry.backoff.max.ms" Long "10000";
    "sasl.login.retry.backoff.ms" Long "100";
    "sasl.mechanism.controller.protocol" String "GSSAPI";
    "sasl.mechanism.inter.broker.protocol" String "GSSAPI";
    "sasl.oauthbearer.assertion.algorithm" String "RS256";
    "sasl.oauthbearer.assertion.claim.aud" String;
    "sasl.oauthbearer.assertion.claim.exp.seconds" Int "300";
    "sasl.oauthbearer.assertion.claim.iss" String;
    "sasl.oauthbearer.assertion.claim.jti.include" Boolean "false";
    "sasl.oauthbearer.assertion.claim.nbf.seconds" Int "60";
    "sasl.oauthbearer.assertion.claim.sub" String;
    "sasl.oauthbearer.assertion.file" String;
    "sasl.oauthbearer.assertion.private.key.file" String;
    "sasl.oauthbearer.assertion.private.key.passphrase" Password;
    "sasl.oauthbearer.assertion.template.file" String;
    "sasl.oauthbearer.client.credentials.client.id" String;
    "sasl.oauthbearer.client.credentials.client.secret" Password;
    "sasl.oauthbearer.clock.skew.seconds" Int "30";
    "sasl.oauthbearer.expected.audience" List "";
    "sasl.oauthbearer.expected.issuer" String;
    "sasl.oauthbearer.jwks.endpoint.refresh.ms" Long "3600000";
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms" Long "10000";
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms" Long "100";
    "sasl.oauthbearer.jwks.endpoint.url" String;
    "sasl.oauthbearer.jwt.retriever.class" Class
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever";
    "sasl.oauthbearer.jwt.validator.class" Class
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator";
    "sasl.oauthbearer.scope" String;
    "sasl.oauthbearer.scope.claim.name" String "scope";
    "sasl.oauthbearer.sub.claim.name" String "sub";
    "sasl.oauthbearer.token.endpoint.url" String;
    "sasl.server.callback.handler.class" Class;
    "sasl.server.max.receive.size" Int "524288";
    "security.inter.broker.protocol" String "PLAINTEXT";
    "security.providers" String;
    "share.coordinator.append.linger.ms" Int "-1";
    "share.coordinator.cached.buffer.max.bytes" Int "1048588";
    "share.coordinator.load.buffer.size" Int "5242880";
    "share.coordinator.snapshot.update.records.per.snapshot" Int "500";
    "share.coordinator.state.topic.compression.codec" Int "0";
    "share.coordinator.state.topic.min.isr" Short "2";
    "share.coordinator.state.topic.num.partitions" Int "50";
    "share.coordinator.state.topic.replication.factor" Short "3";
    "share.coordinator.state.topic.segment.bytes" Int "104857600";
    "share.coordinator.threads" Int "1";
    "share.coordinator.write.timeout.ms" Int "5000";
    "share.fetch.purgatory.purge.interval.requests" Int "1000";
    "socket.connection.setup.timeout.max.ms" Long "30000";
    "socket.connection.setup.timeout.ms" Long "10000";
    "socket.listen.backlog.size" Int "50";
    "socket.receive.buffer.bytes" Int "102400";
    "socket.request.max.bytes" Int "104857600";
    "socket.send.buffer.bytes" Int "102400";
    "ssl.allow.dn.changes" Boolean "false";
    "ssl.allow.san.changes" Boolean "false";
    "ssl.cipher.suites" List "";
    "ssl.client.auth" String "none";
    "ssl.enabled.protocols" List "TLSv1.2,TLSv1.3";
    "ssl.endpoint.identification.algorithm" String "https";
    "ssl.engine.factory.class" Class;
    "ssl.key.password" Password;
    "ssl.keymanager.algorithm" String "SunX509";
    "ssl.keystore.certificate.chain" Password;
    "ssl.keystore.key" Password;
    "ssl.keystore.location" String;
    "ssl.keystore.password" Password;
    "ssl.keystore.type" String "JKS";
    "ssl.principal.mapping.rules" String "DEFAULT";
    "ssl.protocol" String "TLSv1.3";
    "ssl.provider" String;
    "ssl.secure.random.implementation" String;
    "ssl.trustmanager.algorithm" String "PKIX";
    "ssl.truststore.certificates" Password;
    "ssl.truststore.location" String;
    "ssl.truststore.password" Password;
    "ssl.truststore.type" String "JKS";
    "telemetry.max.bytes" Int "1048576";
    "transaction.abort.timed.out.transaction.cleanup.interval.ms" Int "10000";
    "transaction.max.timeout.ms" Int "900000";
    "transaction.partition.verification.enable" Boolean "true";
    "transaction.remove.expired.transaction.cleanup.interval.ms" Int "3600000";
    "transaction.state.log.load.buffer.size" Int "5242880";
    "transaction.state.log.min.isr" Int "2";
    "transaction.state.log.num.partitions" Int "50";
    "transaction.state.log.replication.factor" Short "3";
    "transaction.state.log.segment.bytes" Int "104857600";
    "transaction.two.phase.commit.enable" Boolean "false";
    "transactional.id.expiration.ms" Int "604800000";
    "unclean.leader.election.enable" Boolean "false";
}

#[cfg(test)]
mod tests {
    use super::super::{Effect, find as find_row, ignored_because};
    use super::*;

    #[test]
    fn every_key_of_kafkas_has_an_effect_or_a_reason() {
        assert!(KAFKA_KEYS.is_sorted_by(|a, b| a.name < b.name));
        for key in KAFKA_KEYS {
            let used = find_row(key.name).is_some_and(|row| row.effect == Effect::Used);
            assert!(used || ignored_because(key.name).is_some(), "{}", key.name);
            // A secret is told to nobody, and none has a default.
            assert!(key.config_type != ConfigType::Password || key.default.is_none());
        }
    }
}
