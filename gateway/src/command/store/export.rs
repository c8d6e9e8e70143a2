//! `fencepost store export`.

use clap::Args;
use store_adapter::batch::BatchHeader;

use super::super::output::Failure;
use super::fates::{Fate, Fates};
use super::holes::Holes;
use super::{Opened, Part, failed, json, print};

#[derive(Debug, Clone, Args)]
pub(super) struct Export {
    /// The topic
    topic: String,
    #[command(flatten)]
    part: Part,
    /// Leave out what is of a transaction that was aborted or is open, as read_committed does;
    /// where that can't be told, it is left out and named
    #[arg(long)]
    committed: bool,
}

impl Export {
    /// Prints the records of one partition after the other, in order of offsets; of each that is of
    /// a transaction, what became of that. What can't be read is left out and named at the end,
    /// which is then a failure.
    pub(super) async fn run(self, opened: &Opened) -> Result<String, Failure> {
        let mut holes = Holes::default();
        for (shard, log) in opened.topic(&self.topic, &self.part)? {
            let range = self.part.of(log);
            let mut next = range.start;
            let mut fates = Fates::new(shard, log, next);
            while next < range.end {
                let batches = holes.batches((shard, log), next, range.end).await;
                let Some(last) = batches.last() else { break };
                next = last.last_offset.saturating_add(1);
                for stored in &batches {
                    let header = BatchHeader::read(&stored.bytes).map_err(|e| failed(&e))?;
                    if header.is_control() {
                        continue;
                    }
                    let fate = fates.of(&header).await;
                    if self.committed && fate.is_some_and(|fate| fate != Fate::Committed) {
                        if fate == Some(Fate::Unknown) {
                            let why = "what became of its transaction can't be read";
                            holes.note(log, (stored.base_offset, stored.last_offset), &why);
                        }
                        continue;
                    }
                    let records = match json::records(stored) {
                        Ok(records) => records,
                        Err(error) => {
                            holes.note(log, (stored.base_offset, stored.last_offset), &error);
                            continue;
                        }
                    };
                    for mut record in records {
                        if !record["offset"]
                            .as_i64()
                            .is_some_and(|o| range.contains(&o))
                        {
                            continue;
                        }
                        record["topic"] = log.name.as_str().into();
                        record["partition"] = log.id.partition.into();
                        if let Some(fate) = fate {
                            record["producerId"] = header.producer_id.0.into();
                            record["transaction"] = fate.name().into();
                        }
                        if !print(&record)? {
                            return Ok(String::new());
                        }
                    }
                }
            }
            holes.look_behind(log, range.end);
        }
        holes.refuse(opened)?;
        Ok(String::new())
    }
}
