//! Every limit of the target, with its reason. What a peer makes us hold or do is bounded by one of
//! them; docs/tenants.md tells those that a host can meet, with what its refusal looks like.

use bpfof_function::cost::{UNIT_PS, units_of_us};
use std::ops::RangeInclusive;

// Time.

/// Work of one turn of a reactor; then sends leave and receives are looked at. Long enough for a caravan
/// of lookups, short enough that nobody notices to wait for one.
pub(crate) const TURN_US: u64 = 200;
/// What one connection gets at a time, in units: 20 µs, so that ten have something of a turn.
pub(crate) const SLICE_UNITS: u64 = units_of_us(20);
/// The same in time, for commands that take longer than they pay: what is written into holes, say.
pub(crate) const SLICE_NS: u64 = SLICE_UNITS * UNIT_PS / 1000;
/// PDUs of a connection that are worked on between two looks at the clock.
pub(crate) const PDUS_PER_CLOCK: usize = 16;
/// Units after which the calls of one hop let others go first.
pub(crate) const CALLS_SLICE_UNITS: u64 = SLICE_UNITS;
/// Units after which the clock is looked at: 10 µs, so that a look costs nothing beside them.
pub(crate) const CLOCK_UNITS: u64 = units_of_us(10);
/// Hops of one turn: a caravan of lookups (i10 §3.2). Then what became ready leaves, and the host works
/// on it meanwhile; and new commands come in.
pub(crate) const HOPS_PER_TURN: usize = 128;
/// What is believed to take longer gives way to other hosts: a turn ends before it if answers are to be sent,
/// or, after `GIVE_WAY_UNITS`, if something has arrived. So a host with short commands waits for a few µs of
/// others' scans and not for a turn.
pub(crate) const LONG_UNITS: u64 = units_of_us(2);
pub(crate) const GIVE_WAY_UNITS: u64 = units_of_us(5);
/// A command counts as so many hops, because it ends with an answer: 64 of them make the turn.
pub(crate) const HOPS_PER_COMMAND: usize = 2;
/// Hops after which the clock is read again where devices are modelled, so that a read which follows
/// another does not seem to have begun with the turn.
pub(crate) const HOPS_PER_CLOCK: usize = 16;
/// Bytes to be sent that end a turn, because they are a send's worth. They fill two segments as TCP
/// gives them to a network device (64 KiB with headers, 45 packets of Ethernet): a little more would
/// cost a third one for the rest.
pub(crate) const BYTES_PER_TURN: usize = 2 * 45 * 1448;
/// Completions of the ring that are taken in one turn.
pub(crate) const COMPLETIONS_PER_TURN: usize = 256;
/// Completions between two looks at the clock.
pub(crate) const COMPLETIONS_PER_CLOCK: usize = 16;
/// Connections that have ended and are closed in one turn: some 50 µs each.
pub(crate) const CLOSES_PER_TURN: usize = 4;
/// Closing one, in units.
pub(crate) const CLOSE_UNITS: u64 = units_of_us(50);
/// Taking one on.
pub(crate) const ADOPT_UNITS: u64 = units_of_us(10);
/// Connections that are looked at in a turn, once a second: whether they are overdue takes a system call for some.
pub(crate) const LOOKS_PER_TURN: u32 = 64;
/// Messages of other threads that are taken in one turn: new connections among them, some 10 µs each.
pub(crate) const MESSAGES_PER_TURN: usize = 16;
/// Time that a turn has for them while others wait, in ns: the one that it has ended goes on.
pub(crate) const MESSAGES_NS: u64 = 50_000;
/// Operations whose memory is fetched together: enough for their page walks and their way from memory
/// to overlap, and few enough for all that they touch to stay in the cache.
pub(crate) const ROUND: usize = 16;
/// Hops that a chain does before it waits behind those of its connection that have not begun. More than
/// a lookup takes, so that lookups end in the order in which they came; long scans take turns.
pub(crate) const HOPS_IN_A_ROW: u32 = 16;
/// Time for which a chain keeps its arena while hosts that have none wait, and none has more than one.
pub(crate) const ARENA_SLICE_NS: u64 = 50_000_000;
/// Time for a peer to get through Connect.
pub(crate) const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
/// Time for a peer to get through one PDU that it has begun.
pub(crate) const PDU_TIMEOUT_NS: u64 = 30_000_000_000;
/// Time for a host to send data that it was asked for, from its last piece on.
pub(crate) const DATA_TIMEOUT_NS: u64 = 30_000_000_000;
/// The longest keep-alive timer that is granted: beyond it a host is looked at as if it had this one.
pub(crate) const MAX_KATO_NS: u64 = 600_000_000_000;
/// Keep-alive timers of restricted associations, in ms: others wait for the end of one whose owner is
/// gone, and an owner that is only slow should not lose it.
pub(crate) const RESTRICTED_KATO_MS: RangeInclusive<u32> = 1_000..=10_000;
/// Time that a peer gets to take what is left to say to it when its connection closes.
pub(crate) const LINGER_NS: u64 = 5_000_000_000;
/// Time that commands in flight get when the target stops.
pub(crate) const STOP_TIMEOUT_NS: u64 = 5_000_000_000;

// Costs of what is not a function's, in units. They need to be right only as shares.

/// Taking an admin command, Connect, or a fabrics command of an I/O queue: most are rare, and many look at lists. The
/// clock is looked at behind each that is not on an I/O queue.
pub(crate) const ADMIN_UNITS: u64 = CLOCK_UNITS;
/// An entry, or a chunk of them, that is copied when a file map is set.
pub(crate) const MAP_UNITS: u64 = 100;
/// Taking a command: parsing, checks, its slot.
pub(crate) const COMMAND_UNITS: u64 = 500;
/// A piece of data that a command brings, beside its bytes: they may be few.
pub(crate) const PIECE_UNITS: u64 = 300;
/// Ending one: its response.
pub(crate) const RESPONSE_UNITS: u64 = 400;
/// A chain of a vector: its part of the request, its record. It costs what a chain does besides.
pub(crate) const VECTOR_CHAIN_UNITS: u64 = 150;
/// A send, and the receive that follows it.
pub(crate) const SEND_UNITS: u64 = units_of_us(2);
/// TLS handshakes that go on at once: each has a thread, and a peer may take 10 s for it. One more costs the
/// address with most its oldest.
pub(crate) const MAX_HANDSHAKES: usize = 512;
/// Of these, with one address, so that it leaves room for others.
pub(crate) const MAX_HANDSHAKES_OF_ADDRESS: usize = 128;
/// An operation on a file or drive, which the ring is handed at the end of the turn: its entry, and what the
/// kernel does with that before it goes on. A core does some two million in a second.
pub(crate) const FILE_OPERATION_UNITS: u64 = units_of_us(1) / 2;
/// A record of TLS, besides its bytes.
pub(crate) const RECORD_UNITS: u64 = 110_000 / UNIT_PS;
/// Records that are opened before the commands in them are looked at: they may have no bytes.
pub(crate) const RECORDS_AT_A_TIME: usize = 256;
/// Bytes of records that are sealed or opened for a unit.
pub(crate) const RECORD_BYTES_PER_UNIT: u64 = 2;
/// Bytes that are moved once for a unit.
pub(crate) const BYTES_PER_UNIT: u64 = 2;
/// Bytes of zeroes for a unit: pages are given back to the kernel.
pub(crate) const ZEROES_PER_UNIT: u64 = 4;

// Connections.

/// Connections of one reactor.
pub(crate) const MAX_CONNECTIONS: usize = 4096;
/// Of these, connections of strangers, which have not got through Connect yet, or not authenticated as their rule
/// asks. One more costs the oldest its place, so that peers which only open connections keep nobody out.
pub(crate) const MAX_PENDING: usize = 1024;
/// Of these, those of one address.
pub(crate) const MAX_PENDING_OF_ADDRESS: usize = 512;
/// Unsent bytes of such a connection, above which it takes no more commands.
pub(crate) const STRANGER_UNSENT_BYTES: usize = 4 << 10;
/// Commands of a queue that wait for something, before its host has authenticated: messages of that come one by one.
pub(crate) const STRANGER_SLOTS: u16 = 4;
/// Connections that a reactor has been given and has not taken. Then no more are accepted.
pub(crate) const MAX_UNTAKEN: usize = 256;
/// Associations of a subsystem at a time. Beyond that the least useful one goes.
pub(crate) const MAX_CONTROLLERS: usize = 1024;
/// Associations that were cut off, of which a subsystem remembers what their hosts have been told: all may be at once.
pub(crate) const MAX_CUT_OFF: usize = MAX_CONTROLLERS;
/// Time for which an association without I/O queues must have been silent to go when room is needed.
pub(crate) const USELESS_AFTER_NS: u64 = 1_000_000_000;
/// I/O queues of an association.
pub(crate) const MAX_IO_QUEUES: u16 = 128;
/// Entries of a queue.
pub(crate) const MAX_QUEUE_ENTRIES: u16 = 1024;

// Memory of a connection, in bytes.

/// What one receive can bring in on an I/O queue; also the longest PDU that must be whole.
pub(crate) const RX_BYTES: usize = 128 << 10;
/// The same before Connect and on admin queues, where PDUs are short.
pub(crate) const SMALL_RX_BYTES: usize = 16 << 10;
/// The same of a connection with TLS, which also holds a part of a record.
pub(crate) const SECURED_RX_BYTES: usize = 32 << 10;
/// Room for what is to be sent that is kept, in each of two buffers, while a connection is idle.
pub(crate) const IDLE_TX_BYTES: usize = 16 << 10;
/// Data that a command may carry in its capsule: the size that fabrics commands need anyway, and more
/// than a Pushdown request can have.
pub(crate) const IN_CAPSULE_BYTES: u32 = 8192;
/// The same over RDMA, where each command that an I/O queue has room for has a receive of this size: a write of
/// a page, and requests of most chains and vectors.
pub(crate) const RDMA_IN_CAPSULE_BYTES: u32 = 4096;
/// The same on an admin queue: keys of maps.
pub(crate) const RDMA_ADMIN_IN_CAPSULE_BYTES: u32 = 1024;
/// Memory of an RDMA connection's works, registered with the card: the data of as many commands is on its way
/// at a time; others wait.
pub(crate) const RDMA_WORK_BYTES: usize = 512 << 10;
/// The same of an admin queue: the longest transfer, and its response.
pub(crate) const RDMA_ADMIN_WORK_BYTES: usize = MAX_TRANSFER_BYTES as usize + BUFFER_BYTES;
/// Entries of an admin queue over RDMA: before Connect nobody is known, and memory is registered.
pub(crate) const RDMA_ADMIN_ENTRIES: u16 = 128;
/// Largest transfer of one command (MDTS 5 with 4 KiB pages).
pub(crate) const MAX_TRANSFER_BYTES: u32 = 128 << 10;
/// Most data of one H2CData PDU. Payloads are streamed, so it costs no buffer.
pub(crate) const MAX_H2C_DATA_BYTES: u32 = MAX_TRANSFER_BYTES;
/// Unsent bytes at which a connection stops taking commands.
pub(crate) const TX_HIGH_WATER_BYTES: usize = 1 << 20;
/// What a file is asked to forget at a time.
pub(crate) const ZEROES_PART_BYTES: u64 = 16 << 20;
/// What buffers begin at and are multiples of. Each takes one more from the allocator.
pub(crate) const BUFFER_BYTES: usize = 4096;
/// Data that devices and chains work on for one connection; beyond it the connection stops taking
/// commands until some complete. Writes are not asked for their data either while that and what has
/// been asked for are more than this together, so a connection holds at most twice as much.
pub(crate) const MAX_IN_FLIGHT_BYTES: usize = 4 << 20;
/// What a connection takes of its host's memory at a time, beyond what it always has.
pub(crate) const MEMORY_STEP_BYTES: usize = 256 << 10;
/// What an association takes besides its queues: registers, names, logs, counters.
pub(crate) const ASSOCIATION_BYTES: usize = 16 << 10;
/// Buffers that a reactor keeps for reuse. More are made under load and freed afterwards.
pub(crate) const SPARE_BYTES: usize = 8 << 20;
/// Arenas that a reactor keeps however long they are not used.
pub(crate) const KEPT_ARENAS: usize = 16;

// Vectors of chains.

/// Chains of one Pushdown Vector.
pub(crate) const MAX_VECTOR_CHAINS: u16 = 256;
/// Longest answer of one, in bytes: with the request, which is kept as long, it is a transfer.
pub(crate) const MAX_VECTOR_BYTES: u32 =
    MAX_TRANSFER_BYTES - IN_CAPSULE_BYTES - 2 * BUFFER_BYTES as u32;
/// Chains of a connection's vectors that run at a time where they wait for nothing but memory: enough
/// for rounds, few enough for their arenas to stay in the cache.
pub(crate) const VECTOR_CHAINS_AT_A_TIME: u32 = 2 * ROUND as u32;

// Functions, maps, extents of an association.

/// Functions. Their memory is the host's.
pub(crate) const MAX_FUNCTIONS: usize = 64;
/// Machine code of an association's own functions, in bytes: 32 KiB for each.
pub(crate) const MAX_ASSOCIATION_CODE_BYTES: usize = 2 << 20;
/// Functions of a subsystem that are kept beyond the associations that loaded them.
pub(crate) const MAX_KEPT_FUNCTIONS: usize = 64;
/// File maps: a database of 8 TB in files of 64 MiB. Their memory is the host's.
pub(crate) const MAX_FILE_MAPS: usize = 1 << 17;
/// Extents of one file map: 768 KiB on the wire.
pub(crate) const MAX_EXTENTS: usize = 32768;
/// Extents of all file maps of one association: 24 MiB.
pub(crate) const MAX_ASSOCIATION_EXTENTS: usize = 1 << 20;
/// Bytes of a file map object.
pub(crate) const MAX_MAP_BYTES: usize = 32 + 24 * MAX_EXTENTS;
/// Maps that the own functions of an association may have, and the kept ones again.
pub(crate) const MAX_ASSOCIATION_MAPS: usize = 256;
/// Bytes that these may take together: about as many as file maps may.
pub(crate) const MAX_ASSOCIATION_MAP_BYTES: u64 = 32 << 20;
/// Bytes of entries in one answer: the map is locked while they are copied, for some 10 µs.
pub(crate) const MAX_PAGE_BYTES: usize = 64 << 10;
/// Longest reason for refusing a function, in bytes: it may quote names from the object.
pub(crate) const MAX_REASON_BYTES: usize = 1024;
/// Longest name of a function, in bytes: what Function Report has room for.
pub(crate) const MAX_NAME_BYTES: usize = 64;

// Namespaces and logs.

/// Names all namespaces (NVMe Base 2.0 §3.2.1).
pub(crate) const ALL_NAMESPACES: u32 = u32::MAX;
/// The ANA group of namespaces that name none.
pub(crate) const ANA_GROUP: u32 = 1;
/// ANA groups: a connection has a bit for each.
pub(crate) const MAX_ANA_GROUPS: u32 = 32;
/// Addresses that a target listens on.
pub(crate) const MAX_LISTENERS: usize = 64;
/// Ids of controllers: FFF0h and up are reserved (NVMe Base 2.0 §5.17.2.1, CNTLID).
pub(crate) const LAST_CONTROLLER_ID: u16 = 0xffef;
/// Fewest ids of controllers that a target gives: one is always free.
pub(crate) const MIN_CONTROLLER_IDS: u16 = MAX_CONTROLLERS as u16;
/// Largest namespace id, and most namespaces of a subsystem: as many as the Changed Namespace List
/// can tell (NVMe Base 2.0 §5.16.1.5).
pub const MAX_NSID: u32 = 1024;
/// Log lines that the commands of one connection may cause in a second.
pub(crate) const LOG_LINES_PER_SECOND: u32 = 10;
/// The same of a host, of each kind of lines: who connects again and again has a new connection each time.
pub(crate) const HOST_LOG_LINES_PER_SECOND: u32 = 50;
/// The same of all hosts of the target together.
pub(crate) const HOSTS_LOG_LINES_PER_SECOND: u32 = 200;
/// The same of errors, which say that storage has failed: other lines hide none of them, and a disk that fails for many
/// hosts does not fill the log.
pub(crate) const HOSTS_LOG_ERRORS_PER_SECOND: u32 = 2000;
/// The same of all connections of a reactor that have not got through Connect, of all that have not authenticated as
/// their rule asks, and of all TLS handshakes.
pub(crate) const STRANGERS_LOG_LINES_PER_SECOND: u32 = 50;

const _: () = assert!(IN_CAPSULE_BYTES as usize + 512 <= SMALL_RX_BYTES, "a capsule fits");
const _: () = assert!(
    IN_CAPSULE_BYTES as usize + 512 + bpfof_tls::RECORD_MAX_BYTES <= SECURED_RX_BYTES,
    "a part of a capsule and a record fit"
);
const _: () = assert!(IN_CAPSULE_BYTES <= MAX_TRANSFER_BYTES);
