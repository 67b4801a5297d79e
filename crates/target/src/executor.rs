//! One reactor's work behind the protocol: device operations and chains, without devices.
//!
//! Connections submit; the reactor takes operations out, performs them and reports back. Memory
//! operations wait in a queue from which a few at a time are taken, the memory of all of them fetched
//! together; so chains take turns hop by hop. File operations are handed to the reactor's ring.

use crate::namespace::{Backing, Namespace};
use crate::places::{Places, Served};
use crate::subsystem::Subsystem;
use crate::target::Target;
use bpfof_chain::{ChainError, ChainId, DeviceRead, Engine, Function, Outcome, Start, Tables};
use bpfof_device::{DelayQueue, IoBuffer, MemoryNamespace};
use bpfof_function::{NativeFunction, Object};
use bpfof_nvme::Installation;
use std::collections::VecDeque;
use std::sync::Arc;

/// A command of a connection of this reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandId {
    pub(crate) connection: u32,
    pub(crate) slot: u16,
}

/// An operation on a memory namespace that is due.
#[derive(Debug)]
pub(crate) enum MemoryOperation {
    /// A read of a chain.
    Chain(DeviceRead),
    /// What a command's slot describes; `range` is what it reads, if it reads: offset and length
    /// in bytes.
    Command { command: CommandId, range: Option<(u64, u32)> },
    /// Zeroes for a command: offset and length in bytes.
    Zero { command: CommandId, offset: u64, length: u64 },
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

/// A function to be compiled beside the reactor.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) command: CommandId,
    /// The connection's number, unlike its index never used again.
    pub(crate) serial: u64,
    pub(crate) function: u32,
    pub(crate) installation: Installation,
    pub(crate) object: Vec<u8>,
}

/// Longest reason for refusing a function, in bytes: it may quote names from the object.
const MAX_REASON_BYTES: usize = 1024;
/// Longest name of a function, in bytes: what Function Report has room for.
const MAX_NAME_BYTES: usize = 64;

impl Load {
    /// Parses, checks and translates the object. The error is for the host to read.
    pub(crate) fn run(&self) -> Result<Function, String> {
        let object = Object::parse(&self.object).map_err(reason)?;
        let entry = object.into_entry(self.installation.entry as usize).map_err(reason)?;
        let native = NativeFunction::compile(&entry.program).map_err(reason)?;
        let instructions = entry.program.instructions().len() as u32;
        let name = cut(entry.name, MAX_NAME_BYTES);
        Ok(Function {
            id: self.function,
            name,
            instructions,
            native,
            trace: Default::default(),
            peers: None,
            maps: Default::default(),
        })
    }
}

/// An error in printable words: it is logged as well.
fn reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    cut(text.replace(char::is_control, "\u{fffd}"), MAX_REASON_BYTES)
}

fn cut(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

/// Bytes of buffers kept for reuse. More are made under load and freed afterwards.
const SPARE_BYTES: usize = 8 << 20;

/// Hops that a chain on a memory namespace does before it waits behind those that have not begun.
/// More than a lookup takes, so that lookups end in the order in which they came; long scans take
/// turns.
const HOPS_IN_A_ROW: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Owner {
    command: CommandId,
    namespace: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) target: Arc<Target>,
    /// The reactor's clock, read once a turn.
    pub(crate) now_ns: u64,
    pub(crate) file_operations: Vec<FileOperation>,
    pub(crate) loads: Vec<Load>,
    /// Connections that wait for chains to end, in the order in which they came.
    pub(crate) starved: VecDeque<u32>,
    engine: Engine,
    /// Namespaces, by what commands have for them.
    places: Places,
    /// One queue a place; those of files stay empty.
    memory: Vec<DelayQueue<MemoryOperation>>,
    /// Whether a memory namespace has a latency model.
    is_modelled: bool,
    /// The queue of which a round is being taken.
    turn: usize,
    /// By chain index.
    owners: Vec<Owner>,
    buffers: Vec<IoBuffer>,
    /// What `buffers` takes.
    spare_bytes: usize,
}

impl Executor {
    pub(crate) fn new(target: Arc<Target>) -> Executor {
        let served = target.served();
        let mut executor = Executor {
            engine: Engine::new(target.limits),
            target,
            now_ns: 0,
            file_operations: Vec::new(),
            loads: Vec::new(),
            starved: VecDeque::new(),
            places: Places::default(),
            memory: Vec::new(),
            is_modelled: false,
            turn: 0,
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
        self.memory.resize_with(self.places.count(), DelayQueue::default);
        let mut places = (0..self.places.count()).filter_map(|place| self.places.at(place));
        let is_modelled = |namespace: &Namespace| match &namespace.backing {
            Backing::Memory(memory) => memory.latency().is_some(),
            Backing::File(_) => false,
        };
        self.is_modelled = places.any(is_modelled);
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

    /// Queues a command on a memory namespace; `range` is what it is about to read, if it reads.
    #[inline]
    pub(crate) fn submit_memory(
        &mut self,
        namespace: usize,
        command: CommandId,
        range: Option<(u64, u32)>,
    ) {
        let Backing::Memory(memory) = &self.places.get(namespace).backing else { return };
        if let Some((offset, length)) = range.filter(|_| memory.latency().is_some()) {
            memory.prefetch(offset, length);
        }
        let operation = MemoryOperation::Command { command, range };
        self.memory[namespace].push(memory.latency(), self.now_ns, operation);
    }

    /// Queues zeroes for a range: offset and length in bytes.
    pub(crate) fn submit_zero(
        &mut self,
        namespace: usize,
        command: CommandId,
        (offset, length): (u64, u64),
    ) {
        match &self.places.get(namespace).backing {
            Backing::Memory(memory) => {
                let operation = MemoryOperation::Zero { command, offset, length };
                self.memory[namespace].push(memory.latency(), self.now_ns, operation);
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
        if done < length {
            let (offset, length) = (offset + done, length - done);
            let rest = MemoryOperation::Zero { command, offset, length };
            self.memory[namespace].push(memory.latency(), self.now_ns, rest);
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

    /// Takes a memory operation that is due, and its namespace.
    #[inline]
    pub(crate) fn pop_memory(&mut self) -> Option<(usize, MemoryOperation)> {
        loop {
            if let Some(operation) = self.memory.get_mut(self.turn)?.take(self.now_ns) {
                return Some((self.turn, operation));
            }
            if !self.next_round() {
                return None;
            }
        }
    }

    /// Begins a round of the next namespace that has operations due, if there is one. Namespaces take
    /// turns: a chain without end keeps its queue from ever being empty.
    #[inline(never)]
    fn next_round(&mut self) -> bool {
        for _ in 0..self.memory.len() {
            self.turn = if self.turn + 1 < self.memory.len() { self.turn + 1 } else { 0 };
            let Some(Namespace { backing: Backing::Memory(memory), .. }) =
                self.places.at(self.turn)
            else {
                continue;
            };
            let soon = |operation: &MemoryOperation| match operation {
                MemoryOperation::Chain(read) => memory.prefetch(read.device_offset, read.length),
                MemoryOperation::Command { range: Some((offset, length)), .. } => {
                    memory.prefetch(*offset, *length);
                }
                MemoryOperation::Command { range: None, .. } | MemoryOperation::Zero { .. } => {}
            };
            if self.memory[self.turn].begin_round(self.now_ns, soon) {
                return true;
            }
        }
        false
    }

    /// When the next memory operation is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.memory.iter().filter_map(DelayQueue::next_due_ns).min()
    }

    /// Chains that can still be started.
    #[inline]
    pub(crate) fn free_chains(&self) -> usize {
        self.engine.limits().chains - self.engine.running()
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
        let Executor { engine, memory: queues, file_operations, places, now_ns, .. } = self;
        let chain = match &places.get(namespace).backing {
            Backing::Memory(memory) => engine.start(start, tables, |read| {
                queue_read(&mut queues[namespace], memory, *now_ns, read);
            }),
            Backing::File(_) => engine.start(start, tables, |read| {
                file_operations.push(FileOperation::ChainRead { namespace, read });
            }),
        }?;
        let owner = Owner { command, namespace };
        match self.owners.get_mut(chain.index()) {
            Some(slot) => *slot = owner,
            None => self.owners.push(owner),
        }
        Ok(())
    }

    /// The command that a running chain belongs to.
    #[inline]
    pub(crate) fn chain_owner(&self, chain: ChainId) -> CommandId {
        self.owners[chain.index()].command
    }

    /// Copies a due chain read from its memory namespace and reports it to the engine, as
    /// [`chain_read_done`](Self::chain_read_done) does; a chain that is not `wanted` any more ends.
    #[inline]
    pub(crate) fn memory_read_done(
        &mut self,
        namespace: usize,
        read: &DeviceRead,
        wanted: bool,
        tables: &Tables,
    ) -> Option<Outcome> {
        let Executor { engine, memory: queues, places, now_ns, .. } = self;
        let Backing::Memory(memory) = &places.get(namespace).backing else {
            unreachable!("the ring reads files")
        };
        memory.read(read.device_offset, engine.data_mut(read));
        let ok = wanted && !places.is_leaving(namespace);
        let yields = engine.usage(read.chain).hops % HOPS_IN_A_ROW == HOPS_IN_A_ROW - 1;
        let queue = &mut queues[namespace];
        engine.completed(read.chain, ok, tables, |next| {
            if yields || memory.latency().is_some() {
                queue_read(queue, memory, *now_ns, next);
            } else {
                queue.push_active(MemoryOperation::Chain(next));
            }
        })
    }

    /// Reports a chain's read of a file to the engine; a finished chain must be released. It ends if
    /// its namespace has been removed: file maps may already be those of another with the same id.
    #[inline]
    pub(crate) fn chain_read_done(
        &mut self,
        chain: ChainId,
        ok: bool,
        tables: &Tables,
    ) -> Option<Outcome> {
        let namespace = self.owners[chain.index()].namespace;
        let ok = ok && !self.places.is_leaving(namespace);
        let Executor { engine, file_operations, .. } = self;
        engine.completed(chain, ok, tables, |read| {
            file_operations.push(FileOperation::ChainRead { namespace, read });
        })
    }

    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    pub(crate) fn namespace(&self, index: usize) -> &Namespace {
        self.places.get(index)
    }
}

/// Queues a chain's read of a memory namespace behind those that wait.
#[inline]
fn queue_read(
    queue: &mut DelayQueue<MemoryOperation>,
    memory: &MemoryNamespace,
    now_ns: u64,
    read: DeviceRead,
) {
    let latency = memory.latency();
    // A device with a latency brings data near the processor meanwhile.
    if latency.is_some() {
        memory.prefetch(read.device_offset, read.length);
    }
    queue.push(latency, now_ns, MemoryOperation::Chain(read));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_printable_and_short() {
        assert_eq!(reason("a\nb\u{1b}[2J"), "a\u{fffd}b\u{fffd}[2J");
        let long = reason("ä".repeat(2000));
        assert!(long.len() <= MAX_REASON_BYTES && long.ends_with('ä'));
    }
}
