//! The benchmarks of `bpfof bench …`: pushdown against plain reads, over the network and on files of this machine, with
//! BPF-KV and RocksDB; reads against the network's own speed; the cost of storage functions; and the effect of hosts on
//! each other. Alternatives are measured in turn, in one run.
//!
//! The program that runs them must be `bpfof`: it starts itself as the target.

mod assembly;
mod child_target;
mod database;
pub mod demo;
mod fair;
mod function;
mod kv;
mod legend;
mod machine;
mod measurement;
mod net;
mod network;
mod output;
mod plot;
mod query;
mod rocksdb;
mod steal;
mod tcp_baseline;
mod tls;
mod together;
mod wiredtiger;
mod xrp;

use bpfof_terminal::Outcome;
use clap::Subcommand;

/// The benchmarks.
#[derive(Subcommand)]
pub enum Command {
    /// BPF-KV: gets, ranges and sums, plain and pushed down, cached and not.
    ///
    /// Every case runs plain and pushed down in turn, several times; figures are medians. `ratio` says how many times
    /// better pushdown is, in each field. Both use the same connection and the same number of operations in flight;
    /// host and target have one processor each.
    Kv(kv::KvCommand),
    /// Random reads over the network, against what TCP itself can do.
    ///
    /// Every case runs in turn, several times: reads with all queued requests in one send, reads with one send each,
    /// and the floor: messages of the same sizes over TCP without a protocol, one at a time (queue depth 1) or in
    /// batches of 16, both polling and blocking. Then mixes of reads and writes, latency against throughput (reads are
    /// due at random times, whether or not others have ended), several connections, and threads. Figures are medians.
    /// Host and target have one processor each.
    Net(net::NetOptions),
    /// RocksDB over the network: plain reads against pushdown.
    ///
    /// RocksDB on a target with modelled drives: each workload runs with plain reads, with chains and with
    /// all blocks fetched at once, in turn, several times. Figures are medians. The target has one
    /// processor, the program with RocksDB another. Needs root, to mount an image.
    ///
    /// Workloads: uniform, 5050 (half of them updates), zipf:THETA, YCSB's a to f, twitter19, twitter37,
    /// multiget:N, scan:N.
    Rocksdb(Box<rocksdb::RocksdbOptions>),
    /// WiredTiger over the network: plain reads against pushdown.
    ///
    /// WiredTiger on a target with a modelled drive: each workload runs with plain reads, page after page on the
    /// same connections, and with values by chains, in turn, several times. Figures are medians. The target has
    /// one processor, the program with WiredTiger another. Needs root, to mount an image.
    ///
    /// Workloads: uniform, zipf (0.99), YCSB's a to f, with scans of up to 100 rows. Pages: 512 as in the papers, 4096,
    /// default. WiredTiger is the version that the program was built with: `make bench-wiredtiger` uses the machine's,
    /// or the build in WIREDTIGER_DIR.
    Wiredtiger(Box<wiredtiger::WiredtigerOptions>),
    /// Storage functions: calls against the same C, loading, helpers, charges against the clock.
    ///
    /// Everything is measured in rounds, alternatives in turn; figures are medians. The same C is compiled by `cc -O2`
    /// (or $CC), if there is one.
    Function(function::FunctionOptions),
    /// Queries over files, pushed down against DuckDB, pyarrow and compiled code over plain reads.
    ///
    /// The same rows, as records of 32 bytes, as CSV and, if pyarrow is available, as an Arrow file, in memory that a
    /// target started by the benchmark serves. Queries run pushed down, and in turn in these other ways:
    ///
    ///   pushed       `bpfof query`: stages at the target, 32 chains at a time
    ///   stages here  the same stages as one function, checked machine code, on this side over plain reads
    ///   plain        plain reads of 128 KiB, 32 in flight, filtered and folded by compiled code
    ///   reads        the same reads, whose data is discarded
    ///   duckdb       DuckDB over the same plain reads, through a pipe: CSV as it is, records as Arrow
    ///   pyarrow      the same by pyarrow's kernels
    ///
    /// The target has one processor, and so has the host on the loopback device; over links, which are
    /// virtual and throttled by the kernel, the host may use both. Networks and mounts are private to the
    /// benchmark, and end with it. It needs root, ip, tc and mkfs.ext4. Figures are medians.
    #[command(verbatim_doc_comment)]
    Query(query::QueryOptions),
    /// Chains in the interrupt of an NVMe drive against the same chains in other ways.
    ///
    /// Runs chains of dependent 512-byte reads in the interrupt of an NVMe drive, by the kernel module
    /// bpfof_xrp, and the same chains by pread, io_uring, NVMe passthrough, and the module's work items:
    /// chains of 1 to 10 reads alone, chains of 6 with up to 16 in flight, and gets of BPF-KV with 4 reads.
    /// Loads and unloads the module (root); files of 18 MB in FOLDER are removed afterwards.
    ///
    /// Measures time on a real drive. In a virtual machine of interop/xrp.py, where time is meaningless, it counts the
    /// instructions of the whole machine.
    Xrp(xrp::XrpOptions),
    /// A network for programs of this machine: forwards connections to a target after a delay.
    ///
    /// Delays all data by half of a round trip in each direction. The network has no loss, no limit of bandwidth and no
    /// congestion. Prints the address that it listens at, and ends with Ctrl-C. It takes processor time itself, some µs
    /// for each send.
    Network(network::NetworkOptions),
    /// Fairness: a well-behaved host beside hosts that are not.
    ///
    /// A victim reads 4 KiB at random, one at a time, then looks up keys by pushdown, one at a time; in turn alone and
    /// beside each aggressor. It also loads functions and connects. Aggressors are other hosts on the victim's
    /// processor, where their threads yield to it; the target has the other one. Each aggressor gets a target of its
    /// own, which is stopped while the aggressor is active. Finally all aggressors run against one target, whose memory
    /// is watched.
    ///
    /// The victim's p50 and p99 are medians over the repetitions, its maximum is over all of them.
    Fair(fair::FairOptions),
}

/// Runs a benchmark, and prints its figures.
///
/// # Errors
/// A message for the user.
pub fn run(command: &Command) -> Outcome {
    match command {
        Command::Kv(command) => kv::run(command),
        Command::Net(options) => net::run(options),
        Command::Rocksdb(options) => rocksdb::run(options),
        Command::Wiredtiger(options) => wiredtiger::run(options),
        Command::Function(options) => function::run(options),
        Command::Query(options) => query::run(options),
        Command::Xrp(options) => xrp::run(options),
        Command::Network(options) => network::run(options),
        Command::Fair(options) => fair::run(options),
    }
}
