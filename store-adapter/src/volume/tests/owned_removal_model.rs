//! The removal of a target whose name may be used again, as a pure machine, searched whole: every
//! interleaving of owners that take over, find nothing, remove the target, and write it anew, with
//! unlinkings and renames that a file server executes late. Nothing that was acknowledged is lost,
//! and whoever takes over reads it; leaving out any part of the rule loses something.

use std::collections::HashSet;

/// Owners at most.
const OWNERS: usize = 3;
/// Tickets of one owner at most.
const SERIALS: usize = 16;
/// Names that the target may have.
const NAMES: usize = 6;

/// What the search is over.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    owners: usize,
    /// How often an owner deletes what it wrote, and begins anew.
    deletes: u8,
    /// How many steps may be answered by an error and executed later, or never.
    late: u8,
    rule: Rule,
}

/// The parts of the rule.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// An intent is made before anything is unlinked.
    announces: bool,
    /// Who takes over looks once more when it has swept something.
    looks_again: bool,
    /// What is condemned is recorded, so that it stays so.
    records: bool,
}

const WHOLE: Rule = Rule {
    announces: true,
    looks_again: true,
    records: true,
};

#[derive(Debug, Clone, Copy)]
enum Choice {
    /// An owner does its next step.
    Go(usize),
    /// An owner's step is answered by an error, and waits on the file server.
    Late(usize),
    /// The file server executes the first step that waits.
    Execute,
}

/// What a ticket becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Intent,
    Record,
    Write,
    Delete,
}

/// The steps of making it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Ticket,
    Check,
    Refuse,
    Rename,
    CheckAgain,
    Undo,
}

/// What an owner does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Claim,
    Ticket,
    List,
    Sweep { again: bool },
    GiveWay,
    RenameCurrent,
    ListAgain,
    LookAgain,
    Open,
    Put(Kind, Step),
    Unlink,
    DropIntent,
    Done,
}

/// What waits on the file server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Late {
    Rename(usize, Kind, usize),
    Unlink(usize),
    DropIntent(usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    at: At,
    serials: usize,
    tickets_seen: u64,
    /// Names that it knows to be condemned, and those that it has yet to condemn.
    condemned: u8,
    doubtful: u8,
    /// The name that it uses, and what it knows of the target.
    name: usize,
    known: u8,
    deletes_left: u8,
    writes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Model {
    owners: [Owner; OWNERS],
    claims: u8,
    current: Option<usize>,
    tickets: u64,
    content: [u8; OWNERS * SERIALS],
    intents: [u8; OWNERS],
    records: u8,
    targets: [Option<u8>; NAMES],
    acknowledged: u8,
    waiting: [Option<Late>; 2],
    late_left: u8,
    /// The present owner read less than was acknowledged.
    misread: bool,
}

fn lowest(mask: u8) -> usize {
    mask.trailing_zeros() as usize
}

impl Model {
    fn new(bounds: &Bounds) -> Self {
        let owner = |index| Owner {
            at: if index < bounds.owners {
                At::Claim
            } else {
                At::Done
            },
            serials: 0,
            tickets_seen: 0,
            condemned: 0,
            doubtful: 0,
            name: 0,
            known: 0,
            deletes_left: bounds.deletes,
            writes: 0,
        };
        Self {
            owners: std::array::from_fn(owner),
            claims: 0,
            current: None,
            tickets: 0,
            content: [0; OWNERS * SERIALS],
            intents: [0; OWNERS],
            records: 0,
            // Of a group that was deleted.
            targets: [Some(0), None, None, None, None, None],
            acknowledged: 0,
            waiting: [None; 2],
            late_left: bounds.late,
            misread: false,
        }
    }

    fn nothing_is_lost(&self) -> bool {
        let targets = self.targets.iter().flatten();
        let there = targets.fold(0, |all, content| all | content);
        self.acknowledged & !there == 0 && !self.misread
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (index, owner) in self.owners.iter().enumerate() {
            if owner.at == At::Done {
                continue;
            }
            choices.push(Choice::Go(index));
            let may_be_late = matches!(
                owner.at,
                At::Put(_, Step::Rename) | At::Unlink | At::DropIntent
            );
            if may_be_late && self.late_left > 0 {
                choices.push(Choice::Late(index));
            }
        }
        if self.waiting[0].is_some() {
            choices.push(Choice::Execute);
        }
        choices
    }

    fn apply(&mut self, bounds: &Bounds, choice: Choice) {
        match choice {
            Choice::Go(index) => {
                let mut owner = self.owners[index];
                owner.at = self.go(bounds, index, &mut owner);
                self.owners[index] = owner;
            }
            Choice::Late(index) => self.late(bounds, index),
            Choice::Execute => {
                if let [Some(late), second] = self.waiting {
                    self.waiting = [second, None];
                    match late {
                        Late::Rename(ticket, kind, name) => {
                            self.rename(ticket, kind, name);
                        }
                        Late::Unlink(name) => self.targets[name] = None,
                        Late::DropIntent(index, name) => self.intents[index] &= !(1 << name),
                    }
                }
            }
        }
    }

    fn late(&mut self, bounds: &Bounds, index: usize) {
        let mut owner = self.owners[index];
        let (late, at) = match owner.at {
            At::Put(kind, _) => {
                let late = Late::Rename(ticket_of(index, &owner), kind, put_name(&owner, kind));
                (late, At::Put(kind, Step::Undo))
            }
            At::Unlink => (Late::Unlink(owner.name), doubt(bounds, &mut owner)),
            _ => {
                let late = Late::DropIntent(index, owner.name);
                (late, doubt(bounds, &mut owner))
            }
        };
        self.waiting[usize::from(self.waiting[0].is_some())] = Some(late);
        self.late_left -= 1;
        owner.at = at;
        self.owners[index] = owner;
    }

    fn make_ticket(&mut self, index: usize, owner: &mut Owner, content: u8) {
        owner.serials += 1;
        let ticket = ticket_of(index, owner);
        self.tickets |= 1 << ticket;
        self.content[ticket] = content;
    }

    /// Whether the ticket was there.
    fn take_ticket(&mut self, ticket: usize) -> bool {
        let there = self.tickets & (1 << ticket) != 0;
        self.tickets &= !(1 << ticket);
        there
    }

    fn rename(&mut self, ticket: usize, kind: Kind, name: usize) -> bool {
        let content = self.content[ticket];
        if !self.take_ticket(ticket) {
            return false;
        }
        match kind {
            Kind::Intent => self.intents[ticket / SERIALS] |= 1 << name,
            Kind::Record => self.records |= 1 << name,
            Kind::Write | Kind::Delete => self.targets[name] = Some(content),
        }
        true
    }

    fn go(&mut self, bounds: &Bounds, index: usize, owner: &mut Owner) -> At {
        match owner.at {
            At::Claim => {
                self.claims |= 1 << index;
                At::Ticket
            }
            At::Ticket => {
                self.make_ticket(index, owner, 0);
                At::List
            }
            At::List | At::ListAgain => {
                let lower = (1_u64 << ((index + 1) * SERIALS)) - 1;
                let own = 1 << ticket_of(index, owner);
                owner.tickets_seen = self.tickets & lower & !own;
                if owner.at == At::ListAgain {
                    self.look(bounds, owner);
                    return Self::swept(bounds, owner, true, false);
                }
                if self.claims >> (index + 1) != 0 {
                    return At::GiveWay;
                }
                Self::swept(bounds, owner, false, false)
            }
            At::Sweep { again } => {
                self.take_ticket(owner.tickets_seen.trailing_zeros() as usize);
                owner.tickets_seen &= owner.tickets_seen - 1;
                Self::swept(bounds, owner, again, true)
            }
            At::GiveWay => {
                self.take_ticket(ticket_of(index, owner));
                At::Done
            }
            At::RenameCurrent => {
                if !self.take_ticket(ticket_of(index, owner)) {
                    return At::Done;
                }
                self.current = Some(index);
                At::ListAgain
            }
            At::LookAgain => {
                self.look(bounds, owner);
                begin(owner)
            }
            At::Open => {
                owner.known = self.targets[owner.name].unwrap_or(0);
                // Who has been succeeded may read what it likes: it writes nothing.
                let is_current = self.current == Some(index);
                self.misread |= is_current && self.acknowledged & !owner.known != 0;
                match self.targets[owner.name] {
                    Some(0) => removal(bounds),
                    _ => At::Put(Kind::Write, Step::Ticket),
                }
            }
            At::Put(kind, step) => self.put(bounds, index, owner, kind, step),
            At::Unlink => {
                self.targets[owner.name] = None;
                if bounds.rule.announces {
                    At::DropIntent
                } else {
                    At::Put(Kind::Write, Step::Ticket)
                }
            }
            At::DropIntent => {
                self.intents[index] &= !(1 << owner.name);
                At::Put(Kind::Write, Step::Ticket)
            }
            At::Done => At::Done,
        }
    }

    /// Notes what is condemned and announced.
    fn look(&self, bounds: &Bounds, owner: &mut Owner) {
        owner.condemned = self.records;
        let announced = self.intents.iter().fold(0, |all, names| all | names);
        owner.doubtful = announced & !self.records;
        if !bounds.rule.records {
            owner.condemned |= owner.doubtful;
            owner.doubtful = 0;
        }
    }

    fn swept(bounds: &Bounds, owner: &mut Owner, again: bool, some: bool) -> At {
        match (owner.tickets_seen, again) {
            (0, false) => At::RenameCurrent,
            (0, true) if some && bounds.rule.looks_again => At::LookAgain,
            (0, true) => begin(owner),
            _ => At::Sweep { again },
        }
    }

    fn put(
        &mut self,
        bounds: &Bounds,
        index: usize,
        owner: &mut Owner,
        kind: Kind,
        step: Step,
    ) -> At {
        let is_current = self.current == Some(index);
        match step {
            Step::Ticket => {
                if kind == Kind::Delete {
                    // From here on it may be gone.
                    self.acknowledged = 0;
                }
                let content = match kind {
                    Kind::Write => owner.known | written(index, owner),
                    _ => 0,
                };
                self.make_ticket(index, owner, content);
                At::Put(kind, Step::Check)
            }
            Step::Check if is_current => At::Put(kind, Step::Rename),
            Step::Check => At::Put(kind, Step::Refuse),
            Step::Refuse => {
                self.take_ticket(ticket_of(index, owner));
                At::Done
            }
            Step::Rename => {
                let name = put_name(owner, kind);
                if self.rename(ticket_of(index, owner), kind, name) {
                    self.made(bounds, index, owner, kind)
                } else {
                    At::Put(kind, Step::CheckAgain)
                }
            }
            Step::CheckAgain if is_current => At::Put(kind, Step::Undo),
            Step::CheckAgain => At::Done,
            Step::Undo => {
                let certainly_not = self.take_ticket(ticket_of(index, owner));
                match kind {
                    Kind::Record => At::Put(kind, Step::Ticket),
                    Kind::Intent if certainly_not => At::Put(Kind::Write, Step::Ticket),
                    Kind::Intent => doubt(bounds, owner),
                    Kind::Write | Kind::Delete => At::Open,
                }
            }
        }
    }

    /// A ticket became what it was for.
    fn made(&mut self, bounds: &Bounds, index: usize, owner: &mut Owner, kind: Kind) -> At {
        match kind {
            Kind::Intent => At::Unlink,
            Kind::Record => {
                let name = put_name(owner, kind);
                owner.doubtful &= !(1 << name);
                owner.condemned |= 1 << name;
                begin(owner)
            }
            Kind::Write => {
                self.acknowledged |= written(index, owner);
                owner.known |= written(index, owner);
                owner.writes += 1;
                if owner.deletes_left == 0 {
                    return At::Done;
                }
                owner.deletes_left -= 1;
                At::Put(Kind::Delete, Step::Ticket)
            }
            Kind::Delete => {
                owner.known = 0;
                removal(bounds)
            }
        }
    }
}

fn ticket_of(index: usize, owner: &Owner) -> usize {
    index * SERIALS + owner.serials - 1
}

/// The bit of an owner's next write.
fn written(index: usize, owner: &Owner) -> u8 {
    1 << (2 * index + usize::from(owner.writes))
}

/// The name that a ticket of this kind is about.
fn put_name(owner: &Owner, kind: Kind) -> usize {
    match kind {
        Kind::Record => lowest(owner.doubtful),
        _ => owner.name,
    }
}

fn removal(bounds: &Bounds) -> At {
    if bounds.rule.announces {
        At::Put(Kind::Intent, Step::Ticket)
    } else {
        At::Unlink
    }
}

/// The end of a removal is not known: its name is condemned before the next is used.
fn doubt(bounds: &Bounds, owner: &mut Owner) -> At {
    if bounds.rule.records {
        owner.doubtful |= 1 << owner.name;
    } else {
        owner.condemned |= 1 << owner.name;
    }
    begin(owner)
}

/// Condemns what is to be, and looks at the first name that is not.
fn begin(owner: &mut Owner) -> At {
    if owner.doubtful != 0 {
        return At::Put(Kind::Record, Step::Ticket);
    }
    owner.name = lowest(!owner.condemned);
    At::Open
}

/// Searches every schedule; how many states there are, or the first that is bad.
fn search(bounds: &Bounds) -> Result<usize, Box<Model>> {
    let first = Model::new(bounds);
    let mut visited = HashSet::from([first]);
    let mut open = vec![first];
    while let Some(model) = open.pop() {
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
    Ok(visited.len())
}

fn bounds(owners: usize, deletes: u8, late: u8) -> Bounds {
    Bounds {
        owners,
        deletes,
        late,
        rule: WHOLE,
    }
}

fn loses_nothing(bounds: Bounds) {
    let states = search(&bounds).unwrap_or_else(|lost| panic!("{bounds:?} lost: {lost:?}"));
    println!("{bounds:?}: {states} states");
    assert!(states > 1000, "{states}");
}

#[test]
fn removals_lose_nothing() {
    loses_nothing(bounds(2, 1, 0));
    loses_nothing(bounds(3, 0, 0));
}

#[test]
fn removals_that_are_executed_late_lose_nothing() {
    loses_nothing(bounds(2, 0, 2));
    loses_nothing(bounds(2, 1, 1));
}

#[test]
fn every_part_of_the_rule_is_needed() {
    let without = [
        Rule {
            announces: false,
            ..WHOLE
        },
        Rule {
            looks_again: false,
            ..WHOLE
        },
        Rule {
            records: false,
            ..WHOLE
        },
    ];
    for rule in without {
        let found = [bounds(2, 0, 1), bounds(3, 0, 1)].iter().any(|bounds| {
            let bounds = Bounds { rule, ..*bounds };
            search(&bounds).is_err()
        });
        assert!(found, "{rule:?} is enough");
    }
}
