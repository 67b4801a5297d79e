//! Chains of dependent reads, and their file maps.

use super::Checked;
use super::content::{CHAIN_BLOCK_BYTES, CHAIN_BLOCKS, Found};
use super::model::Moment;
use super::requests::{Pending, What};
use super::world::World;
use crate::rig::{assemble, function};
use bpfof_chain::Function;
use bpfof_host::{Extent, FileMapObject, FileVersion, PushdownCall, Request};
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{AdminCommand, Status, Upload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Id of a function in each association that follows pointers.
pub(super) const WALK: u32 = 7;
/// Id of a function in each association whose cost depends on its argument.
pub(super) const SPIN: u32 = 8;
/// Version of a chain that accepts any current map.
const ANY_VERSION: u64 = u64::MAX;
/// Maximum blocks that a chain visits.
const HOPS_MAX: u64 = 8;
/// Maximum answer: the number of blocks, and the write found in each.
pub(super) const ANSWER_MAX_BYTES: u32 = 8 + 8 * HOPS_MAX as u32;

/// Follows the pointers at the start of blocks, and answers with the writes that it found.
pub(in crate::tests) fn walk() -> Arc<Function> {
    const CODE: [(u8, u8, i16, i32); 28] = [
        (0x79, 0x12, 0, 0),               // r2 = ctx->data
        (0x79, 0x16, 16, 0),              // r6 = ctx->scratch
        (0x79, 0x23, 0, 0),               // r3 = the pointer
        (0x79, 0x25, 8, 0),               // r5 = the write
        (0x79, 0x67, 0, 0),               // r7 = blocks so far
        (0xbf, 0x78, 0, 0),               // r8 = r7
        (0x67, 0x08, 0, 3),               // r8 <<= 3
        (0x0f, 0x68, 0, 0),               // r8 += r6
        (0x7b, 0x58, 8, 0),               // scratch[1 + r7] = r5
        (0x07, 0x07, 0, 1),               // r7 += 1
        (0x7b, 0x76, 0, 0),               // scratch[0] = r7
        (0x15, 0x03, 8, 0),               // if r3 == 0 goto done
        (0x35, 0x07, 7, HOPS_MAX as i32), // if r7 >= HOPS_MAX goto done
        (0x7b, 0x31, 64, 0),              // ctx->next_offset[0] = r3
        (0xb7, 0x04, 0, 512),             // r4 = 512
        (0x63, 0x41, 192, 0),             // ctx->next_size[0] = r4
        (0xb7, 0x04, 0, 1),               // r4 = 1
        (0x63, 0x41, 48, 0),              // ctx->reads = r4
        (0xb7, 0x00, 0, 0),               // r0 = 0
        (0x95, 0x00, 0, 0),               // exit
        (0xbf, 0x78, 0, 0),               // done: r8 = r7
        (0x67, 0x08, 0, 3),               // r8 <<= 3
        (0x07, 0x08, 0, 8),               // r8 += 8
        (0x63, 0x81, 56, 0),              // ctx->out_len = r8
        (0xb7, 0x04, 0, 1),               // r4 = 1
        (0x63, 0x41, 52, 0),              // ctx->done = r4
        (0xb7, 0x00, 0, 0),               // r0 = 0
        (0x95, 0x00, 0, 0),               // exit
    ];
    function(WALK, "walk", &assemble(&CODE))
}

/// Loops as often as its argument says, then reads four blocks, endlessly.
pub(super) fn spin() -> Arc<Function> {
    const CODE: [(u8, u8, i16, i32); 18] = [
        (0x79, 0x16, 16, 0), // r6 = ctx->scratch
        (0x79, 0x63, 0, 0),  // r3 = rounds
        (0x07, 0x03, 0, -1), // again: r3 -= 1
        (0x65, 0x03, -2, 0), // if r3 s> 0 goto again
        (0xb7, 0x05, 0, 0),  // r5 = 0
        (0x7b, 0x51, 64, 0), // ctx->next_offset[0..4] = r5
        (0x7b, 0x51, 72, 0),
        (0x7b, 0x51, 80, 0),
        (0x7b, 0x51, 88, 0),
        (0xb7, 0x04, 0, 512), // r4 = 512
        (0x63, 0x41, 192, 0), // ctx->next_size[0..4] = r4
        (0x63, 0x41, 196, 0),
        (0x63, 0x41, 200, 0),
        (0x63, 0x41, 204, 0),
        (0xb7, 0x04, 0, 4),  // r4 = 4
        (0x63, 0x41, 48, 0), // ctx->reads = r4
        (0xb7, 0x00, 0, 0),  // r0 = 0
        (0x95, 0x00, 0, 0),  // exit
    ];
    function(SPIN, "spin", &assemble(&CODE))
}

/// The maps that an association has set, in order for each file.
#[derive(Debug, Default)]
pub(super) struct FileMaps {
    by_file: BTreeMap<u32, Vec<SetMap>>,
    last_version: u64,
}

/// A map that was set.
#[derive(Debug)]
struct SetMap {
    version: u64,
    /// The block of the namespace for each block of the file.
    blocks: Vec<usize>,
    ended: Option<Moment>,
}

/// A chain in flight.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) space: usize,
    pub(super) file: u32,
    pub(super) version: u64,
    pub(super) first: u64,
}

impl FileMaps {
    /// Versions that may have been in force at some time since `begun`; 0 for no map.
    fn in_force_since(&self, file: u32, begun: Moment) -> Vec<u64> {
        let sets = self.by_file.get(&file).map_or(&[][..], |sets| sets);
        let is_done = |set: &SetMap| set.ended.is_some_and(|ended| ended < begun);
        let from = sets.iter().rposition(is_done);
        let none = from.is_none().then_some(0);
        let some = sets[from.unwrap_or(0)..].iter().map(|set| set.version);
        none.into_iter().chain(some).collect()
    }

    /// The newest version that was set.
    fn newest(&self, file: u32) -> Option<u64> {
        self.by_file.get(&file).and_then(|sets| sets.last()).map(|set| set.version)
    }

    fn is_being_set(&self, file: u32) -> bool {
        let last = self.by_file.get(&file).and_then(|sets| sets.last());
        last.is_some_and(|set| set.ended.is_none())
    }

    /// The block of the namespace that holds a block of a file.
    fn block(&self, file: u32, version: u64, block: usize) -> Option<usize> {
        if file == 0 {
            return Some(block);
        }
        let set = self.by_file.get(&file)?.iter().find(|set| set.version == version)?;
        set.blocks.get(block).copied()
    }

    /// Records that a map was set successfully.
    pub(super) fn was_set(&mut self, file: u32, version: u64, now: Moment) {
        let sets = self.by_file.entry(file).or_default();
        if let Some(set) = sets.iter_mut().find(|set| set.version == version) {
            set.ended = Some(now);
        }
    }
}

impl World {
    /// Sets another map of a host's file: the same blocks of the namespace in another order.
    pub(super) fn set_map(&mut self, host: usize) -> Checked {
        let file = self.random.within(1, 2) as u32;
        let Some(admin) = self.hosts[host].admin else { return Ok(()) };
        if !self.has_room(admin) || self.hosts[host].maps.is_being_set(file) {
            return Ok(());
        }
        let mut blocks: Vec<usize> = (0..self.shapes[0].blocks as usize).collect();
        self.random.shuffle(&mut blocks);
        blocks.truncate(CHAIN_BLOCKS as usize);
        let extents = (0..).zip(&blocks).map(|(at, block)| Extent {
            file_offset: at * CHAIN_BLOCK_BYTES,
            device_offset: *block as u64 * CHAIN_BLOCK_BYTES,
            length_bytes: CHAIN_BLOCK_BYTES,
        });
        let maps = &mut self.hosts[host].maps;
        maps.last_version += 1;
        let version = maps.last_version;
        let mut object = Vec::new();
        FileMapObject {
            file,
            nsid: 1,
            version,
            length_bytes: CHAIN_BLOCKS * CHAIN_BLOCK_BYTES,
            extents: extents.collect(),
        }
        .encode_into(&mut object);
        maps.by_file.entry(file).or_default().push(SetMap { version, blocks, ended: None });
        let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
        let sqe = AdminCommand::file_map_set(upload);
        let request = Request::Raw { sqe, data_out: &object, data_in_max_bytes: 0 };
        let begun = self.model.begin();
        self.submit(
            admin,
            &request,
            Pending { link: admin, begun, what: What::Map { file, version } },
        )
    }

    /// Starts a chain, usually with the version that the host set last.
    pub(super) fn start_chain(&mut self, host: usize, lane: usize) -> Checked {
        let space = self.random.pick(&[0, 0, 2]);
        let file = if space == 0 { self.random.below(3) as u32 } else { 0 };
        let newest = self.hosts[host].maps.newest(file).unwrap_or(1);
        let version = match self.random.below(8) {
            _ if file == 0 => 1,
            0 => newest.saturating_sub(1).max(1),
            _ => newest,
        };
        if file != 0 && self.random.one_in(4) {
            return self.start_short(lane, file);
        }
        if self.random.one_in(3) {
            return self.walk_all(lane, space, file, version);
        }
        self.walk(lane, space, file, version)
    }

    /// Starts a chain at a random block of a file.
    pub(super) fn walk(&mut self, lane: usize, space: usize, file: u32, version: u64) -> Checked {
        let first = self.random.below(CHAIN_BLOCKS);
        let call = PushdownCall {
            nsid: space as u32 + 1,
            function: WALK,
            files: &[FileVersion { id: file, version }],
            first_file: 0,
            first_offset_bytes: first * CHAIN_BLOCK_BYTES,
            first_size_bytes: CHAIN_BLOCK_BYTES as u32,
            scratch: &[],
            scratch_size_bytes: self.random.pick(&[0, 128, 512]),
            answer_max_bytes: ANSWER_MAX_BYTES,
        };
        self.done.chains += 1;
        let begun = self.model.begin();
        let what = What::Chain(Call { space, file, version, first });
        self.submit(lane, &Request::Pushdown(call), Pending { link: lane, begun, what })
    }

    /// Starts a chain that runs until its hop budget is exhausted.
    pub(super) fn spin(&mut self, lane: usize) -> Checked {
        let rounds: u64 = self.random.pick(&[10, 1000, 20_000, 140_000]);
        let call = PushdownCall {
            nsid: 3,
            function: SPIN,
            files: &[FileVersion { id: 0, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: 512,
            scratch: &rounds.to_le_bytes(),
            scratch_size_bytes: 128,
            answer_max_bytes: 8,
        };
        self.done.chains += 1;
        let begun = self.model.begin();
        self.submit(lane, &Request::Pushdown(call), Pending { link: lane, begun, what: What::Spin })
    }

    /// Starts a chain as a host without the library can: from the start of the file, with the
    /// current map.
    fn start_short(&mut self, lane: usize, file: u32) -> Checked {
        let short =
            PushdownShort { function: WALK, file: file as u16, first_blocks: 1, argument: [0; 24] };
        let request = Request::Raw {
            sqe: short.to_sqe(1, ANSWER_MAX_BYTES),
            data_out: &[],
            data_in_max_bytes: ANSWER_MAX_BYTES,
        };
        self.done.chains += 1;
        let begun = self.model.begin();
        let what = What::Chain(Call { space: 0, file, version: ANY_VERSION, first: 0 });
        self.submit(lane, &request, Pending { link: lane, begun, what })
    }

    /// Checks the answer of a chain: each block must have held what the chain found there at some
    /// time since its start, and the map must have been in force.
    pub(super) fn check_chain(
        &mut self,
        host: usize,
        call: &Call,
        begun: Moment,
        (answer, hops): (&[u8], u32),
    ) -> Checked {
        let words: Vec<u64> =
            answer.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let found = words.get(1..).unwrap_or(&[]);
        let count = found.len() as u64;
        if words.first() != Some(&count) || hops as usize != found.len() || count > HOPS_MAX {
            return Err(format!("{call:?}: {hops} hops, but the answer is {words:?}"));
        }
        let in_force = self.hosts[host].maps.in_force_since(call.file, begun);
        let versions: Vec<u64> = match call.version {
            ANY_VERSION => in_force.iter().copied().filter(|version| *version != 0).collect(),
            version if call.file == 0 || in_force.contains(&version) => vec![version],
            _ => Vec::new(),
        };
        let Some(last) = versions.last() else {
            return Err(format!("{call:?}: answered, but only {in_force:?} can be in force"));
        };
        // If the chain may have used several maps, one of them must explain the answer.
        let explains = |version: &u64| self.explain(host, call, *version, found).is_ok();
        let version = *versions.iter().find(|version| explains(version)).unwrap_or(last);
        let places = self.explain(host, call, version, found)?;
        if let [_] = versions[..] {
            for ((hop, place), write) in (1..).zip(places).zip(found) {
                self.model
                    .seen((call.space, place), Found::of(*write), begun)
                    .map_err(|error| format!("{call:?}, hop {hop}: {error}"))?;
            }
        }
        Ok(())
    }

    /// The blocks that a chain visited if it used this version of its file's map, or the hop that
    /// is impossible.
    fn explain(
        &self,
        host: usize,
        call: &Call,
        version: u64,
        found: &[u64],
    ) -> Result<Vec<usize>, String> {
        let count = found.len() as u64;
        let (mut block, mut places) = (call.first, Vec::new());
        for (hop, write) in (1..).zip(found) {
            let place = self.hosts[host].maps.block(call.file, version, block as usize);
            places.push(place.ok_or_else(|| format!("{call:?}: no block {block}"))?);
            let next = self.contents.next(Found::of(*write));
            let next = next.ok_or_else(|| format!("{call:?}, hop {hop}: no write {write}"))?;
            let is_last = next == 0 || hop == HOPS_MAX;
            if is_last != (hop == count) {
                return Err(format!("{call:?}: ended after {count} hops, but hop {hop} is last"));
            }
            block = next / CHAIN_BLOCK_BYTES;
        }
        Ok(places)
    }

    /// Checks whether a chain may have ended with this error.
    pub(super) fn check_chain_error(
        &self,
        (link, host): (usize, usize),
        call: &Call,
        begun: Moment,
        status: Status,
    ) -> Checked {
        let in_force = self.hosts[host].maps.in_force_since(call.file, begun);
        let other = |version: &u64| *version != 0 && *version != call.version;
        let is_right = match status {
            _ if status.same_code(Status::STALE_FILE_MAP) => {
                call.file != 0 && in_force.iter().any(other)
            }
            _ if status.same_code(Status::UNKNOWN_FILE) => call.file != 0 && in_force.contains(&0),
            // The chain gave way, and there was no memory to save its state.
            _ if self.lacks_memory() && status.same_code(Status::COMMAND_INTERRUPTED) => true,
            // COMMAND_INTERRUPTED: for a chain of a vector that had not started.
            _ if status.same_code(Status::ABORTED_SQ_DELETION)
                || status.same_code(Status::COMMAND_INTERRUPTED) =>
            {
                self.may_close(link, host)
            }
            _ if status.same_code(Status::UNRECOVERED_READ_ERROR) => {
                self.settings.disk_errors && call.space != 2
            }
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("{call:?}: {status}, with maps {in_force:?} in force")),
        }
    }
}
