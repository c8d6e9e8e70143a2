//! `fencepost topic delete`.

use clap::Args;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::{DeleteTopicsRequest, TopicName};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Row, check_said};
use super::super::topics::text;
use super::Outcome;

/// UNKNOWN_TOPIC_OR_PARTITION.
const UNKNOWN: i16 = 3;

/// Arguments of `fencepost topic delete`.
#[derive(Debug, Clone, Args)]
pub(super) struct Delete {
    /// The topics
    #[arg(required = true)]
    topics: Vec<String>,
    /// A topic that is not there is no error
    #[arg(long)]
    if_exists: bool,
}

/// What became of a topic.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deleted {
    topic: String,
    deleted: bool,
}

impl Row for Deleted {
    const HEADINGS: &'static [&'static str] = &["TOPIC", "DELETED"];

    fn cells(&self) -> Vec<String> {
        vec![self.topic.clone(), self.deleted.to_string()]
    }
}

impl Delete {
    pub(super) async fn run(self, client: &mut Client) -> Result<Outcome<Deleted>, Failure> {
        let names = || self.topics.iter().map(|topic| TopicName(text(topic)));
        let request = DeleteTopicsRequest::default().with_timeout_ms(client.patience_ms());
        let build = |version| {
            if version >= 6 {
                let topics = names().map(|n| DeleteTopicState::default().with_name(Some(n)));
                request.with_topics(topics.collect())
            } else {
                request.with_topic_names(names().collect())
            }
        };
        let answer = client.call(None, build).await?;
        let mut outcome = Outcome::new();
        for result in &answer.responses {
            let topic = result.name.as_ref().map(|name| name.to_string());
            let topic = topic.unwrap_or_default();
            let is_gone = result.error_code == UNKNOWN && self.if_exists;
            let code = if is_gone { 0 } else { result.error_code };
            let what = || format!("topic {topic}");
            let checked = check_said(code, result.error_message.as_ref(), what);
            outcome.put(checked.map(|()| Deleted {
                topic,
                deleted: !is_gone,
            }));
        }
        Ok(outcome)
    }
}
