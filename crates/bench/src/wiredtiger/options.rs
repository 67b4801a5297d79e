//! The options of `bpfof bench wiredtiger`.

use clap::Args;
use std::path::PathBuf;

/// Bytes of a row: key and value.
const ROW_BYTES: u64 = 32;

/// The options of `bpfof bench wiredtiger`.
#[derive(Args)]
pub struct WiredtigerOptions {
    /// Run for about a minute: few rows, few workloads, short repetitions.
    #[arg(long)]
    pub(super) quick: bool,
    /// Rows of 16 + 16 bytes [default: 8000000; with --quick 1000000].
    #[arg(long)]
    pub(super) keys: Option<u64>,
    /// Latencies of the drive in µs: 3 is an Optane, 90 a NAND drive [default: 3,90; with --quick 3].
    #[arg(long, value_delimiter = ',')]
    pub(super) latencies: Option<Vec<u64>>,
    /// Sizes of pages [default: 512,default].
    #[arg(long, value_delimiter = ',', default_value = "512,default")]
    pub(super) pages: Vec<String>,
    /// Cache sizes, in percent of keys and values [default: 1,5].
    #[arg(long, value_delimiter = ',', default_value = "1,5")]
    pub(super) caches: Vec<u64>,
    /// Workloads, except for the run in which everything fits into the cache [default: with pages of 512 bytes
    /// uniform,zipf,c,b,a,f,d,e, otherwise and with --quick uniform,zipf].
    #[arg(long, value_delimiter = ',')]
    pub(super) workloads: Option<Vec<String>>,
    /// Leave out the run in which everything fits into the cache.
    #[arg(long)]
    pub(super) no_fit: bool,
    /// Numbers of threads that use the database, on one processor [default: 8].
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) threads: Vec<u32>,
    /// Repetitions of each mode [default: 3].
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) repetitions: u32,
    /// Length of each repetition in ms [default: 1000; with --quick 500].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) milliseconds: Option<u64>,
    /// Where to make the image with the database: a folder on a tmpfs.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    pub(super) folder: PathBuf,
    /// The program with WiredTiger; the extension is beside it [default: bpfof-wiredtiger-bench beside this
    /// program or in target/wiredtiger].
    #[arg(long, value_name = "FILE")]
    pub(super) driver: Option<PathBuf>,
    /// Write the figures to this file, as JSON that ends with a summary.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

impl WiredtigerOptions {
    pub(super) fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 1_000_000 } else { 8_000_000 })
    }

    pub(super) fn milliseconds(&self) -> u64 {
        self.milliseconds.unwrap_or(if self.quick { 500 } else { 1000 })
    }

    pub(super) fn workloads(&self, pages: &str) -> Vec<String> {
        let all = pages == "512" && !self.quick;
        let usual = if all { "uniform,zipf,c,b,a,f,d,e" } else { "uniform,zipf" };
        let usual = || usual.split(',').map(str::to_owned).collect();
        self.workloads.clone().unwrap_or_else(usual)
    }

    pub(super) fn latencies(&self) -> Vec<u64> {
        let usual: &[u64] = if self.quick { &[3] } else { &[3, 90] };
        self.latencies.clone().unwrap_or_else(|| usual.to_vec())
    }

    pub(super) fn data_bytes(&self) -> u64 {
        self.keys().saturating_mul(ROW_BYTES)
    }

    /// A cache of this many percent of keys and values, but at least WiredTiger's minimum.
    pub(super) fn cache_bytes(&self, percent: u64) -> u64 {
        (self.data_bytes() / 100).saturating_mul(percent).max(1 << 20)
    }

    /// Room for the tables, a copy of one, pages that updates write elsewhere, and the journal.
    pub(super) fn image_bytes(&self) -> u64 {
        let tables = self.pages.len() as u64 + 1;
        (self.data_bytes().saturating_mul(4 * tables) + (512 << 20)).next_multiple_of(1 << 20)
    }
}
