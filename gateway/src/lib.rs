//! Kafka wire protocol in front of a log store.
