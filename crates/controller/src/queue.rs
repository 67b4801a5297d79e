//! A submission and completion queue pair: slots for its commands, flow control, and what its commands
//! hold of data. It knows no PDUs.

use crate::limits::{BUFFER_BYTES, MAX_IN_FLIGHT_BYTES, STRANGER_SLOTS};
use crate::refusal::Reply;
use crate::vectors::Vector;
use bpfof_device::IoBuffer;
use bpfof_nvme::fabrics::SQHD_NO_FLOW_CONTROL;
use bpfof_nvme::{Cqe, DataPointer, Sqe};
use std::collections::VecDeque;

/// Ranges that are being deallocated.
#[derive(Debug)]
pub(crate) struct Deallocation {
    pub(crate) namespace: usize,
    /// Offsets and lengths in bytes; those before `next` are done or with the device.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) next: usize,
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
    /// Compare: what the host expects, once it is here, while the device is read.
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
    /// Dataset Management whose ranges are fetched.
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
    /// Write Zeroes that is answered when they are written.
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
    /// Pushdown Vector: which of the connection's, and the bytes of its request and of room for its
    /// answer.
    Vector {
        namespace: usize,
        vector: u32,
        bytes: u32,
    },
    /// An admin command whose data is fetched.
    AdminData {
        sqe: Box<Sqe>,
    },
    /// A function being compiled.
    Load,
    /// An Authentication Send whose message takes arithmetic.
    Authentication,
    /// A change of file maps that reactors have yet to follow.
    Fence,
}

impl State {
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

/// Where the data is that a command brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It brings none.
    #[default]
    None,
    /// At the host: other commands hold as much data as the connection may.
    Waits,
    /// On its way.
    Fetching,
    /// Here, and with whoever works on it.
    Here,
}

/// The data that a command brings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) length_bytes: u32,
    pub(crate) stage: Stage,
    /// How long it took until all of it was here, in units of 65.5 µs: it fits where nothing was.
    pub(crate) waited: u16,
}

impl Transfer {
    /// Of a unit of waiting, in ns.
    const WAITED_SHIFT: u32 = 16;

    /// Data of so many bytes that came in the capsule.
    pub(crate) fn here(length_bytes: u32) -> Transfer {
        Transfer { length_bytes, stage: Stage::Here, waited: 0 }
    }

    /// How long it took until all of it was here, in ns; of four seconds at most.
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

/// What a command holds, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// What a device or a chain works on.
    in_flight: usize,
    /// What is being fetched.
    fetched: usize,
}

impl Held {
    const NONE: Held = Held { in_flight: 0, fetched: 0 };

    fn of(slot: &Slot) -> Held {
        let transferred = buffer_bytes(slot.transfer.length_bytes);
        let in_flight = match (slot.transfer.stage, &slot.state) {
            (Stage::Waits, _) => 0,
            (Stage::Fetching, _) => return Held { in_flight: 0, fetched: transferred },
            // What is compared is held twice.
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

/// A slot, and what it held when its command was last looked at.
#[derive(Debug)]
struct Entry {
    slot: Slot,
    held: Held,
}

impl Entry {
    const FREE: Entry = Entry { slot: FREE, held: Held::NONE };
}

/// What a buffer for `length` bytes takes.
fn buffer_bytes(length: u32) -> usize {
    (length as usize).next_multiple_of(BUFFER_BYTES) + BUFFER_BYTES
}

/// Data that is to be fetched now: for which command, from where.
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
    /// What all commands hold.
    held: Held,
    /// Commands whose data waits at the host, in order.
    waiting: VecDeque<u16>,
}

impl QueuePair {
    /// Bytes of memory that a queue of so many entries takes.
    pub(crate) fn memory_bytes(entries: u16) -> usize {
        usize::from(entries) * (size_of::<Entry>() + size_of::<u16>())
    }

    /// What there is for Connect itself.
    pub(crate) fn connecting() -> QueuePair {
        QueuePair { head: 0, ..QueuePair::new(0, 1, true) }
    }

    /// Queue `id` with so many entries, of which the first has been used by its Connect.
    pub(crate) fn new(id: u16, entries: u16, flow_control: bool) -> QueuePair {
        let mut queue = QueuePair { size: entries, ..QueuePair::of_stranger(id, 0, flow_control) };
        queue.open();
        queue
    }

    /// The same for a host that has yet to show who it is: until the queue is [opened](Self::open) it has slots for
    /// a few commands, whatever its size.
    pub(crate) fn of_stranger(id: u16, entries: u16, flow_control: bool) -> QueuePair {
        let slots = entries.min(STRANGER_SLOTS);
        QueuePair {
            id,
            head: 1,
            size: entries,
            flow_control,
            entries: (0..slots).map(|_| Entry::FREE).collect(),
            free: (0..slots).rev().collect(),
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

    /// An entry of the submission queue has been taken.
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

    /// Whether one more command can be carried out.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether devices work on as much data as they may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.held.in_flight >= MAX_IN_FLIGHT_BYTES
    }

    /// Bytes of data held for commands with a device.
    #[inline]
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.held.in_flight
    }

    /// Bytes of data held for commands: with a device, or being fetched.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.in_flight + self.held.fetched
    }

    /// Whether data has been asked for that is not here.
    pub(crate) fn is_fetching(&self) -> bool {
        self.held.fetched > 0
    }

    /// Takes a slot.
    ///
    /// # Panics
    /// If there is none: whoever takes a command [looks](Self::has_room).
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
        // There is nothing to drop in a free one, and this is the data path.
        std::mem::forget(free);
        slot
    }

    /// Gives a slot back and returns what it held.
    #[inline]
    pub(crate) fn vacate(&mut self, slot: u16) -> Slot {
        let Entry { slot: taken, held } = &mut self.entries[usize::from(slot)];
        self.held.in_flight -= held.in_flight;
        self.held.fetched -= held.fetched;
        *held = Held::NONE;
        self.free.push(slot);
        std::mem::replace(taken, FREE)
    }

    /// The command in a slot.
    #[inline]
    pub(crate) fn slot(&self, slot: u16) -> &Slot {
        &self.entries[usize::from(slot)].slot
    }

    /// The command in a slot came earlier than it was taken.
    #[cold]
    pub(crate) fn has_come(&mut self, slot: u16, at_ns: u64) {
        self.entries[usize::from(slot)].slot.begun_ns = at_ns;
    }

    /// What the command in a slot waits for. What it holds must not change by that.
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

    /// The next data to be fetched, if there is some and room for it. From now on it is on its way. While
    /// commands hold other data, `has_memory` says whether there is memory for so many bytes more.
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

    /// The data that a command brings is here.
    pub(crate) fn arrived(&mut self, slot: u16, now_ns: u64) {
        let Entry { slot, held } = &mut self.entries[usize::from(slot)];
        let waited = now_ns.saturating_sub(slot.begun_ns) >> Transfer::WAITED_SHIFT;
        slot.transfer.waited = waited.try_into().unwrap_or(u16::MAX);
        slot.transfer.stage = Stage::Here;
        self.held.fetched -= held.fetched;
        *held = Held::of(slot);
        self.held.in_flight += held.in_flight;
    }

    /// Gives the slots back of commands that nobody but the host or another thread has anything of: those
    /// whose data is not here, and those that compile, compute or wait for reactors.
    pub(crate) fn forget_pending(&mut self) {
        for slot in 0..self.entries.len() as u16 {
            let Slot { transfer, state, .. } = self.slot(slot);
            let is_pending = matches!(transfer.stage, Stage::Waits | Stage::Fetching)
                || matches!(state, State::Load | State::Authentication | State::Fence);
            if is_pending {
                self.vacate(slot);
            }
        }
        self.waiting.clear();
    }

    /// The completion of a command.
    #[inline]
    pub(crate) fn completion(&self, cid: u16, reply: Reply) -> Cqe {
        let sqhd = if self.flow_control { self.head } else { SQHD_NO_FLOW_CONTROL };
        let Reply { status, dw0, dw1 } = reply;
        Cqe { dw0, dw1, sqhd, sqid: self.id, cid, status }
    }
}
