//! Who this process is among its brokers: the check for a double start, the registration and the
//! heartbeat.
//!
//! None of it is needed for safety, which rests on owner epochs alone. It spares people a broker
//! that fences another one by mistake.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store_adapter::ids::BrokerId;
use store_adapter::local::Host;
use store_adapter::volume::owned::{Claim, OwnedError};
use store_adapter::volume::{VolumeError, VolumeFile};

use super::NodeConfig;
use super::error::StartError;
use super::files::Files;
use crate::volume::format::{self, Extra, Format, FormatError, Registration};
use crate::volume::layout::{self, Place};

/// How long a heartbeat is watched: twice its period.
const WATCH: Duration = Duration::from_secs(2);
/// How often it is looked at meanwhile.
const WATCH_STEP: Duration = Duration::from_millis(100);

/// What a registration of an earlier process means for a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// That process has ended.
    Gone,
    /// It runs.
    Runs,
    /// It can't be seen from here: watch its heartbeat.
    Watch,
}

fn judge(found: &Registration, host: &dyn Host) -> Verdict {
    if found.stopped {
        return Verdict::Gone;
    }
    let boot_id = host.boot_id();
    let here = !boot_id.is_empty() && found.boot_id == boot_id && found.host == host.name();
    // Brokers of one process, as in tests, can't be told apart by the process.
    let own = found.pid == host.pid() && found.start_time == host.start_time();
    if !here || own {
        Verdict::Watch
    } else if host.is_running(found.pid, found.start_time) {
        Verdict::Runs
    } else {
        Verdict::Gone
    }
}

/// A registration file as it was found: parsed, or its damaged bytes.
type Found = Result<Registration, Bytes>;

/// Refuses to start when this broker, or another one of the volume, is running already. Returns
/// the highest heartbeat counter of this broker that was seen.
pub(super) async fn refuse_double_start(files: &Files, host: &dyn Host) -> Result<u64, StartError> {
    let before = read_all(files).await?;
    let mut watched: BTreeMap<BrokerId, &Found> = BTreeMap::new();
    for (id, found) in &before {
        match found
            .as_ref()
            .map_or(Verdict::Watch, |reg| judge(reg, host))
        {
            Verdict::Gone => {}
            Verdict::Runs => return Err(refusal(files.broker, *id, found)),
            Verdict::Watch => {
                watched.insert(*id, found);
            }
        }
    }
    let mut counter = counter_of(before.get(&files.broker));
    let mut waited = Duration::ZERO;
    while !watched.is_empty() && waited < WATCH {
        files.clock.sleep(WATCH_STEP).await;
        waited += WATCH_STEP;
        for (id, before) in &watched {
            let Some(now) = read_one(files, *id).await? else {
                continue;
            };
            if &now != *before && now.as_ref().is_ok_and(|now| !now.stopped) {
                return Err(refusal(files.broker, *id, &now));
            }
            if *id == files.broker {
                counter = counter.max(counter_of(Some(&now)));
            }
        }
    }
    Ok(counter)
}

fn counter_of(found: Option<&Found>) -> u64 {
    found
        .and_then(|found| found.as_ref().ok())
        .map_or(0, |registration| registration.counter)
}

fn refusal(own: BrokerId, broker: BrokerId, found: &Found) -> StartError {
    let (host, pid) = found.as_ref().map_or_else(
        |_| ("unknown".to_owned(), 0),
        |found| (found.host.clone(), found.pid),
    );
    if own == broker {
        StartError::RunsAlready { broker, host, pid }
    } else {
        StartError::NotAlone { broker, host, pid }
    }
}

async fn read_all(files: &Files) -> Result<BTreeMap<BrokerId, Found>, StartError> {
    let mut all = BTreeMap::new();
    for entry in files.fresh_list(&layout::brokers_dir()).await? {
        let path = layout::brokers_dir().join(&entry.name);
        let Some(Place::Broker(id)) = Place::parse(&path) else {
            continue;
        };
        if let Some(found) = read_one(files, id).await? {
            all.insert(id, found);
        }
    }
    Ok(all)
}

/// Reads a registration without owning it. Damage is no reason not to start: the file is made anew
/// and says nothing that is needed.
async fn read_one(files: &Files, id: BrokerId) -> Result<Option<Found>, VolumeError> {
    let path = Place::Broker(id).path();
    let bytes = match files.volume.read(&path, Registration::LEN_MAX).await {
        Ok(bytes) => bytes,
        Err(VolumeError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(format::decode(&bytes).map_err(|_| bytes)))
}

/// Writes this process's registration. `counter` is the last one of an earlier process.
pub(super) async fn register(
    files: &Files,
    claim: &Claim,
    host: &dyn Host,
    config: &NodeConfig,
    counter: u64,
) -> Result<Heartbeat, StartError> {
    let path = Place::Broker(config.broker_id).path();
    // Read for its unknown fields; a damaged one is copied and reported here.
    let old: Option<Registration> = match files.read(claim, &path).await {
        Ok(old) => old,
        Err(OwnedError::Damaged { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let registration = Registration {
        id: config.broker_id,
        instance: claim.epoch().instance,
        counter: counter.saturating_add(1),
        host: host.name(),
        boot_id: host.boot_id(),
        pid: host.pid(),
        start_time: host.start_time(),
        listeners: config.listeners.clone(),
        version: config.version.clone(),
        stopped: false,
        extra: old.map_or_else(Extra::new, |old| old.extra),
    };
    let body = padded(&registration).map_err(|error| StartError::Damaged {
        path: path.to_string(),
        why: error.to_string(),
    })?;
    claim.replace(&path, body).await?;
    Ok(Heartbeat {
        registration,
        file: None,
    })
}

/// The body, with blanks in the place of the digits that the counter may still get: overwritten in
/// place, it always has the same length.
fn padded(registration: &Registration) -> Result<Bytes, FormatError> {
    const DIGITS_MAX: usize = 20;
    let mut body = format::encode(registration)?.to_vec();
    let digits = registration.counter.to_string().len();
    body.resize(body.len() + DIGITS_MAX.saturating_sub(digits), b' ');
    Ok(body.into())
}

/// The heartbeat of this process.
#[derive(Debug)]
pub(super) struct Heartbeat {
    registration: Registration,
    /// The file that this process registered with. Once a later process has registered it is no
    /// longer the one of that name, and writing to it changes nothing.
    file: Option<Arc<dyn VolumeFile>>,
}

impl Heartbeat {
    /// Raises the counter by an overwrite in place, without fsync.
    pub(super) async fn beat(&mut self, files: &Files) -> Result<(), OwnedError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.open(files).await?,
        };
        self.registration.counter = self.registration.counter.saturating_add(1);
        let path = Place::Broker(self.registration.id).path();
        let body = padded(&self.registration).map_err(|error| OwnedError::Damaged {
            path: path.to_string(),
            why: error.to_string(),
        })?;
        let wrote = file.write_at(0, &[body]).await;
        wrote.map_err(OwnedError::MaybeApplied)?;
        self.file = Some(file);
        Ok(())
    }

    /// Opens the file, and makes sure that it is this process's before anything is written.
    async fn open(&self, files: &Files) -> Result<Arc<dyn VolumeFile>, OwnedError> {
        let path = Place::Broker(self.registration.id).path();
        let file = files.volume.open_write(&path).await;
        let file = file.map_err(OwnedError::NotApplied)?;
        let len = file.size().await.map_err(OwnedError::NotApplied)?;
        let len = len.min(Registration::LEN_MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = file.read_at(0, len).await;
        let bytes = bytes.map_err(OwnedError::NotApplied)?;
        match format::decode::<Registration>(&bytes) {
            Ok(found) if found.instance == self.registration.instance => Ok(file),
            Ok(_) => Err(OwnedError::Stale),
            Err(error) => Err(OwnedError::Damaged {
                path: path.to_string(),
                why: error.to_string(),
            }),
        }
    }

    /// The final write: this process has ended cleanly, so that the next one need not watch.
    pub(super) async fn stopped(&mut self, claim: &Claim) -> Result<(), OwnedError> {
        self.registration.stopped = true;
        let path = Place::Broker(self.registration.id).path();
        let body = format::encode(&self.registration).map_err(|error| OwnedError::Damaged {
            path: path.to_string(),
            why: error.to_string(),
        })?;
        claim.replace(&path, body).await
    }
}
