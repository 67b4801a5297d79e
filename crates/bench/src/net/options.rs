//! The options of `bpfof bench net`.

use bpfof_host::{Options as HostOptions, TargetUrl};
use bpfof_terminal::target_url;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The options of `bpfof bench net`.
#[derive(Args, Clone)]
pub struct NetOptions {
    /// A target to read from, with any data; otherwise one is started with a memory namespace. TCP alone is measured
    /// only without this option.
    #[arg(long, value_parser = target_url)]
    pub(super) target: Option<TargetUrl>,
    /// Bytes of a read.
    #[arg(long, value_delimiter = ',', default_value = "512,4096")]
    pub(super) sizes: Vec<u32>,
    /// Reads in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128",
          value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub(super) depths: Vec<u16>,
    /// Mixes, as percentages of writes, of the largest size at the deepest queue; "" for none. By default 50 and 100,
    /// and none with --target, where they overwrite existing data.
    #[arg(long, value_delimiter = ',', value_parser = percentage)]
    pub(super) writes: Option<Vec<Option<u32>>>,
    /// Leave out latency against throughput.
    #[arg(long)]
    pub(super) no_curve: bool,
    /// Connections of one host processor, to one target and (without --target and --poll) to as many
    /// targets that share a processor; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16", value_parser = count)]
    pub(super) connections: Vec<usize>,
    /// Threads on one processor that read one block at a time: with a connection each, and sharing
    /// a lane; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = count)]
    pub(super) threads: Vec<usize>,
    /// Also show where processor time goes, with the largest number of threads: by perf, which must be installed.
    #[arg(long)]
    pub(super) perf: bool,
    /// Repetitions of each case.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repetitions: u32,
    /// Length of each repetition in ms.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) milliseconds: u64,
    /// Never sleep, on both sides. Floors are meaningless then: the summary leaves them out.
    #[arg(long)]
    pub(super) poll: bool,
    /// Compare reads with and without TLS instead, in turn, in shared sends: plain, with records by the target itself
    /// and, if kernel TLS is available, by its kernel.
    #[arg(long, conflicts_with_all =
          ["target", "writes", "no_curve", "connections", "threads", "perf", "poll", "plots"])]
    pub(super) tls: bool,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Draw pictures of the figures into this folder: net-curve.png, net-threads.png and others.
    #[arg(long, value_name = "FOLDER")]
    pub(super) plots: Option<PathBuf>,
}

impl NetOptions {
    /// The time of a repetition.
    pub(super) const fn time(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }

    pub(super) fn smallest(&self) -> u32 {
        self.sizes.iter().copied().min().unwrap_or(512)
    }

    pub(super) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(4096)
    }

    pub(super) fn deepest(&self) -> u16 {
        self.depths.iter().copied().max().unwrap_or(128)
    }

    pub(super) fn mixes(&self) -> Vec<u32> {
        match &self.writes {
            Some(given) => given.iter().copied().flatten().collect(),
            None if self.target.is_some() => Vec::new(),
            None => vec![50, 100],
        }
    }

    /// Numbers of connections, and whether each has a target of its own.
    pub(super) fn spreads(&self) -> Vec<(usize, bool)> {
        let numbers = || self.connections.iter().copied().filter(|number| *number > 0);
        let to_one = numbers().map(|number| (number, false));
        // Polling targets would compete for the processor.
        let has_own = self.target.is_none() && !self.poll;
        let to_own = numbers().filter(|_| has_own).map(|number| (number, true));
        to_one.chain(to_own).collect()
    }

    pub(super) fn host(&self) -> HostOptions {
        HostOptions { queue_depth: 1023, poll: self.poll, ..HostOptions::default() }
    }
}

/// Parses a number of threads or connections; an empty text is none.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(0),
        Ok(count @ 1..=100) => Ok(count),
        _ => Err("a number from 1 to 100, or nothing".into()),
    }
}

/// Parses a percentage; an empty text is none.
fn percentage(text: &str) -> Result<Option<u32>, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(percent @ 0..=100) => Ok(Some(percent)),
        _ => Err("a percentage from 0 to 100, or nothing".into()),
    }
}
