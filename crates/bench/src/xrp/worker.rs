//! Ways to run chains, each in a closed loop of one thread.

use super::counter::Result;
use super::load::{BLOCK_BYTES, Links, Load, Operation};
use bpfof_device::{Buffer, IoBuffer, Ring};
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadPushdown,
    StorageFunction,
};
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// A drive that gives no answer for this long is reported.
const PATIENCE: Duration = Duration::from_secs(60);
/// `O_DIRECT`
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits().cast_signed();

/// Where the chain runs, and how its reads are made. All reads are direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// In the process, one system call for each read.
    Pread,
    /// In the process, on an io_uring.
    IoUring,
    /// In the chain engine in the process, NVMe commands on an io_uring.
    Passthrough,
    /// In the module, in the drive's interrupt.
    Interrupt,
    /// In the module, each read issued by a work item.
    WorkItem,
}

impl Way {
    pub(super) const WITHOUT_MODULE: [Way; 3] = [Way::Pread, Way::IoUring, Way::Passthrough];
    pub(super) const BY_MODULE: [Way; 2] = [Way::Interrupt, Way::WorkItem];
    pub(super) const ALL: [Way; 5] =
        [Way::Pread, Way::IoUring, Way::Passthrough, Way::Interrupt, Way::WorkItem];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Way::Pread => "pread",
            Way::IoUring => "io_uring",
            Way::Passthrough => "passthrough",
            Way::Interrupt => "interrupt",
            Way::WorkItem => "work item",
        }
    }

    /// The number of threads for this many chains in flight, and the chains of each thread.
    pub(super) const fn divide(self, in_flight: usize) -> (usize, usize) {
        match self {
            Way::IoUring | Way::Passthrough => (1, in_flight),
            Way::Pread | Way::Interrupt | Way::WorkItem => (in_flight, 1),
        }
    }
}

/// The results of a worker.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) operations: u64,
    pub(super) wrong: u64,
    /// In ns.
    pub(super) latency: Histogram<u64>,
}

/// One thread's worker, with this many chains in flight.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    links: &'a Links,
    random: Rng,
    operations: Vec<(Operation, Instant)>,
    by: By,
    /// For the next operations, from `prepare` to `run`.
    latency: Option<Histogram<u64>>,
}

#[derive(Debug)]
enum By {
    Pread(File),
    Ring(File, Box<Ring>),
    Chains(Box<Chains>),
}

/// A reader, with its file and function.
#[derive(Debug)]
struct Chains {
    load: Load,
    reader: PushdownReader,
    files: [PushdownFile; 1],
    function: StorageFunction,
}

impl<'a> Worker<'a> {
    /// Uses the module if it is loaded now and the way runs chains in it. The function and the maps are then in place.
    pub(super) fn new(
        (way, in_flight): (Way, usize),
        load: Load,
        (maps, folder): (&FileMaps, &Path),
        links: &'a Links,
        seed: u64,
    ) -> Result<Worker<'a>> {
        let path = folder.join(load.file_name());
        let direct = || File::options().read(true).custom_flags(DIRECT).open(&path);
        let by = match way {
            Way::Pread => By::Pread(direct()?),
            Way::IoUring => By::Ring(direct()?, Box::new(Ring::new(in_flight as u32)?)),
            Way::Passthrough | Way::Interrupt | Way::WorkItem => {
                let policy = Policy { fall_back: false, ..Policy::default() };
                let reader = PushdownReader::new(maps, policy)?;
                let files = [maps.open(&path)?];
                if !maps.wait_mapped(&files[0], PATIENCE) {
                    let refusal = files[0].refusal();
                    return Err(format!("{} has no map: {refusal:?}", path.display()).into());
                }
                let function = maps.load_function(load.object(), 0)?;
                By::Chains(Box::new(Chains { load, reader, files, function }))
            }
        };
        let operations = (0..in_flight).map(|_| (Operation::new(load), Instant::now())).collect();
        Ok(Worker { links, random: Rng::with_seed(seed), operations, by, latency: None })
    }

    /// Allocates memory for latencies, and touches it: operations must not pay for page faults of the benchmark.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let mut latency = crate::measurement::latencies()?;
        // Opaque to the compiler, which would not write to memory known to be zero.
        std::hint::black_box(&mut latency).reset();
        self.latency = Some(latency);
        Ok(())
    }

    /// Must follow [`prepare`](Self::prepare): runs this many operations, at least one for each slot in flight.
    pub(super) fn run(&mut self, count: u64) -> Result<Done> {
        let Self { links, random, operations, by, latency } = self;
        let latency = latency.take().ok_or("it is not prepared")?;
        let mut loop_ =
            Loop { links, random, left: count, done: Done { operations: 0, wrong: 0, latency } };
        match by {
            By::Pread(file) => pread(file, &mut operations[0], &mut loop_)?,
            By::Ring(file, ring) => uring(file, ring, operations, &mut loop_)?,
            By::Chains(chains) => chains.run(operations, &mut loop_)?,
        }
        Ok(loop_.done)
    }
}

/// The state of a closed loop.
struct Loop<'a> {
    links: &'a Links,
    random: &'a mut Rng,
    /// Operations left to begin.
    left: u64,
    done: Done,
}

impl Loop<'_> {
    /// The argument of the next operation; None when enough have begun.
    fn begin(&mut self, (operation, began): &mut (Operation, Instant)) -> Option<[u8; 8]> {
        self.left = self.left.checked_sub(1)?;
        *began = Instant::now();
        Some(operation.begin(self.random, self.links))
    }

    fn end(&mut self, is_right: bool, began: Instant) {
        self.done.operations += 1;
        self.done.wrong += u64::from(!is_right);
        self.done.latency.saturating_record(began.elapsed().as_nanos() as u64);
    }
}

fn pread(file: &File, slot: &mut (Operation, Instant), loop_: &mut Loop<'_>) -> Result<()> {
    let mut buffer = IoBuffer::new(BLOCK_BYTES as usize);
    while loop_.begin(slot).is_some() {
        let (operation, began) = slot;
        while let Some(read) = operation.read() {
            let (at, skip) = around(read);
            file.read_exact_at(&mut buffer, at)?;
            operation.feed(&buffer[skip..skip + read.1 as usize])?;
        }
        loop_.end(operation.is_right(loop_.links), *began);
    }
    Ok(())
}

/// The block around a read, which lies within one block: its offset, and the distance from it to the read in bytes.
const fn around((offset, _): (u64, u32)) -> (u64, usize) {
    let block = BLOCK_BYTES as u64;
    (offset / block * block, (offset % block) as usize)
}

fn uring(
    file: &File,
    ring: &mut Ring,
    slots: &mut [(Operation, Instant)],
    loop_: &mut Loop<'_>,
) -> Result<()> {
    let submit = |ring: &mut Ring, operation: &mut Operation, buffer, index| {
        let Some(read) = operation.read() else { return };
        ring.read(file.as_raw_fd(), buffer, around(read).0, index);
    };
    for (index, slot) in (0..).zip(slots.iter_mut()) {
        if loop_.begin(slot).is_some() {
            submit(ring, &mut slot.0, IoBuffer::new(BLOCK_BYTES as usize), index);
        }
    }
    while ring.in_flight() > 0 {
        ring.submit(Some(PATIENCE))?;
        let mut completed = 0;
        while let Some(completion) = ring.completion() {
            completed += 1;
            let Some(Buffer::Aligned(buffer)) = completion.buffer else { continue };
            let slot = &mut slots[completion.token as usize];
            let Some(read) = slot.0.read() else { continue };
            if completion.result < BLOCK_BYTES as i32 {
                let cause = std::io::Error::from_raw_os_error(-completion.result.min(0));
                return Err(format!("a read failed: {cause}").into());
            }
            let skip = around(read).1;
            slot.0.feed(&buffer[skip..skip + read.1 as usize])?;
            if slot.0.read().is_none() {
                loop_.end(slot.0.is_right(loop_.links), slot.1);
                if loop_.begin(slot).is_none() {
                    continue;
                }
            }
            submit(ring, &mut slot.0, buffer, completion.token);
        }
        if completed == 0 {
            return Err(format!("no read was done within {PATIENCE:?}").into());
        }
    }
    Ok(())
}

impl Chains {
    fn submit(&mut self, tag: u64, argument: &[u8; 8], operation: &Operation) -> Result<()> {
        let (offset_bytes, size_bytes) = operation.first();
        let (scratch_size_bytes, answer_max_bytes) = self.load.sizes();
        let call = ReadPushdown {
            files: &self.files,
            first_read: FirstRead { file: 0, offset_bytes, size_bytes },
            function: &self.function,
            scratch: argument,
            scratch_size_bytes,
            answer_max_bytes,
        };
        Ok(self.reader.submit(tag, &call)?)
    }

    fn run(&mut self, slots: &mut [(Operation, Instant)], loop_: &mut Loop<'_>) -> Result<()> {
        let mut ready: Vec<usize> = (0..slots.len()).collect();
        let mut problem: Option<Box<dyn std::error::Error + Send + Sync>> = None;
        loop {
            for index in ready.drain(..) {
                if let Some(argument) = loop_.begin(&mut slots[index]) {
                    self.submit(index as u64, &argument, &slots[index].0)?;
                }
            }
            if self.reader.in_flight() == 0 {
                return Ok(());
            }
            let ended = self.reader.wait(PATIENCE, &mut |completion| {
                let index = completion.tag as usize;
                let (operation, began) = &slots[index];
                match completion.result {
                    Ok((answer, info)) if info.executor == Executor::Local => {
                        loop_.end(operation.is_answer(answer, loop_.links), *began);
                        ready.push(index);
                    }
                    Ok(_) => problem = Some("a chain ran over plain reads".into()),
                    Err(error) => problem = Some(error.into()),
                }
            });
            if let Some(problem) = problem {
                return Err(problem);
            }
            if ended == 0 {
                return Err(format!("no chain ended within {PATIENCE:?}").into());
            }
        }
    }
}
