//! How a broker process comes to life on a volume.
//!
//! In order: is this the volume of this data directory; can files be renamed in it; does the same
//! broker run already; claim the broker's area (this process's instance number), then the
//! controller's; settle `cluster.json`; register; read topics and the assignment before, finish
//! what a crash left half done; write the next assignment. A crash between any two steps leaves
//! what the next start goes on from.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use store_adapter::ids::BrokerId;
use store_adapter::local::{Host, LocalIdentity};
use store_adapter::runtime::Env;
use store_adapter::volume::owned::{Area, Claim, OwnedFiles};
use store_adapter::volume::{Volume, VolumeError, VolumePath};

use super::NodeConfig;
use super::controller::Controller;
use super::damage::DamageLog;
use super::error::StartError;
use super::features;
use super::files::Files;
use super::registration::{self, Heartbeat};
use crate::volume::format::{
    self, CLUSTER_VERSION, ClusterFile, Extra, Format, GROUP_SLOTS, TXN_SLOTS,
};
use crate::volume::layout::{self, Place};

/// What a start needs from outside.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) env: Env,
    pub(super) volume: Arc<dyn Volume>,
    pub(super) host: Arc<dyn Host>,
    pub(super) identity: Arc<dyn LocalIdentity>,
    pub(super) config: NodeConfig,
}

/// A broker that has started.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) files: Files,
    pub(super) owned: OwnedFiles,
    /// The claim of the broker's own area; its epoch is the instance number.
    pub(super) claim: Arc<Claim>,
    pub(super) heartbeat: Heartbeat,
    pub(super) controller: Controller,
}

/// Starts a broker.
pub(super) async fn boot(ports: &Ports, damage: Arc<DamageLog>) -> Result<Booted, StartError> {
    let config = &ports.config;
    let files = Files {
        volume: ports.volume.clone(),
        clock: ports.env.clock.clone(),
        damage,
        broker: config.broker_id,
    };
    let owned = OwnedFiles::new(ports.volume.clone(), ports.env.random.clone());
    let remembered = ports.identity.read();
    let remembered = remembered.map_err(|error| identity_error(&error))?;
    // Before anything is written: a volume that is not ours stays as it is.
    match peek_cluster(&files).await? {
        Some(cluster) => check_cluster(&cluster, remembered.as_deref())?,
        None => check_new(&files, remembered.as_deref(), Listing::AsIs).await?,
    }
    make_dirs(&files, config.broker_id).await?;
    trial_rename(&files, config.broker_id).await?;
    let counter = registration::refuse_double_start(&files, ports.host.as_ref()).await?;
    let claim = owned
        .claim_next(Area::Broker(config.broker_id), config.broker_id, None)
        .await?;
    let claim = Arc::new(claim);
    let instance = claim.epoch().instance;
    let control = owned
        .claim_next(Area::Controller, config.broker_id, Some(instance))
        .await?;
    let cluster = settle_cluster(ports, &files, &control, remembered.as_deref()).await?;
    let host = ports.host.as_ref();
    let heartbeat = registration::register(&files, &claim, host, config, counter).await?;
    let controller = Controller::load(&ports.env, &files, control, config, &cluster).await?;
    Ok(Booted {
        files,
        owned,
        claim,
        heartbeat,
        controller,
    })
}

/// `cluster.json` as it can be seen without owning anything.
async fn peek_cluster(files: &Files) -> Result<Option<ClusterFile>, StartError> {
    let path = Place::Cluster.path();
    let bytes = match files.volume.read(&path, ClusterFile::LEN_MAX).await {
        Ok(bytes) => bytes,
        Err(VolumeError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match format::decode(&bytes) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) => Err(files
            .damaged(&path, error.to_string(), Some(bytes))
            .await
            .into()),
    }
}

fn check_cluster(cluster: &ClusterFile, remembered: Option<&str>) -> Result<(), StartError> {
    if cluster.version != CLUSTER_VERSION {
        let found = cluster.version;
        return Err(StartError::UnsupportedVersion { found });
    }
    match remembered {
        Some(remembered) if remembered != cluster.cluster_id => Err(StartError::OtherCluster {
            remembered: remembered.to_owned(),
            found: cluster.cluster_id.clone(),
        }),
        _ => Ok(()),
    }
}

/// How a directory is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// Without writing anything; may be out of date.
    AsIs,
    /// After an own create.
    Fresh,
}

/// Whether a volume without `cluster.json` may become a new cluster: nobody remembers one, and
/// there is nothing on it but what an interrupted first start leaves.
async fn check_new(
    files: &Files,
    remembered: Option<&str>,
    listing: Listing,
) -> Result<(), StartError> {
    if let Some(remembered) = remembered {
        let remembered = remembered.to_owned();
        return Err(StartError::VolumeMissing { remembered });
    }
    let root = VolumePath::root();
    let own_dirs = layout::EMPTY_VOLUME_DIRS;
    for (dir, known) in [
        (root, &own_dirs[..1]),
        (layout::cluster_dir(), &own_dirs[1..]),
    ] {
        let names = match listing {
            Listing::Fresh => files.fresh_list(&dir).await,
            Listing::AsIs => files.volume.list(&dir).await,
        };
        let names = match names {
            Err(VolumeError::NotFound { .. }) => Vec::new(),
            names => names?,
        };
        for entry in names {
            let name = entry.name;
            let skipped = layout::is_foreign(&name) || known.contains(&name.as_str());
            if skipped || (!entry.is_dir && layout::is_probe(&name)) {
                continue;
            }
            // Directories that a first start makes are empty until it has finished.
            let made = layout::STATE_DIRS.contains(&name.as_str());
            if !made || !is_empty(files, &dir.join(&name)).await? {
                let name = dir.join(&name).to_string();
                return Err(StartError::NotEmpty { name });
            }
        }
    }
    Ok(())
}

async fn is_empty(files: &Files, dir: &VolumePath) -> Result<bool, VolumeError> {
    match files.volume.list(dir).await {
        Ok(names) => Ok(names.iter().all(|entry| layout::is_probe(&entry.name))),
        Err(VolumeError::NotFound { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes the directories that everything after this relies on.
async fn make_dirs(files: &Files, broker: BrokerId) -> Result<(), StartError> {
    let volume = &files.volume;
    volume.create_dir_all(&layout::owners_dir()).await?;
    for place in [Place::Broker(broker), Place::ProducerIds(broker)] {
        volume.create_dir_all(&place.path().parent()).await?;
    }
    volume.create_dir_all(&layout::deleted_dir()).await?;
    volume.create_dir_all(&layout::offsets_dir()).await?;
    Ok(())
}

/// Proves that a file can be renamed from the cluster directory into the data directory.
async fn trial_rename(files: &Files, broker: BrokerId) -> Result<(), StartError> {
    let (from, to) = layout::trial_rename(broker);
    match files.volume.create_new(&from).await {
        // Left by a crash, and as good as a new one.
        Ok(_) | Err(VolumeError::AlreadyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if let Err(error) = files.volume.rename(&from, &to).await {
        files.remove_if_there(&from).await?;
        return Err(match error {
            VolumeError::NoSpace { .. } => error.into(),
            error => StartError::NoRename(error),
        });
    }
    files.remove_if_there(&to).await?;
    Ok(())
}

/// Reads `cluster.json` as its owner, or creates it on an empty volume; then remembers its id.
async fn settle_cluster(
    ports: &Ports,
    files: &Files,
    control: &Claim,
    remembered: Option<&str>,
) -> Result<ClusterFile, StartError> {
    let path = Place::Cluster.path();
    let found: Option<ClusterFile> = files.read(control, &path).await?;
    let cluster = if let Some(cluster) = found {
        check_cluster(&cluster, remembered)?;
        match features::completed(&cluster, &ports.config.features) {
            Some(completed) => {
                files.replace(control, &path, &completed).await?;
                completed
            }
            None => cluster,
        }
    } else {
        check_new(files, remembered, Listing::Fresh).await?;
        let cluster = ClusterFile {
            version: CLUSTER_VERSION,
            cluster_id: new_cluster_id(&ports.env),
            txn_slots: TXN_SLOTS,
            group_slots: GROUP_SLOTS,
            features: ports.config.features.clone(),
            features_epoch: 0,
            broker_configs: BTreeMap::new(),
            extra: Extra::new(),
        };
        files.replace(control, &path, &cluster).await?;
        cluster
    };
    if remembered.is_none() {
        let wrote = ports.identity.write(&cluster.cluster_id);
        wrote.map_err(|error| identity_error(&error))?;
    }
    Ok(cluster)
}

/// The local directory may be full like the volume, and on the same file system.
fn identity_error(error: &io::Error) -> StartError {
    let path = error.to_string();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => VolumeError::NoSpace { path }.into(),
        _ => StartError::Identity(path),
    }
}

/// A random UUID as Kafka writes ids: base64url without padding, 22 characters, not beginning with
/// `-`, which command lines take for a flag.
fn new_cluster_id(env: &Env) -> String {
    loop {
        let id = base64url(env.uuid().as_bytes());
        if !id.starts_with('-') {
            return id;
        }
    }
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let joined = group
            .iter()
            .chain(std::iter::repeat(&0))
            .take(3)
            .fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let digits = [18, 12, 6, 0].map(|shift| DIGITS[joined >> shift & 63]);
        let used = digits.iter().take(group.len() + 1);
        text.extend(used.map(|digit| char::from(*digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_has_its_published_values() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foobar", "Zm9vYmFy"),
            (&[0xfb, 0xff, 0xbf], "-_-_"),
        ] {
            assert_eq!(base64url(bytes), text);
        }
        assert_eq!(base64url(&[0; 16]).len(), 22);
    }
}
