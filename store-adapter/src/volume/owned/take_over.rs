//! Taking an area over: claim, ticket, sweep, name the owner, sweep again.

use super::area::{claim_epoch, ticket_epoch};
use super::claim::{Claim, Ticket};
use super::{Area, OwnedError, OwnedFiles, PresentOwner, current_path, remove_if_there};
use crate::fault::{Fault, planted};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::volume::{DirEntry, VolumeError};

/// How often a number that was taken meanwhile is followed by a higher try.
const CLAIM_TRIES: u32 = 64;

impl OwnedFiles {
    /// Takes `area` over for `owner.epoch`: when it returns, no write of a lower epoch can happen
    /// any more, and the area's targets may be read. May be repeated for the same epoch by the
    /// same instance after an error, once the claim handle of the attempt before is out of use.
    ///
    /// For slots, group slots and shards; [`OwnedFiles::claim_next`] for the other areas.
    ///
    /// # Errors
    /// `Stale` when a higher epoch claimed the area (or, in an area that counts claims, this one
    /// is taken). After `NotApplied` or `MaybeApplied` the area may be claimed and not yet taken
    /// over: try again.
    pub async fn take_over(&self, area: Area, owner: PresentOwner) -> Result<Claim, OwnedError> {
        self.make_area(area).await?;
        match self.make_claim(area, owner.epoch).await {
            Err(VolumeError::AlreadyExists { .. }) if !area.counts_claims() => {}
            Err(VolumeError::AlreadyExists { .. }) => return Err(OwnedError::Stale),
            outcome => outcome.map_err(OwnedError::NotApplied)?,
        }
        self.take(area, owner).await
    }

    /// Claims the next number of `area` for `broker` and takes the area over. The number is
    /// durable when it is returned. In a broker's own area the number is the instance, and
    /// `instance` is `None`.
    ///
    /// # Errors
    /// `Stale` when others claim again and again; `NotApplied` and `MaybeApplied`: try again.
    pub async fn claim_next(
        &self,
        area: Area,
        broker: BrokerId,
        instance: Option<u64>,
    ) -> Result<Claim, OwnedError> {
        self.make_area(area).await?;
        let mut highest = self.highest_claim(area).await?;
        for _ in 0..CLAIM_TRIES {
            let number = highest.saturating_add(1);
            let owner = PresentOwner {
                epoch: OwnerEpoch::single(number),
                broker,
                instance: instance.unwrap_or(number),
            };
            match self.make_claim(area, owner.epoch).await {
                Err(VolumeError::AlreadyExists { .. }) => highest = number,
                Err(error) => return Err(OwnedError::NotApplied(error)),
                Ok(()) => match self.take(area, owner).await {
                    // This listing is fresh, for it comes after an own create.
                    Err(OwnedError::Stale) => {
                        highest = number.max(self.highest_claim(area).await?);
                    }
                    outcome => return outcome,
                },
            }
        }
        Err(OwnedError::Stale)
    }

    async fn make_area(&self, area: Area) -> Result<(), OwnedError> {
        let made = self.volume().create_dir_all(&area.dir()).await;
        made.map_err(OwnedError::NotApplied)
    }

    async fn highest_claim(&self, area: Area) -> Result<u64, OwnedError> {
        let names = self.volume().list(&area.dir()).await;
        let names = names.map_err(OwnedError::NotApplied)?;
        Ok(claims(&names)
            .map(|(_, epoch)| epoch.instance)
            .max()
            .unwrap_or(0))
    }

    /// Step 1: `own-<epoch>`, exclusively; durable where the number itself is what counts.
    async fn make_claim(&self, area: Area, epoch: OwnerEpoch) -> Result<(), VolumeError> {
        let name = format!("own-{}", area.epoch_text(epoch));
        let file = self.volume().create_new(&area.dir().join(&name)).await?;
        if area.counts_claims() {
            file.sync_data().await?;
            self.sync_dir(&area.dir()).await?;
        }
        Ok(())
    }

    /// Steps 2 to 6. The claim exists.
    async fn take(&self, area: Area, owner: PresentOwner) -> Result<Claim, OwnedError> {
        let claim = Claim::new(self.clone(), area, owner);
        let (ticket, file) = claim.new_ticket().await?;
        let current = owner.encode(area).map_err(|error| OwnedError::Damaged {
            path: current_path(area).to_string(),
            why: error.to_string(),
        })?;
        let wrote = file.write_at(0, &[current]).await;
        let swept = match wrote {
            Ok(()) => self.give_way_or_sweep(&claim, &ticket).await,
            Err(error) => Err(OwnedError::NotApplied(error)),
        };
        let mut names = match swept {
            Ok(names) => names,
            Err(error) => {
                claim.discard(&ticket).await;
                return Err(error);
            }
        };
        match self
            .volume()
            .rename(&ticket.path, &current_path(area))
            .await
        {
            Ok(()) => {}
            // A higher taker swept the ticket.
            Err(VolumeError::NotFound { .. }) => return Err(OwnedError::Stale),
            Err(error) => return Err(claim.rename_failed(&ticket, error).await),
        }
        if !planted(Fault::NoSecondSweep) {
            names = self.names_in(&claim).await?;
            if self.sweep(&claim, &names, None).await? {
                // What was swept may have become something else before.
                names = self.names_in(&claim).await?;
            }
            claim.note_condemned(&names).await?;
        }
        self.remove_lower_claims(&claim, &names).await;
        Ok(claim)
    }

    /// Steps 3 and 4: gives up before a higher claim, and unlinks lower tickets.
    async fn give_way_or_sweep(
        &self,
        claim: &Claim,
        own: &Ticket,
    ) -> Result<Vec<DirEntry>, OwnedError> {
        let names = self.names_in(claim).await?;
        if claims(&names).any(|(_, epoch)| epoch > claim.epoch()) {
            return Err(OwnedError::Stale);
        }
        self.sweep(claim, &names, Some(own)).await?;
        Ok(names)
    }

    /// The area's names. Fresh, for it follows an own create (step 3) or rename (step 6) there.
    async fn names_in(&self, claim: &Claim) -> Result<Vec<DirEntry>, OwnedError> {
        let names = self.volume().list(&claim.area().dir()).await;
        names.map_err(OwnedError::NotApplied)
    }

    /// Unlinks every ticket of a lower epoch, and what an earlier attempt of this epoch left.
    /// Whether there was any.
    async fn sweep(
        &self,
        claim: &Claim,
        names: &[DirEntry],
        own: Option<&Ticket>,
    ) -> Result<bool, OwnedError> {
        let mut found = false;
        for entry in names {
            let lower = ticket_epoch(&entry.name).is_some_and(|epoch| epoch <= claim.epoch());
            if lower && own.is_none_or(|own| own.name != entry.name) {
                found = true;
                let path = claim.area().dir().join(&entry.name);
                let removed = remove_if_there(self.volume(), &path).await;
                removed.map_err(OwnedError::NotApplied)?;
            }
        }
        Ok(found)
    }

    /// Lower claims decide nothing any more. Leaving some costs a longer listing only.
    async fn remove_lower_claims(&self, claim: &Claim, names: &[DirEntry]) {
        let dir = claim.area().dir();
        for (name, epoch) in claims(names) {
            if epoch < claim.epoch()
                && let Err(error) = remove_if_there(self.volume(), &dir.join(name)).await
            {
                tracing::debug!(%error, "an old claim stays");
            }
        }
    }
}

fn claims(names: &[DirEntry]) -> impl Iterator<Item = (&str, OwnerEpoch)> {
    names
        .iter()
        .filter_map(|entry| Some((entry.name.as_str(), claim_epoch(&entry.name)?)))
}
