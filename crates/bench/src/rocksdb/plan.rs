//! The plan of the measurements: the runs of the driver that the options request.

use super::driver::Mode;
use super::options::RocksdbOptions;
use super::report::{Configuration, Part, Setting, Values};

/// The ways to read that are compared.
const MODES: [Mode; 3] = [Mode::Plain, Mode::Chains, Mode::Blocks];
/// The modes of MultiGet by number of keys.
const BATCH_MODES: [Mode; 3] = [Mode::Plain, Mode::Single, Mode::Chains];
/// The modes of merges and blobs.
const VALUE_MODES: [Mode; 2] = [Mode::Plain, Mode::Chains];
/// The workloads of figure 8: read only, read mostly, half writes, newest keys.
const SAMPLED_WORKLOADS: [&str; 5] = ["uniform", "c", "b", "a", "d"];

/// One run of the driver.
pub(super) struct Step {
    pub(super) setting: Setting,
    pub(super) workloads: Vec<String>,
    pub(super) modes: Vec<Mode>,
    pub(super) threads: Vec<u32>,
}

impl Step {
    /// Number of lines that the driver prints.
    pub(super) fn measurements(&self, repetitions: u32) -> usize {
        self.workloads.len() * self.modes.len() * self.threads.len() * repetitions as usize
    }
}

/// All steps, in the order of measurement; an error for a malformed number.
pub(super) fn steps(options: &RocksdbOptions) -> Result<Vec<Step>, String> {
    let curve = options.list("--curve", &options.curve, "1,2,4,8,16,32,64")?;
    let sampling = options.list("--sampling", &options.sampling, "0,0.1,1,10,100")?;
    if let Some(wrong) = sampling.iter().find(|percent| !(0.0..=100.0).contains(*percent)) {
        return Err(format!("--sampling {wrong}: a percentage is from 0 to 100"));
    }
    if let Some(wrong) = curve.iter().find(|threads| !(1.0..=1000.0).contains(*threads)) {
        return Err(format!("--curve {wrong}: a number of threads is from 1 to 1000"));
    }
    let batches = options.list("--batch", &options.batch, "1,4,16,32,64,128")?;
    if let Some(wrong) = batches.iter().find(|keys| !(1.0..=10_000.0).contains(*keys)) {
        return Err(format!("--batch {wrong}: a MultiGet has 1 to 10000 keys"));
    }
    let networks = options.list("--networks", &options.networks, "20,50")?;
    if let Some(wrong) = networks.iter().find(|us| !(1.0..=1e6).contains(*us)) {
        return Err(format!("--networks {wrong}: a round trip is from 1 to 1000000 µs"));
    }
    let mut steps = workload_steps(options);
    if !batches.is_empty() {
        let workloads = batches.iter().map(|keys| format!("multiget:{keys}")).collect();
        let threads = vec![options.batch_threads];
        steps.push(Step { workloads, threads, ..uniform(options, Part::Batches, 0, &BATCH_MODES) });
    }
    for network in networks {
        let mut step = uniform(options, Part::Networks, 0, &MODES);
        step.setting.network_us = network as u64;
        steps.push(step);
    }
    for values in [Values::Merge, Values::Blob] {
        let mut step = uniform(options, Part::Values, 0, &VALUE_MODES);
        step.setting.values = values;
        steps.push(step);
    }
    if !curve.is_empty() {
        let threads = curve.iter().map(|threads| *threads as u32).collect();
        steps.push(Step { threads, ..uniform(options, Part::Threads, 0, &MODES) });
    }
    steps.extend(sampling.iter().map(|percent| {
        let mut step = uniform(options, Part::Sampling, options.cache_bytes(), &[Mode::Chains]);
        step.setting.sample_rate = Some(percent / 100.0);
        step.workloads = SAMPLED_WORKLOADS.map(str::to_owned).to_vec();
        step
    }));
    if !options.default_configuration && !options.quick {
        let cache = options.cache_bytes();
        let configurations = [
            (Configuration::Bloom, 0),
            (Configuration::Bloom, cache),
            (Configuration::EvictableIndex, cache),
            // A cache half as large again, as in the paper's figure.
            (Configuration::EvictableIndex, cache + cache / 2),
        ];
        for (configuration, cache_bytes) in configurations {
            // An index can only be evicted from a cache.
            if configuration == Configuration::EvictableIndex && cache_bytes == 0 {
                continue;
            }
            let mut step = uniform(options, Part::Configurations, cache_bytes, &MODES);
            step.setting.configuration = configuration;
            steps.push(step);
        }
    }
    Ok(steps)
}

fn workload_steps(options: &RocksdbOptions) -> Vec<Step> {
    let latencies = options.latencies();
    let mut steps = Vec::new();
    for &latency_us in &latencies {
        for cache_bytes in [0, options.cache_bytes()] {
            let mut step = uniform(options, Part::Workloads, cache_bytes, &MODES);
            // The loop device has only its own latency: measure it once.
            if latency_us == latencies[0] {
                step.modes.push(Mode::Local);
            }
            step.setting.latency_us = latency_us;
            step.workloads = options.workloads();
            steps.push(step);
        }
    }
    steps
}

/// Uniform reads at the first of the latencies.
fn uniform(options: &RocksdbOptions, part: Part, cache_bytes: u64, modes: &[Mode]) -> Step {
    Step {
        setting: Setting {
            part,
            latency_us: options.latencies()[0],
            network_us: 0,
            cache_bytes,
            configuration: Configuration::Default,
            values: Values::Plain,
            sample_rate: None,
        },
        workloads: vec!["uniform".to_owned()],
        modes: modes.to_vec(),
        threads: vec![options.threads],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    #[test]
    fn without_a_cache_no_index_is_evicted_from_it() {
        let evictable = |more: &[&str]| {
            let command = RocksdbOptions::augment_args(Command::new("rocksdb"));
            let found = command.get_matches_from([&["rocksdb"], more].concat());
            let options = RocksdbOptions::from_arg_matches(&found).expect("options");
            let steps = steps(&options).expect("a plan");
            let is = |step: &&Step| step.setting.configuration == Configuration::EvictableIndex;
            steps.iter().filter(is).count()
        };
        assert_eq!((evictable(&[]), evictable(&["--cache-bytes", "0"])), (2, 0));
    }
}
