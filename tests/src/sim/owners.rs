//! Who owns which area of the volume, by the names that are renamed: a stopped instance that wakes
//! up changes nothing.

use std::collections::BTreeMap;

use store_adapter::ids::OwnerEpoch;

const OWNERS: &str = "__cluster/owners/";

#[derive(Debug)]
struct Owner {
    epoch: OwnerEpoch,
    server: u64,
    /// It has finished taking over: it does something else by now.
    settled: bool,
}

/// The owners of all areas.
#[derive(Debug, Default)]
pub(crate) struct Owners(BTreeMap<String, Owner>);

impl Owners {
    /// An instance did a step on `path`.
    pub(crate) fn step(&mut self, server: u64, path: &str) {
        let inside = path.strip_prefix(OWNERS);
        let inside = inside.and_then(|rest| rest.split('/').next());
        for (area, owner) in &mut self.0 {
            // A shard is taken over beside other work of the same process.
            let its_own = match area.strip_prefix("shard-") {
                Some(_) => path
                    .strip_prefix("__store/")
                    .is_some_and(|p| p.starts_with(area)),
                None => inside != Some(area),
            };
            owner.settled |= owner.server == server && its_own;
        }
    }

    /// A rename took effect, done by `server`, or late and done by nobody that lives. What is wrong
    /// with it, if anything is.
    pub(crate) fn renamed(&mut self, server: Option<u64>, from: &str, to: &str) -> Option<String> {
        let (area, ticket) = from.strip_prefix(OWNERS)?.split_once('/')?;
        let (epoch, _) = ticket.strip_prefix("t-")?.rsplit_once('-')?;
        let epoch: OwnerEpoch = epoch.parse().ok()?;
        if to.strip_prefix(OWNERS) == Some(&format!("{area}/current.json")) {
            let owner = Owner {
                epoch,
                server: server?,
                settled: false,
            };
            self.0.insert(area.to_owned(), owner);
            return None;
        }
        let owner = self.0.get(area)?;
        (owner.settled && owner.epoch > epoch).then(|| {
            format!(
                "{to} was replaced by epoch {epoch} of {area} after {} had taken over with {}",
                owner.server, owner.epoch
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_behind_a_take_over_is_noticed() {
        let mut owners = Owners::default();
        let controller = |name: &str| format!("{OWNERS}controller/{name}");
        let claim = |owners: &mut Owners, server, ticket: &str| {
            owners.renamed(
                Some(server),
                &controller(ticket),
                &controller("current.json"),
            )
        };
        assert_eq!(claim(&mut owners, 1, "t-1-aa"), None);
        owners.step(1, "a/.topic-id.json");
        let write = |owners: &mut Owners, ticket: &str| {
            owners.renamed(Some(1), &controller(ticket), "a/.topic-id.json")
        };
        assert_eq!(write(&mut owners, "t-1-bb"), None);
        assert_eq!(claim(&mut owners, 2, "t-2-aa"), None);
        owners.step(2, &controller("own-1"));
        assert_eq!(write(&mut owners, "t-1-cc"), None);
        owners.step(2, "a/.topic-id.json");
        assert!(write(&mut owners, "t-1-dd").is_some());
        assert_eq!(write(&mut owners, "t-2-bb"), None);
    }
}
