//! `brokers/kaas-<id>.json`: who a broker process is, and its heartbeat. Replaced at start and at a
//! clean stop; in between only the counter is overwritten in place.

use serde::{Deserialize, Serialize};
use store_adapter::ids::BrokerId;

use super::{Extra, Format, broker_name};

/// Where clients reach a broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// The listener's name, as in `advertised.listeners`.
    pub name: String,
    /// Host name or address that clients are told.
    pub host: String,
    /// Port that clients are told.
    pub port: u16,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// The broker.
    #[serde(with = "broker_name")]
    pub id: BrokerId,
    /// The process's instance number: its claim of the broker's area.
    pub instance: u64,
    /// Heartbeat: grows about once a second while the process lives.
    pub counter: u64,
    /// Host name.
    pub host: String,
    /// Boot id of the host's kernel.
    pub boot_id: String,
    /// Process id on that host.
    pub pid: u32,
    /// The process's start time, clock ticks since that boot.
    pub start_time: u64,
    /// What clients are told.
    pub listeners: Vec<Listener>,
    /// Version of the software.
    pub version: String,
    /// Set by a clean stop; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for Registration {
    const LEN_MAX: u64 = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"id":"kaas-0","instance":4,"counter":1234,"host":"node-a","#,
        r#""bootId":"6f1c7c2e-7a53-4ae5-8f0f-6d0f5c0f9b11","pid":4711,"startTime":889922,"#,
        r#""listeners":[{"name":"PLAINTEXT","host":"localhost","port":9092}],"version":"0.1.0"}"#
    );

    #[test]
    fn sample() {
        let mut value = Registration {
            id: BrokerId(0),
            instance: 4,
            counter: 1234,
            host: "node-a".into(),
            boot_id: "6f1c7c2e-7a53-4ae5-8f0f-6d0f5c0f9b11".into(),
            pid: 4711,
            start_time: 889_922,
            listeners: vec![Listener {
                name: "PLAINTEXT".into(),
                host: "localhost".into(),
                port: 9092,
            }],
            version: "0.1.0".into(),
            stopped: false,
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<Registration>(SAMPLE);
        value.stopped = true;
        golden(&SAMPLE.replace("0\"}", "0\",\"stopped\":true}"), &value);
    }

    #[test]
    fn padding_behind_the_object_is_no_damage() {
        let padded = format!("{SAMPLE}          ");
        assert!(super::super::decode::<Registration>(padded.as_bytes()).is_ok());
    }
}
