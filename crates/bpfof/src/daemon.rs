//! What the services have in common: logging, and how they live and end.

use clap::Args;
use log::LevelFilter;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use std::io;

#[derive(Args)]
pub(crate) struct Options {
    /// Log warnings and errors only.
    #[arg(long, short)]
    quiet: bool,
    /// Log what each refused command and chain met, and each grant that is taken back.
    #[arg(long, short)]
    verbose: bool,
    /// Stop when the process that started this one ends.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

/// Begins to log, and prepares the process for as many connections as it may have.
///
/// # Errors
/// The kernel's.
pub(crate) fn begin(options: &Options) -> io::Result<()> {
    let level = match (options.quiet, options.verbose) {
        (true, _) => LevelFilter::Warn,
        (_, true) => LevelFilter::Debug,
        _ => LevelFilter::Info,
    };
    env_logger::Builder::new().filter_level(LevelFilter::Warn).filter_module("bpfof", level).init();
    if options.exit_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    raise_descriptor_limit();
    Ok(())
}

/// Each connection takes a descriptor; the usual soft limit of 1024 is for programs that use
/// `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("cannot raise the limit of open files ({error}): few hosts can connect");
    }
}
