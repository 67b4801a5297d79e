//! `bpfof kv …`: creates and reads BPF-KV databases.

mod common;
mod get;

use bpfkv::create::Extent;
use bpfkv::{Aggregate, KeyRange, Value};
use bpfof_host::{Options as HostOptions, TargetUrl};
use bpfof_kv::{Session, SessionError, WriteError, create_file, create_on_target};
use bpfof_terminal::{Outcome, output, progress, stop_on_signal, target_url, tell};
use clap::{Args, Subcommand, ValueEnum};
use common::{target, text};
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a database, to a file or to a target's namespace. It ends with status 130 if it is interrupted. Only one
    /// process may write a namespace: two at once would mix their data.
    Create(Create),
    /// Look up keys.
    Get(get::Get),
    /// Print the pairs of a range of keys.
    Range(Range),
    /// Compute over the values of a range of keys.
    Aggregate(AggregateOptions),
}

#[derive(Args)]
pub(crate) struct Create {
    /// Levels of the tree: 31^LEVELS keys. 4: 72 MiB, 5: 2.2 GiB, 6: 67 GiB.
    #[arg(long, default_value_t = 4)]
    levels: u32,
    /// Write only this many of the root's 31 subtrees, each at its place in the whole database.
    #[arg(long, value_name = "N")]
    subtrees: Option<u32>,
    /// The file to write; must not exist. It appears when it is complete.
    #[arg(long, conflicts_with = "target")]
    file: Option<PathBuf>,
    /// The target to write to, whose namespace is overwritten: nvme-tcp://HOST:PORT/NQN?ns=1 [env: BPFOF_TARGET,
    /// without --file].
    #[arg(long, value_parser = target_url)]
    target: Option<TargetUrl>,
    /// Write values as the original tool does: text, whose sums make no sense. By default a value is the number of its
    /// key, in its first 8 bytes and again as text.
    #[arg(long)]
    text: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Store {
    /// The target: nvme-tcp://HOST:PORT/NQN?ns=1.
    #[arg(long, env = "BPFOF_TARGET", value_parser = target_url)]
    target: TargetUrl,
    /// Read plainly, one network round trip a hop, instead of pushing the lookup down.
    #[arg(long)]
    plain: bool,
    /// Hold the top levels of the tree on the host, 0 to 3.
    #[arg(long, default_value_t = 0, value_name = "LEVELS")]
    cache: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Keys {
    /// First key.
    begin: u64,
    /// End: the first key not in the range.
    end: u64,
    /// Exclude the first key.
    #[arg(long)]
    exclude_begin: bool,
    /// Include the end.
    #[arg(long)]
    include_end: bool,
}

#[derive(Args)]
pub(crate) struct Range {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    keys: Keys,
}

#[derive(Args)]
pub(crate) struct AggregateOptions {
    #[command(flatten)]
    store: Store,
    /// What to compute, from the first 8 bytes of each value as a signed integer. Sums are exact; in JSON a sum beyond
    /// 64 bits is text.
    #[arg(value_enum)]
    what: What,
    #[command(flatten)]
    keys: Keys,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    Sum,
    Min,
    Max,
    Count,
    Average,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Create(options) => create(options),
        Command::Get(options) => get::run(options),
        Command::Range(options) => range(options),
        Command::Aggregate(options) => aggregate(options),
    }
}

fn create(options: &Create) -> Outcome {
    let extent = match options.subtrees {
        Some(subtrees) => Extent::part(options.levels, subtrees)?,
        None => Extent::full(options.levels)?,
    };
    let extent = if options.text { extent } else { extent.with_numbers() };
    let url = match options.file {
        Some(_) => None,
        None => Some(target(options.target.as_ref(), "--file")?),
    };
    let stop = stop_on_signal()?;
    progress::bytes("writing", extent.written_bytes(), &stop, |progress| {
        match (&options.file, &url) {
            (Some(path), _) => create_file(path, &extent, progress),
            (None, Some(url)) => create_on_target(url, &extent, progress),
            (None, None) => Ok(()),
        }
    })?;
    let (keys, bytes) = (extent.keys(), extent.layout().file_bytes());
    match options.json {
        true => println!("{}", serde_json::json!({ "keys": keys, "bytes": bytes })),
        false => eprintln!("{keys} keys, 0 to {}, {bytes} bytes", keys - 1),
    }
    Ok(())
}

impl Store {
    fn open(&self) -> Result<Session, SessionError> {
        Session::open(&self.target, HostOptions::default(), self.cache)
    }
}

impl Keys {
    fn range(&self) -> Result<KeyRange, bpfkv::InvertedRange> {
        let mut range = KeyRange::new(self.begin, self.end)?;
        if self.exclude_begin {
            range = range.exclude_begin();
        }
        Ok(if self.include_end { range.include_end() } else { range })
    }
}

fn range(options: &Range) -> Outcome {
    let range = options.keys.range()?;
    let mut session = options.store.open()?;
    let mut out = io::BufWriter::new(output());
    let (json, mut first) = (options.store.json, true);
    if json {
        write!(out, "[")?;
    }
    let end = session.range(&range, options.store.plain, &mut |key, value| -> Outcome {
        if json {
            let separator = if std::mem::take(&mut first) { "" } else { "," };
            let pair = serde_json::json!({ "key": key, "value": text(value) });
            write!(out, "{separator}\n{pair}")?;
        } else {
            writeln!(out, "{key} {}", text(value))?;
        }
        Ok(())
    });
    // Close the JSON array even if the range has failed.
    let closed = if json { writeln!(out, "\n]") } else { Ok(()) };
    let flushed = closed.and_then(|()| out.flush());
    end?;
    Ok(flushed?)
}

fn aggregate(options: &AggregateOptions) -> Outcome {
    let range = options.keys.range()?;
    let mut session = options.store.open()?;
    let what = match options.what {
        What::Sum => Aggregate::Sum,
        What::Min => Aggregate::Min,
        What::Max => Aggregate::Max,
        What::Count => Aggregate::Count,
        What::Average => Aggregate::Average,
    };
    let summary = session.aggregate(&range, what, options.store.plain)?;
    let is_text = is_text(session.get(options.keys.begin, options.store.plain));
    if is_text == Some(true) && !matches!(options.what, What::Count) {
        tell(
            "values of this store are text, as the original tool writes them: the first 8 bytes of \
             each count as a number",
        );
    }
    let (min, max) = summary.min_max.unzip();
    let (name, result) = match options.what {
        What::Sum => ("sum", exact(summary.sum)),
        What::Min => ("min", serde_json::json!(min)),
        What::Max => ("max", serde_json::json!(max)),
        What::Count => ("count", serde_json::json!(summary.count)),
        What::Average => ("average", serde_json::json!(summary.average())),
    };
    let mut out = output();
    if options.store.json {
        let count = summary.count;
        writeln!(
            out,
            "{}",
            serde_json::json!({
                "aggregate": name, "result": result, "count": count, "values_are_text": is_text
            })
        )?;
    } else {
        let result = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
        writeln!(out, "{name} {result} over {} values", summary.count)?;
    }
    Ok(())
}

/// Whether values are text, judged by one of them; None if it cannot be read.
fn is_text(first: Result<Option<Value>, SessionError>) -> Option<bool> {
    let is_text = |value: Value| value[..8].iter().all(|byte| matches!(byte, b' '..=b'~'));
    first.ok().map(|value| value.is_some_and(is_text))
}

/// A number if it fits into 64 bits, else text: many programs that read JSON have no larger integers.
fn exact(sum: i128) -> serde_json::Value {
    match (i64::try_from(sum), u64::try_from(sum)) {
        (Ok(sum), _) => sum.into(),
        (_, Ok(sum)) => sum.into(),
        _ => sum.to_string().into(),
    }
}

/// Whether a signal has ended a command.
pub(crate) fn is_interrupted(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(WriteError::Interrupted(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        for (sum, json) in [
            (i128::from(i64::MIN), "-9223372036854775808"),
            (u64::MAX.into(), "18446744073709551615"),
            (i128::from(u64::MAX) + 1, "\"18446744073709551616\""),
            (i128::from(i64::MIN) - 1, "\"-9223372036854775809\""),
        ] {
            assert_eq!(exact(sum).to_string(), json);
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_takes_nothing_away() {
        let mut value = [b'0'; 64];
        assert_eq!(is_text(Ok(Some(value))), Some(true));
        value[7] = 0;
        assert_eq!((is_text(Ok(Some(value))), is_text(Ok(None))), (Some(false), Some(false)));
        assert_eq!(is_text(Err(SessionError::Aborted("damaged".to_owned()))), None);
    }
}
