//! `bpfof query`: SQL over files, filtered and reduced at the storage target, with the answer on standard output.
//!
//! It is a separate executable, `bpfof-query`, which `bpfof query` starts, so that the program of storage servers does
//! not contain SQL and Arrow. [`Options`] are here, so that help and completions of `bpfof` know them, and [`main`], so
//! that the Python package has the command too. The work is done by the library `bpfof-query`.

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

/// How often to check for a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A question, its files, and the destination of the answer.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit status: 0 with an answer, 1 if it failed, 2 if the question is wrong, 130 if interrupted."
)]
pub struct Options {
    /// One SELECT over files: "SELECT zone, sum(fare) FROM '/mnt/d/*.csv' GROUP BY zone".
    #[arg(value_name = "SQL")]
    sql: String,
    /// The fields of records, as in 'id u64, zone i32, name char(16), pad pad(4), fare f64'; for CSV the types of
    /// columns whose types are not to be inferred, as in 'zip utf8'.
    #[arg(long, value_name = "FIELDS")]
    schema: Option<String>,
    /// The format of the files; by default it follows from their names, and --schema means records.
    #[arg(long)]
    format: Option<FormatOption>,
    /// The delimiter of CSV fields [default: a comma, in files named .tsv a tab].
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,
    /// The first line of CSV is a row, not a header; columns are called f0, f1, and so on.
    #[arg(long)]
    no_header: bool,
    /// Your own filter, an object that follows the contract of bpfof/batch.h, and the columns that it uses:
    /// 'near.bpf.o(lat, lon)'. It selects among the rows that meet WHERE.
    #[arg(long, value_name = "FILE(COLUMNS)", value_parser = OwnStageName::filter)]
    filter: Option<OwnStageName>,
    /// Your own reduction, and the numbers that it answers: 'powers.bpf.o(n) -> power u64, rows u64'. SELECT then
    /// refers to these, and WHERE to the columns of the files.
    #[arg(long, value_name = "FILE(COLUMNS) -> FIELDS", value_parser = OwnStageName::reduction)]
    reduce: Option<OwnStageName>,
    /// The target that serves the files' namespace: nvme-tcp://HOST:PORT/NQN?ns=1. By default it is found from the
    /// files' mount: in BPFOF_TARGETS, or else by asking the kernel's NVMe host.
    #[arg(long, value_parser = target_url, requires = "device")]
    target: Option<TargetUrl>,
    /// The namespace's device on this machine: the block device of the kernel's NVMe/TCP host, or the disk or image
    /// that a target on this machine serves.
    #[arg(long, value_name = "PATH", requires = "target")]
    device: Option<PathBuf>,
    /// Run the stages on this machine, without a target.
    #[arg(long, conflicts_with_all = ["target", "no_fallback"])]
    here: bool,
    /// Fail if the stages cannot run at a target, instead of running them here over plain reads.
    #[arg(long)]
    no_fallback: bool,
    /// Maximum number of chains at a time, 1 to 256.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    chains: u16,
    /// Print CSV.
    #[arg(long, group = "style")]
    csv: bool,
    /// Print JSON: an array of objects; with --explain or --stats these as JSON, too.
    #[arg(long, group = "style")]
    json: bool,
    /// Write an Arrow file (IPC), which appears once the answer is complete; - prints it. Pipes and devices are written
    /// to at once.
    #[arg(long, value_name = "FILE", group = "style")]
    arrow: Option<PathBuf>,
    /// Explain which steps would be done where, and why, without running the query.
    #[arg(long, conflicts_with_all = ["csv", "arrow", "stats"])]
    explain: bool,
    /// Print the cost of the query on standard error.
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

/// Query files with SQL: filters and reductions run at the storage target.
#[derive(Parser)]
#[command(name = "bpfof-query", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Runs the command with these arguments, the first of which is its name. Prints to standard output and standard error,
/// including warnings of libraries. Returns the exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(refused) => {
            // A request for help is not an error. If printing fails, there is no reader to report that to.
            let _ = refused.print();
            return refused.exit_code() as u8;
        }
    };
    let mut logger = env_logger::Builder::new();
    logger.filter_level(log::LevelFilter::Warn);
    logger.format(|out, record| writeln!(out, "bpfof: {}", told(&record.args().to_string())));
    // The caller may have installed a logger.
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

/// A message without characters that could control a terminal: it contains names of files and of columns.
fn told(message: &str) -> String {
    let lines: Vec<_> = message.split('\n').map(harmless).collect();
    lines.join("\n")
}

/// The state before an answer.
struct Ready {
    question: Question,
    source: Source,
    /// Warnings about the files for the user.
    warnings: Vec<String>,
    then: Then,
}

enum Then {
    /// With the places where stages would run.
    Explain(Vec<String>),
    Ask(Session),
}

/// Examines the question and the files, and connects to their targets.
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
        // If the header is wrong, the columns are not those that the user meant.
        Err(failure) => {
            let Some(row) = found.bad_row() else { return Err(failure) };
            let question = failure.message().unwrap_or_default();
            return Err(Failure::other(format!("{row}; also: {question}")));
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

/// Calls `ready` on a thread of its own, which is abandoned if `stop` is set: files and targets may never answer.
fn ready_unless_stopped(options: &Options, stop: &AtomicBool) -> Result<Ready, Failure> {
    let options = options.clone();
    let (to, done) = sync_channel(1);
    let worker = std::thread::spawn(move || {
        // The receiver may have stopped waiting.
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

/// Asks the question, and writes the answer.
///
/// # Errors
/// [`Failure`] tells why there is no answer, and what to do.
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
