//! The benchmarks of `bpfof bench …`: pushdown against plain reads, over the network and on files of
//! this machine, with BPF-KV and RocksDB; reads against the network's own speed; what storage functions
//! cost; and what hosts notice of each other. What is compared is measured in turn, in one run.
//!
//! The program that runs them has to be `bpfof`: it starts itself as the target.

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
mod wiredtiger;
mod xrp;

use bpfof_terminal::Outcome;
use clap::Subcommand;

/// The benchmarks.
#[derive(Subcommand)]
pub enum Command {
    /// BPF-KV: gets, ranges and sums, plain and pushed down, cached and not.
    Kv(kv::KvCommand),
    /// Random reads over the network, against what TCP itself can do.
    Net(net::NetOptions),
    /// RocksDB over the network: plain reads against pushdown.
    Rocksdb(Box<rocksdb::RocksdbOptions>),
    /// WiredTiger over the network: plain reads against pushdown.
    Wiredtiger(Box<wiredtiger::WiredtigerOptions>),
    /// Storage functions: calls against the same C, loading, helpers, charges against the clock.
    Function(function::FunctionOptions),
    /// Queries over files, pushed down against DuckDB, pyarrow and compiled code over plain reads.
    Query(query::QueryOptions),
    /// Chains in the interrupt of an NVMe drive against the same chains by other ways.
    Xrp(xrp::XrpOptions),
    /// A network for programs of this machine: passes connections on to a target after a delay.
    Network(network::NetworkOptions),
    /// Fairness: a host that behaves, beside hosts that do not.
    Fair(fair::FairOptions),
}

/// Runs a benchmark, and prints its figures.
///
/// # Errors
/// Words for the user.
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
