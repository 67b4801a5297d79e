//! A submission and completion queue pair: slots for its commands, flow control, and the data that its commands hold.
//! It knows no PDUs.

use crate::limits::{BUFFER_BYTES, MAX_IN_FLIGHT_BYTES, STRANGER_SLOTS};
use crate::operation::FileWork;
use crate::refusal::Reply;
use crate::vectors::Vector;
use bpfof_device::IoBuffer;
use bpfof_nvme::fabrics::SQHD_NO_FLOW_CONTROL;
use bpfof_nvme::{Cqe, DataPointer, Sqe};
use std::collections::VecDeque;

/// Ranges that are being zeroed.
#[derive(Debug)]
pub(crate) struct Deallocation {
    pub(crate) namespace: usize,
    /// Offsets and lengths in bytes; those before `next` are done or with the device.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) next: usize,
    /// Their blocks are to be deallocated.
    pub(crate) deallocate: bool,
    /// The last part is followed by a flush.
    pub(crate) syncs: bool,
}

/// What a command waits for. Namespaces are places of the reactor's table; offsets and lengths are in
/// bytes.
#[derive(Debug)]
pub(crate) enum State {
    Free,
    Read {
        namespace: usize,
        offset: u64,
        length: u32,
    },
    Write {
        namespace: usize,
        offset: u64,
        fua: bool,
    },
    /// Compare: reads the device; `expected` is the host's data, once it has arrived.
    Compare {
        namespace: usize,
        offset: u64,
        expected: Option<Box<IoBuffer>>,
    },
    Verify {
        namespace: usize,
        offset: u64,
        length: u32,
    },
    /// Dataset Management whose ranges are being fetched.
    Ranges {
        namespace: usize,
        ranges: u16,
        deallocate: bool,
    },
    /// Dataset Management, or Write Zeroes in parts.
    Deallocate(Box<Deallocation>),
    /// Flush, also the one that ends Write Zeroes with Force Unit Access.
    Flush {
        namespace: usize,
    },
    /// Write Zeroes that is answered when the zeroes are written.
    Zeroes {
        namespace: usize,
    },
    /// Write Zeroes with Force Unit Access: the file must be flushed before the answer.
    ZeroesThenSync {
        namespace: usize,
    },
    Chain {
        namespace: usize,
        answer_max_bytes: u32,
    },
    /// Pushdown Vector: its place among the connection's vectors, and the bytes of its request and of the room for its
    /// answer.
    Vector {
        namespace: usize,
        vector: u32,
        bytes: u32,
    },
    /// An admin command whose data is being fetched.
    AdminData {
        sqe: Box<Sqe>,
    },
    /// A function being compiled.
    Load,
    /// An Authentication Send whose arithmetic the authenticator's thread does.
    Authentication,
    /// A change of file maps that not all reactors have taken over yet.
    Fence,
}

impl State {
    /// What the command's operation on files does, if it has one.
    pub(crate) fn file_work(&self) -> FileWork {
        match self {
            State::Flush { .. }
            | State::Zeroes { .. }
            | State::ZeroesThenSync { .. }
            | State::Deallocate(_) => FileWork::FlushOrZeroes,
            State::Write { .. } => FileWork::Write,
            _ => FileWork::Read,
        }
    }

    /// Whether the command is carried out in parts.
    pub(crate) fn has_parts(&self) -> bool {
        matches!(self, State::Deallocate(_))
    }

    /// The place of the namespace that a command works on.
    pub(crate) fn namespace(&self) -> Option<usize> {
        match *self {
            State::Read { namespace, .. }
            | State::Write { namespace, .. }
            | State::Compare { namespace, .. }
            | State::Verify { namespace, .. }
            | State::Ranges { namespace, .. }
            | State::Flush { namespace }
            | State::Zeroes { namespace }
            | State::ZeroesThenSync { namespace }
            | State::Chain { namespace, .. }
            | State::Vector { namespace, .. } => Some(namespace),
            State::Deallocate(ref rest) => Some(rest.namespace),
            State::Free
            | State::AdminData { .. }
            | State::Load
            | State::Authentication
            | State::Fence => None,
        }
    }
}

/// Where a command's data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The command has none.
    #[default]
    None,
    /// At the host: other commands hold as much data as the connection may hold.
    Waits,
    /// On its way from the host.
    Fetching,
    /// All of it has arrived.
    Here,
}

/// The data that a host sends for a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) length_bytes: u32,
    pub(crate) stage: Stage,
    /// Time until all of it had arrived, in units of 65.5 µs: a field of this size fits into padding.
    pub(crate) waited: u16,
}

impl Transfer {
    /// Binary logarithm of the unit of `waited` in ns.
    const WAITED_SHIFT: u32 = 16;

    /// Data of this length that came in the capsule.
    pub(crate) fn here(length_bytes: u32) -> Transfer {
        Transfer { length_bytes, stage: Stage::Here, waited: 0 }
    }

    /// Time until all of it had arrived, in ns; at most four seconds.
    pub(crate) fn waited_ns(self) -> u64 {
        u64::from(self.waited) << Self::WAITED_SHIFT
    }
}

const _: () = assert!(size_of::<State>() <= 32, "slots are written for each command");
const _: () = assert!(size_of::<Transfer>() == 8);

/// A command that is being carried out.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) cid: u16,
    /// When it came, on the reactor's clock.
    pub(crate) begun_ns: u64,
    /// Where its data is at the host.
    pub(crate) pointer: DataPointer,
    pub(crate) transfer: Transfer,
    pub(crate) state: State,
}

const FREE: Slot = Slot {
    cid: 0,
    begun_ns: 0,
    pointer: DataPointer::None,
    transfer: Transfer { length_bytes: 0, stage: Stage::None, waited: 0 },
    state: State::Free,
};

/// Memory that a command holds, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Data that a device or a chain works on.
    in_flight: usize,
    /// Data that is being fetched.
    fetched: usize,
}

impl Held {
    const NONE: Held = Held { in_flight: 0, fetched: 0 };

    fn of(slot: &Slot) -> Held {
        let transferred = buffer_bytes(slot.transfer.length_bytes);
        let in_flight = match (slot.transfer.stage, &slot.state) {
            (Stage::Waits, _) => 0,
            (Stage::Fetching, _) => return Held { in_flight: 0, fetched: transferred },
            // Compare holds its data twice.
            (Stage::Here, State::Compare { .. }) => 2 * transferred,
            (Stage::Here, _) => transferred,
            (Stage::None, State::Read { length, .. } | State::Verify { length, .. }) => {
                (*length as usize).next_multiple_of(BUFFER_BYTES)
            }
            (Stage::None, State::Chain { answer_max_bytes, .. }) => *answer_max_bytes as usize,
            (Stage::None, State::Vector { bytes, .. }) => buffer_bytes(*bytes) + Vector::BYTES,
            (Stage::None, State::Deallocate(rest)) => size_of_val(rest.ranges.as_slice()),
            (Stage::None, _) => 0,
        };
        Held { in_flight, fetched: 0 }
    }
}

/// A slot, and the memory that its command holds, as last counted.
#[derive(Debug)]
struct Entry {
    slot: Slot,
    held: Held,
}

impl Entry {
    const FREE: Entry = Entry { slot: FREE, held: Held::NONE };
}

/// Memory that a buffer for `length` bytes takes.
fn buffer_bytes(length: u32) -> usize {
    (length as usize).next_multiple_of(BUFFER_BYTES) + BUFFER_BYTES
}

/// Data that is to be fetched now: its command, and its place at the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) slot: u16,
    pub(crate) cid: u16,
    pub(crate) pointer: DataPointer,
    pub(crate) length_bytes: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct QueuePair {
    id: u16,
    head: u16,
    /// Entries of the submission queue. There may be fewer slots.
    size: u16,
    flow_control: bool,
    entries: Vec<Entry>,
    free: Vec<u16>,
    /// Commands that have ended since the last [`leave`](Self::leave).
    ended: usize,
    /// Memory that all commands hold.
    held: Held,
    /// Commands whose data waits at the host, in order.
    waiting: VecDeque<u16>,
}

impl QueuePair {
    /// Bytes of memory that a queue with this many entries takes.
    pub(crate) fn memory_bytes(entries: u16) -> usize {
        usize::from(entries) * (size_of::<Entry>() + size_of::<u16>())
    }

    /// The queue that takes Connect itself.
    pub(crate) fn connecting() -> QueuePair {
        QueuePair { head: 0, ..QueuePair::new(0, 1, true) }
    }

    /// Queue `id` with this many entries, the first of which its Connect has used.
    pub(crate) fn new(id: u16, entries: u16, flow_control: bool) -> QueuePair {
        let mut queue = QueuePair { size: entries, ..QueuePair::of_stranger(id, 0, flow_control) };
        queue.open();
        queue
    }

    /// The same for a host that has not proved its identity yet: until the queue is [opened](Self::open) it has slots
    /// for a few commands, whatever its size.
    pub(crate) fn of_stranger(id: u16, entries: u16, flow_control: bool) -> QueuePair {
        let slots = entries.min(STRANGER_SLOTS);
        QueuePair {
            id,
            head: 1,
            size: entries,
            flow_control,
            entries: (0..slots).map(|_| Entry::FREE).collect(),
            free: (0..slots).rev().collect(),
            ended: 0,
            held: Held::NONE,
            waiting: VecDeque::new(),
        }
    }

    /// Makes a slot for each entry.
    pub(crate) fn open(&mut self) {
        let before = self.entries.len() as u16;
        self.entries.resize_with(usize::from(self.size), || Entry::FREE);
        self.free.splice(0..0, (before..self.size).rev());
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn entries(&self) -> u16 {
        self.size
    }

    /// Moves the head of the submission queue behind the entry that was taken.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.head = (self.head + 1) % self.size;
    }

    /// Whether a command is being carried out, so that the slots must stay.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < self.entries.len()
    }

    /// How many commands are being carried out.
    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// How many commands have ended since the last [`leave`](Self::leave).
    #[inline]
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// The answers of ended commands leave.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.ended = 0;
    }

    /// Whether one more command can be carried out.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether devices and chains work on as much data as they may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.held.in_flight >= MAX_IN_FLIGHT_BYTES
    }

    /// Bytes of data held for commands that a device or a chain works on.
    #[inline]
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.held.in_flight
    }

    /// Bytes of data held for commands, including data that is being fetched.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.in_flight + self.held.fetched
    }

    /// Whether data has been requested that has not arrived.
    pub(crate) fn is_fetching(&self) -> bool {
        self.held.fetched > 0
    }

    /// Takes a slot.
    ///
    /// # Panics
    /// If there is none: the caller [checks](Self::has_room) before it takes a command.
    #[inline]
    pub(crate) fn occupy(&mut self, taken: Slot) -> u16 {
        let slot = self.free.pop().expect("checked before the command was taken");
        if taken.transfer.stage == Stage::Waits {
            self.waiting.push_back(slot);
        }
        let held = Held::of(&taken);
        self.held.in_flight += held.in_flight;
        self.held.fetched += held.fetched;
        let free =
            std::mem::replace(&mut self.entries[usize::from(slot)], Entry { slot: taken, held });
        debug_assert!(matches!(free.slot.state, State::Free));
        // A free slot has nothing to drop, and this is the data path.
        std::mem::forget(free);
        slot
    }

    /// Frees a slot and returns its contents.
    #[inline]
    pub(crate) fn vacate(&mut self, slot: u16) -> Slot {
        let Entry { slot: taken, held } = &mut self.entries[usize::from(slot)];
        self.held.in_flight -= held.in_flight;
        self.held.fetched -= held.fetched;
        *held = Held::NONE;
        self.ended += 1;
        self.free.push(slot);
        std::mem::replace(taken, FREE)
    }

    /// The command in a slot.
    #[inline]
    pub(crate) fn slot(&self, slot: u16) -> &Slot {
        &self.entries[usize::from(slot)].slot
    }

    /// Sets the time when the command in a slot came, if it was not taken at once.
    #[cold]
    pub(crate) fn has_come(&mut self, slot: u16, at_ns: u64) {
        self.entries[usize::from(slot)].slot.begun_ns = at_ns;
    }

    /// The state of the command in a slot. A change must leave the memory that the command holds the same.
    #[inline]
    pub(crate) fn state_mut(&mut self, slot: u16) -> &mut State {
        &mut self.entries[usize::from(slot)].slot.state
    }

    /// All slots, free ones too.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.entries.iter().map(|entry| &entry.slot)
    }

    /// Whether data waits at the host.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next data to be fetched, if any waits and there is room for it. While commands hold other data,
    /// `has_memory` says whether there is memory for this many more bytes.
    pub(crate) fn next_fetch(
        &mut self,
        mut has_memory: impl FnMut(usize) -> bool,
    ) -> Option<Fetch> {
        while let Some(&slot) = self.waiting.front() {
            let Entry { slot: waiting, held } = &mut self.entries[usize::from(slot)];
            let Slot { cid, pointer, transfer, .. } = waiting;
            if transfer.stage != Stage::Waits {
                self.waiting.pop_front();
                continue;
            }
            let bytes = buffer_bytes(transfer.length_bytes);
            let all = self.held.in_flight + self.held.fetched;
            if all > 0 && (all + bytes > MAX_IN_FLIGHT_BYTES || !has_memory(bytes)) {
                return None;
            }
            self.waiting.pop_front();
            transfer.stage = Stage::Fetching;
            held.fetched = bytes;
            self.held.fetched += bytes;
            let length_bytes = transfer.length_bytes;
            return Some(Fetch { slot, cid: *cid, pointer: *pointer, length_bytes });
        }
        None
    }

    /// The data of a command has arrived.
    pub(crate) fn arrived(&mut self, slot: u16, now_ns: u64) {
        let Entry { slot, held } = &mut self.entries[usize::from(slot)];
        let waited = now_ns.saturating_sub(slot.begun_ns) >> Transfer::WAITED_SHIFT;
        slot.transfer.waited = waited.try_into().unwrap_or(u16::MAX);
        slot.transfer.stage = Stage::Here;
        self.held.fetched -= held.fetched;
        *held = Held::of(slot);
        self.held.in_flight += held.in_flight;
    }

    /// Frees the slots of commands that no device or chain works on: commands whose data has not arrived, and commands
    /// that wait for the loader, the authenticator or other reactors. Returns whether another thread works for one.
    pub(crate) fn forget_pending(&mut self) -> bool {
        let mut is_elsewhere = false;
        for slot in 0..self.entries.len() as u16 {
            let Slot { transfer, state, .. } = self.slot(slot);
            let has_thread = matches!(state, State::Load | State::Authentication);
            is_elsewhere |= has_thread;
            let is_pending = has_thread
                || matches!(state, State::Fence)
                || matches!(transfer.stage, Stage::Waits | Stage::Fetching);
            if is_pending {
                self.vacate(slot);
            }
        }
        self.waiting.clear();
        is_elsewhere
    }

    /// The completion of a command.
    #[inline]
    pub(crate) fn completion(&self, cid: u16, reply: Reply) -> Cqe {
        let sqhd = if self.flow_control { self.head } else { SQHD_NO_FLOW_CONTROL };
        let Reply { status, dw0, dw1 } = reply;
        Cqe { dw0, dw1, sqhd, sqid: self.id, cid, status }
    }
}
