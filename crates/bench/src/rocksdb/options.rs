//! The options of `bpfof bench rocksdb`.

use super::report::Values;
use clap::Args;
use std::path::PathBuf;

/// Bytes of a key.
const KEY_BYTES: u64 = 16;
/// The program's smallest number of keys.
const KEYS_MIN: u64 = 100_000;

/// The options of `bpfof bench rocksdb`.
#[derive(Args)]
pub struct RocksdbOptions {
    /// Run for about a minute: few keys, few workloads, short repetitions.
    #[arg(long)]
    pub(super) quick: bool,
    /// Keys of 16 bytes [default: 9000000; with --quick 400000].
    #[arg(long)]
    pub(super) keys: Option<u64>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    pub(super) value_bytes: u64,
    /// Latencies of the drive in µs, with a target for each: 3 is an Optane, 90 a NAND drive. Everything but the
    /// workloads is measured at the first only [default: 3,90; with --quick 3].
    #[arg(long, value_delimiter = ',')]
    pub(super) latencies: Option<Vec<u64>>,
    /// Workloads [default: uniform,c,multiget:16,scan:50,5050,b,a,f,d,e,twitter19,twitter37; with
    /// --quick uniform,c,5050,e].
    #[arg(long, value_delimiter = ',')]
    pub(super) workloads: Option<Vec<String>>,
    /// Block cache of the runs with one, in bytes [default: a hundredth of keys and values].
    #[arg(long)]
    pub(super) cache_bytes: Option<u64>,
    /// Threads that use the database, on one processor (BPF-oF §6.1 has 20 and 24 for each).
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) threads: u32,
    /// Numbers of threads for uniform reads, latency against throughput; "" for none [default:
    /// 1,2,4,8,16,32,64; with --quick none].
    #[arg(long, value_delimiter = ',')]
    pub(super) curve: Option<Vec<String>>,
    /// Numbers of keys of a MultiGet; "" for none [default: 1,4,16,32,64,128; with --quick none].
    #[arg(long, value_delimiter = ',')]
    pub(super) batch: Option<Vec<String>>,
    /// Threads that make these MultiGet calls.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) batch_threads: u32,
    /// Round trips in µs of networks between host and target, as by `bpfof bench network`, for uniform reads; "" for
    /// none [default: 20,50; with --quick none].
    #[arg(long, value_delimiter = ',', value_name = "MICROSECONDS")]
    pub(super) networks: Option<Vec<String>>,
    /// Percentages of Gets that RocksDB serves itself to fill its cache; "" for none [default: 0,0.1,1,10,100; with
    /// --quick none].
    #[arg(long, value_delimiter = ',')]
    pub(super) sampling: Option<Vec<String>>,
    /// The most connections that the threads share, one for each processor; 0 gives each thread its own [default: the
    /// number of processors].
    #[arg(long, value_name = "N")]
    pub(super) lanes_max: Option<u32>,
    /// Leave out Bloom filters and evictable indices, as --quick does.
    #[arg(long)]
    pub(super) default_configuration: bool,
    /// Repetitions of each mode [default: 5; with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) repetitions: Option<u32>,
    /// Length of each repetition in ms [default: 1000; with --quick 300].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) milliseconds: Option<u64>,
    /// The folder for the image with the database: on a tmpfs.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    pub(super) folder: PathBuf,
    /// An image on a tmpfs that is kept, and reused if it exists.
    #[arg(long, value_name = "FILE")]
    pub(super) database: Option<PathBuf>,
    /// The program with RocksDB [default: bpfof-rocksdb-bench beside this program or in
    /// target/rocksdb].
    #[arg(long, value_name = "FILE")]
    pub(super) driver: Option<PathBuf>,
    /// Write the figures to this file, as JSON that ends with a summary.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Draw pictures into this folder: rocksdb-workloads.png, -threads.png, -sampling.png.
    #[arg(long, value_name = "FOLDER")]
    pub(super) plots: Option<PathBuf>,
}

impl RocksdbOptions {
    pub(super) fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 400_000 } else { 9_000_000 })
    }

    pub(super) fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(if self.quick { 3 } else { 5 })
    }

    pub(super) fn milliseconds(&self) -> u64 {
        self.milliseconds.unwrap_or(if self.quick { 300 } else { 1000 })
    }

    /// At least one; the first is the most important.
    pub(super) fn latencies(&self) -> Vec<u64> {
        let usual: &[u64] = if self.quick { &[3] } else { &[3, 90] };
        self.latencies.clone().unwrap_or_else(|| usual.to_vec())
    }

    /// Bytes of keys and values.
    fn data_bytes(&self) -> u64 {
        self.keys().saturating_mul(KEY_BYTES + self.value_bytes)
    }

    /// A hundredth of the data, as in the paper: 1 GB for 100 GB.
    pub(super) fn cache_bytes(&self) -> u64 {
        self.cache_bytes.unwrap_or(self.data_bytes() / 100)
    }

    /// Keys of a database and bytes of their values: databases for merges and blobs have fewer keys, and larger values.
    pub(super) fn shape(&self, values: Values) -> (u64, u64) {
        match values {
            Values::Plain => (self.keys(), self.value_bytes),
            Values::Merge => ((self.keys() / 16).max(KEYS_MIN), self.value_bytes.max(300)),
            Values::Blob => ((self.keys() / 32).max(KEYS_MIN), self.value_bytes.max(1024)),
        }
    }

    /// Twice the room, for compactions that write before they delete, and room for the journal.
    pub(super) fn image_bytes(&self) -> u64 {
        let of = |values| {
            let (keys, value_bytes) = self.shape(values);
            keys.saturating_mul(KEY_BYTES + value_bytes).saturating_mul(3)
        };
        let all = [Values::Plain, Values::Merge, Values::Blob].map(of).into_iter();
        (all.fold(256 << 20, u64::saturating_add)).next_multiple_of(1 << 20)
    }

    pub(super) fn workloads(&self) -> Vec<String> {
        let usual = if self.quick {
            "uniform,c,5050,e"
        } else {
            // Workloads that write come last, because they change the tables for later ones.
            "uniform,c,multiget:16,scan:50,5050,b,a,f,d,e,twitter19,twitter37"
        };
        self.workloads.clone().unwrap_or_else(|| split(usual))
    }

    /// Parses a list of numbers; an empty text is an empty list.
    pub(super) fn list(
        &self,
        option: &str,
        given: &Option<Vec<String>>,
        usual: &str,
    ) -> Result<Vec<f64>, String> {
        let usual = if self.quick { "" } else { usual };
        let words = given.clone().unwrap_or_else(|| split(usual));
        let numbers = words.iter().filter(|word| !word.is_empty()).map(|word| {
            word.parse().map_err(|_| format!("{option} {word}: numbers, separated by commas"))
        });
        numbers.collect()
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}
