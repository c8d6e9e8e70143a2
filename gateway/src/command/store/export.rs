//! `fencepost store export`.

use clap::Args;
use store_adapter::batch::BatchHeader;

use super::super::output::Failure;
use super::{Opened, Part, failed, json, named, print};

#[derive(Debug, Clone, Args)]
pub(super) struct Export {
    /// The topic
    topic: String,
    #[command(flatten)]
    part: Part,
}

impl Export {
    /// Prints the records of one partition after the other, in order of offsets. Of transactions
    /// too, whether committed or not: which is which, `dump` says.
    pub(super) async fn run(self, opened: &Opened) -> Result<String, Failure> {
        for (shard, log) in opened.topic(&self.topic, &self.part)? {
            let range = self.part.of(log);
            let mut next = range.start;
            while next < range.end {
                let batches = shard.batches(log.id, next).await;
                let batches = batches
                    .map_err(|error| Failure::Refused(format!("{}: {error}", named(log))))?;
                let Some(last) = batches.last() else { break };
                next = last.last_offset.saturating_add(1);
                for stored in &batches {
                    let header = BatchHeader::read(&stored.bytes).map_err(|e| failed(&e))?;
                    if header.is_control() {
                        continue;
                    }
                    let records = json::records(stored).map_err(|error| {
                        let offset = stored.base_offset;
                        Failure::Refused(format!("{}, offset {offset}: {error}", named(log)))
                    })?;
                    for mut record in records {
                        if !record["offset"]
                            .as_i64()
                            .is_some_and(|o| range.contains(&o))
                        {
                            continue;
                        }
                        record["topic"] = log.name.as_str().into();
                        record["partition"] = log.id.partition.into();
                        if !print(&record)? {
                            return Ok(String::new());
                        }
                    }
                }
            }
        }
        opened.whole()?;
        Ok(String::new())
    }
}
