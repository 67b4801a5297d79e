//! One reactor's work behind the protocol: device operations and chains, without devices.
//!
//! Connections submit; the reactor takes operations in the order of the [`Schedule`], performs them and
//! reports back. Operations on memory with a latency model wait until they are due. File operations are
//! handed to the reactor's ring.

use crate::chain_admission::Admission;
use crate::controller::Controller;
use crate::limits::{CALLS_SLICE_UNITS, HOPS_IN_A_ROW, KEPT_ARENAS, SPARE_BYTES, ZEROES_PER_UNIT};
use crate::loader::Load;
use crate::namespace::{Backing, Namespace};
use crate::places::{Places, Served};
use crate::schedule::Schedule;
use crate::subsystem::Subsystem;
use crate::target::Target;
use bpfof_chain::{ChainError, ChainId, DeviceRead, Engine, Progress, Start, Suspended, Tables};
use bpfof_device::{DelayQueue, IoBuffer, MemoryNamespace};
use bpfof_function::Arena;
use bpfof_function::memory::Charge;
use std::sync::Arc;

/// A command of a connection of this reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandId {
    pub(crate) connection: u32,
    pub(crate) slot: u16,
}

/// An operation that can be performed now, in half a cache line. Namespaces are places.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A read of a chain from memory.
    ChainRead { namespace: u32, read: DeviceRead },
    /// A read of a chain from a file has ended.
    ChainReadDone { chain: ChainId, ok: bool },
    /// The calls of a hop go on.
    ChainCalls { chain: ChainId },
    /// What a command's slot describes, on memory, and what it reads: offset and length in bytes, of
    /// which the second is 0 if it does not read.
    Command { namespace: u32, command: CommandId, offset: u64, length: u32 },
    /// Zeroes for a command, in memory: offset and length in bytes.
    Zero { namespace: u32, command: CommandId, offset: u64, length: u64 },
}

const _: () = assert!(size_of::<Operation>() <= 32);

impl Operation {
    /// The chain that it is of, if it is of one.
    pub(crate) fn chain(&self) -> Option<ChainId> {
        match self {
            Operation::ChainRead { read, .. } => Some(read.chain),
            Operation::ChainReadDone { chain, .. } | Operation::ChainCalls { chain } => {
                Some(*chain)
            }
            _ => None,
        }
    }
}

/// An operation for the ring, on the file of namespace number `namespace`.
#[derive(Debug)]
pub(crate) enum FileOperation {
    Read { namespace: usize, buffer: IoBuffer, offset: u64, command: CommandId },
    ChainRead { namespace: usize, read: DeviceRead },
    Write { namespace: usize, buffer: IoBuffer, offset: u64, fua: bool, command: CommandId },
    Sync { namespace: usize, command: CommandId },
    Zero { namespace: usize, offset: u64, length: u64, command: CommandId },
}

/// Whom a running chain belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) command: CommandId,
    namespace: usize,
    /// When it got its arena.
    pub(crate) since_ns: u64,
    /// It has been asked to give its arena to somebody else.
    pub(crate) gives_way: bool,
}

/// A chain of a command that waits outside an arena.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) slot: u16,
    pub(crate) chain: Suspended,
    /// When it began to rest.
    pub(crate) since_ns: u64,
    /// Its memory.
    pub(crate) _memory: Charge,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) target: Arc<Target>,
    /// The reactor's clock, read once a turn.
    pub(crate) now_ns: u64,
    pub(crate) file_operations: Vec<FileOperation>,
    pub(crate) loads: Vec<Load>,
    /// Controllers that had to go for others: their queues are to end.
    pub(crate) evicted: Vec<Arc<Controller>>,
    pub(crate) schedule: Schedule,
    pub(crate) admission: Admission,
    /// Units of work that is not of an operation, since they were last taken.
    spent: u64,
    /// That of the engine's arenas.
    arena_memory: Charge,
    engine: Engine,
    /// Reads that a chain has just asked for.
    reads: Vec<DeviceRead>,
    /// Namespaces, by what commands have for them.
    places: Places,
    /// For each place the operations that are not due; those of namespaces without a model stay empty.
    delayed: Vec<DelayQueue<(u32, bool, Operation)>>,
    /// Whether a memory namespace has a latency model.
    is_modelled: bool,
    /// By chain index.
    owners: Vec<Owner>,
    buffers: Vec<IoBuffer>,
    /// What `buffers` takes.
    spare_bytes: usize,
}

impl Executor {
    pub(crate) fn new(target: Arc<Target>) -> Executor {
        let served = target.served();
        let kept = KEPT_ARENAS.min(target.limits.chains) * Arena::MEMORY_BYTES;
        let mut executor = Executor {
            arena_memory: target.hosts.own.charge_anyway(kept),
            admission: Admission::new(target.limits.chains),
            engine: Engine::new(target.limits).with_slice(CALLS_SLICE_UNITS),
            reads: Vec::new(),
            target,
            now_ns: 0,
            file_operations: Vec::new(),
            loads: Vec::new(),
            evicted: Vec::new(),
            schedule: Schedule::default(),
            spent: 0,
            places: Places::default(),
            delayed: Vec::new(),
            is_modelled: false,
            owners: Vec::new(),
            buffers: Vec::new(),
            spare_bytes: 0,
        };
        executor.serve(&served);
        executor
    }

    /// Serves these namespaces from now on; of others only the commands that are in flight.
    pub(crate) fn serve(&mut self, served: &[Served]) {
        self.places.serve(served);
        self.delayed.resize_with(self.places.count(), DelayQueue::default);
        let mut places = (0..self.places.count()).filter_map(|place| self.places.at(place));
        let is_modelled = |namespace: &Namespace| match &namespace.backing {
            Backing::Memory(memory) => memory.latency().is_some(),
            Backing::File(_) => false,
        };
        self.is_modelled = places.any(is_modelled);
    }

    /// Work has been done that costs so many units.
    #[inline]
    pub(crate) fn spend(&mut self, units: u64) {
        self.spent += units;
    }

    /// Units of the work since they were last taken, without that of chains.
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Takes the units of the work since this was last called, that of chains included.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent) + self.engine.take_spent()
    }

    /// Whether the time of operations on memory matters within a turn.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        self.is_modelled
    }

    /// The namespaces.
    pub(crate) fn places(&mut self) -> &mut Places {
        &mut self.places
    }

    /// The place of the namespace with this id.
    #[inline]
    pub(crate) fn find(&self, subsystem: &Subsystem, nsid: u32) -> Option<usize> {
        self.places.find(subsystem, nsid)
    }

    /// Whether the namespace at this place has been removed.
    #[inline]
    pub(crate) fn is_leaving(&self, namespace: usize) -> bool {
        self.places.is_leaving(namespace)
    }

    /// A buffer of `length` bytes for direct I/O, a spare one if it is large enough. Its contents
    /// may be left over from earlier use: whoever takes it overwrites them before they are seen.
    pub(crate) fn buffer(&mut self, length: usize) -> IoBuffer {
        if let Some(mut buffer) = self.buffers.pop() {
            self.spare_bytes -= buffer.capacity();
            if buffer.capacity() >= length {
                buffer.set_len(length);
                return buffer;
            }
        }
        IoBuffer::new(length)
    }

    pub(crate) fn recycle(&mut self, buffer: IoBuffer) {
        if self.spare_bytes + buffer.capacity() <= SPARE_BYTES {
            self.spare_bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }

    /// Queues an operation on memory: now, or when it is due. One that goes on with something comes
    /// before those that begin.
    #[inline]
    fn submit(&mut self, namespace: usize, connection: u32, goes_on: bool, operation: Operation) {
        let Backing::Memory(memory) = &self.places.get(namespace).backing else {
            unreachable!("the ring works on files")
        };
        match memory.latency() {
            None if goes_on => self.schedule.push_active(connection, operation),
            None => self.schedule.push(connection, operation),
            Some(model) => {
                // Such a device brings data near the processor meanwhile.
                prefetch(memory, &operation);
                let delayed = (connection, goes_on, operation);
                self.delayed[namespace].push(model, self.now_ns, delayed);
            }
        }
    }

    /// Queues a command on a memory namespace; `range` is what it is about to read, if it reads.
    #[inline]
    pub(crate) fn submit_memory(
        &mut self,
        namespace: usize,
        command: CommandId,
        range: Option<(u64, u32)>,
    ) {
        let (offset, length) = range.unwrap_or_default();
        let operation = Operation::Command { namespace: namespace as u32, command, offset, length };
        self.submit(namespace, command.connection, false, operation);
    }

    /// Queues zeroes for a range: offset and length in bytes.
    pub(crate) fn submit_zero(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u64),
    ) {
        match &self.places.get(namespace).backing {
            Backing::Memory(_) => {
                let operation =
                    Operation::Zero { namespace: namespace as u32, command, offset, length };
                self.submit(namespace, command.connection, false, operation);
            }
            Backing::File(_) => {
                let operation = FileOperation::Zero { namespace, offset, length, command };
                self.file_operations.push(operation);
            }
        }
    }

    /// Does the first part of due zeroes; the rest waits behind others. Whether that was all.
    pub(crate) fn zero_some(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u64),
    ) -> bool {
        let Backing::Memory(memory) = &self.places.get(namespace).backing else {
            unreachable!("the ring zeroes files")
        };
        let done = memory.zero_some(offset, length);
        self.spent += done / ZEROES_PER_UNIT;
        if done < length {
            let (offset, length) = (offset + done, length - done);
            let rest = Operation::Zero { namespace: namespace as u32, command, offset, length };
            self.submit(namespace, command.connection, false, rest);
        }
        done == length
    }

    /// Queues a command that reads `range`: offset and length in bytes.
    #[inline]
    pub(crate) fn submit_read(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u32),
    ) {
        match self.places.get(namespace).backing {
            Backing::Memory(_) => self.submit_memory(namespace, command, Some((offset, length))),
            Backing::File(_) => {
                let buffer = self.buffer(length as usize);
                let read = FileOperation::Read { namespace, buffer, offset, command };
                self.file_operations.push(read);
            }
        }
    }

    /// Queues what has become due.
    pub(crate) fn release_due(&mut self) {
        if !self.is_modelled {
            return;
        }
        for queue in &mut self.delayed {
            while let Some((connection, goes_on, operation)) = queue.pop(self.now_ns) {
                match goes_on {
                    true => self.schedule.push_active(connection, operation),
                    false => self.schedule.push(connection, operation),
                }
            }
        }
    }

    /// When the next operation on memory is due that is not.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.delayed.iter().filter_map(DelayQueue::next_due_ns).min()
    }

    /// Fetches the memory of all operations of the round that has begun.
    #[inline]
    pub(crate) fn prefetch_round(&self) {
        for operation in self.schedule.round() {
            let (Operation::ChainRead { namespace, .. } | Operation::Command { namespace, .. }) =
                operation
            else {
                continue;
            };
            if let Backing::Memory(memory) = &self.places.get(*namespace as usize).backing {
                prefetch(memory, operation);
            }
        }
    }

    /// Chains that can still be started, as far as the limit of them goes.
    #[inline]
    pub(crate) fn free_chains(&self) -> usize {
        self.engine.limits().chains - self.engine.running()
    }

    /// Whether there is an arena for `more` chains than run, or memory to make it.
    #[inline]
    pub(crate) fn has_arena(&mut self, more: usize) -> bool {
        let wanted = (self.engine.running() + more) * Arena::MEMORY_BYTES;
        wanted <= self.arena_memory.bytes() || self.arena_memory.resize(wanted).is_ok()
    }

    /// Drops arenas that nobody uses, but for some.
    pub(crate) fn trim(&mut self, keep: usize) {
        self.engine.trim(keep);
        self.owners.truncate(self.engine.arenas());
        let bytes = self.engine.arenas().max(keep) * Arena::MEMORY_BYTES;
        if bytes < self.arena_memory.bytes() {
            // Less is never refused.
            let _ = self.arena_memory.resize(bytes);
        }
    }

    /// Notes whom a chain belongs to that has got an arena.
    #[inline]
    fn own(&mut self, chain: ChainId, command: CommandId, namespace: usize) {
        let owner = Owner { command, namespace, since_ns: self.now_ns, gives_way: false };
        match self.owners.get_mut(chain.index()) {
            Some(slot) => *slot = owner,
            None => self.owners.push(owner),
        }
    }

    /// Starts a chain for a command.
    #[inline]
    pub(crate) fn start_chain(
        &mut self,
        namespace: usize,
        command: CommandId,
        start: &Start<'_>,
        tables: &Tables,
    ) -> Result<(), ChainError> {
        let is_memory = matches!(self.places.get(namespace).backing, Backing::Memory(_));
        let chain = if is_memory && !self.is_modelled {
            let (queue, place) = (self.schedule.queue(command.connection, false), namespace as u32);
            let chain = self.engine.start(start, tables, |read| {
                queue.push_back(Operation::ChainRead { namespace: place, read });
            })?;
            self.schedule.wake(command.connection);
            chain
        } else {
            let Executor { engine, reads, .. } = self;
            let chain = engine.start(start, tables, |read| reads.push(read))?;
            self.submit_chain_reads(namespace, command.connection, false);
            chain
        };
        self.own(chain, command, namespace);
        Ok(())
    }

    /// Lets a chain go on that has rested.
    pub(crate) fn resume_chain(
        &mut self,
        namespace: usize,
        command: CommandId,
        suspended: &Suspended,
        tables: &Tables,
    ) -> Result<(), ChainError> {
        let Executor { engine, reads, .. } = self;
        let chain = engine.resume(suspended, tables, |read| reads.push(read))?;
        self.own(chain, command, namespace);
        self.submit_chain_reads(namespace, command.connection, false);
        Ok(())
    }

    /// Whom a running chain belongs to.
    #[inline]
    pub(crate) fn owner(&self, chain: ChainId) -> Owner {
        self.owners[chain.index()]
    }

    /// The running chains and whom they belong to.
    pub(crate) fn running_chains(&self) -> impl Iterator<Item = (ChainId, &Owner)> {
        let all = self.owners.iter().enumerate();
        let all = all.map(|(index, owner)| (ChainId::from_index(index), owner));
        all.filter(|(chain, _)| self.engine.is_running(*chain))
    }

    /// Those of all arenas, whether a chain runs in them or not.
    pub(crate) fn owners_mut(&mut self) -> &mut [Owner] {
        &mut self.owners
    }

    /// Performs a read of a chain from memory, and goes on with the chain. One that is not `wanted` any
    /// more ends; so does one whose namespace has been removed: file maps may already be those of
    /// another with the same id.
    #[inline]
    pub(crate) fn read_for_chain(
        &mut self,
        namespace: usize,
        read: DeviceRead,
        wanted: bool,
        tables: &Tables,
    ) -> Progress {
        if let Backing::Memory(memory) = &self.places.get(namespace).backing {
            memory.read(read.device_offset, self.engine.data_mut(&read));
        }
        if self.is_modelled {
            return self.go_on_with_chain(read.chain, Some(true), wanted, tables);
        }
        let ok = wanted && !self.places.is_leaving(namespace);
        let connection = self.owners[read.chain.index()].command.connection;
        let queue = self.schedule.queue(connection, !yields(&self.engine, read.chain));
        let place = namespace as u32;
        let progress = self.engine.completed(read.chain, ok, tables, |read| {
            queue.push_back(Operation::ChainRead { namespace: place, read });
        });
        if progress == Progress::Reads {
            self.schedule.wake(connection);
        }
        progress
    }

    /// Goes on with a chain of which a read has ended, well or not, or that has calls left.
    #[inline(never)]
    pub(crate) fn go_on_with_chain(
        &mut self,
        chain: ChainId,
        read: Option<bool>,
        wanted: bool,
        tables: &Tables,
    ) -> Progress {
        let Owner { namespace, command, .. } = self.owners[chain.index()];
        let wanted = wanted && !self.places.is_leaving(namespace);
        let Executor { engine, reads, .. } = self;
        let goes_on = !yields(engine, chain);
        let progress = match read {
            Some(ok) => engine.completed(chain, ok && wanted, tables, |read| reads.push(read)),
            None => engine.go_on(chain, wanted, tables, |read| reads.push(read)),
        };
        self.submit_chain_reads(namespace, command.connection, goes_on);
        progress
    }

    /// Queues the reads that a chain has just asked for.
    fn submit_chain_reads(&mut self, namespace: usize, connection: u32, goes_on: bool) {
        let mut reads = std::mem::take(&mut self.reads);
        for read in reads.drain(..) {
            match self.places.get(namespace).backing {
                Backing::Memory(_) => {
                    let operation = Operation::ChainRead { namespace: namespace as u32, read };
                    self.submit(namespace, connection, goes_on, operation);
                }
                Backing::File(_) => {
                    self.file_operations.push(FileOperation::ChainRead { namespace, read });
                }
            }
        }
        self.reads = reads;
    }

    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    pub(crate) fn namespace(&self, index: usize) -> &Namespace {
        self.places.get(index)
    }
}

/// Whether a chain lets others of its connection go first after this hop.
#[inline]
fn yields(engine: &Engine, chain: ChainId) -> bool {
    engine.usage(chain).hops % HOPS_IN_A_ROW == HOPS_IN_A_ROW - 1
}

/// Asks the processor to fetch what an operation will read.
#[inline]
fn prefetch(memory: &MemoryNamespace, operation: &Operation) {
    match operation {
        Operation::ChainRead { read, .. } => memory.prefetch(read.device_offset, read.length),
        Operation::Command { offset, length, .. } if *length > 0 => {
            memory.prefetch(*offset, *length);
        }
        _ => {}
    }
}
