//! What a block may hold, as far as its hosts can know.
//!
//! For each block the model keeps the writes that a read might see, from their submission on, each
//! with two moments: when its fate was known (it was answered, or nothing can perform it any more),
//! and when it was certainly overwritten. A read may see what was not certainly overwritten
//! when it was submitted. Answers narrow this down:
//!
//! - once a write is answered, the block holds it or a write that overlapped it in time;
//! - once a read has seen a write, the same holds for that write;
//! - after a power loss it holds what it might have held when the last flush that succeeded was
//!   submitted, or anything newer.

use super::content::Found;
use std::collections::BTreeSet;

/// A moment of the model: each thing that happens has one of its own.
pub(super) type Moment = u64;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Answered with success; with `durable` it cannot be lost either.
    Applied { durable: bool },
    /// Answered with an error of the device: some of it may be there.
    Perhaps,
    /// Refused: none of it may be there.
    Never,
    /// Its connection was lost. It may still be performed, until nothing is left of this link.
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
    /// The link that may still perform it, although nobody waits for the answer.
    lost_on: Option<usize>,
}

impl Record {
    /// Whether it was performed after `moment`, for all that is known.
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
    /// In the target's memory: gone with its process.
    volatile: bool,
    /// When contents were last lost. What was asked before says nothing about what is there now.
    lost_at: Moment,
}

/// A block: namespace by its index, and logical block.
pub(super) type Place = (usize, usize);

/// See the module.
#[derive(Debug)]
pub(super) struct Model {
    now: Moment,
    spaces: Vec<Space>,
    /// When the requests that are in flight were submitted.
    in_flight: BTreeSet<Moment>,
}

impl Model {
    /// `spaces`: of each namespace, its blocks and whether it is gone with the target's process.
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

    /// A request is submitted.
    pub(super) fn begin(&mut self) -> Moment {
        let moment = self.tick();
        self.in_flight.insert(moment);
        moment
    }

    /// Nothing of a request is left.
    pub(super) fn end(&mut self, begun: Moment) {
        self.in_flight.remove(&begun);
    }

    /// A request that has just begun writes this to a block.
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

    /// How a write to a block ended.
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

    /// A request that was submitted at `begun` has seen this in a block.
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
        // What was there when the contents were last lost is all the disk has of that time.
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

    /// Whether a read that was submitted at `begun` can only have seen this.
    pub(super) fn is_certain(&self, (space, block): Place, found: Found, begun: Moment) -> bool {
        let records = self.spaces[space].blocks[block].iter();
        records.filter(|record| record.is_visible_since(begun)).all(|record| record.found == found)
    }

    /// What a block may hold.
    pub(super) fn possible(&self, (space, block): Place) -> Vec<Found> {
        let records = self.spaces[space].blocks[block].iter();
        records.filter(|record| record.gone.is_none()).map(|record| record.found).collect()
    }

    /// A flush that was submitted at `begun` has succeeded.
    pub(super) fn flushed(&mut self, space: usize, begun: Moment) {
        for record in self.spaces[space].blocks.iter_mut().flatten() {
            record.survives &= record.is_visible_since(begun);
        }
    }

    /// Nothing is left of a link: what was lost on it happens now or never.
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

    /// The target's process is gone, and with `power` the power of its disks.
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

/// Zeroes that nobody has written.
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

/// Drops what no request in flight, the oldest submitted at `oldest`, and no power loss can bring
/// back.
fn forget(records: &mut Vec<Record>, oldest: Moment) {
    records.retain(|record| {
        record.survives || record.ended.is_none() || record.is_visible_since(oldest)
    });
}

/// The model contradicts itself if a block can hold nothing at all.
fn check(records: &[Record], place: Place) -> Result<(), String> {
    match records.iter().any(|record| record.gone.is_none()) {
        true => Ok(()),
        false => Err(format!("{place:?}: answers contradict each other: {records:#?}")),
    }
}
