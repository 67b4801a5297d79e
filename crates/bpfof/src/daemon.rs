//! Code shared by `target` and `grantd`: the log, settings of the process, and the service manager.

use crate::log_writer;
use bpfof_systemd::{Manager, logs_to_journal};
use clap::{Args, ValueEnum};
use env_logger::fmt::Formatter;
use env_logger::{Target, WriteStyle};
use log::{Level, LevelFilter, Record};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use std::io::{self, IsTerminal, Write};

#[derive(Args)]
pub(crate) struct Daemon {
    /// Log warnings and errors only.
    #[arg(long, short)]
    quiet: bool,
    /// Log more, for finding faults: TLS handshakes, answers of drives, each grant that is revoked.
    #[arg(long, short)]
    verbose: bool,
    /// Format of the log on standard error: text (with levels for the journal, if the log goes there), or one JSON
    /// object a line with time, level, module and message.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,
    /// Stop when the process that started this one ends.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Starts the log, and raises the limit of open files for many connections.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn begin(options: &Daemon) -> io::Result<()> {
    let level = match (options.quiet, options.verbose) {
        (true, _) => LevelFilter::Warn,
        (_, true) => LevelFilter::Debug,
        _ => LevelFilter::Info,
    };
    let mut logger = env_logger::Builder::new();
    // The logger takes all of this project's messages, so that the level can be changed at run time.
    logger.filter_level(LevelFilter::Warn).filter_module("bpfof", LevelFilter::Debug);
    match options.log {
        LogFormat::Json => _ = logger.format(as_json),
        LogFormat::Text if logs_to_journal() => _ = logger.format(for_journal),
        LogFormat::Text => {}
    }
    if is_colourful() {
        logger.write_style(WriteStyle::Always);
    }
    logger.target(Target::Pipe(Box::new(log_writer::begin()?))).init();
    log::set_max_level(level);
    if options.exit_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    raise_descriptor_limit();
    Ok(())
}

/// Whether standard error is a terminal with colours, and the user wants them.
fn is_colourful() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb && !is_set("NO_COLOR")
}

/// Formats a line for the journal, which has time and unit itself, and takes the level (syslog(3)) from the line.
fn for_journal(out: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let level = match record.level() {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    writeln!(out, "<{level}>{}: {}", record.target(), record.args())
}

fn as_json(out: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let line = serde_json::json!({
        "time": out.timestamp_millis().to_string(),
        "level": record.level().as_str().to_lowercase(),
        "module": record.target(),
        "message": record.args().to_string(),
    });
    writeln!(out, "{line}")
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

/// Tells the service manager, if there is one. Errors are only logged.
pub(crate) fn tell(manager: Option<&Manager>, tell: impl FnOnce(&Manager) -> io::Result<()>) {
    if let Some(manager) = manager
        && let Err(error) = tell(manager)
    {
        log::warn!("cannot notify the service manager: {error}");
    }
}
