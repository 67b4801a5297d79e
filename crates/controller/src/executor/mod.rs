//! One reactor's work below the protocol: device operations and chains, without devices.
//!
//! Connections submit; the reactor takes operations in the order of the [`Schedule`], performs them and
//! reports back. Operations on memory with a latency model wait until they are due. Operations on files
//! are handed to the reactor's ring.

mod arenas;
mod buffers;
mod file_queue;

use arenas::Asked;
pub(crate) use arenas::{Arenas, Owner};
pub(crate) use buffers::BufferPool;

use crate::authenticator::Authentication;
use crate::backend::Backend;
use crate::chain_admission::Admission;
use crate::command_log::{CommandLog, Topic};
use crate::connection::Connection;
use crate::controller::Controller;
use crate::limits::{
    ARENA_SLICE_NS, BYTES_PER_UNIT, DISPLACED_PER_TURN, FILE_OPERATION_UNITS, GRANTS_PER_TURN,
    MAX_KEPT_FUNCTIONS, VECTOR_CHAINS_AT_A_TIME, ZEROES_PER_UNIT,
};
use crate::loader::Load;
use crate::metrics::{Class, ClassLatencies, Counted, Ended, FunctionLatencies};
use crate::namespace::Namespace;
use crate::namespace_table::{NamespaceTable, Served};
use crate::observe::tracer::Trace;
use crate::observe::{HopLog, Observer};
use crate::operation::{ChainOf, CommandId, Fenced, FileOperation, FileWork, Operation};
use crate::queue::Slot;
use crate::registry::Registry;
use crate::schedule::{Run, Schedule};
use bpfof_chain::{ChainError, ChainId, DeviceRead, Progress, Start, Suspended, Tables};
use bpfof_device::{DelayQueue, IoBuffer, MemoryNamespace};
use file_queue::{Asker, FileQueues};
use log::Level;
use std::fmt;
use std::sync::Arc;

/// Requests of commands to the ring and to other threads; the reactor takes them from here.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// For the ring.
    pub(crate) file_operations: Vec<FileOperation>,
    /// Operations that the ring gets beyond one for each of these, because they span several files or are too large.
    pub(crate) more_operations: u64,
    /// For the ring, too: those that have waited for others of their disk.
    pub(crate) resumed: Vec<FileOperation>,
    /// For the loader.
    pub(crate) loads: Vec<Load>,
    /// Arithmetic of authentication.
    pub(crate) authentications: Vec<Authentication>,
    /// Commands that wait until all reactors have dropped a fence.
    pub(crate) fences: Vec<Fenced>,
    /// Controllers that were removed to make room for others: their queues are to end.
    pub(crate) evicted: Vec<Arc<Controller>>,
}

/// Limits of the part of a [run](Schedule::run) that is performed at once: hops, units, and bytes of each read after
/// the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) hops: usize,
    pub(crate) units: u64,
    pub(crate) bytes: u32,
}

/// Reads of chains that were performed together. Chains that ended with them are in [`Arenas::ended`].
#[derive(Debug, Default)]
pub(crate) struct ChainReads {
    /// How many.
    pub(crate) hops: usize,
    /// Cost of the reads before the last, with their calls.
    pub(crate) cost: u64,
    /// The chain of the last read, if it has more calls to make or must rest.
    pub(crate) stopped: Option<(ChainId, Progress)>,
}

/// See the module.
// More than 25 methods, in three groups: backends, operations and chains.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) registry: Arc<Registry>,
    /// The reactor's clock, read once a turn.
    pub(crate) now_ns: u64,
    pub(crate) outbox: Outbox,
    pub(crate) schedule: Schedule,
    pub(crate) admission: Admission,
    pub(crate) arenas: Arenas,
    pub(crate) buffers: BufferPool,
    pub(crate) namespaces: NamespaceTable,
    pub(crate) observer: Observer,
    pub(crate) functions: FunctionLatencies,
    /// Log lines about connections that have not completed Connect, and about commands of connections that have not
    /// authenticated.
    pub(crate) strangers: CommandLog,
    /// Log lines about how connections that have not authenticated come, go and fail; kept apart because not every
    /// stranger can cause these.
    unproved: CommandLog,
    /// There are arenas left to grant, for which this turn had no time.
    pub(crate) grants_wait: bool,
    /// This turn there is no memory for arenas for all connections that wait.
    lacks_arenas: bool,
    /// Units of work outside the engine, since they were last taken.
    spent: u64,
    /// For each place, the operations that are not due yet: the connection, whether the operation continues something,
    /// and the operation. Queues of namespaces without a latency model stay empty.
    delayed: Vec<DelayQueue<(u32, bool, Operation)>>,
    file_queues: FileQueues,
    /// Whether a memory namespace has a latency model.
    is_modelled: bool,
    /// Whether chains over memory go on at once: there is no latency model, and no trace runs.
    is_direct: bool,
}

impl Executor {
    pub(crate) fn new(registry: Arc<Registry>) -> Executor {
        let served = registry.served();
        let mut executor = Executor {
            admission: Admission::new(registry.limits.chains),
            arenas: Arenas::new(registry.limits, &registry.hosts.own),
            registry,
            now_ns: 0,
            outbox: Outbox::default(),
            schedule: Schedule::default(),
            buffers: BufferPool::default(),
            namespaces: NamespaceTable::default(),
            observer: Observer::default(),
            functions: FunctionLatencies::default(),
            strangers: CommandLog::of_strangers(),
            unproved: CommandLog::of_strangers(),
            grants_wait: false,
            lacks_arenas: false,
            spent: 0,
            delayed: Vec::new(),
            file_queues: FileQueues::default(),
            is_modelled: false,
            is_direct: true,
        };
        executor.serve(&served);
        executor
    }

    /// Serves these namespaces from now on; for others, only commands in flight are completed.
    pub(crate) fn serve(&mut self, served: &[Served]) {
        self.namespaces.serve(served);
        self.delayed.resize_with(self.namespaces.count(), DelayQueue::default);
        let all = (0..self.namespaces.count()).map(|place| self.namespaces.at(place));
        self.file_queues.serve(all.clone().map(|of| of?.backend.volume()));
        let mut all = all.flatten();
        self.is_modelled =
            all.any(|of| of.backend.memory().is_some_and(|memory| memory.latency().is_some()));
        self.is_direct = !self.is_modelled && !self.observer.is_tracing();
    }

    /// Begins a trace.
    pub(crate) fn begin_trace(&mut self, trace: Trace) {
        self.observer.begin_trace(trace);
        self.is_direct = false;
    }

    /// Ends a trace.
    pub(crate) fn end_trace(&mut self, id: u64) {
        self.observer.end_trace(id);
        self.is_direct = !self.is_modelled && !self.observer.is_tracing();
    }

    /// Adds units of work that has been done.
    #[inline]
    pub(crate) fn spend(&mut self, units: u64) {
        self.spent += units;
    }

    /// Units of work since they were last taken, including the work of chains.
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent + self.arenas.engine.spent()
    }

    /// Takes the units of work since this was last called.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent) + self.arenas.engine.take_spent()
    }

    /// Whether the time of operations on memory matters within a turn.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        self.is_modelled
    }

    /// Counts an ended I/O command for its namespace and its connection.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        slot: &Slot,
        latencies: &mut ClassLatencies,
        ended: Ended,
    ) -> Option<Counted> {
        let (class, place) = Class::of(&slot.state)?;
        let latency_ns = self.now_ns.saturating_sub(slot.begun_ns);
        let counted = self.namespaces.metrics(place).count(class, latency_ns, ended);
        latencies.add(counted);
        Some(counted)
    }

    /// Forgets latencies of functions that are not kept any more, if there are many.
    pub(crate) fn forget_functions(&mut self) {
        if self.functions.len() > MAX_KEPT_FUNCTIONS {
            let registry = &self.registry;
            self.functions.retain(|(subsystem, id)| id == 0 || registry.keeps(subsystem, id));
        }
    }

    /// The namespace at the place that a command has.
    #[inline]
    pub(crate) fn namespace(&self, place: usize) -> &Namespace {
        self.namespaces.get(place)
    }

    /// Queues an operation on memory: now, or when it is due. An operation that continues something comes before
    /// operations that begin something.
    #[inline]
    fn submit(&mut self, namespace: usize, connection: u32, goes_on: bool, operation: Operation) {
        let Backend::Memory(memory) = &self.namespaces.get(namespace).backend else {
            unreachable!("only namespaces in memory get here")
        };
        match memory.latency() {
            None if goes_on => self.schedule.push_active(connection, operation),
            None => self.schedule.push(connection, operation),
            Some(model) => {
                // While a modelled device works, its data comes into the processor's cache.
                prefetch(memory, &operation);
                let delayed = (connection, goes_on, operation);
                self.delayed[namespace].push(model, self.now_ns, delayed);
            }
        }
    }

    /// Queues a command on a memory namespace that reads `length` bytes at `offset`.
    #[inline]
    fn submit_memory(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u32),
    ) {
        let operation = Operation::Command { namespace: namespace as u32, command, offset, length };
        self.submit(namespace, command.connection, false, operation);
    }

    /// Queues an operation of a connection for the ring. If it is split into several, each is paid for and counts as
    /// time of the turn.
    #[inline]
    fn submit_file_operation(&mut self, connection: u32, operation: FileOperation) {
        let is_zero = matches!(operation, FileOperation::Zero { .. });
        let backend = &self.namespaces.get(operation.namespace()).backend;
        let count = match (backend, operation.range()) {
            (Backend::Volume(volume), None) => volume.pieces(),
            (Backend::Volume(volume), Some((offset, length))) => match is_zero {
                // At most one for each file.
                true => volume.count(offset, length).min(volume.pieces()),
                false => volume.count(offset, length),
            },
            (Backend::Drive(drive), Some((_, length))) => drive.count(length, is_zero),
            (Backend::Drive(_), None) | (Backend::Memory(_), _) => 1,
        };
        let more = count - 1;
        if more > 0 {
            // Charged but not spent, because the work comes later and the clock does not show it yet.
            self.schedule.charge(connection, (more * FILE_OPERATION_UNITS) as i64);
            self.outbox.more_operations += more;
        }
        let operation = match backend {
            Backend::Volume(volume) => {
                let group = self.admission.group(connection);
                self.file_queues.begin(operation, Asker { connection, group }, volume)
            }
            _ => Some(operation),
        };
        self.outbox.file_operations.extend(operation);
    }

    /// An operation of this kind has ended in a namespace: others of its disk begin, if some have waited.
    #[inline]
    pub(crate) fn file_operation_ended(&mut self, namespace: usize, work: FileWork) {
        if let Backend::Volume(volume) = &self.namespaces.get(namespace).backend {
            let resumed = &mut self.outbox.resumed;
            self.file_queues.ended(work, (namespace, volume), |next| resumed.push(next));
        }
    }

    /// Takes an operation of a connection that waits for others, if there is one; a read only `with_reads`.
    pub(crate) fn take_waiting(
        &mut self,
        connection: u32,
        with_reads: bool,
    ) -> Option<FileOperation> {
        let group = self.admission.group(connection);
        let (asker, resumed) = (Asker { connection, group }, &mut self.outbox.resumed);
        self.file_queues.take_waiting(asker, with_reads, |next| resumed.push(next))
    }

    /// Lets this number of reads of a disk's files run at a time, and half as many writes.
    #[cfg(test)]
    pub(crate) fn limit_file_reads(&mut self, most: usize) {
        self.file_queues.reads_max = most;
    }

    /// Queues a command that reads `range`: offset and length in bytes.
    #[inline]
    pub(crate) fn submit_read(&mut self, namespace: usize, command: CommandId, range: (u64, u32)) {
        match self.namespaces.get(namespace).backend {
            Backend::Memory(_) => self.submit_memory(namespace, command, range),
            Backend::Volume(_) | Backend::Drive(_) => {
                let (offset, length) = range;
                let buffer = self.buffers.take(length as usize);
                let read = FileOperation::Read { namespace, buffer, offset, command };
                self.submit_file_operation(command.connection, read);
            }
        }
    }

    /// Queues a write of `buffer` at `offset`; with `fua` it is durable when it is answered.
    pub(crate) fn submit_write(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, fua): (u64, bool),
        buffer: IoBuffer,
    ) {
        if let Backend::Memory(memory) = &self.namespaces.get(namespace).backend {
            memory.write(offset, &buffer);
            self.spent += buffer.len() as u64 / BYTES_PER_UNIT;
            self.buffers.recycle(buffer);
            return self.submit_memory(namespace, command, (0, 0));
        }
        let write = FileOperation::Write { namespace, buffer, offset, fua, command };
        self.submit_file_operation(command.connection, write);
    }

    /// Queues a flush.
    pub(crate) fn submit_flush(&mut self, namespace: usize, command: CommandId) {
        match self.namespaces.get(namespace).backend {
            Backend::Memory(_) => self.submit_memory(namespace, command, (0, 0)),
            Backend::Volume(_) | Backend::Drive(_) => {
                let sync = FileOperation::Sync { namespace, command };
                self.submit_file_operation(command.connection, sync);
            }
        }
    }

    /// Queues the zeroing of a range: offset and length in bytes. Memory ignores `deallocate`.
    pub(crate) fn submit_zero(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u64),
        deallocate: bool,
    ) {
        match &self.namespaces.get(namespace).backend {
            Backend::Memory(_) => {
                let operation =
                    Operation::Zero { namespace: namespace as u32, command, offset, length };
                self.submit(namespace, command.connection, false, operation);
            }
            Backend::Volume(_) | Backend::Drive(_) => {
                let zero = FileOperation::Zero { namespace, offset, length, deallocate, command };
                self.submit_file_operation(command.connection, zero);
            }
        }
    }

    /// Zeroes the first part of a range; the rest is queued behind other operations. Returns whether that was all.
    pub(crate) fn zero_some(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u64),
    ) -> bool {
        let Backend::Memory(memory) = &self.namespaces.get(namespace).backend else {
            unreachable!("only namespaces in memory are zeroed here")
        };
        let done = memory.zero_some(offset, length);
        self.spent += done / ZEROES_PER_UNIT;
        if done < length {
            self.submit_zero(namespace, command, (offset + done, length - done), false);
        }
        done == length
    }

    /// Queues operations that have become due.
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

    /// When the next operation on memory becomes due that is not due yet.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.delayed.iter().filter_map(DelayQueue::next_due_ns).min()
    }

    /// Prefetches the memory of all operations of the round that has begun.
    #[inline]
    pub(crate) fn prefetch_round(&self) {
        for operation in self.schedule.round() {
            let (Operation::ChainRead { namespace, .. } | Operation::Command { namespace, .. }) =
                operation
            else {
                continue;
            };
            if let Backend::Memory(memory) = &self.namespaces.get(*namespace as usize).backend {
                prefetch(memory, operation);
            }
        }
    }
}

/// Chains.
impl Executor {
    /// Notes the command of a chain that has got an arena.
    #[inline]
    fn own(
        &mut self,
        chain: ChainId,
        (command, entry): ChainOf,
        (namespace, is_logged): (usize, bool),
    ) {
        let since_ns = self.now_ns;
        let owner = Owner { command, entry, namespace, since_ns, asked: None, is_logged };
        self.arenas.own(chain, owner);
    }

    /// Whether chains over a namespace go on at once, without logs of their hops.
    #[inline]
    pub(crate) fn is_direct(&self, namespace: usize) -> bool {
        self.is_direct && matches!(self.namespaces.get(namespace).backend, Backend::Memory(_))
    }

    /// Starts a chain for a command.
    #[inline]
    pub(crate) fn start_chain(
        &mut self,
        namespace: usize,
        of @ (command, _): ChainOf,
        start: &Start<'_>,
        tables: &Tables,
    ) -> Result<(), ChainError> {
        let is_direct = self.is_direct(namespace);
        let chain = if is_direct {
            let (queue, place) = (self.schedule.queue(command.connection, false), namespace as u32);
            let chain = self.arenas.engine.start(start, tables, |read| {
                queue.push_back(Operation::ChainRead { namespace: place, read });
            })?;
            self.schedule.wake(command.connection);
            chain
        } else {
            let Arenas { engine, reads, .. } = &mut self.arenas;
            let chain = engine.start(start, tables, |read| reads.push(read))?;
            self.observer.chain_begun(engine, chain, self.now_ns);
            self.submit_chain_reads(namespace, command.connection, false);
            chain
        };
        self.own(chain, of, (namespace, !is_direct));
        Ok(())
    }

    /// Resumes a chain that has rested.
    pub(crate) fn resume_chain(
        &mut self,
        namespace: usize,
        of @ (command, _): ChainOf,
        (suspended, log, rested_ns): (&Suspended, HopLog, u64),
        tables: &Tables,
    ) -> Result<(), ChainError> {
        let Arenas { engine, reads, .. } = &mut self.arenas;
        let chain = engine.resume(suspended, tables, |read| reads.push(read))?;
        self.observer.chain_resumed(chain, log, rested_ns);
        if !self.is_direct(namespace) {
            self.observer.chain_asked(&self.arenas.engine, chain, self.now_ns);
        }
        self.own(chain, of, (namespace, true));
        self.submit_chain_reads(namespace, command.connection, false);
        Ok(())
    }

    /// Performs a read of a chain from memory.
    pub(crate) fn bring(&mut self, namespace: usize, read: &DeviceRead) {
        if let Backend::Memory(memory) = &self.namespaces.get(namespace).backend {
            memory.read(read.device_offset, self.arenas.engine.data_mut(read));
        }
        if !self.is_direct {
            self.observer.read_came(read.chain, self.now_ns);
        }
    }

    /// Performs the chain's read from memory whose turn it is and goes on with the chain, then with the reads that
    /// follow in the [run](Schedule::run), until a chain has more calls to make or must rest. Chains that are not
    /// `wanted` any more end; so do chains whose namespace has been removed, because the file maps may already be those
    /// of another namespace with the same id.
    #[inline]
    pub(crate) fn read_for_chains(
        &mut self,
        namespace: usize,
        wanted: bool,
        tables: &Tables,
        most: Most,
    ) -> ChainReads {
        let ok = wanted && !self.namespaces.is_leaving(namespace);
        let place = namespace as u32;
        let Executor { arenas, schedule, namespaces, .. } = self;
        debug_assert!(
            arenas.ended.is_empty(),
            "the commands of chains that ended before have been answered"
        );
        let Backend::Memory(memory) = &namespaces.get(namespace).backend else {
            unreachable!("only namespaces in memory get here")
        };
        let Run { connection, operations, active, fresh } = schedule.run();
        let mut of = operations.iter().map_while(|operation| match operation {
            Operation::ChainRead { namespace, read } if *namespace == place => Some(read),
            _ => None,
        });
        let mut done = ChainReads::default();
        let mut dearest = 0;
        let mut next = of.next();
        while let Some(read) = next {
            let queue = if arenas.yields(read.chain) { &mut *fresh } else { &mut *active };
            let bring = |data: &mut [u8]| memory.read(read.device_offset, data);
            let progress = arenas.engine.perform(read, bring, ok, tables, |read| {
                queue.push_back(Operation::ChainRead { namespace: place, read });
            });
            done.hops += 1;
            match progress {
                Progress::Reads => {}
                Progress::Done(outcome) => arenas.ended.push((read.chain, outcome)),
                Progress::Calls | Progress::Rest => {
                    done.stopped = Some((read.chain, progress));
                    break;
                }
            }
            let is_over = done.hops >= most.hops || done.cost + arenas.engine.spent() >= most.units;
            next = of.next().filter(|read| !is_over && read.length <= most.bytes);
            if next.is_some() {
                let cost = arenas.engine.take_spent();
                done.cost += cost;
                dearest = cost.max(dearest);
            }
        }
        debug_assert!(done.hops > 0, "at least the first read of the run is over this namespace");
        schedule.advance(done.hops - 1, done.cost, dearest);
        if done.hops > arenas.ended.len() + usize::from(done.stopped.is_some()) {
            schedule.wake(connection);
        }
        done
    }

    /// Goes on with a chain of which a read has ended, successfully or not, or that has calls left.
    #[inline(never)]
    pub(crate) fn go_on_with_chain(
        &mut self,
        chain: ChainId,
        read: Option<bool>,
        wanted: bool,
        tables: &Tables,
    ) -> Progress {
        let Owner { namespace, command, is_logged, .. } = self.arenas.owner(chain);
        let wanted = wanted && !self.namespaces.is_leaving(namespace);
        let goes_on = !self.arenas.yields(chain);
        let Arenas { engine, reads, .. } = &mut self.arenas;
        let before = is_logged.then(|| self.observer.chain_goes_on(engine, chain, self.now_ns));
        let progress = match read {
            Some(ok) => engine.completed(chain, ok && wanted, tables, |read| reads.push(read)),
            None => engine.go_on(chain, wanted, tables, |read| reads.push(read)),
        };
        if let Some(before) = before {
            let (before, after) = ((before, read.is_none()), (progress, self.now_ns));
            self.observer.chain_went_on(engine, chain, before, after);
        }
        self.submit_chain_reads(namespace, command.connection, goes_on);
        progress
    }

    /// Queues the reads that a chain has just asked for.
    fn submit_chain_reads(&mut self, namespace: usize, connection: u32, goes_on: bool) {
        let mut reads = std::mem::take(&mut self.arenas.reads);
        if reads.len() > 1 && self.namespaces.get(namespace).backend.memory().is_none() {
            // Charged but not spent, because the work comes later and the clock does not show it yet.
            let units = (reads.len() as u64 - 1) * FILE_OPERATION_UNITS;
            self.schedule.charge(connection, units as i64);
        }
        for read in reads.drain(..) {
            match self.namespaces.get(namespace).backend {
                Backend::Memory(_) => {
                    let operation = Operation::ChainRead { namespace: namespace as u32, read };
                    self.submit(namespace, connection, goes_on, operation);
                }
                Backend::Volume(_) | Backend::Drive(_) => {
                    let read = FileOperation::ChainRead { namespace, read };
                    self.submit_file_operation(connection, read);
                }
            }
        }
        self.arenas.reads = reads;
    }

    /// Chains of one connection's vectors that run at a time in a namespace.
    #[inline]
    pub(crate) fn vector_chains_at_a_time(&self, namespace: usize) -> u32 {
        match self.namespaces.get(namespace).backend {
            Backend::Memory(_) if !self.is_modelled => VECTOR_CHAINS_AT_A_TIME,
            _ => u32::MAX,
        }
    }

    /// Whether a connection may start a chain now.
    #[inline]
    pub(crate) fn may_start_chain(&mut self, connection: u32) -> bool {
        let may = self.has_plenty() || self.admission.may_start(connection, self.arenas.free());
        may && self.arenas.has_arena(1)
    }

    /// Whether there are arenas, and memory for them, for all connections that wait and for one more.
    #[inline]
    fn has_plenty(&mut self) -> bool {
        let wanted = self.admission.wanted();
        if self.lacks_arenas || !self.admission.is_plenty(self.arenas.free()) {
            return false;
        }
        self.lacks_arenas = wanted > 0 && !self.arenas.has_arena(wanted + 1);
        !self.lacks_arenas
    }

    /// Logs a line about a connection, unless there were too many this second about its host, or about strangers.
    pub(crate) fn note(&mut self, connection: &Connection, level: Level, what: fmt::Arguments<'_>) {
        let when = (level, self.now_ns);
        match connection.phase.association() {
            None => self.strangers.note(when, connection, what),
            Some(association) if association.awaits_authentication() => {
                self.unproved.note(when, connection, what);
            }
            Some(association) => {
                association.host().log.note(Topic::Coming, when, connection, what);
            }
        }
    }

    /// Grants free arenas to waiting connections, and asks chains to give way if there is none; calls `wake` with each
    /// connection that has been granted an arena.
    pub(crate) fn grant_arenas(&mut self, mut wake: impl FnMut(u32)) {
        self.grants_wait = false;
        self.lacks_arenas = false;
        if self.admission.waiting().is_empty() {
            return;
        }
        let (mut grants, has_plenty) = (0, self.has_plenty());
        while self.arenas.has_arena(self.admission.granted() + 1) {
            if grants == GRANTS_PER_TURN {
                self.grants_wait = true;
                return;
            }
            let Some(connection) = self.admission.grant(self.arenas.free(), has_plenty) else {
                break;
            };
            wake(connection);
            grants += 1;
        }
        if !self.admission.is_to_look(self.now_ns) {
            return;
        }
        // An arena counts as its chain's until that has left it, so all asked chains give way to the same connection.
        let neediest = self.admission.neediest();
        let (asked, is_asked_within) = self.asked();
        let missing = self.admission.waiting().len().saturating_sub(asked);
        let mut displaced = 0;
        while displaced < missing.min(DISPLACED_PER_TURN)
            && neediest.is_some_and(|neediest| self.displace(Some(neediest)))
        {
            displaced += 1;
        }
        if displaced == DISPLACED_PER_TURN {
            return;
        }
        // One at a time: its arena goes to the connection that needs it most by then.
        if displaced < missing && !is_asked_within && self.admission.is_to_look_within(self.now_ns)
        {
            if self.displace(None) {
                return;
            }
            self.admission.look_within_later(self.now_ns);
        }
        self.admission.look_later(self.now_ns);
    }

    /// How many chains have recently been asked to give way, and whether one of them was asked within its group. A
    /// chain that was asked long ago waits for a read that may never end: others are asked in its place.
    fn asked(&self) -> (usize, bool) {
        let all = self.arenas.running().filter_map(|(_, owner)| owner.asked);
        let recent = all.filter(|asked| self.now_ns.saturating_sub(asked.at_ns) < ARENA_SLICE_NS);
        recent
            .fold((0, false), |(count, is_within), asked| (count + 1, is_within || asked.is_within))
    }

    /// Asks one chain to give way to the connection that needs an arena most, or, without one, to others of its group;
    /// false if none should.
    fn displace(&mut self, neediest: Option<u32>) -> bool {
        let now_ns = self.now_ns;
        let running = self.arenas.running().filter(|(_, owner)| !owner.gives_way());
        let held = running.map(|(chain, owner)| {
            (chain, owner.command.connection, now_ns.saturating_sub(owner.since_ns))
        });
        let chosen = match neediest {
            Some(neediest) => self.admission.choose_displaced(neediest, held),
            None => self.admission.choose_displaced_within(held),
        };
        let Some(chain) = chosen else { return false };
        self.arenas.engine.give_way(chain);
        let owner = self.arenas.owner_mut(chain);
        owner.asked = Some(Asked { at_ns: now_ns, is_within: neediest.is_none() });
        let connection = owner.command.connection;
        self.schedule.hasten(connection, chain);
        true
    }
}

/// Asks the processor to prefetch the memory that an operation will read.
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
