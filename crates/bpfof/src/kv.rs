//! `bpfof kv …`: BPF-KV by hand.

use crate::session::{Session, SessionError, connect, explain};
use crate::{Outcome, progress};
use bpfkv::create::{Extent, write_database};
use bpfkv::pushdown::{
    AggregatePushdown, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, RangePushdown, get_answer, get_argument,
};
use bpfkv::{
    Aggregate, AggregateCursor, GetCursor, KeyRange, RangeCursor, ReadRequest, Step, Value,
};
use bpfof_host::{Options as HostOptions, TargetUrl};
use clap::{Args, Subcommand, ValueEnum};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a database, to a file or to a target's namespace.
    Create(Create),
    /// Look up keys.
    Get(Get),
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
    /// Write only this many of the root's 31 subtrees, each where the whole database has it.
    #[arg(long, value_name = "N")]
    subtrees: Option<u32>,
    /// The file to write; must not exist.
    #[arg(long, required_unless_present = "target", conflicts_with = "target")]
    file: Option<PathBuf>,
    /// The target to write to, over what its namespace holds: nvme-tcp://HOST:PORT/NQN?ns=1.
    #[arg(long)]
    target: Option<TargetUrl>,
}

#[derive(Args)]
pub(crate) struct Store {
    /// The target: nvme-tcp://HOST:PORT/NQN?ns=1.
    #[arg(long)]
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
pub(crate) struct Get {
    #[command(flatten)]
    store: Store,
    /// Keys to look up.
    #[arg(required = true)]
    keys: Vec<u64>,
}

#[derive(Args)]
pub(crate) struct Keys {
    /// First key.
    begin: u64,
    /// End: the first key not in the range.
    end: u64,
    /// Leave the first key out.
    #[arg(long)]
    exclude_begin: bool,
    /// Take the end in.
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
    /// What to compute; of each value the first 8 bytes count, as a signed integer.
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
        Command::Get(options) => get(options),
        Command::Range(options) => range(options),
        Command::Aggregate(options) => aggregate(options),
    }
}

fn create(options: &Create) -> Outcome {
    let extent = match options.subtrees {
        Some(subtrees) => Extent::part(options.levels, subtrees)?,
        None => Extent::full(options.levels)?,
    };
    let stop = stop_on_signal()?;
    match (&options.file, &options.target) {
        (Some(path), _) => create_file(path, &extent, &stop),
        (None, Some(url)) => create_on_target(url, &extent, &stop),
        (None, None) => unreachable!("the option parser asks for one"),
    }?;
    let keys = extent.keys();
    eprintln!("{keys} keys, 0 to {}, {} bytes", keys - 1, extent.layout().file_bytes());
    Ok(())
}

/// Set by Ctrl-C and SIGTERM, so that what is half done can be undone.
pub(crate) fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// A partial file is removed: what exists is whole.
pub(crate) fn create_file(path: &Path, extent: &Extent, stop: &AtomicBool) -> Outcome {
    let named = |error: io::Error| format!("cannot create {}: {error}", path.display());
    let file = std::fs::File::create_new(path).map_err(named)?;
    let written = file
        .set_len(extent.layout().file_bytes())
        .map_err(|error| named(error).into())
        .and_then(|()| write(extent, stop, &mut |offset, bytes| file.write_all_at(bytes, offset)))
        .and_then(|()| Ok(file.sync_all()?));
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Writes a database over a target's namespace.
pub(crate) fn create_on_target(url: &TargetUrl, extent: &Extent, stop: &AtomicBool) -> Outcome {
    let (mut controller, mut lane) = connect(url, HostOptions::default())?;
    let nsid = url.nsid;
    let info = controller.identify_namespace(nsid)?;
    let have = info.size_bytes();
    let need = extent.layout().file_bytes();
    if have < need {
        let levels = extent.layout().levels();
        return Err(format!(
            "namespace {nsid} has {have} bytes; a database of {levels} levels needs {need}: make \
             the namespace larger or give fewer --levels"
        )
        .into());
    }
    let mut blocks = WholeBlocks { block: info.block_bytes as usize, offset: 0, data: Vec::new() };
    let mut send = |offset, bytes: &[u8]| lane.write(nsid, offset, bytes).map_err(io::Error::other);
    write(extent, stop, &mut |offset, bytes| blocks.write(offset, bytes, &mut send))?;
    blocks.finish(&mut send)?;
    lane.flush(nsid)?;
    controller.disconnect()?;
    Ok(())
}

/// Makes writes of whole logical blocks out of writes of 512-byte blocks at ascending offsets.
/// What lies between them becomes zero, in so far as it shares a logical block with them.
struct WholeBlocks {
    block: usize,
    /// Where `data` goes: a multiple of the block.
    offset: u64,
    data: Vec<u8>,
}

type Send<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

impl WholeBlocks {
    fn write(&mut self, offset: u64, bytes: &[u8], send: Send<'_>) -> io::Result<()> {
        let end = self.offset + self.data.len() as u64;
        if offset >= end.next_multiple_of(self.block as u64) && offset != end {
            self.finish(send)?;
            self.offset = offset / self.block as u64 * self.block as u64;
        }
        self.data.resize((offset - self.offset) as usize, 0);
        self.data.extend_from_slice(bytes);
        let whole = self.data.len() / self.block * self.block;
        if whole > 0 {
            send(self.offset, &self.data[..whole])?;
            self.data.drain(..whole);
            self.offset += whole as u64;
        }
        Ok(())
    }

    fn finish(&mut self, send: Send<'_>) -> io::Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.data.resize(self.data.len().next_multiple_of(self.block), 0);
        send(self.offset, &self.data)?;
        self.data.clear();
        Ok(())
    }
}

fn write(
    extent: &Extent,
    stop: &AtomicBool,
    sink: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> Outcome {
    let bar = progress::bytes("writing", extent.written_bytes());
    let outcome = write_database(extent, sink, &mut |done, _| {
        bar.set_position(done);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    Ok(outcome?)
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

/// A value as text: printable ones as they are, others in hexadecimal.
fn text(value: &Value) -> String {
    let trimmed = value.strip_suffix(&[0]).unwrap_or(value);
    match str::from_utf8(trimmed) {
        Ok(text) if !text.contains(|c: char| c.is_control()) => text.trim_start().to_owned(),
        _ => value.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn get(options: &Get) -> Outcome {
    let mut session = options.store.open()?;
    let mut answers = Vec::new();
    for &key in &options.keys {
        let value = session.get(key, options.store.plain)?;
        answers.push((key, value.as_ref().map(text)));
    }
    let mut out = io::stdout().lock();
    if options.store.json {
        let answers: Vec<_> = answers
            .iter()
            .map(|(key, value)| serde_json::json!({ "key": key, "value": value }))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&answers)?)?;
    } else {
        for (key, value) in &answers {
            writeln!(out, "{key} {}", value.as_deref().unwrap_or("(not found)"))?;
        }
    }
    if answers.iter().any(|(_, value)| value.is_none()) {
        return Err("some keys were not found".into());
    }
    Ok(())
}

fn range(options: &Range) -> Outcome {
    let range = options.keys.range()?;
    let mut session = options.store.open()?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let (json, mut first) = (options.store.json, true);
    if json {
        write!(out, "[")?;
    }
    session.range(&range, options.store.plain, &mut |key, value| {
        if json {
            let separator = if std::mem::take(&mut first) { "" } else { "," };
            let pair = serde_json::json!({ "key": key, "value": text(value) });
            write!(out, "{separator}\n{pair}")
        } else {
            writeln!(out, "{key} {}", text(value))
        }
    })?;
    if json {
        writeln!(out, "\n]")?;
    }
    Ok(out.flush()?)
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
    let (min, max) = summary.min_max.unzip();
    let (name, result) = match options.what {
        What::Sum => ("sum", serde_json::json!(summary.sum_wrapped())),
        What::Min => ("min", serde_json::json!(min)),
        What::Max => ("max", serde_json::json!(max)),
        What::Count => ("count", serde_json::json!(summary.count)),
        What::Average => ("average", serde_json::json!(summary.average())),
    };
    let mut out = io::stdout().lock();
    if options.store.json {
        let count = summary.count;
        writeln!(
            out,
            "{}",
            serde_json::json!({ "aggregate": name, "result": result, "count": count })
        )?;
    } else {
        writeln!(out, "{name} {result} over {} values", summary.count)?;
    }
    Ok(())
}

impl Session {
    /// The value of a key.
    pub(crate) fn get(
        &mut self,
        key: u64,
        plain: bool,
    ) -> Result<Option<Value>, Box<dyn std::error::Error>> {
        let Some(start) = self.cache.start_of_get(key)? else { return Ok(None) };
        if plain {
            let mut cursor = GetCursor::new();
            cursor.reset(key, start);
            loop {
                let reads = match cursor.step() {
                    Step::Read(reads) => reads.to_vec(),
                    Step::Done(value) => return Ok(value.copied()),
                };
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
            }
        }
        let Some(argument) = get_argument(key) else { return Ok(None) };
        let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
        let call = self.call(self.get, start, &argument, sizes);
        let mut answer = Vec::new();
        self.lane.pushdown(&call, &mut answer).map_err(explain)?;
        Ok(get_answer(&answer)?.copied())
    }

    /// The pairs of a range, in order.
    pub(crate) fn range(
        &mut self,
        range: &KeyRange,
        plain: bool,
        print: &mut dyn FnMut(u64, &Value) -> io::Result<()>,
    ) -> Outcome {
        let Some((first, _)) = range.bounds() else { return Ok(()) };
        let start = self.cache.start_of_range(first)?;
        if plain {
            let mut cursor = RangeCursor::new();
            cursor.reset(range, start);
            while let Step::Read(reads) = cursor.step() {
                let reads = reads.to_vec();
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
                for pair in cursor.pairs() {
                    print(pair.key, &pair.value)?;
                }
                cursor.clear_pairs();
            }
            return Ok(());
        }
        let mut pushdown = RangePushdown::new(range, start, self.hops_max)
            .with_scratch_limit(self.scratch_max_bytes);
        let mut answer = Vec::new();
        while let Some(next) = pushdown.call() {
            let sizes = (next.answer_max_bytes, next.scratch_size_bytes);
            let call = self.call(self.range, next.first_offset_bytes, &next.argument, sizes);
            self.lane.pushdown(&call, &mut answer).map_err(explain)?;
            for (key, value) in pushdown.answer(&answer)? {
                print(key, value)?;
            }
        }
        Ok(())
    }

    /// Aggregates of a range.
    pub(crate) fn aggregate(
        &mut self,
        range: &KeyRange,
        what: Aggregate,
        plain: bool,
    ) -> Result<bpfkv::Summary, Box<dyn std::error::Error>> {
        let Some((first, _)) = range.bounds() else { return Ok(bpfkv::Summary::default()) };
        let start = self.cache.start_of_range(first)?;
        if plain {
            let mut cursor = AggregateCursor::new();
            cursor.reset(range, what, start);
            loop {
                let reads = match cursor.step() {
                    Step::Read(reads) => reads.to_vec(),
                    Step::Done(summary) => return Ok(summary),
                };
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
            }
        }
        let mut pushdown = AggregatePushdown::new(range, what, start, self.hops_max);
        let mut answer = Vec::new();
        while let Some(next) = pushdown.call() {
            let sizes = (next.answer_max_bytes, next.scratch_size_bytes);
            let call = self.call(self.range, next.first_offset_bytes, &next.argument, sizes);
            self.lane.pushdown(&call, &mut answer).map_err(explain)?;
            pushdown.answer(&answer)?;
        }
        Ok(*pushdown.summary())
    }

    /// Reads what a cursor asks for, plainly, and feeds it.
    fn feed(
        &mut self,
        reads: &[ReadRequest],
        mut feed: impl FnMut(usize, &[u8]) -> Result<(), bpfkv::Corrupt>,
    ) -> Outcome {
        for (index, read) in reads.iter().enumerate() {
            let mut data = vec![0; read.length_bytes as usize];
            crate::session::read(&mut self.lane, self.nsid, read.offset_bytes, &mut data)?;
            feed(index, &data)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_writes_become_whole_blocks() {
        let mut disk = vec![0xff; 65536];
        let mut send = |offset: u64, bytes: &[u8]| {
            assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
            disk[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let mut blocks = WholeBlocks { block: 4096, offset: 0, data: Vec::new() };
        for (offset, length, byte) in
            [(0, 512, 1), (512, 8192, 2), (9216, 512, 3), (33280, 4096, 4), (61440, 4096, 5)]
        {
            blocks.write(offset, &vec![byte; length], &mut send).expect("sends");
        }
        blocks.finish(&mut send).expect("sends");
        let expected = |at: usize| match at {
            0..512 => 1,
            512..8704 => 2,
            8704..9216 => 0,
            9216..9728 => 3,
            9728..12288 => 0,
            12288..32768 => 0xff,
            32768..33280 => 0,
            33280..37376 => 4,
            37376..40960 => 0,
            61440.. => 5,
            _ => 0xff,
        };
        let wrong = disk.iter().enumerate().position(|(at, byte)| *byte != expected(at));
        assert_eq!(wrong, None);
    }
}
