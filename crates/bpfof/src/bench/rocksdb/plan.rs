//! What is measured: the options in numbers, and the runs of the driver that they ask for.

use super::RocksdbOptions;
use super::driver::Mode;
use super::report::{Configuration, Part, Setting};

/// Bytes of a key.
const KEY_BYTES: u64 = 16;
/// The ways to read that are compared.
const MODES: [Mode; 3] = [Mode::Plain, Mode::Chains, Mode::Blocks];
/// Those of figure 8: read only, read mostly, half writes, newest keys.
const SAMPLED_WORKLOADS: [&str; 5] = ["uniform", "c", "b", "a", "d"];

/// One run of the driver.
pub(super) struct Step {
    pub(super) setting: Setting,
    pub(super) workloads: Vec<String>,
    pub(super) modes: Vec<Mode>,
    pub(super) threads: Vec<u32>,
}

impl Step {
    /// Lines that the driver prints.
    pub(super) fn measurements(&self, repetitions: u32) -> usize {
        self.workloads.len() * self.modes.len() * self.threads.len() * repetitions as usize
    }
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

    /// At least one, the first of which counts most.
    pub(super) fn latencies(&self) -> Vec<u64> {
        let usual: &[u64] = if self.quick { &[3] } else { &[3, 90] };
        self.latencies.clone().unwrap_or_else(|| usual.to_vec())
    }

    /// Keys and values.
    fn data_bytes(&self) -> u64 {
        self.keys().saturating_mul(KEY_BYTES + self.value_bytes)
    }

    /// The paper's cache has 1 GB for 100 GB.
    fn cache_bytes(&self) -> u64 {
        self.cache_bytes.unwrap_or(self.data_bytes() / 100)
    }

    /// Room for what compactions write before they remove anything, twice, and for the journal.
    pub(super) fn image_bytes(&self) -> u64 {
        (self.data_bytes().saturating_mul(3) + (256 << 20)).next_multiple_of(1 << 20)
    }

    fn workloads(&self) -> Vec<String> {
        let usual = if self.quick {
            "uniform,c,5050,e"
        } else {
            // Those that write come last, because they change the tables for those behind them.
            "uniform,c,multiget:16,scan:50,5050,b,a,f,d,e,twitter19,twitter37"
        };
        self.workloads.clone().unwrap_or_else(|| split(usual))
    }

    /// Everything that is to be measured, in this order; an error for what is no number.
    pub(super) fn steps(&self) -> Result<Vec<Step>, String> {
        let curve = self.list("--curve", &self.curve, "1,2,4,8,16,32")?;
        let sampling = self.list("--sampling", &self.sampling, "0,0.1,1,10,100")?;
        if let Some(wrong) = sampling.iter().find(|percent| !(0.0..=100.0).contains(*percent)) {
            return Err(format!("--sampling {wrong}: a percentage is from 0 to 100"));
        }
        if let Some(wrong) = curve.iter().find(|threads| !(1.0..=1000.0).contains(*threads)) {
            return Err(format!("--curve {wrong}: a number of threads is from 1 to 1000"));
        }
        let mut steps = self.workload_steps();
        if !curve.is_empty() {
            let threads = curve.iter().map(|threads| *threads as u32).collect();
            steps.push(Step { threads, ..self.uniform(Part::Threads, 0, &MODES) });
        }
        steps.extend(sampling.iter().map(|percent| {
            let mut step = self.uniform(Part::Sampling, self.cache_bytes(), &[Mode::Chains]);
            step.setting.sample_rate = Some(percent / 100.0);
            step.workloads = SAMPLED_WORKLOADS.map(str::to_owned).to_vec();
            step
        }));
        if !self.default_configuration && !self.quick {
            let cache = self.cache_bytes();
            for (configuration, cache_bytes) in [
                (Configuration::Bloom, 0),
                (Configuration::Bloom, cache),
                (Configuration::EvictableIndex, cache),
                // Half as much again, as in the paper's figure.
                (Configuration::EvictableIndex, cache + cache / 2),
            ] {
                let mut step = self.uniform(Part::Configurations, cache_bytes, &MODES);
                step.setting.configuration = configuration;
                steps.push(step);
            }
        }
        Ok(steps)
    }

    fn workload_steps(&self) -> Vec<Step> {
        let latencies = self.latencies();
        let mut steps = Vec::new();
        for &latency_us in &latencies {
            for cache_bytes in [0, self.cache_bytes()] {
                let mut step = self.uniform(Part::Workloads, cache_bytes, &MODES);
                // The loop device has but one latency, its own.
                if latency_us == latencies[0] {
                    step.modes.push(Mode::Local);
                }
                step.setting.latency_us = latency_us;
                step.workloads = self.workloads();
                steps.push(step);
            }
        }
        steps
    }

    /// Uniform reads at the first of the latencies.
    fn uniform(&self, part: Part, cache_bytes: u64, modes: &[Mode]) -> Step {
        Step {
            setting: Setting {
                part,
                latency_us: self.latencies()[0],
                cache_bytes,
                configuration: Configuration::Default,
                sample_rate: None,
            },
            workloads: vec!["uniform".to_owned()],
            modes: modes.to_vec(),
            threads: vec![self.threads],
        }
    }

    /// A list of numbers, in which nothing is none.
    fn list(
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
