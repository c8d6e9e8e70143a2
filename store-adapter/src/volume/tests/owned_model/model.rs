//! The steps of the owned-file primitive as a pure machine, small enough to search whole.
//!
//! It has the steps that one owner can see of another, in the order of the real code; the tests
//! beside it run both by the same schedules and compare every step.

use std::collections::HashSet;

use crate::volume::memory::StepOp;

/// Owners at most.
pub(super) const OWNERS: usize = 3;
/// Tickets of one owner at most.
const SERIALS: usize = 8;

/// What the search is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) owners: usize,
    /// Writes of each owner, at most 2.
    pub(super) writes: u8,
    /// How many renames may be answered by an error and executed later, or never.
    pub(super) late: u8,
    pub(super) second_sweep: bool,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// An owner does its next step.
    Go(usize),
    /// An owner's rename is answered by an error, and waits on the file server.
    Late(usize),
    /// The file server executes the first rename that waits.
    Execute,
}

/// Where an owner is: the step that it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum At {
    Claim,
    Ticket,
    List,
    /// Unlinks the tickets that the listing showed, first or second time.
    Sweep {
        again: bool,
    },
    GiveWay,
    RenameCurrent,
    ListAgain,
    /// Once more, because something was swept.
    LookAgain,
    OldClaims,
    Open,
    WriteTicket,
    Check,
    RefuseStale,
    RenameTarget,
    /// The rename had no source: whose is the area?
    CheckAgain,
    /// Unlinks the ticket of a rename that failed.
    Undo {
        taking: bool,
    },
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    at: At,
    /// Tickets made so far; the present one is the last.
    serials: usize,
    /// From the last listing, what is not handled yet.
    claims_seen: u8,
    tickets_seen: u32,
    known: u8,
    writes_left: u8,
}

/// The whole world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Model {
    owners: [Owner; OWNERS],
    claims: u8,
    tickets: u32,
    content: [u8; OWNERS * SERIALS],
    current: Option<usize>,
    pub(super) target: u8,
    pub(super) acknowledged: u8,
    /// Tickets whose renames wait on the server, the oldest first, and whether over the target.
    waiting: [Option<(usize, bool)>; 2],
    late_left: u8,
}

/// The bit of an owner's write in a target: 2 for each owner.
fn bit(owner: usize, write: u8) -> u8 {
    1 << (2 * owner + usize::from(write))
}

impl Model {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let owner = |index| Owner {
            at: if index < bounds.owners {
                At::Claim
            } else {
                At::Done
            },
            serials: 0,
            claims_seen: 0,
            tickets_seen: 0,
            known: 0,
            writes_left: bounds.writes,
        };
        Self {
            owners: std::array::from_fn(owner),
            claims: 0,
            tickets: 0,
            content: [0; OWNERS * SERIALS],
            current: None,
            target: 0,
            acknowledged: 0,
            waiting: [None; 2],
            late_left: bounds.late,
        }
    }

    pub(super) fn nothing_is_lost(&self) -> bool {
        self.acknowledged & !self.target == 0
    }

    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (index, owner) in self.owners.iter().enumerate() {
            if owner.at == At::Done {
                continue;
            }
            choices.push(Choice::Go(index));
            let renames = matches!(owner.at, At::RenameCurrent | At::RenameTarget);
            if renames && self.late_left > 0 {
                choices.push(Choice::Late(index));
            }
        }
        if self.waiting[0].is_some() {
            choices.push(Choice::Execute);
        }
        choices
    }

    fn ticket(&self, index: usize) -> usize {
        index * SERIALS + self.owners[index].serials - 1
    }

    /// The step that an owner does next, with the names in it.
    pub(super) fn next(&self, index: usize) -> Option<(StepOp, String)> {
        let owner = &self.owners[index];
        let own_ticket = || ticket_name(self.ticket(index));
        let step = match owner.at {
            At::Done => return None,
            At::Claim => (StepOp::CreateNew, format!("own-1.{}", index + 1)),
            At::Ticket | At::WriteTicket => (
                StepOp::CreateNew,
                ticket_name(index * SERIALS + owner.serials),
            ),
            At::List | At::ListAgain | At::LookAgain => (StepOp::List, "txn-slot-0".to_owned()),
            At::Sweep { .. } => {
                let first = owner.tickets_seen.trailing_zeros() as usize;
                (StepOp::Remove, ticket_name(first))
            }
            At::OldClaims => {
                let first = owner.claims_seen.trailing_zeros() + 1;
                (StepOp::Remove, format!("own-1.{first}"))
            }
            At::GiveWay | At::RefuseStale | At::Undo { .. } => (StepOp::Remove, own_ticket()),
            At::RenameCurrent | At::RenameTarget => (StepOp::Rename, own_ticket()),
            At::Open => (StepOp::Open, "slot-0.json".to_owned()),
            At::Check | At::CheckAgain => (StepOp::Read, "current.json".to_owned()),
        };
        Some(step)
    }

    fn remove_ticket(&mut self, ticket: usize) {
        self.tickets &= !(1 << ticket);
        self.content[ticket] = 0;
    }

    /// Moves a ticket over `current.json` or the target, if it is there.
    fn rename(&mut self, ticket: usize, over_target: bool) -> bool {
        if self.tickets & (1 << ticket) == 0 {
            return false;
        }
        if over_target {
            self.target = self.content[ticket];
        } else {
            self.current = Some(ticket / SERIALS);
        }
        self.remove_ticket(ticket);
        true
    }

    pub(super) fn apply(&mut self, bounds: &Bounds, choice: Choice) {
        match choice {
            Choice::Go(index) => self.go(bounds, index),
            Choice::Late(index) => {
                let over_target = self.owners[index].at == At::RenameTarget;
                let free = usize::from(self.waiting[0].is_some());
                self.waiting[free] = Some((self.ticket(index), over_target));
                self.late_left -= 1;
                self.owners[index].at = At::Undo {
                    taking: !over_target,
                };
            }
            Choice::Execute => {
                if let [Some((ticket, over_target)), second] = self.waiting {
                    self.waiting = [second, None];
                    self.rename(ticket, over_target);
                }
            }
        }
    }

    fn go(&mut self, bounds: &Bounds, index: usize) {
        let mut owner = self.owners[index];
        owner.at = match owner.at {
            At::Claim
            | At::Ticket
            | At::List
            | At::Sweep { .. }
            | At::GiveWay
            | At::RenameCurrent
            | At::ListAgain
            | At::LookAgain
            | At::OldClaims => self.take_over(bounds, index, &mut owner),
            _ => self.read_or_write(bounds, index, &mut owner),
        };
        self.owners[index] = owner;
    }

    fn make_ticket(&mut self, index: usize, owner: &mut Owner, content: u8) {
        let ticket = index * SERIALS + owner.serials;
        owner.serials += 1;
        self.tickets |= 1 << ticket;
        self.content[ticket] = content;
    }

    fn take_over(&mut self, bounds: &Bounds, index: usize, owner: &mut Owner) -> At {
        match owner.at {
            At::Ticket => {
                self.make_ticket(index, owner, 0);
                At::List
            }
            at @ (At::List | At::ListAgain) => {
                let own = self.ticket(index);
                let lower = (1_u32 << ((index + 1) * SERIALS)) - 1;
                owner.tickets_seen = self.tickets & lower & !(1 << own);
                owner.claims_seen = self.claims & ((1 << index) - 1);
                let higher = self.claims >> (index + 1) != 0;
                if higher && at == At::List {
                    At::GiveWay
                } else {
                    after_sweep(owner, at == At::ListAgain)
                }
            }
            At::Sweep { again } => {
                self.remove_ticket(owner.tickets_seen.trailing_zeros() as usize);
                owner.tickets_seen &= owner.tickets_seen - 1;
                match after_sweep(owner, again) {
                    At::Sweep { again } => At::Sweep { again },
                    _ if again => At::LookAgain,
                    then => then,
                }
            }
            At::LookAgain => {
                owner.claims_seen = self.claims & ((1 << index) - 1);
                after_claims(owner)
            }
            At::GiveWay => {
                self.remove_ticket(self.ticket(index));
                At::Done
            }
            At::RenameCurrent => match self.rename(self.ticket(index), false) {
                false => At::Done,
                true if bounds.second_sweep => At::ListAgain,
                true => after_claims(owner),
            },
            At::OldClaims => {
                let first = owner.claims_seen & owner.claims_seen.wrapping_neg();
                self.claims &= !first;
                owner.claims_seen &= !first;
                after_claims(owner)
            }
            // A claim.
            _ => {
                self.claims |= 1 << index;
                At::Ticket
            }
        }
    }

    fn read_or_write(&mut self, bounds: &Bounds, index: usize, owner: &mut Owner) -> At {
        let next_write = |owner: &Owner| match owner.writes_left {
            0 => At::Done,
            _ => At::WriteTicket,
        };
        let write = || bit(index, bounds.writes - owner.writes_left);
        match owner.at {
            At::Open => {
                owner.known = self.target;
                next_write(owner)
            }
            At::WriteTicket => {
                owner.known |= write();
                self.make_ticket(index, owner, owner.known);
                At::Check
            }
            At::Check if self.current == Some(index) => At::RenameTarget,
            At::Check => At::RefuseStale,
            At::RefuseStale => {
                self.remove_ticket(self.ticket(index));
                At::Done
            }
            At::RenameTarget if self.rename(self.ticket(index), true) => {
                self.acknowledged |= write();
                owner.writes_left -= 1;
                next_write(owner)
            }
            At::RenameTarget => At::CheckAgain,
            At::CheckAgain if self.current == Some(index) => At::Undo { taking: false },
            At::Undo { taking } => {
                self.remove_ticket(self.ticket(index));
                owner.writes_left -= u8::from(!taking);
                if taking { At::Claim } else { At::Open }
            }
            // The area has another owner.
            _ => At::Done,
        }
    }
}

fn after_sweep(owner: &Owner, again: bool) -> At {
    match (owner.tickets_seen, again) {
        (0, true) => after_claims(owner),
        (0, false) => At::RenameCurrent,
        _ => At::Sweep { again },
    }
}

fn after_claims(owner: &Owner) -> At {
    if owner.claims_seen == 0 {
        At::Open
    } else {
        At::OldClaims
    }
}

pub(super) fn ticket_name(ticket: usize) -> String {
    let owner = ticket / SERIALS;
    let nonce = ((owner as u64) << 32) + (ticket % SERIALS) as u64;
    format!("t-1.{}-{nonce:016x}", owner + 1)
}

/// What a search saw.
#[derive(Debug, Default)]
pub(super) struct Searched {
    pub(super) states: usize,
    /// The most writes that were acknowledged in one schedule.
    pub(super) most_acknowledged: u32,
}

/// Searches every schedule; or the first state found in which an acknowledged write is lost.
pub(super) fn search(bounds: &Bounds) -> Result<Searched, Box<Model>> {
    let first = Model::new(bounds);
    let mut visited = HashSet::from([first]);
    let mut open = vec![first];
    let mut searched = Searched::default();
    while let Some(model) = open.pop() {
        let acknowledged = model.acknowledged.count_ones();
        searched.most_acknowledged = searched.most_acknowledged.max(acknowledged);
        for choice in model.choices() {
            let mut next = model;
            next.apply(bounds, choice);
            if !next.nothing_is_lost() {
                return Err(Box::new(next));
            }
            if visited.insert(next) {
                open.push(next);
            }
        }
    }
    searched.states = visited.len();
    Ok(searched)
}
