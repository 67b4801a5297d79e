//! A client that speaks the protocol itself: it ignores what the daemon tells it, uses arbitrary files and versions,
//! and changes its own files while chains read them.

use super::wait::{is_soon, within};
use bpfof_host::grant::{GrantClient, PageReader};
use bpfof_host::{FileVersion, FunctionId, Lane, PushdownCall, Request};
use fastrand::Rng;
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The word that fills the client's own files.
pub(crate) const MINE: u64 = 0x4D49_4E45_4D49_4E45;
/// The word that fills all other files.
pub(crate) const CANARY: u64 = 0x5345_4352_4554_2121;

const PATIENCE: Duration = Duration::from_secs(30);
const FILE_BYTES: usize = 256 << 10;
const FILES: u32 = 6;
/// Chains in flight.
const DEPTH: u64 = 64;
/// Bytes of one read.
const BLOCK: u32 = 4096;
const BLOCKS: u64 = 16;

pub(crate) fn filled(word: u64, bytes: usize) -> Vec<u8> {
    word.to_le_bytes().repeat(bytes / 8)
}

/// Whether an answer has only words that the client has written, or zeroes.
pub(crate) fn is_clean(answer: &[u8]) -> bool {
    let words = answer.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut other = words.filter(|word| *word != MINE && *word != 0);
    other.next().is_none()
}

/// Counts of chains by their outcomes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) refused: u64,
    pub(crate) lost: bool,
}

pub(crate) struct Hostile {
    /// Requests revoked grants again, on a thread of its own because a daemon may not answer.
    _asker: std::thread::JoinHandle<()>,
    page: Arc<PageReader>,
    lane: Lane,
    nsid: u32,
    function: FunctionId,
    versions: Vec<u64>,
    numbers: Rng,
    pub(crate) tally: Tally,
}

pub(crate) fn path(folder: &Path, file: u32) -> PathBuf {
    folder.join(format!("mine-{file}"))
}

/// A file with the same bytes as the client's other files, which share its blocks where that is allowed.
pub(crate) fn twin(folder: &Path) -> PathBuf {
    path(folder, 0)
}

/// Writes the client's own files, on a disk that other processes fill; the twin last.
pub(crate) fn write_files(folder: &Path) {
    let write = |file: u32| {
        let mut out = File::create(path(folder, file))?;
        out.write_all(&filled(MINE, FILE_BYTES))?;
        out.sync_all()
    };
    for file in (0..=FILES).rev() {
        let mut error = None;
        let is_written = is_soon(PATIENCE, || {
            error = write(file).err();
            error.is_none()
        });
        assert!(is_written, "no room: {error:?}");
    }
}

impl Hostile {
    /// Makes a client, with grants for its files.
    pub(crate) fn new(socket: &Path, folder: &Path, object: &[u8]) -> Hostile {
        let mut client = GrantClient::connect(socket, None).expect("it connects");
        let function = client.load(object, 0, "peek", [0; 32]).expect("own functions are allowed");
        let lane = client.lane().expect("a lane");
        let nsid = client.namespace().nsid;
        let opened: Vec<File> =
            (1..=FILES).map(|file| File::open(path(folder, file)).expect("opened")).collect();
        let descriptors: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
        let ids: Vec<u32> = (1..=FILES).collect();
        let answers = client.add(&ids, &descriptors).expect("answered");
        let granted = answers.iter().filter(|answer| answer.result.is_ok()).count();
        assert!(granted > 0, "{answers:?}");
        let versions = vec![0; FILES as usize + 3];
        let (numbers, tally) = (Rng::with_seed(0x9E37_79B9_7F4A_7C15), Tally::default());
        let page = Arc::clone(client.page());
        let _asker = std::thread::spawn(move || {
            while client.refresh(&ids).is_ok() {
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        Hostile { _asker, page, lane, nsid, function, versions, numbers, tally }
    }

    /// A version that the file has, had, or may get; or an arbitrary one.
    fn version(&mut self, id: u32) -> u64 {
        let now = self.page.version(id);
        let slot = &mut self.versions[id as usize];
        *slot = (*slot).max(now);
        let last = *slot;
        match self.numbers.u64(..8) {
            0 => last + 1,
            1 => last.saturating_sub(1),
            2 => self.numbers.u64(..1 << 12),
            3 => now,
            _ => last,
        }
    }

    /// Submits one chain over an arbitrary file, from an arbitrary offset.
    fn submit(&mut self, tag: u64) -> bool {
        let id = self.numbers.u64(..u64::from(FILES) + 3) as u32;
        let files = [FileVersion { id, version: self.version(id) }];
        let blocks = FILE_BYTES as u64 / u64::from(BLOCK) - BLOCKS + 1;
        let call = PushdownCall {
            nsid: self.nsid,
            function: self.function.0,
            files: &files,
            first_file: 0,
            first_offset_bytes: self.numbers.u64(..blocks) * u64::from(BLOCK),
            first_size_bytes: BLOCK,
            scratch: &[],
            scratch_size_bytes: 4096,
            answer_max_bytes: 4096,
        };
        self.lane.submit(tag, Request::Pushdown(call)).is_ok()
    }

    /// Runs chains until `end` or the lane is lost, and checks each answer.
    pub(crate) fn run(&mut self, end: &mut dyn FnMut(&Tally) -> bool) {
        while !end(&self.tally) && !self.tally.lost {
            while (self.lane.requests_in_flight() as u64) < DEPTH && self.submit(0) {}
            let tally = &mut self.tally;
            let waited =
                self.lane.wait(Duration::from_secs(1), &mut |completion| match completion.result {
                    Ok(done) => {
                        assert!(is_clean(done.data), "somebody else's bytes: {:x?}", done.data);
                        tally.answers += 1;
                    }
                    Err(_) => tally.refused += 1,
                });
            self.tally.lost = waited.is_err();
        }
    }
}

/// A thread that repeats its work until this is dropped.
pub(crate) struct Repeated {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Repeated {
    fn start(mut work: impl FnMut(&AtomicBool) + Send + 'static) -> Repeated {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                work(&stopped);
            }
        });
        Repeated { stop, thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "see above");
    }
}

/// Changes the client's own files until it is dropped: each change waits until the daemon has revoked the grant, and
/// then frees blocks.
pub(crate) struct Changer {
    /// All attempts, refused ones included: immutable files cannot be opened for writing.
    pub(crate) attempts: Arc<AtomicU64>,
    pub(crate) changes: Arc<AtomicU64>,
    _thread: Repeated,
}

impl Changer {
    pub(crate) fn start(folder: PathBuf) -> Changer {
        let [attempts, changes] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let (attempted, changed) = (Arc::clone(&attempts), Arc::clone(&changes));
        let mut numbers = Rng::with_seed(7);
        let _thread = Repeated::start(move |_| {
            let is_changed = change(&folder, &mut numbers);
            attempted.fetch_add(1, Ordering::SeqCst);
            changed.fetch_add(u64::from(is_changed), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(numbers.u64(..4)));
        });
        Changer { attempts, changes, _thread }
    }
}

/// False if the file could not be opened or changed.
fn change(folder: &Path, numbers: &mut Rng) -> bool {
    let name = path(folder, numbers.u32(1..=FILES));
    if numbers.u64(..8) == 0 {
        deduplicate(&name, &twin(folder));
    }
    let Ok(file) = OpenOptions::new().write(true).open(&name) else { return false };
    let changed = match numbers.u64(..4) {
        0 => file.set_len(0),
        1 => file.set_len(numbers.u64(..FILE_BYTES as u64)),
        2 => rustix::fs::fallocate(&file, punch(), 0, FILE_BYTES as u64 / 2).map_err(Into::into),
        _ => file.set_len(0).and_then(|()| file.sync_all()),
    };
    // A full disk is no failure: other processes have the blocks then.
    let _ = file.write_all_at(&filled(MINE, FILE_BYTES), 0);
    if numbers.u64(..2) == 0 {
        let _ = file.sync_all();
    }
    changed.is_ok()
}

/// Frees the blocks of `file` by deduplication where the file system can, which needs no permission to write.
fn deduplicate(file: &Path, twin: &Path) {
    let dedupe = format!("dedupe {} 0 0 {FILE_BYTES}", twin.display());
    let tried = Command::new("xfs_io").args(["-r", "-c", &dedupe]).arg(file).output();
    tried.expect("xfs_io starts");
}

/// Makes the client's files immutable, once they are there.
pub(crate) fn make_immutable(folder: &Path) {
    within(PATIENCE, "the client writes its files", || is_full(&twin(folder)));
    for file in 1..=FILES {
        let done = Command::new("chattr").arg("+i").arg(path(folder, file)).status();
        assert!(done.is_ok_and(|status| status.success()), "chattr +i");
    }
}

fn is_full(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.len() == FILE_BYTES as u64)
}

/// Waits until the last of the client's files has been made immutable.
pub(crate) fn wait_immutable(folder: &Path) {
    let last = path(folder, FILES);
    within(PATIENCE, "it is immutable", || OpenOptions::new().write(true).open(&last).is_err());
}

/// Defragments the client's files as root until it is dropped, which moves their blocks. Uses `tool`, which belongs to
/// the file system.
pub(crate) fn defragment(tool: &'static str, folder: PathBuf) -> Repeated {
    let mut numbers = Rng::with_seed(11);
    Repeated::start(move |_| {
        let name = path(&folder, numbers.u32(1..=FILES));
        let tried = Command::new(tool).arg(name).output();
        tried.unwrap_or_else(|error| panic!("{tool}: {error}"));
        std::thread::sleep(Duration::from_millis(numbers.u64(..100)));
    })
}

fn punch() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

/// Another user, whose files take blocks that other files free, until it is dropped.
pub(crate) struct Victim {
    /// Files that have taken at least a block.
    written: Arc<AtomicU64>,
    thread: Option<Repeated>,
}

impl Victim {
    /// Writes secrets into `folder`, which only root may enter. The fuller the disk, the sooner a block is used again.
    pub(crate) fn start(folder: PathBuf) -> Victim {
        let written = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&written);
        let secret = filled(CANARY, 64 << 10);
        let mut round = 0_u64;
        let thread = Repeated::start(move |stopped| {
            round += 1;
            let name = folder.join(format!("secret-{}", round % 4));
            let _ = fs::remove_file(&name);
            let Ok(mut file) = File::create(&name) else { return };
            while !stopped.load(Ordering::SeqCst) && file.write_all(&secret).is_ok() {}
            let has_blocks = file.sync_all().and_then(|()| file.metadata());
            let has_blocks = has_blocks.is_ok_and(|found| found.blocks() > 0);
            counted.fetch_add(u64::from(has_blocks), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        });
        Victim { written, thread: Some(thread) }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.thread.take());
        let written = self.written.load(Ordering::SeqCst);
        assert!(std::thread::panicking() || written > 0, "no other file has taken a block");
    }
}
