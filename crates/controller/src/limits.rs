//! The limits of the target, with their reasons: each thing that a peer can make the target hold or do has one of them.
//! docs/tenants.md lists those that a host can reach, with their refusals.

use bpfof_function::cost::{UNIT_PS, units_of_us};
use bpfof_nvme::DsmRange;
use std::ops::RangeInclusive;

// Time.

/// Work of one turn of a reactor, in µs; at its end the reactor sends, then checks for received data. Long enough for a
/// caravan of lookups, short enough that the wait for a turn goes unnoticed.
pub(crate) const TURN_US: u64 = 200;
/// Time slice of one connection, in units: 20 µs, so that ten connections have a part of a turn.
pub(crate) const SLICE_UNITS: u64 = units_of_us(20);
/// The same in time, for commands that take longer than their price, such as writes into holes.
pub(crate) const SLICE_NS: u64 = SLICE_UNITS * UNIT_PS / 1000;
/// PDUs of a connection that are processed between two reads of the clock.
pub(crate) const PDUS_PER_CLOCK: usize = 16;
/// Units after which the clock is read: 10 µs, so that the cost of reading it is negligible.
pub(crate) const CLOCK_UNITS: u64 = units_of_us(10);
/// Hops of one turn: a caravan of lookups (i10 §3.2), some 40 µs.
pub(crate) const HOPS_PER_TURN: usize = 512;
/// Hops after which a turn ends if hosts share the reactor and something has arrived, or answers of several connections
/// are to be sent.
pub(crate) const HOPS_BEFORE_NEWS: usize = 128;
/// A turn that has worked for `ANSWERED_UNITS` ends once what is left of a connection's commands takes at most
/// `LEFT_UNITS`. While the host works on the answers and sends its next commands, the rest keeps this side busy. A
/// smaller rest would not last until then; with a larger one a send and a receive would serve fewer commands.
pub(crate) const ANSWERED_UNITS: u64 = units_of_us(10);
pub(crate) const LEFT_UNITS: u64 = units_of_us(20);
/// A connection with fewer answers does not end a turn in this way: it may be one of many with a command each.
pub(crate) const FEWEST_ANSWERS: usize = 4;
/// An operation that is estimated to take longer gives way to other hosts: the turn ends before it if answers are to be
/// sent, or, after `GIVE_WAY_UNITS`, if something has arrived. So a host with short commands waits for a few µs of
/// other hosts' scans and not for a turn.
pub(crate) const LONG_UNITS: u64 = units_of_us(2);
pub(crate) const GIVE_WAY_UNITS: u64 = units_of_us(5);
/// A command counts as this many hops, because it ends with an answer: 64 commands fill a turn.
pub(crate) const HOPS_PER_COMMAND: usize = 8;
/// A hop counts as this many unless it is one of a round in memory: its next read may have to be handed to a device,
/// which happens at the end of the turn. 128 of them fill it.
pub(crate) const HOPS_PER_DEVICE_READ: usize = 4;
/// Hops after which the clock is read again if a namespace has a latency model, so that a later read of a chain does
/// not seem to have begun with the turn.
pub(crate) const HOPS_PER_CLOCK: usize = 16 * HOPS_PER_DEVICE_READ;
/// Bytes to be sent that end a turn, because they are worth a send. They fill two segments as TCP gives them to a
/// network device (64 KiB with headers, 45 packets of Ethernet): a little more would cost a third segment.
pub(crate) const BYTES_PER_TURN: usize = 2 * 45 * 1448;
/// Completions of the ring that are taken in one turn.
pub(crate) const COMPLETIONS_PER_TURN: usize = 256;
/// Completions between two reads of the clock.
pub(crate) const COMPLETIONS_PER_CLOCK: usize = 16;
/// Connections that are closed in one turn, if it has time for them: some 50 µs each.
pub(crate) const CLOSES_PER_TURN: usize = 4;
/// The same for new connections: some 10 µs each.
pub(crate) const ADOPTS_PER_TURN: usize = 8;
/// Cost of closing a connection, in units.
pub(crate) const CLOSE_UNITS: u64 = units_of_us(50);
/// Cost of adopting a connection, in units.
pub(crate) const ADOPT_UNITS: u64 = units_of_us(10);
/// Connections that are checked in one turn; each is checked once a second. For some the check takes a system call.
pub(crate) const LOOKS_PER_TURN: u32 = 64;
/// Slots that are searched in one turn for commands of removed namespaces, one connection's more at most.
pub(crate) const SLOTS_PER_TURN: usize = 1024;
/// Messages of other threads that are taken in one turn.
pub(crate) const MESSAGES_PER_TURN: usize = 16;
/// Time that a turn spends on messages while operations or received data wait, in ns. A message that exceeds it is
/// still completed.
pub(crate) const MESSAGES_NS: u64 = 50_000;
/// Operations whose memory is prefetched together: enough for their page walks and memory latencies to overlap, few
/// enough for all data that they touch to stay in the cache.
pub(crate) const ROUND: usize = 16;
/// Hops that a chain makes before it waits behind its connection's chains that have not begun. More than a lookup
/// takes, so that lookups end in the order in which they came; long scans take turns.
pub(crate) const HOPS_IN_A_ROW: u32 = 16;
/// Time for which a chain keeps its arena while hosts without an arena wait and no host has more than one.
pub(crate) const ARENA_SLICE_NS: u64 = 50_000_000;
/// Time for a peer to complete Connect.
pub(crate) const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
/// Time for a peer to complete a PDU that it has begun.
pub(crate) const PDU_TIMEOUT_NS: u64 = 30_000_000_000;
/// Time for a host to send data that was requested, counted from the last piece received.
pub(crate) const DATA_TIMEOUT_NS: u64 = 30_000_000_000;
/// The longest keep-alive timer that is granted: ten minutes.
pub(crate) const MAX_KATO_MS: u32 = 600_000;
pub(crate) const MAX_KATO_NS: u64 = MAX_KATO_MS as u64 * 1_000_000;
/// Time in which a host gives up an association that does not answer, besides the keep-alive timer: Linux waits for an
/// answer for 30 s and connects again 10 s later.
pub(crate) const ANSWER_TIMEOUT_NS: u64 = 60_000_000_000;
/// Time in which hosts of a target that this one replaces come here after the last one was told to: Linux connects again
/// for 600 s.
pub(crate) const MOVE_NS: u64 = 900_000_000_000;
/// Keep-alive timers of restricted associations, in ms: short enough that nobody waits long for the end of an
/// association whose owner is gone, long enough that a slow owner does not lose its own.
pub(crate) const RESTRICTED_KATO_MS: RangeInclusive<u32> = 1_000..=10_000;
/// Time that a peer gets to receive the remaining data when its connection closes.
pub(crate) const LINGER_NS: u64 = 5_000_000_000;
/// Time that commands in flight get when the target stops.
pub(crate) const STOP_TIMEOUT_NS: u64 = 5_000_000_000;
/// Most arenas that are granted in one turn: each grant compares all waiting connections.
pub(crate) const GRANTS_PER_TURN: usize = 16;
/// Chains that may be asked to give way in one turn.
pub(crate) const DISPLACED_PER_TURN: usize = 16;
/// Most strangers' connections that are closed to free memory for a new one.
pub(crate) const MAX_EVICTED: usize = 8;

// Costs of work outside storage functions, in units. Only their proportions need to be right.

/// Taking an admin command, Connect, or a fabrics command of an I/O queue: most are rare, and many search lists. The
/// clock is read after each that is not on an I/O queue.
pub(crate) const ADMIN_UNITS: u64 = CLOCK_UNITS;
/// Copying an entry, or a chunk of entries, when a file map is set.
pub(crate) const MAP_UNITS: u64 = 100;
/// Taking a command: parsing, checks, its slot.
pub(crate) const COMMAND_UNITS: u64 = 500;
/// A piece of a command's data, besides its bytes, which may be few.
pub(crate) const PIECE_UNITS: u64 = 300;
/// Ending a command: its response.
pub(crate) const RESPONSE_UNITS: u64 = 400;
/// A chain of a vector, in addition to the cost of a chain: its part of the request, its record.
pub(crate) const VECTOR_CHAIN_UNITS: u64 = 150;
/// A send, and the receive that follows it.
pub(crate) const SEND_UNITS: u64 = units_of_us(2);
/// An operation on a file or drive, which is handed to the ring at the end of the turn: its entry, and the kernel's
/// work in the submitting system call. A core does some two million in a second.
pub(crate) const FILE_OPERATION_UNITS: u64 = units_of_us(1) / 2;
/// A TLS record, besides its bytes.
pub(crate) const RECORD_UNITS: u64 = 110_000 / UNIT_PS;
/// Bytes of TLS records that are sealed or opened for a unit.
pub(crate) const RECORD_BYTES_PER_UNIT: u64 = 2;
/// Bytes that are copied for a unit.
pub(crate) const BYTES_PER_UNIT: u64 = 2;
/// Bytes that are zeroed for a unit, by giving pages back to the kernel.
pub(crate) const ZEROES_PER_UNIT: u64 = 4;
/// The cost of adding a kept function and its maps to an association, or of removing it: some 25 µs.
pub(crate) const ASSOCIATION_UNITS: u64 = 25_000_000 / UNIT_PS;
/// The cost of a byte of a file map in units: it is parsed, checked and indexed.
pub(crate) const MAP_UNITS_PER_BYTE: u64 = 8;

// Operations on files.

/// Threads of the kernel that flushes and zeroes of files on a disk take at a time on each reactor; others wait. That of
/// a namespace of more files takes as many as it has files.
pub(crate) const SLOW_THREADS: usize = 16;
/// Reads of files on a disk that run at a time on each reactor, and half as many writes; others wait. More do not make a
/// drive faster. If the drive does not answer, each may keep one of the kernel's 1024 threads, or one for each chunk of
/// a striped namespace that it spans.
pub(crate) const FILE_READS: usize = 256;
/// Operations on files that have waited and that a turn gives up, because their connection ends: some 20 µs.
pub(crate) const GIVEN_UP_AT_ONCE: usize = 64;

// Connections.

/// Connections of one reactor.
pub(crate) const MAX_CONNECTIONS: usize = 4096;
/// Of these, connections of *strangers*: hosts that have not completed Connect, or not authenticated as their rule
/// requires. One more closes the oldest, so that peers which only open connections do not lock out others.
pub(crate) const MAX_PENDING: usize = 1024;
/// Of these, connections of one address.
pub(crate) const MAX_PENDING_OF_ADDRESS: usize = 512;
/// An address has many connections of strangers, or connections that wait for a reactor, if it has more than these: at
/// the limit of all addresses it loses some before others do.
pub(crate) const MANY_OF_ADDRESS: usize = 16;
/// Places for connections that are closing, besides `MAX_CONNECTIONS`: most close within a turn, some only when the peer
/// has taken its data.
pub(crate) const MAX_CLOSING: usize = 512;
/// Unsent bytes at which a stranger's connection takes no more commands.
pub(crate) const STRANGER_UNSENT_BYTES: usize = 4 << 10;
/// Slots of a queue before its host has authenticated: authentication messages come one by one.
pub(crate) const STRANGER_SLOTS: u16 = 4;
/// Connections that were handed to a reactor and that it has not taken. At this limit the address with most loses its
/// oldest; if no address has many, no more are accepted.
pub(crate) const MAX_UNTAKEN: usize = 256;
/// Associations of a subsystem at a time. One more removes the least useful one.
pub(crate) const MAX_CONTROLLERS: usize = 1024;
/// Cut-off associations for which a subsystem remembers the lost writes that their hosts know of: all associations may
/// be cut off at once.
pub(crate) const MAX_CUT_OFF: usize = MAX_CONTROLLERS;
/// Time for which an association without I/O queues must have been silent before it may be removed to make room.
pub(crate) const USELESS_AFTER_NS: u64 = 1_000_000_000;
/// I/O queues of an association.
pub(crate) const MAX_IO_QUEUES: u16 = 128;
/// Entries of a queue.
pub(crate) const MAX_QUEUE_ENTRIES: u16 = 1024;
/// TLS handshakes at a time: each has a thread, and a peer may take 10 s for it. One more ends the oldest of the
/// address with most handshakes.
pub(crate) const MAX_HANDSHAKES: usize = 512;
/// Of these, handshakes with one address, so that it leaves room for others.
pub(crate) const MAX_HANDSHAKES_OF_ADDRESS: usize = 128;
/// Maximum outstanding asynchronous event requests of one host.
pub(crate) const MAX_ASYNC_EVENTS: usize = 4;
/// Most arenas that are reserved for groups without a running chain.
pub(crate) const MAX_RESERVED_ARENAS: usize = 16;
/// Most gone groups of hosts whose virtual time a reactor keeps.
pub(crate) const MAX_GROUPS_AHEAD: usize = 1024;
/// Connections that may wait in the kernel to be accepted, of each listener.
pub(crate) const BACKLOG: i32 = 1024;

// Memory of a connection, in bytes.

/// Most bytes of one receive on an I/O queue; also the longest PDU that must be received as a whole.
pub(crate) const RX_BYTES: usize = 128 << 10;
/// The same before Connect and on admin queues, where PDUs are short.
pub(crate) const SMALL_RX_BYTES: usize = 16 << 10;
/// The same for a connection with TLS, which also holds a part of a record.
pub(crate) const SECURED_RX_BYTES: usize = 32 << 10;
/// Capacity that an idle connection keeps in each of its two send buffers.
pub(crate) const IDLE_TX_BYTES: usize = 16 << 10;
/// Data that a command may carry in its capsule: the size that fabrics commands need anyway, and more
/// than a Pushdown request can have.
pub(crate) const IN_CAPSULE_BYTES: u32 = 8192;
/// The same over RDMA, where each entry of an I/O queue has a receive of this size: room for a write of a page, and for
/// the requests of most chains and vectors.
pub(crate) const RDMA_IN_CAPSULE_BYTES: u32 = 4096;
/// The same on an admin queue over RDMA: room for keys of maps.
pub(crate) const RDMA_ADMIN_IN_CAPSULE_BYTES: u32 = 1024;
/// Memory of an RDMA connection's works, registered with the card: data that does not fit waits until earlier works
/// have ended.
pub(crate) const RDMA_WORK_BYTES: usize = 512 << 10;
/// The same for an admin queue: the longest transfer, and its response.
pub(crate) const RDMA_ADMIN_WORK_BYTES: usize = MAX_TRANSFER_BYTES as usize + BUFFER_BYTES;
/// Entries of an admin queue over RDMA. Few, because their memory is registered before Connect, when the host is
/// unknown.
pub(crate) const RDMA_ADMIN_ENTRIES: u16 = 128;
/// Largest transfer of one command (MDTS 5 with 4 KiB pages).
pub(crate) const MAX_TRANSFER_BYTES: u32 = 128 << 10;
/// Most data of one H2CData PDU. Payloads are streamed, so it costs no buffer.
pub(crate) const MAX_H2C_DATA_BYTES: u32 = MAX_TRANSFER_BYTES;
/// Unsent bytes at which a connection stops taking commands.
pub(crate) const TX_HIGH_WATER_BYTES: usize = 1 << 20;
/// Bytes of a file or drive that one operation zeroes.
pub(crate) const ZEROES_PART_BYTES: u64 = 16 << 20;
/// Alignment of buffers; their sizes are multiples of it. The allocator takes this much more for each buffer.
pub(crate) const BUFFER_BYTES: usize = 4096;
/// Data of one connection that devices and chains work on; at this limit the connection takes no more commands until
/// some complete. Data of writes is not fetched either if it, the data in flight and the data being fetched would
/// exceed this together, so a connection holds at most twice as much.
pub(crate) const MAX_IN_FLIGHT_BYTES: usize = 4 << 20;
/// Step in which a connection charges its host's memory, beyond its fixed part.
pub(crate) const MEMORY_STEP_BYTES: usize = 256 << 10;
/// Memory of an association besides its queues: registers, names, logs, counters.
pub(crate) const ASSOCIATION_BYTES: usize = 16 << 10;
/// Buffers that a reactor keeps for reuse. More are made under load and freed afterwards.
pub(crate) const SPARE_BYTES: usize = 8 << 20;
/// Arenas that a reactor keeps even if they stay unused.
pub(crate) const KEPT_ARENAS: usize = 16;
/// Longest message of an authentication, in bytes.
pub(crate) const MAX_AUTH_MESSAGE_BYTES: u32 = 4096;
/// Data of a Dataset Management command with the maximum number of ranges.
pub(crate) const MAX_RANGES_BYTES: u32 = 256 * DsmRange::BYTES as u32;
/// TLS records that are opened before the commands in them are processed: records may be empty.
pub(crate) const RECORDS_AT_A_TIME: usize = 256;

// Vectors of chains.

/// Chains of one Pushdown Vector.
pub(crate) const MAX_VECTOR_CHAINS: u16 = 256;
/// Longest answer of a Pushdown Vector, in bytes: together with the request, which stays in the same buffer until
/// the command ends, it is not larger than a transfer.
pub(crate) const MAX_VECTOR_BYTES: u32 =
    MAX_TRANSFER_BYTES - IN_CAPSULE_BYTES - 2 * BUFFER_BYTES as u32;
/// Chains of a connection's vectors that run at a time over memory without a latency model: enough to fill rounds, few
/// enough for their arenas to stay in the cache.
pub(crate) const VECTOR_CHAINS_AT_A_TIME: u32 = 2 * ROUND as u32;

// Functions, maps, extents of an association.

/// Functions. Their memory is charged to the host.
pub(crate) const MAX_FUNCTIONS: usize = 64;
/// Machine code of an association's own functions, in bytes: 32 KiB for each.
pub(crate) const MAX_ASSOCIATION_CODE_BYTES: usize = 2 << 20;
/// Functions of a subsystem that are kept beyond the associations that loaded them.
pub(crate) const MAX_KEPT_FUNCTIONS: usize = 64;
/// File maps: a database of 8 TB in files of 64 MiB. Their memory is charged to the host.
pub(crate) const MAX_FILE_MAPS: usize = 1 << 17;
/// Extents of one file map: 768 KiB on the wire.
pub(crate) const MAX_EXTENTS: usize = 32768;
/// Extents of all file maps of one association: 24 MiB.
pub(crate) const MAX_ASSOCIATION_EXTENTS: usize = 1 << 20;
/// Bytes of a file map object.
pub(crate) const MAX_MAP_BYTES: usize = 32 + 24 * MAX_EXTENTS;
/// Maps that an association's own functions may have; the kept functions may have as many again.
pub(crate) const MAX_ASSOCIATION_MAPS: usize = 256;
/// Bytes of these maps together: about as many as file maps may take.
pub(crate) const MAX_ASSOCIATION_MAP_BYTES: u64 = 32 << 20;
/// Bytes of map entries in one answer: the map is locked while they are copied, for some 10 µs.
pub(crate) const MAX_PAGE_BYTES: usize = 64 << 10;
/// Longest reason for refusing a function, in bytes: it may quote names from the object.
pub(crate) const MAX_REASON_BYTES: usize = 1024;
/// Longest name of a function, in bytes: what Function Report has room for.
pub(crate) const MAX_NAME_BYTES: usize = 64;

// Namespaces and logs.

/// The namespace id that means all namespaces (NVMe Base 2.0 §3.2.1).
pub(crate) const ALL_NAMESPACES: u32 = u32::MAX;
/// The ANA group of namespaces whose configuration names none.
pub(crate) const ANA_GROUP: u32 = 1;
/// ANA groups: a connection has a bit for each.
pub(crate) const MAX_ANA_GROUPS: u32 = 32;
/// Addresses that a target listens on.
pub(crate) const MAX_LISTENERS: usize = 64;
/// Ids of controllers: FFF0h and up are reserved (NVMe Base 2.0 §5.17.2.1, CNTLID).
pub(crate) const LAST_CONTROLLER_ID: u16 = 0xffef;
/// Fewest controller ids that a target may be configured with: one is always free.
pub(crate) const MIN_CONTROLLER_IDS: u16 = MAX_CONTROLLERS as u16;
/// Largest namespace id, and most namespaces of a subsystem: as many as the Changed Namespace List can list (NVMe Base
/// 2.0 §5.16.1.5).
pub const MAX_NSID: u32 = 1024;
/// Log lines that the commands of one connection may cause in a second.
pub(crate) const LOG_LINES_PER_SECOND: u32 = 10;
/// The same for a host, for each kind of lines: a host that reconnects has a new connection each time.
pub(crate) const HOST_LOG_LINES_PER_SECOND: u32 = 50;
/// The same for all hosts of the target together.
pub(crate) const HOSTS_LOG_LINES_PER_SECOND: u32 = 200;
/// The same for errors, which report failed storage: other lines do not use up their limit, and a disk that fails for
/// many hosts does not fill the log.
pub(crate) const HOSTS_LOG_ERRORS_PER_SECOND: u32 = 2000;
/// The same for all connections of a reactor that have not completed Connect, for all that have not authenticated as
/// their rule requires, and for all TLS handshakes.
pub(crate) const STRANGERS_LOG_LINES_PER_SECOND: u32 = 50;

const _: () = assert!(IN_CAPSULE_BYTES as usize + 512 <= SMALL_RX_BYTES, "a capsule fits");
const _: () = assert!(
    IN_CAPSULE_BYTES as usize + 512 + bpfof_tls::RECORD_MAX_BYTES <= SECURED_RX_BYTES,
    "a part of a capsule and a record fit"
);
const _: () = assert!(IN_CAPSULE_BYTES <= MAX_TRANSFER_BYTES);
