//! The contents that a block may have, as far as its hosts can know.
//!
//! For each block the model keeps the writes that a read might see, from their submission on. Each
//! has two moments: when its fate was known (it was answered, or can no longer be performed), and
//! when it was certainly overwritten. A read may return a write that was not certainly overwritten
//! when the read was submitted. Answers narrow this down:
//!
//! - after a write is answered, the block holds it or a write that overlapped it in time;
//! - after a read has returned a write, the same holds for that write;
//! - after a power loss the block holds what it might have held when the last successful flush was
//!   submitted, or anything newer.

use super::content::Found;
use std::collections::BTreeSet;

/// A moment in the model: each event has its own.
pub(super) type Moment = u64;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Answered successfully; with `durable` it cannot be lost any more.
    Applied { durable: bool },
    /// Answered with a device error: parts may have been written.
    Perhaps,
    /// Refused: nothing may have been written.
    Never,
    /// Its connection was lost. It may still be performed, as long as anything of this link is
    /// left.
    Lost { link: usize },
}

#[derive(Debug)]
struct Record {
    write: u64,
    found: Found,
    /// When its fate was known.
    ended: Option<Moment>,
    /// When it was certainly overwritten.
    gone: Option<Moment>,
    /// Whether the block may hold it after a power loss.
    survives: bool,
    /// The link that may still perform it, although no host waits for the answer.
    lost_on: Option<usize>,
}

impl Record {
    /// Whether it may have been performed after `moment`.
    fn overlaps(&self, moment: Moment) -> bool {
        self.ended.is_none_or(|ended| ended > moment)
    }

    fn is_visible_since(&self, moment: Moment) -> bool {
        self.gone.is_none_or(|gone| gone >= moment)
    }
}

#[derive(Debug)]
struct Space {
    blocks: Vec<Vec<Record>>,
    /// Whether it is in the target's memory, and is lost with its process.
    volatile: bool,
    /// When contents were last lost. Earlier requests say nothing about the current contents.
    lost_at: Moment,
}

/// A block: index of the namespace, and logical block.
pub(super) type Place = (usize, usize);

/// The model of all namespaces.
#[derive(Debug)]
pub(super) struct Model {
    now: Moment,
    spaces: Vec<Space>,
    /// Submission moments of the requests in flight.
    in_flight: BTreeSet<Moment>,
}

impl Model {
    /// `spaces`: for each namespace, its number of blocks and whether it is lost with the target's
    /// process.
    pub(super) fn new(spaces: &[(usize, bool)]) -> Model {
        let space = |(blocks, volatile)| Space {
            blocks: (0..blocks).map(|_| vec![zeroes(0)]).collect(),
            volatile,
            lost_at: 0,
        };
        let spaces = spaces.iter().copied().map(space).collect();
        Model { now: 0, spaces, in_flight: BTreeSet::new() }
    }

    /// A new moment.
    pub(super) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Starts a request.
    pub(super) fn begin(&mut self) -> Moment {
        let moment = self.tick();
        self.in_flight.insert(moment);
        moment
    }

    /// Ends a request of which nothing is left.
    pub(super) fn end(&mut self, begun: Moment) {
        self.in_flight.remove(&begun);
    }

    /// Records that a request which has just started writes this to a block.
    pub(super) fn write(&mut self, (space, block): Place, write: u64, found: Found) {
        self.spaces[space].blocks[block].push(Record {
            write,
            found,
            ended: None,
            gone: None,
            survives: true,
            lost_on: None,
        });
    }

    /// Records how a write to a block ended.
    pub(super) fn written(
        &mut self,
        place: Place,
        write: u64,
        begun: Moment,
        fate: Fate,
    ) -> Result<(), String> {
        let now = self.tick();
        let oldest = self.in_flight.first().copied().unwrap_or(now);
        let space = &mut self.spaces[place.0];
        let is_stale = begun < space.lost_at;
        let records = &mut space.blocks[place.1];
        if fate == Fate::Never {
            records.retain(|record| record.write != write);
            return Ok(());
        }
        if let Some(record) = records.iter_mut().find(|record| record.write == write) {
            match fate {
                Fate::Lost { link } if record.ended.is_none() => record.lost_on = Some(link),
                _ => _ = record.ended.get_or_insert(now),
            }
        }
        if let Fate::Applied { durable } = fate {
            let durable = durable && !space.volatile;
            for record in records.iter_mut() {
                let keeps = record.write == write || record.overlaps(begun);
                if !keeps && (durable || !is_stale) {
                    record.gone.get_or_insert(now);
                    record.survives &= !durable;
                }
            }
        }
        forget(records, oldest);
        check(records, place)
    }

    /// Records that a request submitted at `begun` has seen this in a block, and checks that it
    /// may.
    pub(super) fn seen(&mut self, place: Place, found: Found, begun: Moment) -> Result<(), String> {
        let now = self.tick();
        let space = &mut self.spaces[place.0];
        let (lost_at, is_stale) = (space.lost_at, begun < space.lost_at);
        let records = &mut space.blocks[place.1];
        let is_it = |record: &Record| record.found == found && record.is_visible_since(begun);
        if !records.iter().any(is_it) {
            return Err(format!(
                "namespace {} block {}: {found:?} was found, but since moment {begun} it can only \
                 hold one of {records:#?}",
                place.0 + 1,
                place.1
            ));
        }
        if is_stale {
            return Ok(());
        }
        // The disk has kept only the contents that were there when contents were last lost.
        let is_old = |record: &Record| record.ended.is_some_and(|ended| ended <= lost_at);
        let was_kept = records.iter().filter(|record| is_it(record)).all(is_old);
        for record in records.iter_mut() {
            if record.found == found {
                if let Found::Write(_) = found {
                    record.ended.get_or_insert(now);
                }
                continue;
            }
            if was_kept && is_old(record) {
                record.survives = false;
            }
            if !record.overlaps(begun) {
                record.gone.get_or_insert(now);
            }
        }
        check(records, place)
    }

    /// Whether a read that was submitted at `begun` can only have returned this.
    pub(super) fn is_certain(&self, (space, block): Place, found: Found, begun: Moment) -> bool {
        let records = self.spaces[space].blocks[block].iter();
        records.filter(|record| record.is_visible_since(begun)).all(|record| record.found == found)
    }

    /// The contents that a block may have.
    pub(super) fn possible(&self, (space, block): Place) -> Vec<Found> {
        let records = self.spaces[space].blocks[block].iter();
        records.filter(|record| record.gone.is_none()).map(|record| record.found).collect()
    }

    /// Records that a flush submitted at `begun` has succeeded.
    pub(super) fn flushed(&mut self, space: usize, begun: Moment) {
        for record in self.spaces[space].blocks.iter_mut().flatten() {
            record.survives &= record.is_visible_since(begun);
        }
    }

    /// Nothing is left of a link: its lost requests have been performed by now, or never will be.
    pub(super) fn link_gone(&mut self, link: usize) {
        let now = self.tick();
        for space in &mut self.spaces {
            for record in space.blocks.iter_mut().flatten() {
                if record.lost_on == Some(link) && record.ended.is_none() {
                    record.ended = Some(now);
                }
            }
        }
    }

    /// The target's process has died, with `power` also the power of its disks.
    pub(super) fn target_died(&mut self, power: bool) {
        let now = self.tick();
        for space in &mut self.spaces {
            let loses = power || space.volatile;
            for record in space.blocks.iter_mut().flatten() {
                record.ended.get_or_insert(now);
                if space.volatile || power && !record.survives {
                    record.gone.get_or_insert(now);
                    record.survives = false;
                } else if power {
                    record.gone = None;
                }
            }
            if loses {
                space.lost_at = now;
            }
            if space.volatile {
                space.blocks.iter_mut().for_each(|records| records.push(zeroes(now)));
            }
        }
    }
}

/// The initial zeroes.
fn zeroes(moment: Moment) -> Record {
    Record {
        write: 0,
        found: Found::Zeroes,
        ended: Some(moment),
        gone: None,
        survives: true,
        lost_on: None,
    }
}

/// Drops records that neither a request in flight, the oldest submitted at `oldest`, nor a power
/// loss can bring back.
fn forget(records: &mut Vec<Record>, oldest: Moment) {
    records.retain(|record| {
        record.survives || record.ended.is_none() || record.is_visible_since(oldest)
    });
}

/// Checks that a block can hold anything at all; otherwise answers contradict each other.
fn check(records: &[Record], place: Place) -> Result<(), String> {
    match records.iter().any(|record| record.gone.is_none()) {
        true => Ok(()),
        false => Err(format!("{place:?}: answers contradict each other: {records:#?}")),
    }
}
