//! The command line `bpfof`.
//!
//! Each subcommand is a module with its options and a `run`. They glue: the work is in the
//! libraries. Benchmarks and the demonstration are in `bpfof-bench`, behind the feature `bench`, the live view of
//! a target in `bpfof-top`, behind `top`.

mod allocator;
mod command_tree;
mod config;
mod ctl;
mod daemon;
mod doctor;
mod file;
mod function;
mod grantd;
mod key;
mod kv;
mod log_writer;
mod observed;
mod query;
mod replace;
mod slow;
mod take_over;
mod target;
mod trace;
mod xrp;

use bpfof_terminal::tell;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Chains of dependent reads, run at the storage target in one network round trip.
#[derive(Parser)]
#[command(name = "bpfof", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve namespaces over NVMe/TCP, with pushdown.
    ///
    /// On SIGTERM and Ctrl-C it tells hosts to go elsewhere, and stops once commands in flight have ended. On SIGHUP it reads the
    /// --config file again, takes over its namespaces and the sizes of files that have grown, and
    /// tells the hosts; a configuration that cannot be served changes nothing. Namespaces that are
    /// given by --namespace replace those of the file then, too: leave that option out.
    ///
    /// It ends with status 78 if the configuration cannot be served however often that is tried, with 1 if
    /// something else is missing, such as a disk.
    Target(target::Options),
    /// Let processes without privileges push down into files that they can open.
    ///
    /// For each client it opens an association at the target that can run chains over granted files and
    /// nothing else, and grants the files whose descriptors the client sends: those on ext4 that nobody has
    /// open for writing, and immutable ones on XFS. It needs root, or CAP_LEASE and permission to read the files.
    /// SIGTERM, Ctrl-C and SIGHUP (unless nohup has it ignored) take all grants back and end it.
    Grantd(grantd::Options),
    /// See and change a running target on this machine.
    Ctl(ctl::Options),
    /// Watch a running target on this machine: hosts, namespaces, functions, reactors, live.
    ///
    /// The key ? tells all keys. The target needs a control socket (bpfof target --control).
    #[cfg(feature = "top")]
    Top(bpfof_top::Options),
    /// Watch chains of a running target on this machine, hop by hop, as they end.
    ///
    /// It tells when each hop asked for its reads, how long these took, how long the chain waited for its turn
    /// and how long the function took; at most 1000 chains a second. Nothing is measured while nobody traces.
    Trace(trace::Options),
    /// Look at a target's configuration file without serving it.
    #[command(subcommand)]
    Config(config::Command),
    /// Check, install and list storage functions.
    #[command(subcommand)]
    Function(function::Command),
    /// Ask files in SQL: filtered and reduced at the storage target.
    ///
    /// SELECT with columns, count, sum, min, max, avg, variances and histogram, WHERE, GROUP BY, HAVING, ORDER BY
    /// and LIMIT, over records, .npy, CSV and Arrow files. All else is refused by name. --explain tells what is
    /// done at the target, what here, and why.
    Query(Box<bpfof_query_command::Options>),
    /// Where files lie in a target's namespace.
    #[command(subcommand)]
    File(file::Command),
    /// BPF-KV: a key-value store whose lookups run at the target.
    #[command(subcommand)]
    Kv(kv::Command),
    /// Keys for TLS and for DH-HMAC-CHAP: make them, check them, and show what they stand for.
    #[command(subcommand)]
    Key(key::Command),
    /// Measure pushdown against plain reads over the network.
    #[command(subcommand)]
    #[cfg(feature = "bench")]
    Bench(bpfof_bench::Command),
    /// Start a target, check a thousand answers, measure, plot.
    ///
    /// The target is on loopback, with a fresh BPF-KV database in memory; answers that are pushed down are compared
    /// with those of plain reads, then both are measured side by side.
    #[cfg(feature = "bench")]
    Demo(bpfof_bench::demo::Options),
    /// Look for what would keep a target from running well here.
    ///
    /// It looks at the kernel, io_uring, limits, the port and the tools, and says what to do about each problem. It
    /// ends with an error if a target cannot run.
    Doctor(doctor::Options),
    /// Run chains in the interrupt of this machine's NVMe drives, by a kernel module.
    ///
    /// The module is bpfof_xrp (docs/kernel.md). Programs that read files or drives by NVMe passthrough use it while
    /// it is loaded.
    Xrp(xrp::Options),
    /// Write completions for a shell to standard output.
    #[command(hide = true)]
    Completions(command_tree::Completions),
    /// Write manual pages of all commands into a folder.
    #[command(hide = true)]
    Manual(command_tree::Manual),
}

/// What a target ends with whose configuration cannot be served (EX_CONFIG of sysexits.h): the unit is not
/// started again.
const BAD_CONFIGURATION: u8 = 78;

/// What a creation of a database ends with that was stopped, as `bpfof query` does.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let _log = log_writer::FlushAtEnd;
    let cli = match command_tree::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    end_quietly_without_a_reader();
    if matches!(cli.command, Command::Function(_) | Command::File(_) | Command::Kv(_)) {
        tell_warnings();
    }
    let outcome = match cli.command {
        Command::Target(options) => target::run(&options),
        Command::Grantd(options) => grantd::run(&options),
        Command::Ctl(options) => ctl::run(&options),
        #[cfg(feature = "top")]
        Command::Top(options) => bpfof_top::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Config(command) => config::run(&command),
        Command::Function(command) => function::run(&command),
        Command::Query(_) => query::run(),
        Command::File(command) => file::run(&command),
        Command::Kv(command) => kv::run(&command),
        Command::Key(command) => key::run(&command),
        #[cfg(feature = "bench")]
        Command::Bench(command) => bpfof_bench::run(&command),
        #[cfg(feature = "bench")]
        Command::Demo(options) => bpfof_bench::demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Xrp(options) => xrp::run(&options),
        Command::Completions(options) => command_tree::completions::<Cli>(&options),
        Command::Manual(options) => command_tree::manual::<Cli>(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Someone closed the pipe we print to, as `head` does: not an error.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // The reason comes last.
            log_writer::flush();
            tell(&error);
            if error.is::<target::BadConfiguration>() {
                ExitCode::from(BAD_CONFIGURATION)
            } else if kv::is_interrupted(&*error) {
                ExitCode::from(INTERRUPTED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// What the libraries warn of, such as a path to a target that is lost, is told on standard error.
fn tell_warnings() {
    let mut logger = env_logger::Builder::new();
    logger.filter_level(log::LevelFilter::Warn);
    logger.format(|out, record| writeln!(out, "bpfof: {}", record.args())).init();
}

/// What `println!` does when nobody reads our output any more is a panic. It is no defect, and nothing
/// is left to be done: a target that was started ends with this process.
fn end_quietly_without_a_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout") && message.contains("Broken pipe") {
            log_writer::flush();
            std::process::exit(0);
        }
        report(panic);
    }));
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
