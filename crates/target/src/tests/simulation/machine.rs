//! The target's process, without threads and sockets: the real connections and executors, and what
//! a reactor does around them (`reactor.rs`), step by step as the scheduler says.

use super::network::{SECOND, Time};
use crate::config::{NamespaceConfig, NamespaceSource};
use crate::connection::{Close, Connection, Ends};
use crate::controller::Controller;
use crate::executor::{CommandId, Executor, FileOperation, Load, MemoryOperation};
use crate::namespace::Namespace;
use crate::target::Target;
use bpfof_chain::{ChainId, Function, Limits, Outcome, Tables};
use bpfof_device::IoBuffer;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tempfile::TempDir;

/// The subsystem.
pub(super) const NQN: &str = "nqn.2026-01.io.bpf-of:simulation";
/// Chains of one executor: fewer than its hosts have queue entries, so that they wait for each other.
const CHAINS: usize = 6;
/// Memory operations of one turn. Fewer than a reactor's, so that turns end in the middle.
const OPERATIONS_PER_TURN: usize = 8;
/// Most bytes a connection may have to send: all that one queue of a host can ask for.
const TX_MAX_BYTES: usize = 1 << 20;
/// Most connections at a time: those of all hosts, and some that are not known to be dead.
const CONNECTIONS_MAX: usize = 64;

/// What a namespace is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) block_bytes: u32,
    pub(super) blocks: u64,
    /// In the target's memory, with this latency; else on a disk of the simulation.
    pub(super) memory_latency_us: Option<u64>,
}

/// What the machine asks of the world.
pub(super) enum Effect {
    /// Send this; `sent` is due once the kernel has taken it.
    Send {
        core: usize,
        index: usize,
        link: usize,
        bytes: Vec<u8>,
    },
    /// The socket is closed: what was sent before still arrives.
    Close {
        link: usize,
    },
    File {
        core: usize,
        operation: FileOperation,
    },
    Load {
        core: usize,
        load: Load,
    },
    /// All cores are to end the queues of this controller, with `true` also its admin queue.
    EndQueues(Arc<Controller>, bool),
    /// The peer was given up for its silence.
    Overdue {
        link: usize,
        reason: &'static str,
    },
}

/// One connection, and what a reactor keeps beside it.
struct Entry {
    connection: Connection,
    link: usize,
    rx: Vec<u8>,
    /// The kernel sends what it was given last.
    sending: bool,
    /// The association has got the function that chains run.
    furnished: bool,
    closing: bool,
}

struct Core {
    x: Executor,
    entries: Vec<Option<Entry>>,
    next_serial: u64,
    next_tick: Time,
}

/// See the module.
pub(super) struct Machine {
    cores: Vec<Core>,
    target: Arc<Target>,
    function: Arc<Function>,
    pub(super) effects: Vec<Effect>,
}

thread_local! {
    /// Where the files of namespaces are, which nobody reads or writes: a target opens them.
    static FILES: TempDir = tempfile::tempdir().expect("a directory for temporary files");
}

fn open(nsid: u32, shape: &Shape) -> (String, Namespace) {
    let size_bytes = shape.blocks * u64::from(shape.block_bytes);
    let source = match shape.memory_latency_us {
        Some(latency_us) => NamespaceSource::Memory { size_bytes, latency_us, iops: 0 },
        None => FILES.with(|directory| NamespaceSource::File {
            path: directory.path().join(nsid.to_string()),
            size_bytes: Some(size_bytes),
        }),
    };
    let config =
        NamespaceConfig { source, lba_bytes: shape.block_bytes, subsystem: None, nsid: None };
    let namespace = Namespace::open(nsid, &config, NQN).expect("a small file or mapping");
    assert!(namespace.deallocates(), "temporary files must be able to have holes");
    (NQN.to_owned(), namespace)
}

impl Machine {
    /// A process that starts now. Each core takes connections.
    pub(super) fn start(cores: usize, shapes: &[Shape], function: Arc<Function>) -> Machine {
        let namespaces = (1..).zip(shapes).map(|(nsid, shape)| open(nsid, shape)).collect();
        let listeners = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4420))];
        let limits = Limits { hops: 64, chains: CHAINS, ..Limits::default() };
        let target = Arc::new(Target::new(limits, 0, namespaces, listeners));
        let core = |index: u64| Core {
            x: Executor::new(Arc::clone(&target)),
            entries: Vec::new(),
            next_serial: index << 48 | 1,
            next_tick: 0,
        };
        let cores = (0..cores as u64).map(core).collect();
        Machine { cores, target, function, effects: Vec::new() }
    }

    /// The links of all its connections.
    pub(super) fn links(&self) -> Vec<usize> {
        self.cores.iter().flat_map(|core| core.entries.iter().flatten()).map(|e| e.link).collect()
    }

    /// Serves a connection; returns its index on this core.
    pub(super) fn adopt(&mut self, core: usize, link: usize, now: Time) -> usize {
        let Core { x, entries, next_serial, .. } = &mut self.cores[core];
        x.now_ns = now;
        let index = entries.iter().position(Option::is_none).unwrap_or_else(|| {
            entries.push(None);
            entries.len() - 1
        });
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let ends = Ends { peer, local: peer, discovery_only: false };
        let connection = Connection::new(index as u32, *next_serial, ends, now);
        *next_serial += 1;
        entries[index] = Some(Entry {
            connection,
            link,
            rx: Vec::new(),
            sending: false,
            furnished: false,
            closing: false,
        });
        index
    }

    /// Whether a connection takes no more bytes for now.
    pub(super) fn is_paused(&self, core: usize, index: usize) -> bool {
        let entry = self.cores[core].entries[index].as_ref();
        entry.is_some_and(|entry| !entry.closing && entry.connection.is_paused())
    }

    /// Bytes arrive.
    pub(super) fn received(&mut self, core: usize, index: usize, bytes: &[u8], now: Time) {
        self.cores[core].x.now_ns = now;
        let Some(entry) = &mut self.cores[core].entries[index] else { return };
        if !entry.closing {
            entry.rx.extend_from_slice(bytes);
            self.process(core, index);
        }
    }

    /// The host has closed the connection, or it broke.
    pub(super) fn hung_up(&mut self, core: usize, index: usize, now: Time) {
        self.cores[core].x.now_ns = now;
        self.close(core, index);
    }

    fn process(&mut self, core: usize, index: usize) {
        let Core { x, entries, .. } = &mut self.cores[core];
        let Some(entry) = &mut entries[index] else { return };
        let outcome = entry.connection.receive(&entry.rx, x);
        self.after_commands(core, index);
        let Some(entry) = &mut self.cores[core].entries[index] else { return };
        match outcome {
            Ok(used) => _ = entry.rx.drain(..used),
            Err(Close::Protocol(error)) => {
                panic!("the host is said to break the protocol: {error}")
            }
            Err(_) => {
                self.flush(core, index);
                self.close(core, index);
            }
        }
    }

    /// What commands ask for beyond the executor.
    fn after_commands(&mut self, core: usize, index: usize) {
        let Core { x, entries, .. } = &mut self.cores[core];
        self.effects.extend(x.loads.drain(..).map(|load| Effect::Load { core, load }));
        let Some(entry) = &mut entries[index] else { return };
        let connection = &mut entry.connection;
        let Some(controller) = &connection.controller else { return };
        if connection.admin.is_some() && !entry.furnished {
            entry.furnished = true;
            controller.update(|tables| tables.with_function(Arc::clone(&self.function)));
        }
        if std::mem::take(&mut connection.reset_queues) {
            self.effects.push(Effect::EndQueues(Arc::clone(controller), false));
        }
    }

    /// A message to a core: the queues of a controller end.
    pub(super) fn end_queues(
        &mut self,
        core: usize,
        controller: &Arc<Controller>,
        and_admin: bool,
        now: Time,
    ) {
        self.cores[core].x.now_ns = now;
        for index in 0..self.cores[core].entries.len() {
            let Some(Entry { connection, .. }) = &self.cores[core].entries[index] else { continue };
            if connection.ends_with(controller, and_admin) {
                self.close(core, index);
            }
        }
    }

    /// Begins to close a connection; what is in flight comes back first.
    fn close(&mut self, core: usize, index: usize) {
        let Core { x, entries, .. } = &mut self.cores[core];
        let Some(entry) = &mut entries[index] else { return };
        if std::mem::replace(&mut entry.closing, true) {
            return;
        }
        entry.rx.clear();
        let connection = &mut entry.connection;
        connection.abandon(x);
        if let (Some(controller), Some(queue)) = (&connection.controller, &connection.queue) {
            controller.remove_queue(queue.id);
            if connection.admin.is_some() {
                controller.subsystem.remove_controller(controller.id);
                self.effects.push(Effect::EndQueues(Arc::clone(controller), true));
            }
        }
    }

    /// The kernel has taken what it was given to send.
    pub(super) fn sent(&mut self, core: usize, index: usize) {
        if let Some(entry) = &mut self.cores[core].entries[index] {
            assert!(entry.sending, "a connection went while the kernel was sending");
            entry.sending = false;
        }
    }

    fn flush(&mut self, core: usize, index: usize) {
        let Some(entry) = &mut self.cores[core].entries[index] else { return };
        let waiting = entry.connection.tx.len();
        assert!(waiting <= TX_MAX_BYTES, "{waiting} bytes wait to be sent");
        if waiting > 0 && !entry.sending {
            entry.sending = true;
            let bytes = std::mem::take(&mut entry.connection.tx).to_bytes();
            self.effects.push(Effect::Send { core, index, link: entry.link, bytes });
        }
    }

    /// One turn of a core: operations on memory, then all that was said is sent. Returns when the
    /// next operation on memory is due.
    pub(super) fn turn(&mut self, core: usize, now: Time) -> Option<Time> {
        self.cores[core].x.now_ns = now;
        for _ in 0..OPERATIONS_PER_TURN {
            let Some((namespace, operation)) = self.cores[core].x.pop_memory() else { break };
            self.memory_operation(core, namespace, operation);
        }
        self.take_file_operations(core);
        let Core { x, entries, .. } = &mut self.cores[core];
        x.feed_starved(|x, index| {
            entries[index as usize].as_mut().is_none_or(|entry| !entry.connection.still_waits(x))
        });
        for index in 0..self.cores[core].entries.len() {
            let Some(entry) = &mut self.cores[core].entries[index] else { continue };
            entry.connection.publish_counters();
            self.flush(core, index);
            self.resume(core, index);
            self.remove_if_done(core, index);
        }
        self.take_file_operations(core);
        if now >= self.cores[core].next_tick {
            self.tick(core, now);
        }
        assert!(self.links().len() <= CONNECTIONS_MAX, "connections are kept for ever");
        self.cores[core].x.next_due_ns()
    }

    fn memory_operation(&mut self, core: usize, namespace: usize, operation: MemoryOperation) {
        let Core { x, entries, .. } = &mut self.cores[core];
        match operation {
            MemoryOperation::Chain(read) => {
                self.chain_goes_on(core, read.chain, |x, wanted, tables| {
                    x.memory_read_done(namespace, &read, wanted, tables)
                });
            }
            MemoryOperation::Command { command, .. } => {
                let Some(Some(entry)) = entries.get_mut(command.connection as usize) else {
                    panic!("an operation ends for a connection that is gone");
                };
                entry.connection.memory_done(command.slot, x);
            }
            MemoryOperation::Zero { command, offset, length } => {
                let Some(Some(entry)) = entries.get_mut(command.connection as usize) else {
                    panic!("an operation ends for a connection that is gone");
                };
                let zeroes = ((offset, length), !entry.closing);
                entry.connection.zero_memory(namespace, command, zeroes, x);
            }
        }
    }

    fn take_file_operations(&mut self, core: usize) {
        let operations = std::mem::take(&mut self.cores[core].x.file_operations);
        let effect = |operation| Effect::File { core, operation };
        self.effects.extend(operations.into_iter().map(effect));
    }

    /// A connection that was paused with received bytes left goes on.
    fn resume(&mut self, core: usize, index: usize) {
        let Some(entry) = &self.cores[core].entries[index] else { return };
        if !entry.closing && !entry.connection.is_paused() && !entry.rx.is_empty() {
            self.process(core, index);
        }
    }

    fn remove_if_done(&mut self, core: usize, index: usize) {
        let Some(entry) = &self.cores[core].entries[index] else { return };
        let (connection, link) = (&entry.connection, entry.link);
        let idle = !entry.sending && !connection.is_busy() && connection.tx.is_empty();
        if entry.closing && idle {
            assert_eq!(connection.held_bytes(), 0, "data is held for no command");
            self.cores[core].entries[index] = None;
            self.effects.push(Effect::Close { link });
        }
    }

    /// Once a second: peers that are silent.
    fn tick(&mut self, core: usize, now: Time) {
        self.cores[core].next_tick = now + SECOND;
        for index in 0..self.cores[core].entries.len() {
            let Some(entry) = &self.cores[core].entries[index] else { continue };
            if entry.closing {
                continue;
            }
            if let Some(reason) = entry.connection.overdue(now) {
                self.effects.push(Effect::Overdue { link: entry.link, reason });
                self.close(core, index);
            }
        }
    }

    /// A command's operation on a disk has completed.
    pub(super) fn file_done(
        &mut self,
        core: usize,
        command: CommandId,
        result: i32,
        buffer: Option<IoBuffer>,
    ) {
        let Core { x, entries, .. } = &mut self.cores[core];
        let Some(Some(entry)) = entries.get_mut(command.connection as usize) else {
            panic!("an operation ends for a connection that is gone");
        };
        entry.connection.file_done(command.slot, result, buffer, x);
    }

    /// A chain's read from a disk has completed, with this data if it succeeded.
    pub(super) fn chain_read(
        &mut self,
        core: usize,
        read: &bpfof_chain::DeviceRead,
        data: Option<&[u8]>,
    ) {
        if let Some(data) = data {
            self.cores[core].x.engine().data_mut(read).copy_from_slice(data);
        }
        let (chain, ok) = (read.chain, data.is_some());
        self.chain_goes_on(core, chain, |x, wanted, tables| {
            x.chain_read_done(chain, ok && wanted, tables)
        });
    }

    fn chain_goes_on(
        &mut self,
        core: usize,
        chain: ChainId,
        done: impl FnOnce(&mut Executor, bool, &Tables) -> Option<Outcome>,
    ) {
        let Core { x, entries, .. } = &mut self.cores[core];
        let owner = x.chain_owner(chain);
        let Some(Some(entry)) = entries.get_mut(owner.connection as usize) else {
            panic!("a chain outlives its connection");
        };
        let connection = &mut entry.connection;
        connection.refresh_tables();
        if let Some(outcome) = done(x, !entry.closing, &connection.tables) {
            connection.chain_done(owner.slot, chain, outcome, x);
        }
    }

    /// A function has been looked at: none that the simulation loads is one.
    pub(super) fn loaded(&mut self, core: usize, load: &Load) {
        let Core { x, entries, .. } = &mut self.cores[core];
        let entry = entries.get_mut(load.command.connection as usize);
        if let Some(Some(entry)) = entry
            && entry.connection.serial == load.serial
        {
            entry.connection.loaded(load.command.slot, load.installation, load.run(), x);
        }
    }

    /// Checks that nothing is left once all hosts are gone.
    pub(super) fn check_empty(&mut self) -> Result<(), String> {
        for core in &mut self.cores {
            let running = core.x.engine().running();
            if running != 0 {
                return Err(format!("{running} chains are left when all hosts are gone"));
            }
        }
        for subsystem in self.target.subsystems() {
            if let Some(id) = (1..64).find(|id| subsystem.controller(*id).is_some()) {
                return Err(format!("controller {id} is left when all hosts are gone"));
            }
        }
        Ok(())
    }
}
