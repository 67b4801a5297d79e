//! The host's side of `bpfof bench query`, as a process of its own: its cost is the processor time of this process. The
//! process is `bpfof-query`; `bpfof` sends it [`Ask`]s and receives [`Told`]s.
//!
//! - `protocol`: requests and results, a line of JSON each.
//! - `queries`: queries at a target, whose stages may be combined in one function for comparison.
//! - `plain`: the same file at the same target by plain reads, and the processing of their data.

mod plain;
mod protocol;
mod queries;

use bpfof_host::TargetUrl;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

pub use protocol::{Ask, Cost, Form, Plain, Query, Told};

type Failure = Box<dyn Error>;

/// Handles the requests on standard input until it ends. The files are on a device that the target serves.
///
/// # Errors
/// The target cannot be reached, or the results are no longer read. Failures of a request are its result.
pub fn serve(url: &TargetUrl, device: &Path) -> Result<(), Failure> {
    let maps = queries::connect(url, device)?;
    let mut queries = queries::Queries::new(&maps);
    let mut reads = plain::PlainReads::connect(url, device)?;
    let mut out = std::io::stdout().lock();
    let mut tell = |told: &Told| -> Result<(), Failure> {
        writeln!(out, "{}", serde_json::to_string(told)?)?;
        Ok(out.flush()?)
    };
    tell(&Told::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let ask: Ask = serde_json::from_str(&line?)?;
        let told = measure(|| match &ask {
            Ask::Query(query) => queries.run(query),
            Ask::Load => queries.load(),
            Ask::Plain { path, depth, plain } => {
                let argument = match plain {
                    Plain::Stages(query) => Some(queries.argument(query, plain::PIECE_BYTES)?),
                    _ => None,
                };
                reads.run(path, *depth, plain, argument.as_ref())
            }
        });
        tell(&told.unwrap_or_else(|error| Told::Failed(error.to_string())))?;
    }
    Ok(())
}

/// Measures the cost of work of this process.
fn measure(work: impl FnOnce() -> Result<Cost, Failure>) -> Result<Told, Failure> {
    let (begun, before_ns) = (Instant::now(), cpu_ns());
    let cost = work()?;
    let (wall_ns, cpu_ns) = (begun.elapsed().as_nanos() as u64, cpu_ns() - before_ns);
    Ok(Told::Done { wall_ns, cpu_ns, cost })
}

/// Processor time of all threads of this process, in ns.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
