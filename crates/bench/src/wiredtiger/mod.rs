//! `bpfof bench wiredtiger`: WiredTiger over the network, plain reads against pushdown (XRP §6.4, BPF-oF §6).

mod options;
mod report;

pub(crate) use options::WiredtigerOptions;

use crate::child_target::ChildTarget;
use crate::machine;
use crate::output::{check_writable, write_json};
use crate::rocksdb::driver::{Driver, Program};
use crate::rocksdb::image::Image;
use bpfof_terminal::Outcome;
use bpfof_terminal::progress;
use report::{Case, Measurement, PAPERS, Papers, Setting, Summary};
use serde::Serialize;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The program that uses WiredTiger: `integrations/wiredtiger/bench`.
const PROGRAM: Program = Program { name: "bpfof-wiredtiger-bench", integration: "wiredtiger" };
const EXTENSION: &str = "libbpfof_wiredtiger.so";
/// The program's names.
const WORKLOADS: [&str; 8] = ["uniform", "zipf", "c", "b", "a", "f", "d", "e"];
const MODES: &str = "plain,values";

#[derive(Serialize)]
struct Report {
    /// WiredTiger's version.
    wiredtiger: String,
    keys: u64,
    cases: Vec<Case>,
    papers: Papers,
    summary: Summary,
}

pub(crate) fn run(options: &WiredtigerOptions) -> Outcome {
    check_writable([&options.json])?;
    if let Some(other) =
        options.pages.iter().find(|pages| !["512", "4096", "default"].contains(&pages.as_str()))
    {
        return Err(format!("--pages {other}: use 512, 4096 or default").into());
    }
    if let Some(other) =
        options.workloads.iter().flatten().find(|one| !WORKLOADS.contains(&one.as_str()))
    {
        return Err(format!("--workloads {other}: choose from {}", WORKLOADS.join(", ")).into());
    }
    let driver = Driver::find(&PROGRAM, options.driver.as_deref())?;
    // Inherited by all child processes from here on, except the target.
    machine::pin(machine::processors().0)?;
    let image = Image::open(None, &options.folder, options.image_bytes())?;
    let bench = Bench { options, driver: &driver, image: &image };
    let bar = progress::steps("measuring", bench.settings().len() as u64);
    let mut cases = Vec::new();
    for pages in &options.pages {
        bar.set_message(format!("making pages of {pages}"));
        bench.create(pages)?;
    }
    for setting in bench.settings() {
        bar.set_message(format!("pages of {}, cache of {}", setting.pages, setting.cache_bytes));
        cases.extend(bench.measure(&setting)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (keys, summary) = (options.keys(), report::summary(&cases));
    let wiredtiger = cases.first().map(|case| case.wiredtiger.clone()).unwrap_or_default();
    let text = report::text(&wiredtiger, &cases);
    let report = Report { wiredtiger, keys, cases, papers: PAPERS, summary };
    let written = write_json(options.json.as_ref(), &report);
    print!("{text}");
    written
}

struct Bench<'a> {
    options: &'a WiredtigerOptions,
    driver: &'a Driver,
    image: &'a Image,
}

impl Bench<'_> {
    /// Each size of pages with each cache, latency and number of threads, and a cache that holds everything.
    fn settings(&self) -> Vec<Setting> {
        let options = self.options;
        let latencies = options.latencies();
        let mut settings = Vec::new();
        for &latency_us in &latencies {
            for pages in &options.pages {
                for (&part, &threads) in options
                    .caches
                    .iter()
                    .flat_map(|part| options.threads.iter().map(move |threads| (part, threads)))
                {
                    let (pages, cache_percent) = (pages.clone(), Some(part));
                    let cache_bytes = options.cache_bytes(part);
                    settings.push(Setting {
                        pages,
                        cache_percent,
                        cache_bytes,
                        latency_us,
                        threads,
                    });
                }
            }
        }
        let fits = options.pages.first().filter(|_| !options.no_fit);
        if let (Some(pages), Some(&latency_us), Some(&threads)) =
            (fits, latencies.first(), options.threads.first())
        {
            // Small pages take several times their size in memory.
            let cache_bytes = options.data_bytes().saturating_mul(10).max(64 << 20);
            let pages = pages.clone();
            settings.push(Setting { pages, cache_percent: None, cache_bytes, latency_us, threads });
        }
        settings
    }

    fn database(&self, pages: &str) -> PathBuf {
        self.image.database().join(pages)
    }

    fn arguments(&self, command: &str, pages: &str, more: &[(&str, String)]) -> Vec<OsString> {
        let extension = std::path::absolute(self.driver.path())
            .unwrap_or_else(|_| self.driver.path().to_owned())
            .with_file_name(EXTENSION);
        let mut arguments: Vec<OsString> = vec![command.into(), self.database(pages).into()];
        arguments.extend(["--extension".into(), extension.into()]);
        let keys = self.options.keys().to_string();
        for (option, value) in
            [("--keys", &keys)].into_iter().chain(more.iter().map(|(o, v)| (*o, v)))
        {
            arguments.extend([option.into(), value.into()]);
        }
        arguments
    }

    fn create(&self, pages: &str) -> Outcome {
        let arguments = self.arguments("create", pages, &[("--pages", pages.to_owned())]);
        self.driver.run(&arguments, &mut |_| Ok(()))
    }

    fn measure(&self, setting: &Setting) -> Result<Vec<Case>, Box<dyn Error>> {
        let image: &Path = self.image.path();
        let namespace = format!("mem:file={},latency_us={}", image.display(), setting.latency_us);
        let target = ChildTarget::start(&namespace, false)?;
        // Where everything fits, reads with a warm cache are measured.
        let workloads = match setting.cache_percent {
            Some(_) => self.options.workloads(&setting.pages).join(","),
            None => "uniform".to_owned(),
        };
        let more = [
            ("--url", target.url.to_string()),
            ("--device", image.display().to_string()),
            ("--target-pid", target.pid().to_string()),
            ("--cache-bytes", setting.cache_bytes.to_string()),
            ("--workloads", workloads),
            ("--modes", MODES.to_owned()),
            ("--threads", setting.threads.to_string()),
            ("--repetitions", self.options.repetitions.to_string()),
            ("--milliseconds", self.options.milliseconds().to_string()),
        ];
        let mut arguments = self.arguments("run", &setting.pages, &more);
        if setting.cache_percent.is_none() {
            arguments.push("--scan-first".into());
        }
        let mut measured: Vec<Measurement> = Vec::new();
        self.driver.run(&arguments, &mut |line| {
            measured.push(serde_json::from_str(line)?);
            Ok(())
        })?;
        Ok(report::cases(setting, &measured))
    }
}
