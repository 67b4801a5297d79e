//! Measures the cost of operations when host and target are on this machine: packets and messages of its RDMA card
//! (soft-RoCE counts them exactly), and time. In a machine that is emulated with one ns for each instruction
//! (`interop/run.py --parts rdma_figures`) the time is the number of instructions, those of the kernel included.
//!
//!     cargo run --example packets -- URL [TIMES [NAME DEPTH]]
//!
//! With NAME and DEPTH, as in the lines of the output, it measures only that line. The namespace must have a BPF-KV
//! database (`bpfof kv create`); its last blocks are overwritten. No other program may use the card meanwhile.
//! `interop/guest/rdma` runs it.

use bpfkv::pushdown::{GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_argument};
use bpfof_host::{Options, Request, SubmitError, TargetUrl};
use bpfof_kv::Session;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const WAIT: Duration = Duration::from_secs(1);
const COUNTERS: [&str; 2] = ["sent_pkts", "rdma_sends"];
const BLOCK_BYTES: usize = 4096;

/// Packets and messages of the first card's first port; none where there is no card.
fn counts() -> Result<[u64; 2], Failure> {
    let mut counts = [0; 2];
    let Some(card) = std::fs::read_dir("/sys/class/infiniband").ok().and_then(|mut all| all.next())
    else {
        return Ok(counts);
    };
    let folder: PathBuf = card?.path().join("ports/1/hw_counters");
    for (count, name) in counts.iter_mut().zip(COUNTERS) {
        *count = std::fs::read_to_string(folder.join(name))?.trim().parse()?;
    }
    Ok(counts)
}

#[derive(Clone, Copy)]
enum What {
    Read(u32),
    Write(usize),
    Get,
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url: TargetUrl =
        arguments.next().ok_or("usage: packets URL [TIMES [NAME DEPTH]]")?.parse()?;
    let times: u64 = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let only = arguments.next().zip(arguments.next());
    let is_wanted = |name: &str, depth: usize| {
        only.as_ref().is_none_or(|(only, at)| only == name && *at == depth.to_string())
    };
    // No spinning: it would take the processor from soft-RoCE, and distort the counts of instructions.
    let mut session = Session::open(&url, Options { spin_us: 0, ..Options::default() }, 0)?;
    let size_bytes = session.controller.identify_namespace(url.nsid)?.size_bytes();
    println!("{:20} {:>5} {:>8} {:>9} {:>9}", "each", "depth", "packets", "messages", "ns");
    for depth in [1, 16] {
        for (name, what) in [
            ("read 512", What::Read(512)),
            ("read 4096", What::Read(4096)),
            ("write 512", What::Write(512)),
            ("write 4096", What::Write(4096)),
            ("get, pushed down", What::Get),
        ] {
            if !is_wanted(name, depth) {
                continue;
            }
            repeat(&mut session, what, (depth, 2 * depth as u64), size_bytes)?;
            let (before, begun) = (counts()?, Instant::now());
            repeat(&mut session, what, (depth, times), size_bytes)?;
            tell((name, depth), times, before, begun)?;
        }
    }
    if !is_wanted("get, plain", 1) {
        return Ok(());
    }
    session.get(0, true)?;
    let (before, begun) = (counts()?, Instant::now());
    for key in 0..times {
        session.get(key, true)?.ok_or("there is no such key")?;
    }
    tell(("get, plain", 1), times, before, begun)
}

/// Does the operation `times` times, `depth` at a time.
fn repeat(
    session: &mut Session,
    what: What,
    (depth, times): (usize, u64),
    size_bytes: u64,
) -> Result<(), Failure> {
    let data = vec![7; BLOCK_BYTES];
    let (nsid, offset_bytes) = (session.nsid, size_bytes - BLOCK_BYTES as u64);
    let (mut asked, mut failed) = (0, None);
    while asked < times || session.lane.requests_in_flight() > 0 {
        while asked < times && session.lane.requests_in_flight() < depth {
            let argument = get_argument(asked).ok_or("there is no such key")?;
            let start = session.cache.start_of_get(asked)?.ok_or("there is no such key")?;
            let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
            let request = match what {
                What::Read(length_bytes) => Request::Read { nsid, offset_bytes, length_bytes },
                What::Write(length) => {
                    Request::Write { nsid, offset_bytes, data: &data[..length], fua: false }
                }
                What::Get => Request::Pushdown(session.call(session.get, start, &argument, sizes)),
            };
            match session.lane.submit(asked, request) {
                Ok(()) => asked += 1,
                Err(SubmitError::QueueFull) => break,
                Err(error) => return Err(error.into()),
            }
        }
        session.lane.wait(WAIT, &mut |completion| failed = failed.or(completion.result.err()))?;
    }
    failed.map_or(Ok(()), |error| Err(error.to_string().into()))
}

fn tell(
    (name, depth): (&str, usize),
    times: u64,
    before: [u64; 2],
    begun: Instant,
) -> Result<(), Failure> {
    let (took, after) = (begun.elapsed().as_nanos() as f64, counts()?);
    let each = |index: usize| (after[index] - before[index]) as f64 / times as f64;
    let ns = took / times as f64;
    println!("{name:20} {depth:5} {:8.2} {:9.2} {ns:9.0}", each(0), each(1));
    Ok(())
}
