//! `bpfof query`: SQL over files, filtered and reduced at the storage target, the answer on standard output.
//!
//! It is an executable of its own, `bpfof-query`, which `bpfof query` starts: SQL and Arrow stay out of the
//! program of storage servers. [`Options`] are here, so that help and completions of `bpfof` know
//! them, and [`main`], so that the Python package has the command too; the work is in `bpfof-query`, the library.

mod answer;
mod arrow_file;
mod explain;
mod failure;

use answer::{Asked, Destination};
use bpfof_host::TargetUrl;
use bpfof_query::ask::{Reach, Session};
use bpfof_query::infer::{FormatName, Found, Hints, Source};
use bpfof_query::output::{Style, harmless};
use bpfof_query::sql::{Question, Statement};
use bpfof_query::{OwnStageName, OwnStages, Settings};
use bpfof_terminal::{stop_or_end_on_signal, target_url, tell};
use clap::{Args, Parser, ValueEnum};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

pub use failure::Failure;

/// How often to look for a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is asked, of which files, and where the answer goes.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit status: 0 with an answer, 1 if it failed, 2 if the question is wrong, 130 if interrupted."
)]
pub struct Options {
    /// One SELECT over files: "SELECT zone, sum(fare) FROM '/mnt/d/*.csv' GROUP BY zone".
    #[arg(value_name = "SQL")]
    sql: String,
    /// The fields of records, as in 'id u64, zone i32, name char(16), pad pad(4), fare f64'; of CSV the kinds
    /// of columns that are not to be inferred, as in 'zip utf8'.
    #[arg(long, value_name = "FIELDS")]
    schema: Option<String>,
    /// What the files are; their names tell otherwise, and --schema means records.
    #[arg(long)]
    format: Option<FormatOption>,
    /// Between the fields of CSV [default: a comma, in files named .tsv a tab].
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,
    /// The first line of CSV is a row; columns are called f0, f1, and so on.
    #[arg(long)]
    no_header: bool,
    /// A filter of your own, an object by the contract of bpfof/batch.h, and the columns that it looks at:
    /// 'near.bpf.o(lat, lon)'. It selects among the rows that meet WHERE.
    #[arg(long, value_name = "FILE(COLUMNS)", value_parser = OwnStageName::filter)]
    filter: Option<OwnStageName>,
    /// A reduction of your own, and the numbers that it answers: 'powers.bpf.o(n) -> power u64, rows u64'. SELECT is
    /// then of these, and WHERE of the columns of files.
    #[arg(long, value_name = "FILE(COLUMNS) -> FIELDS", value_parser = OwnStageName::reduction)]
    reduce: Option<OwnStageName>,
    /// The target that serves the files' namespace: nvme-tcp://HOST:PORT/NQN?ns=1. By default it is found
    /// from their mount: BPFOF_TARGETS, and then the kernel's NVMe host tell it.
    #[arg(long, value_parser = target_url, requires = "device")]
    target: Option<TargetUrl>,
    /// What the namespace is on this machine: the block device of the kernel's NVMe/TCP host, or
    /// the disk or image that a target on this machine serves.
    #[arg(long, value_name = "PATH", requires = "target")]
    device: Option<PathBuf>,
    /// Run the stages on this machine, without a target.
    #[arg(long, conflicts_with_all = ["target", "no_fallback"])]
    here: bool,
    /// Fail where the stages cannot run at a target, in place of running them here over plain reads.
    #[arg(long)]
    no_fallback: bool,
    /// Chains at a time, 1 to 256.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    chains: u16,
    /// Print CSV.
    #[arg(long, group = "style")]
    csv: bool,
    /// Print JSON: an array of objects; with --explain or --stats theirs as well.
    #[arg(long, group = "style")]
    json: bool,
    /// Write an Arrow file (IPC), once all of the answer is there; - prints it. Pipes and devices get it at once.
    #[arg(long, value_name = "FILE", group = "style")]
    arrow: Option<PathBuf>,
    /// Tell what would be done where, and why, and do not do it.
    #[arg(long, conflicts_with_all = ["csv", "arrow", "stats"])]
    explain: bool,
    /// Tell on standard error what the query has cost.
    #[arg(long)]
    stats: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatOption {
    /// Records of one size, little-endian, with the fields of --schema.
    Records,
    /// NumPy's .npy.
    Npy,
    /// Text with a delimiter.
    Csv,
    /// Arrow IPC files and Feather, uncompressed.
    Arrow,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Ok(*byte),
        _ => Err("a delimiter is one ASCII character, or \\t for a tab".to_owned()),
    }
}

impl Options {
    fn hints(&self) -> Hints {
        let format = self.format.map(|format| match format {
            FormatOption::Records => FormatName::Records,
            FormatOption::Npy => FormatName::Npy,
            FormatOption::Csv => FormatName::Csv,
            FormatOption::Arrow => FormatName::Arrow,
        });
        let (schema, delimiter) = (self.schema.clone(), self.delimiter);
        Hints { schema, format, delimiter, no_header: self.no_header }
    }

    fn reach(&self) -> Reach {
        match (&self.target, &self.device) {
            _ if self.here => Reach::Here,
            (Some(url), Some(device)) => {
                Reach::Target { url: Box::new(url.clone()), device: device.clone() }
            }
            _ => Reach::Mounts { address: target_url },
        }
    }

    fn settings(&self) -> Settings {
        let chains = usize::from(self.chains);
        Settings { chains, falls_back: !self.no_fallback, ..Settings::default() }
    }

    fn destination(&self) -> Destination<'_> {
        match &self.arrow {
            Some(path) if path.as_os_str() == "-" => Destination::Print(Style::Arrow),
            Some(path) => Destination::Arrow(path),
            None if self.json => Destination::Print(Style::Json),
            None if self.csv => Destination::Print(Style::Csv),
            None => Destination::Print(Style::Table),
        }
    }
}

/// Ask files in SQL: filtered and reduced at the storage target.
#[derive(Parser)]
#[command(name = "bpfof-query", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// The command with these arguments, of which the first is its name. What it says goes to standard output and
/// standard error, warnings of libraries too. Returns its exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(refused) => {
            // Help is none. If nobody reads it, there is nobody to tell.
            let _ = refused.print();
            return refused.exit_code() as u8;
        }
    };
    let mut logger = env_logger::Builder::new();
    logger.filter_level(log::LevelFilter::Warn);
    logger.format(|out, record| writeln!(out, "bpfof: {}", told(&record.args().to_string())));
    // Whoever calls it may have one.
    let _ = logger.try_init();
    match run(&cli.options) {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(message) = failure.message() {
                tell(told(message));
            }
            failure.exit_code()
        }
    }
}

/// A message without what could change a terminal: names of files and of columns are in it.
fn told(message: &str) -> String {
    let lines: Vec<_> = message.split('\n').map(harmless).collect();
    lines.join("\n")
}

/// What is known before an answer.
struct Ready {
    question: Question,
    source: Source,
    /// What the user should know of the files.
    warnings: Vec<String>,
    then: Then,
}

enum Then {
    /// With the places where stages would run.
    Explain(Vec<String>),
    Ask(Session),
}

/// Looks at what is asked and at the files, and connects to their targets.
fn ready(options: &Options) -> Result<Ready, Failure> {
    let statement = Statement::parse(&options.sql).map_err(Failure::question)?;
    let found = Found::look(statement.files(), &options.hints())?;
    let mut schema = found.source.schema.clone();
    let (filter, reduction) = (options.filter.as_ref(), options.reduce.as_ref());
    let question = OwnStages::read(filter, reduction, &mut schema)
        .map_err(Failure::question)
        .and_then(|own| {
            statement.bind_with(&schema, &found.source.format, own).map_err(Failure::question)
        });
    let (question, (source, warnings)) = match question {
        Ok(question) => {
            let source = found.for_plan(question.plan())?;
            (question, source)
        }
        // Columns are not those that were meant if the header is none.
        Err(failure) => {
            let Some(row) = found.bad_row() else { return Err(failure) };
            let question = failure.message().unwrap_or_default();
            return Err(Failure::other(format!("{row}; besides: {question}")));
        }
    };
    let reach = options.reach();
    let then = if options.explain {
        Then::Explain(explain::places(&source, &reach)?)
    } else {
        let falls_back = !options.no_fallback;
        Then::Ask(Session::open(&source, &reach, falls_back).map_err(Failure::other)?)
    };
    Ok(Ready { question, source, warnings, then })
}

/// The same on a thread of its own, which is left behind if `stop` is set: files and targets may never answer.
fn ready_unless_stopped(options: &Options, stop: &AtomicBool) -> Result<Ready, Failure> {
    let options = options.clone();
    let (to, done) = sync_channel(1);
    let worker = std::thread::spawn(move || {
        // Nobody may wait for it any more.
        let _ = to.send(ready(&options));
    });
    loop {
        match done.recv_timeout(LOOK_AGAIN) {
            Ok(ready) => return ready,
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                return Err(Failure::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it sends before it ends"),
            },
        }
    }
}

/// Asks, and writes the answer.
///
/// # Errors
/// [`Failure`] says why there is none, and what to do.
pub fn run(options: &Options) -> Result<(), Failure> {
    let stop = stop_or_end_on_signal()?;
    let Ready { question, source, warnings, then } = ready_unless_stopped(options, &stop)?;
    for warning in &warnings {
        tell(told(warning));
    }
    let session = match then {
        Then::Explain(places) => {
            return explain::explain(&question, &source, &places, options.json);
        }
        Then::Ask(session) => session,
    };
    let warnings = session.warnings();
    for warning in &warnings {
        tell(told(warning));
    }
    let asked = Asked { question: &question, source: &source, session: &session };
    let cost = answer::answer(asked, options.settings(), options.destination(), &stop)?;
    for lost in cost.lost.iter().filter(|lost| !warnings.contains(lost)) {
        tell(told(lost));
    }
    if options.stats {
        explain::tell_stats(cost.stats, &session, options.json)?;
    }
    Ok(())
}
