//! Transactional ids that were used long before the run: a few transactions more, and their epochs
//! are used up (32766 is the last one that is handed out), so that they get another producer id.

use std::collections::BTreeMap;

use bytes::Bytes;
use coordinator::slot_hash::fnv1a32;
use coordinator::volume::layout::Place;
use serde_json::{Map, Value, json};
use store_adapter::volume::{MemoryVolume, Volume, VolumeError};

use super::super::executor::World;
use super::name;

/// Producer ids of a broker that is no more.
const PIDS: u64 = 90 << 40;
/// The lowest epoch that an id is left with, and how many more.
const EPOCHS: (u64, u64) = (32_755, 12);

/// Writes the slot files of the ids. No broker is up.
pub(crate) async fn leave_ids(
    volume: &MemoryVolume,
    world: &World,
    ids: u32,
) -> Result<(), String> {
    let mut slots: BTreeMap<u32, Map<String, Value>> = BTreeMap::new();
    for id in 0..ids {
        let (pid, epoch) = (PIDS + u64::from(id), EPOCHS.0 + world.below(EPOCHS.1));
        world.note(&format!("{} was left with {:?}", name(id), (pid, epoch)));
        let slot = slots.entry(fnv1a32(name(id).as_bytes()) % 50).or_default();
        slot.insert(name(id), json!({"pid": pid, "epoch": epoch}));
    }
    for (slot, ids) in slots {
        let bytes = Bytes::from(Value::Object(ids).to_string());
        let written = write(volume, Place::TxnSlot(slot), bytes).await;
        written.map_err(|error| format!("slot {slot}: {error}"))?;
    }
    Ok(())
}

async fn write(volume: &MemoryVolume, place: Place, bytes: Bytes) -> Result<(), VolumeError> {
    let path = place.path();
    let dir = path.parent();
    volume.create_dir_all(&dir).await?;
    let file = volume.create_new(&path).await?;
    file.write_at(0, &[bytes]).await?;
    file.sync_data().await?;
    volume.sync_dir(&dir).await?;
    volume.sync_dir(&dir.parent()).await
}
