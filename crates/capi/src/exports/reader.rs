//! Readers and chains.

use super::library::Handle;
use super::{call, close, elements, given, null};
use crate::abi::{AT_TARGET, Chain, HERE, Outcome, Read};
use crate::failure::Failure;
use crate::function::Function;
use crate::session::{Session, timeout_of};
use bpfof_function::abi::{MAX_READS, MAX_SCRATCH_BYTES};
use bpfof_host::files::{
    Executor, FirstRead, PushdownFile, PushdownReader, ReadCompletion, ReadError, ReadInfo,
    ReadPushdown,
};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Longest single wait of an endless call.
const WAIT: Duration = Duration::from_secs(1);

/// A `struct bpfof_reader`.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(super) session: Arc<Session>,
    core: Mutex<Core>,
}

#[derive(Debug)]
pub(super) struct Core {
    /// Its tags are the addresses of the caller's chains.
    pub(super) reader: PushdownReader,
    /// Addresses of chains that have ended and were not returned by `bpfof_poll` yet.
    pub(super) ended: VecDeque<usize>,
    /// Buffer for the files of a call; empty between calls.
    pub(super) files: Vec<PushdownFile>,
}

impl Reader {
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Core>, Failure> {
        self.core.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let why = "another thread is using the reader; open one for each thread";
                Failure::new(libc::EBUSY, why)
            }
            TryLockError::Poisoned(_) => Failure::internal(),
        })
    }
}

/// How a chain ended: its answer and statistics, or why it failed.
pub(super) type End<'a> = Result<(&'a [u8], ReadInfo), Failure>;

impl Core {
    /// Sends what was submitted, waits until a chain has ended or `timeout` passed, and calls
    /// `on_end` for each with its tag.
    pub(super) fn wait(&mut self, timeout: Duration, on_end: &mut dyn FnMut(usize, End<'_>)) {
        self.reader.wait(timeout, &mut |ReadCompletion { tag, result }| {
            on_end(tag as usize, result.map_err(|error| Failure::of_chain(&error)));
        });
    }
}

/// Writes the result of a chain into its structure, and the answer into its scratch.
///
/// # Safety
/// `address` is that of a submitted chain, which is still valid.
pub(super) unsafe fn finish(address: usize, end: &End<'_>) {
    let chain: *mut Chain = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the chain is valid; only fields that were read at submission are read.
    let (scratch, room) = unsafe { ((*chain).scratch, (*chain).scratch_len) };
    if let Ok((answer, _)) = end {
        // SAFETY: the chain's scratch has `room` bytes.
        unsafe { give(answer, scratch, room) };
    }
    // SAFETY: the chain is there.
    unsafe { (&raw mut (*chain).outcome).write(MaybeUninit::new(outcome_of(end))) };
}

/// Copies an answer to the caller's scratch.
///
/// # Safety
/// `scratch` has room for `room` bytes; it may be NULL if that is 0.
pub(super) unsafe fn give(answer: &[u8], scratch: *mut c_void, room: usize) {
    let length = answer.len().min(room);
    if length > 0 {
        // SAFETY: there is room, and the answer is in this library's memory, so they do not
        // overlap.
        unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), scratch.cast::<u8>(), length) };
    }
}

pub(super) fn outcome_of(end: &End<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    match end {
        Ok((answer, info)) => {
            outcome.length = answer.len() as isize;
            outcome.executor = match info.executor {
                Executor::Target => AT_TARGET,
                Executor::Local | Executor::FallBack => HERE,
            };
            (outcome.hops, outcome.stale) = (info.hops, info.stale);
        }
        Err(failure) => {
            (outcome.length, outcome.error) = (-1, failure.errno);
            (outcome.status, outcome.value) = (failure.status, failure.value);
            outcome.hops = failure.hops;
            failure.message_into(&mut outcome.message);
        }
    }
    outcome
}

/// Refuses calls that make no sense or exceed limits.
pub(super) fn check(
    nfds: usize,
    scratch_len: usize,
    scratch: *mut c_void,
    argument_len: usize,
) -> Result<(), Failure> {
    let too_much = |what: String| Err(Failure::new(libc::E2BIG, what));
    if nfds == 0 {
        return Err(Failure::invalid("nfds is 0, but a chain reads at least one file"));
    }
    if nfds > MAX_READS {
        return too_much(format!("a chain reads at most {MAX_READS} files, not {nfds}"));
    }
    if scratch_len > MAX_SCRATCH_BYTES {
        return too_much(format!(
            "{scratch_len} bytes of scratch; the limit is {MAX_SCRATCH_BYTES}"
        ));
    }
    if argument_len > scratch_len {
        return Err(Failure::invalid("argument_len is more than scratch_len"));
    }
    if scratch_len > 0 && scratch.is_null() {
        return Err(null("scratch"));
    }
    Ok(())
}

/// Begins a chain, whose completion will carry `tag`.
///
/// # Safety
/// The pointers in `asked` are what C promises, during this call.
pub(super) unsafe fn submit(
    session: &Session,
    core: &mut Core,
    tag: usize,
    asked: &Chain,
) -> Result<(), Failure> {
    check(asked.nfds, asked.scratch_len, asked.scratch, asked.argument_len)?;
    // SAFETY: the caller's promise.
    let (fds, function, argument) = unsafe {
        (
            elements(asked.fds, asked.nfds, "fds")?,
            given::<Function>(asked.function, "function")?,
            elements(asked.scratch.cast::<u8>().cast_const(), asked.argument_len, "scratch")?,
        )
    };
    session.files(fds.iter().copied(), &mut core.files)?;
    let Read { offset, size, file } = asked.first;
    let call = ReadPushdown {
        files: &core.files,
        first_read: FirstRead {
            // An index that is too large for u16 is invalid either way.
            file: u16::try_from(file).unwrap_or(u16::MAX),
            offset_bytes: offset,
            size_bytes: size,
        },
        function: &function.loaded,
        scratch: argument,
        // 0 would be the default.
        scratch_size_bytes: (asked.scratch_len as u32).max(1),
        answer_max_bytes: asked.scratch_len as u32,
    };
    let submitted = core.reader.submit(tag as u64, &call);
    core.files.clear();
    submitted.map_err(|error| match error {
        ReadError::Request(why) => Failure::invalid(why),
        error => Failure::of_chain(&error),
    })
}

/// The same for a chain of the caller's; its address is the tag.
///
/// # Safety
/// `chain` is NULL or what C promises, until it has ended.
unsafe fn submit_theirs(
    session: &Session,
    core: &mut Core,
    chain: *mut Chain,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise. That the outcome may be uninitialised is in its type.
    unsafe { submit(session, core, chain.expose_provenance(), given(chain, "chain")?) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_reader_open(handle: *mut Handle) -> *mut Reader {
    call(ptr::null_mut(), || {
        // SAFETY: what C promises.
        let session = Arc::clone(&unsafe { given(handle, "bpfof") }?.0);
        let reader = PushdownReader::new(session.maps(), session.policy())
            .map_err(|error| Failure::of_lane(&error))?;
        let core = Mutex::new(Core { reader, ended: VecDeque::new(), files: Vec::new() });
        Ok(Box::into_raw(Box::new(Reader { session, core })))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_reader_close(reader: *mut Reader) {
    // SAFETY: what C promises.
    unsafe { close(reader) }
}

/// The tag of the chain of a blocking call: no chain of the caller's is at this address.
const BLOCKING: usize = 0;

/// Runs one chain, and writes its answer into scratch.
///
/// # Safety
/// The pointers in `asked` are what C promises, and chains in flight are still valid.
unsafe fn run(reader: *mut Reader, asked: &Chain) -> Result<Outcome, Failure> {
    // SAFETY: the caller's promise.
    let reader = unsafe { given(reader, "reader") }?;
    let mut core = reader.lock()?;
    // SAFETY: the caller's promise.
    unsafe { submit(&reader.session, &mut core, BLOCKING, asked) }?;
    let (mut mine, mut others) = (None, VecDeque::new());
    while mine.is_none() {
        core.wait(WAIT, &mut |tag, end| {
            if tag != BLOCKING {
                // SAFETY: other tags are addresses of chains, which the caller keeps valid until
                // they end.
                unsafe { finish(tag, &end) };
                others.push_back(tag);
                return;
            }
            if let Ok((answer, _)) = &end {
                // SAFETY: what the caller promises of scratch.
                unsafe { give(answer, asked.scratch, asked.scratch_len) };
            }
            let outcome = outcome_of(&end);
            mine = Some(end.map(|_| outcome));
        });
    }
    core.ended.append(&mut others);
    mine.unwrap_or_else(|| Err(Failure::internal()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_read_pushdown(
    reader: *mut Reader,
    fds: *const c_int,
    nfds: usize,
    first: *const Read,
    function: *const Function,
    scratch: *mut c_void,
    scratch_len: usize,
    argument_len: usize,
    result: *mut Outcome,
) -> isize {
    call(-1, || {
        // SAFETY: what C promises.
        let first = unsafe { given(first, "first") };
        let end = first.and_then(|first| {
            let (user, outcome) = (ptr::null_mut(), MaybeUninit::uninit());
            let first = *first;
            let asked = Chain {
                fds,
                nfds,
                first,
                function,
                scratch,
                scratch_len,
                argument_len,
                user,
                outcome,
            };
            // SAFETY: what C promises.
            unsafe { run(reader, &asked) }
        });
        let (outcome, end) = match end {
            Ok(outcome) => (outcome, Ok(outcome.length)),
            Err(failure) => (outcome_of(&Err(failure.clone())), Err(failure)),
        };
        if !result.is_null() {
            // SAFETY: not NULL, so there is room for it.
            unsafe { result.write(outcome) };
        }
        end
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_submit(reader: *mut Reader, chain: *mut Chain) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        // SAFETY: what C promises.
        unsafe { submit_theirs(&reader.session, &mut core, chain) }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_poll(
    reader: *mut Reader,
    ended: *mut *mut Chain,
    max: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: what C promises.
    unsafe { bpfof_poll_within(reader, ended, max, i64::from(timeout_ms) * 1000) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_poll_within(
    reader: *mut Reader,
    ended: *mut *mut Chain,
    max: usize,
    timeout_us: i64,
) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        if ended.is_null() || max == 0 {
            return Err(Failure::invalid("ended is NULL or max is 0"));
        }
        let end = timeout_of(timeout_us).map(|timeout| Instant::now() + timeout);
        loop {
            let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()));
            // Do not wait if chains have ended during earlier calls, but still send what was
            // submitted.
            let left = if core.ended.is_empty() { left } else { Duration::ZERO };
            let mut new = VecDeque::new();
            core.wait(left, &mut |tag, end| {
                // SAFETY: a blocking call leaves no chain of its own behind, so the tag is the
                // address of a caller's chain, which stays valid until it ends.
                unsafe { finish(tag, &end) };
                new.push_back(tag);
            });
            core.ended.append(&mut new);
            let over = end.is_some_and(|end| Instant::now() >= end);
            if over || !core.ended.is_empty() || core.reader.in_flight() == 0 {
                break;
            }
        }
        let count = core.ended.len().min(max).min(c_int::MAX as usize);
        for (index, address) in core.ended.drain(..count).enumerate() {
            // SAFETY: there is room for `max`.
            unsafe { ended.add(index).write(ptr::with_exposed_provenance_mut(address)) };
        }
        Ok(count as c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_in_flight(reader: *const Reader) -> usize {
    call(0, || {
        // SAFETY: what C promises.
        let core = unsafe { given(reader, "reader") }?.lock()?;
        Ok(core.reader.in_flight() + core.ended.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::io;

    /// The errno of a `bpfof_poll` that must fail.
    fn refused(reader: &Reader) -> Option<i32> {
        let reader = ptr::from_ref(reader).cast_mut();
        let mut ended = ptr::null_mut();
        // SAFETY: a reader, and room for one chain.
        assert_eq!(unsafe { bpfof_poll(reader, &raw mut ended, 1, -1) }, -1);
        io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn a_reader_that_is_in_use_or_poisoned_is_refused() {
        let (session, _) = Session::open(None, &Options::default()).expect("without a target");
        let session = Arc::new(session);
        let reader = PushdownReader::new(session.maps(), session.policy()).expect("no target");
        let core = Mutex::new(Core { reader, ended: VecDeque::new(), files: Vec::new() });
        let reader = Reader { session, core };
        let in_use = reader.lock().expect("free");
        assert_eq!(refused(&reader), Some(libc::EBUSY));
        drop(in_use);
        let panicked = std::thread::scope(|scope| {
            let panics = || {
                let _core = reader.lock();
                panic!("as a test")
            };
            scope.spawn(panics).join().is_err()
        });
        assert!(panicked);
        assert_eq!(refused(&reader), Some(libc::ENOTRECOVERABLE));
    }
}
