//! The command line `bpfof`.
//!
//! Each subcommand is a module with its options and a `run`. Subcommands only connect the libraries, which do the work.
//! Benchmarks and the demonstration are in `bpfof-bench`, the live view of a target is in `bpfof-top`.

mod allocator;
mod command_tree;
mod config;
mod ctl;
mod daemon;
mod doctor;
mod file;
mod function;
mod grantd;
mod hex;
mod key;
mod kv;
mod log_writer;
mod observed;
mod query;
mod replace;
mod signals;
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
    /// On SIGTERM and Ctrl-C the target tells hosts to use other paths, which they have two seconds for, and stops once
    /// commands in flight have ended, or after five seconds more. On SIGHUP it reads the --config file again, applies
    /// its namespaces and the sizes of files that have grown, and tells the hosts; if the configuration cannot be
    /// served, nothing changes. Namespaces of --namespace replace those of the file then, too: leave that option out.
    ///
    /// The exit status is 78 if the configuration is wrong, so that another start cannot help, and 1 for other errors,
    /// such as a missing disk.
    Target(target::Options),
    /// Let processes without privileges push down into files that they can open.
    ///
    /// For each client the daemon opens an association at the target that can only run chains over granted files. It
    /// grants the files whose descriptors the client sends: on ext4 files that no process has open for writing, on XFS
    /// immutable files. It needs root, or CAP_LEASE and permission to read the files. SIGTERM, Ctrl-C and SIGHUP
    /// (unless nohup has it ignored) revoke all grants and end the daemon.
    Grantd(grantd::Options),
    /// Inspect and change a running target on this machine.
    Ctl(ctl::Options),
    /// Watch a running target on this machine: hosts, namespaces, functions, reactors, live.
    ///
    /// Press ? for a list of the keys. The target needs a control socket (bpfof target --control).
    Top(bpfof_top::Options),
    /// Watch chains of a running target on this machine, hop by hop, as they end.
    ///
    /// For each hop the trace shows when its reads were requested, how long they took, how long the chain then waited
    /// for its turn, and how long the function ran; at most 1000 chains a second. Chains over memory are measured only
    /// during a trace.
    Trace(trace::Options),
    /// Check a target's configuration file without serving it.
    #[command(subcommand)]
    Config(config::Command),
    /// Check, install and list storage functions.
    #[command(subcommand)]
    Function(function::Command),
    /// Query files with SQL: filters and reductions run at the storage target.
    ///
    /// SELECT with columns, count, sum, min, max, avg, variances and histogram, WHERE, GROUP BY, HAVING, ORDER BY
    /// and LIMIT, over records, .npy, CSV and Arrow files. Other SQL is refused with an error that names it. --explain
    /// shows what runs at the target, what on this machine, and why.
    Query(Box<bpfof_query_command::Options>),
    /// Where files lie in a target's namespace.
    #[command(subcommand)]
    File(file::Command),
    /// BPF-KV: a key-value store whose lookups run at the target.
    #[command(subcommand)]
    Kv(kv::Command),
    /// Keys for TLS and for DH-HMAC-CHAP: make them, check them, and show their identities.
    #[command(subcommand)]
    Key(key::Command),
    /// Measure pushdown against plain reads over the network.
    #[command(subcommand)]
    Bench(bpfof_bench::Command),
    /// Start a target, check a thousand answers, measure, plot.
    ///
    /// The target listens on loopback and serves a fresh BPF-KV database in memory. Answers of pushdown are compared
    /// with those of plain reads, then both are measured side by side.
    Demo(bpfof_bench::demo::Options),
    /// Check whether a target can run well on this machine.
    ///
    /// It checks the kernel, io_uring, limits, the port and the tools, and says how to solve each problem. It ends with
    /// an error if a target cannot run.
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

/// Exit status of a target whose configuration cannot be served (EX_CONFIG of sysexits.h): systemd does not restart the
/// unit.
const BAD_CONFIGURATION: u8 = 78;

/// Exit status if a signal has interrupted the creation of a database; `bpfof query` has the same.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let _log = log_writer::FlushAtEnd;
    let cli = match command_tree::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    end_without_output();
    if matches!(cli.command, Command::Function(_) | Command::File(_) | Command::Kv(_)) {
        tell_warnings();
    }
    let outcome = match cli.command {
        Command::Target(options) => target::run(&options),
        Command::Grantd(options) => grantd::run(&options),
        Command::Ctl(options) => ctl::run(&options),
        Command::Top(options) => bpfof_top::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Config(command) => config::run(&command),
        Command::Function(command) => function::run(&command),
        Command::Query(_) => query::run(),
        Command::File(command) => file::run(&command),
        Command::Kv(command) => kv::run(&command),
        Command::Key(command) => key::run(&command),
        Command::Bench(command) => bpfof_bench::run(&command),
        Command::Demo(options) => bpfof_bench::demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Xrp(options) => xrp::run(&options),
        Command::Completions(options) => command_tree::completions::<Cli>(&options),
        Command::Manual(options) => command_tree::manual::<Cli>(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe that we print to, as `head` does: not an error.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // Flush the log first, so that the error is the last line.
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

/// Prints warnings of the libraries, such as a lost path to a target, on standard error.
fn tell_warnings() {
    let mut logger = env_logger::Builder::new();
    logger.filter_level(log::LevelFilter::Warn);
    logger.format(|out, record| writeln!(out, "bpfof: {}", record.args())).init();
}

/// `println!` panics when standard output cannot be written. That is no defect, and there is nothing to clean up: a
/// target that this process started ends with it. So exit, without a message if the reader is gone.
fn end_without_output() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if let Some(error) = message.strip_prefix("failed printing to stdout: ") {
            log_writer::flush();
            if error.contains("Broken pipe") {
                std::process::exit(0);
            }
            let _ = writeln!(std::io::stderr(), "bpfof: cannot write to standard output: {error}");
            std::process::exit(1);
        }
        report(panic);
    }));
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
