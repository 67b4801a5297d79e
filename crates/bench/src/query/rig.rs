//! The setup of the measurements: files, the target that serves them, the network, and the querying processes.

use super::data;
use super::disk::Disk;
use super::network::{Network, PORT, TARGET_ADDRESS};
use super::private::tool;
use super::worker::{EngineAsk, Engines, Worker, kill};
use crate::child_target::ChildTarget;
use crate::machine;
use bpfof_host::TargetUrl;
use bpfof_query_bench::{Ask, Cost, Plain};
use bpfof_terminal::progress;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Failure = Box<dyn std::error::Error>;

/// Plain reads in flight, and chains at a time.
pub(super) const DEPTH: usize = 32;
/// Size of the small file in bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// How host and target are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Link {
    /// The loopback device; host and target have one processor each.
    Loopback,
    /// A link of 10 Gb/s; the host may use both processors.
    #[serde(rename = "10gbps")]
    Ten,
    /// A link of 25 Gb/s; likewise.
    #[serde(rename = "25gbps")]
    TwentyFive,
}

impl Link {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Link::Loopback => "loopback",
            Link::Ten => "10 Gb/s",
            Link::TwentyFive => "25 Gb/s",
        }
    }
}

/// One run of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) wall_s: f64,
    pub(super) host_cpu_s: f64,
    pub(super) target_cpu_s: f64,
    pub(super) cost: Cost,
}

/// The queried files.
pub(super) struct Files {
    pub(super) records: PathBuf,
    pub(super) csv: PathBuf,
    /// Present if there is an engine to write it.
    pub(super) arrow: Option<PathBuf>,
    pub(super) small: PathBuf,
    pub(super) bytes: u64,
    pub(super) csv_bytes: u64,
}

/// All parts of the setup. The order of the fields is the order in which they are dropped.
pub(super) struct Rig {
    engines: Option<Engines>,
    /// The reason if there are no engines.
    pub(super) without_engines: Option<String>,
    /// The host's processor, and all processors.
    processors: [String; 2],
    /// The host on the loopback device, on the host's processor.
    near: Worker,
    /// The host over the link, on all processors.
    far: Worker,
    target: ChildTarget,
    network: Network,
    pub(super) files: Files,
    disk: Disk,
    stop: Arc<AtomicBool>,
}

impl Rig {
    /// Makes the files and starts everything. `further` are the sizes of more files of records, for the cost by size.
    pub(super) fn new(
        bytes: u64,
        further: &[u64],
        python: &Path,
        stop: Arc<AtomicBool>,
    ) -> Result<Rig, Failure> {
        let (host, target_core) = machine::processors();
        let disk = Disk::new(3 * bytes + SMALL_BYTES + further.iter().sum::<u64>())?;
        let all = target_core.map_or(host.to_string(), |target| format!("{host},{target}"));
        // The prefix that lets a program run on all processors.
        let prefix = ["taskset", "--cpu-list", &all].map(str::to_owned);
        let (mut engines, without_engines) = match Engines::start(&prefix, python) {
            Ok(engines) => (Some(engines), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let mut files = make_files(&disk, bytes, further, &stop)?;
        if let Some(engines) = &mut engines {
            let arrow = disk.mount().join("rows.arrow");
            engines.write_arrow(&files.records, &arrow)?;
            files.arrow = Some(arrow);
        }
        tool("mkfifo", &[&disk.pipe().display().to_string()])?;
        disk.freeze()?;
        machine::pin(host)?;
        let network = Network::new()?;
        let namespace = format!("mem:file={}", disk.image().display());
        let port = PORT.to_string();
        let near = format!("127.0.0.1:{port}");
        let far = format!("{TARGET_ADDRESS}:{port}");
        let options = ["--listen", &near, "--listen", &far, "--allow-any-host"];
        let target = ChildTarget::start_by(&network.prefix(), &namespace, false, &options)?;
        let url =
            |host: &str| TargetUrl { host: host.to_owned(), port: PORT, ..target.url.clone() };
        let image = disk.image();
        let near = Worker::start(&network.prefix(), &url("127.0.0.1"), &image)?;
        let far = Worker::start(&prefix, &url(TARGET_ADDRESS), &image)?;
        let processors = [host.to_string(), all];
        Ok(Rig {
            engines,
            without_engines,
            processors,
            near,
            far,
            target,
            network,
            files,
            disk,
            stop,
        })
    }

    pub(super) fn engine_versions(&self) -> Option<&str> {
        self.engines.as_ref().map(|engines| engines.versions.as_str())
    }

    /// The path of the file of records of this size, one of `further`.
    pub(super) fn sized(&self, bytes: u64) -> PathBuf {
        sized(&self.disk, bytes)
    }

    /// Selects the link of the following queries: throttles it, and pins the engines to the host's processors.
    pub(super) fn choose(&self, link: Link) -> bpfof_terminal::Outcome {
        let [own, all] = &self.processors;
        if let Some(engines) = &self.engines {
            engines.pin(if link == Link::Loopback { own } else { all })?;
        }
        match link {
            Link::Loopback => Ok(()),
            Link::Ten => self.network.throttle(10),
            Link::TwentyFive => self.network.throttle(25),
        }
    }

    /// Ends the measurement if the user has interrupted it.
    pub(super) fn check_not_stopped(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }

    /// Sends a request to the host's process.
    pub(super) fn ask(&mut self, link: Link, ask: &Ask) -> Result<Run, Failure> {
        let before = self.target_cpu_s()?;
        let worker = if link == Link::Loopback { &mut self.near } else { &mut self.far };
        let took = worker.ask(ask)?;
        let target_cpu_s = self.target_cpu_s()? - before;
        Ok(Run { wall_s: took.wall_s, host_cpu_s: took.cpu_s, target_cpu_s, cost: took.cost })
    }

    /// Runs a query by an engine over a file that is read plainly, and returns its numbers.
    pub(super) fn ask_engine(
        &mut self,
        link: Link,
        engine: &str,
        (format, file): (&str, &Path),
        (sql, below): (&str, i32),
    ) -> Result<(Run, Vec<f64>), Failure> {
        let before = self.target_cpu_s()?;
        let pipe = self.disk.pipe();
        let engines = self.engines.as_mut().ok_or("no Python with DuckDB and pyarrow was found")?;
        let worker = if link == Link::Loopback { &mut self.near } else { &mut self.far };
        let plain = Plain::Pipe(pipe.clone());
        worker.send(&Ask::Plain { path: file.to_owned(), depth: DEPTH, plain })?;
        engines.send(&EngineAsk { engine, format, pipe: &pipe, sql, below })?;
        // Each opens its end of the pipe once the other does: if one fails before, the other would wait for ever.
        let (engines_pid, worker_pid) = (engines.pid(), worker.pid());
        let (answered, read) = std::thread::scope(|scope| -> Result<_, Failure> {
            let reading = scope.spawn(move || {
                let read = worker.receive().map_err(|error| error.to_string());
                read.inspect_err(|_| kill(engines_pid))
            });
            let answered = engines.receive().inspect_err(|_| kill(worker_pid));
            Ok((answered, reading.join().map_err(|_| "a thread panicked")?))
        })?;
        let ((took, answer), read) = match (answered, read) {
            (Ok(answered), Ok(read)) => (answered, read),
            (Err(one), Err(other)) => return Err(format!("{one}; {other}").into()),
            (Err(one), Ok(_)) => return Err(one),
            (Ok(_), Err(other)) => return Err(other.into()),
        };
        let run = Run {
            wall_s: took.wall_s,
            host_cpu_s: took.cpu_s + read.cpu_s,
            target_cpu_s: self.target_cpu_s()? - before,
            cost: read.cost,
        };
        Ok((run, answer))
    }

    fn target_cpu_s(&self) -> Result<f64, Failure> {
        let ns = self.target.cpu_ns().ok_or("the target has ended")?;
        Ok(ns as f64 * 1e-9)
    }
}

fn sized(disk: &Disk, bytes: u64) -> PathBuf {
    disk.mount().join(format!("records-{bytes}.bin"))
}

fn make_files(
    disk: &Disk,
    bytes: u64,
    further: &[u64],
    stop: &AtomicBool,
) -> Result<Files, Failure> {
    let path = |name: &str| disk.mount().join(name);
    let mut files = Files {
        records: path("records.bin"),
        csv: path("rows.csv"),
        arrow: None,
        small: path("small.bin"),
        bytes,
        csv_bytes: 0,
    };
    let total = 2 * bytes + SMALL_BYTES + further.iter().sum::<u64>();
    progress::bytes("writing", total, stop, |report| -> Result<(), Failure> {
        let mut before = 0;
        let mut write = |path: &Path, bytes: u64, is_csv: bool| {
            let mut tell = |done: u64| report(before + done, total);
            let written = if is_csv {
                data::csv(path, bytes, &mut tell)
            } else {
                data::records(path, bytes, &mut tell)
            };
            before += bytes;
            written.map_err(|error| match error.kind() {
                ErrorKind::Interrupted => "interrupted".to_owned(),
                _ => format!("cannot write {}: {error}", path.display()),
            })
        };
        write(&files.records, bytes, false)?;
        write(&files.csv, bytes, true)?;
        write(&files.small, SMALL_BYTES, false)?;
        for bytes in further {
            write(&sized(disk, *bytes), *bytes, false)?;
        }
        Ok(())
    })?;
    files.csv_bytes = std::fs::metadata(&files.csv)?.len();
    Ok(files)
}
