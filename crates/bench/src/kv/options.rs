//! The options of `bpfof bench kv`.

use bpfof_host::TargetUrl;
use bpfof_terminal::target_url;
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where the chains of the benchmark run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvExecutor {
    /// At a target, against plain reads over the network.
    Remote,
    /// In this process on an io_uring, over a database in a file: XRP's table 3, latency against depth, for read(),
    /// io_uring and bpf-of.
    Local,
}

/// The options of `bpfof bench kv`, with where its chains run.
#[derive(Args)]
pub struct KvCommand {
    /// Where chains run.
    #[arg(long, value_enum, default_value = "remote")]
    pub(crate) executor: KvExecutor,
    /// The database of --executor local, a file or block device that is read directly. A file that does not exist is
    /// created, with --levels levels or as much of it as fits 3 GiB. By default a file in /var/tmp, which is removed at
    /// the end.
    #[arg(long, value_name = "PATH", conflicts_with = "tls")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: KvOptions,
}

/// The options shared by the measurements of `bpfof bench kv`.
#[derive(Args, Clone)]
pub(crate) struct KvOptions {
    /// Levels of the tree. A database larger than 5 GiB or than a third of the free memory is written in part: as many
    /// of the root's subtrees as fit, each at its place in the whole database, so that a get still takes LEVELS + 1
    /// reads.
    #[arg(long, default_value_t = 6)]
    pub(crate) levels: u32,
    /// A target that has the database already (`bpfof kv create`); otherwise one is started with a
    /// memory namespace and the database is made once.
    #[arg(long, value_parser = target_url)]
    pub(crate) target: Option<TargetUrl>,
    /// Latency of each read in µs, of the started target's namespace.
    #[arg(long, default_value_t = 0, conflicts_with = "target")]
    pub(crate) latency_us: u64,
    /// Most reads a second of the started target's namespace, 0 for no ceiling.
    #[arg(long, default_value_t = 0, conflicts_with = "target")]
    pub(crate) iops: u64,
    /// Round trip in µs of a network between host and the started target, as by `bpfof bench network`; 0 for none.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, conflicts_with_all = ["target", "tls"],
          value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) network_us: u64,
    /// Operations in flight; with --batch keys, by default 128.
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = depth,
          default_value_if("batch", ArgPredicate::IsPresent, "128"))]
    pub(crate) depths: Vec<usize>,
    /// Levels of the tree that the host caches, 0 to 3 and fewer than the tree has [default: 0 and the largest number
    /// possible; with --batch 0].
    #[arg(long, value_delimiter = ',')]
    pub(crate) cached: Option<Vec<u32>>,
    /// Keys of the ranges; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "2,16,64", value_parser = keys)]
    pub(crate) ranges: Vec<u64>,
    /// Keys of the sums; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "64,1000", value_parser = keys)]
    pub(crate) sums: Vec<u64>,
    /// Repetitions of each case and path.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repetitions: u32,
    /// Length of each repetition in ms.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: u64,
    /// Never sleep, on both sides.
    #[arg(long)]
    pub(crate) poll: bool,
    /// Compare pushed-down gets with and without TLS instead, in turn: plain, with records by the target itself and, if
    /// kernel TLS is available, by its kernel.
    #[arg(long, conflicts_with_all = ["target", "ranges", "sums", "poll", "plot"])]
    pub(crate) tls: bool,
    /// Compare gets by Pushdown Vectors of this many keys, 1 to 256, with single gets and with plain reads instead, in
    /// turn, with the same number of keys in flight: at least one vector.
    #[arg(long, value_delimiter = ',', value_parser = batch,
          conflicts_with_all = ["tls", "ranges", "sums", "plot"])]
    pub(crate) batch: Vec<usize>,
    /// Compare gets by this many blocking threads, at most 128, with a connection each, on a shared lane, and on a lane
    /// that combines the keys of one send into vectors, in turn.
    #[arg(long, value_delimiter = ',', value_parser = threads,
          conflicts_with_all = ["tls", "batch", "ranges", "sums", "depths", "cached", "plot"])]
    pub(crate) threads: Vec<usize>,
    /// Write the figures to this file, as JSON: a list with one object for each case, or with --batch
    /// or --threads an object with that list.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw operations per second to this PNG file.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// Most levels that a host caches.
const MAX_CACHED: u32 = 3;

impl KvOptions {
    /// Levels that the host caches, in each case.
    ///
    /// # Errors
    /// There are not so many levels.
    pub(crate) fn cached(&self) -> Result<Vec<u32>, String> {
        let most = MAX_CACHED.min(self.levels.saturating_sub(1));
        let Some(given) = &self.cached else {
            return Ok(if most == 0 || !self.batch.is_empty() { vec![0] } else { vec![0, most] });
        };
        match given.iter().find(|levels| **levels > most) {
            Some(levels) => Err(format!(
                "--cached {levels}: of a tree of {} levels a host caches at most {most}",
                self.levels
            )),
            None => Ok(given.clone()),
        }
    }

    /// The numbers of keys of the ranges.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = u64> {
        self.ranges.iter().copied().filter(|keys| *keys > 0)
    }

    /// The numbers of keys of the sums.
    pub(crate) fn sums(&self) -> impl Iterator<Item = u64> {
        self.sums.iter().copied().filter(|keys| *keys > 0)
    }
}

fn depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth @ 1..=1023) => Ok(depth),
        _ => Err("a number from 1 to 1023".into()),
    }
}

/// At most as many threads as an association has I/O queues.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=128) => Ok(threads),
        _ => Err("give 1 to 128 threads".into()),
    }
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(keys @ 1..=256) => Ok(keys),
        _ => Err("a number of keys from 1 to 256".into()),
    }
}

/// Parses a number of keys; an empty text is none.
fn keys(text: &str) -> Result<u64, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(0),
        Ok(keys @ 1..) => Ok(keys),
        _ => Err("a number of keys, at least 1, or nothing".into()),
    }
}
