//! Calls of many chains. Chains over the same files with the same function are sent together.

use super::reader::{Core, End, Reader, check, finish, give, outcome_of, submit};
use super::{call, elements, elements_mut, given};
use crate::abi::{Chain, Entry, Outcome, Read};
use crate::failure::Failure;
use crate::function::Function;
use bpfof_host::files::{FirstRead, ReadEntry, ReadError, ReadPushdownMany};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

/// The tag of a call's first chain; the others follow. No chain of the caller's has such an address, because the upper
/// half of the address space belongs to the kernel.
const FIRST_TAG: u64 = 1 << 63;
/// Longest single wait of an endless call.
const WAIT: Duration = Duration::from_secs(1);

/// The parameters that chains must share to be sent together.
#[derive(PartialEq, Eq)]
struct Common {
    fds: *const c_int,
    nfds: usize,
    function: *const Function,
    scratch_len: usize,
}

impl Common {
    fn of(chain: &Chain) -> Self {
        let Chain { fds, nfds, function, scratch_len, .. } = *chain;
        Self { fds, nfds, function, scratch_len }
    }
}

/// The parameters of a single chain.
struct Own {
    first: Read,
    scratch: *mut c_void,
    argument_len: usize,
}

impl From<&Entry> for Own {
    fn from(entry: &Entry) -> Self {
        let Entry { first, scratch, argument_len, .. } = *entry;
        Self { first, scratch, argument_len }
    }
}

impl From<&Chain> for Own {
    fn from(chain: &Chain) -> Self {
        let Chain { first, scratch, argument_len, .. } = *chain;
        Self { first, scratch, argument_len }
    }
}

fn check_first(first: &Read, nfds: usize) -> Result<(), Failure> {
    if first.size == 0 {
        return Err(Failure::invalid("the first read has length 0"));
    }
    if first.file as usize >= nfds {
        return Err(Failure::invalid("the first read refers to a file that is not in the list"));
    }
    Ok(())
}

/// Begins chains, from index `first` of the caller's array on, with these tags. If the call makes
/// no sense for one of them, none is begun.
///
/// # Safety
/// The pointers are what C promises, during this call.
unsafe fn submit_many(
    reader: &Reader,
    core: &mut Core,
    common: &Common,
    (array, first): (&str, usize),
    chains: impl Iterator<Item = (Own, u64)>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (fds, function) =
        unsafe { (elements(common.fds, common.nfds, "fds")?, given(common.function, "function")?) };
    let (mut asked, mut tags) = (Vec::new(), Vec::new());
    for (index, (chain, tag)) in (first..).zip(chains) {
        check(common.nfds, common.scratch_len, chain.scratch, chain.argument_len)
            .and_then(|()| check_first(&chain.first, common.nfds))
            .map_err(|failure| failure.of_part(&format!("{array}[{index}]")))?;
        // SAFETY: the caller's promise.
        let scratch = unsafe {
            elements(chain.scratch.cast::<u8>().cast_const(), chain.argument_len, "scratch")?
        };
        let Read { offset, size, file } = chain.first;
        let first_read = FirstRead { file: file as u16, offset_bytes: offset, size_bytes: size };
        asked.push(ReadEntry { first_read, scratch });
        tags.push(tag);
    }
    reader.session.files(fds.iter().copied(), &mut core.files)?;
    let many = ReadPushdownMany {
        files: &core.files,
        function: &function.loaded,
        entries: &asked,
        // 0 would be the default.
        scratch_size_bytes: (common.scratch_len as u32).max(1),
        answer_max_bytes: common.scratch_len as u32,
    };
    let submitted = core.reader.submit_tagged(tags.into_iter(), &many);
    core.files.clear();
    submitted.map_err(|error| match error {
        ReadError::Request(why) => Failure::invalid(why),
        error => Failure::of_chain(&error),
    })
}

/// Sends what was submitted and waits until a chain has ended. `on_end` gets the index and result of chains of this
/// call; chains that were submitted before are kept for `bpfof_poll`.
///
/// # Safety
/// Chains that were submitted before are still valid.
unsafe fn wait(core: &mut Core, on_end: &mut dyn FnMut(usize, &End<'_>)) {
    let mut others = VecDeque::new();
    core.wait(WAIT, &mut |tag, end| match (tag as u64).checked_sub(FIRST_TAG) {
        Some(index) => on_end(index as usize, &end),
        None => {
            // SAFETY: the caller's promise; other tags are the addresses of such chains.
            unsafe { finish(tag, &end) };
            others.push_back(tag);
        }
    });
    core.ended.append(&mut others);
}

/// Writes the answer and the result of a chain. Whether it succeeded.
///
/// # Safety
/// `scratch` has room for `scratch_len` bytes.
unsafe fn finish_own(
    end: &End<'_>,
    (scratch, scratch_len): (*mut c_void, usize),
    outcome: &mut MaybeUninit<Outcome>,
) -> bool {
    if let Ok((answer, _)) = end {
        // SAFETY: the caller's promise.
        unsafe { give(answer, scratch, scratch_len) };
    }
    *outcome = MaybeUninit::new(outcome_of(end));
    end.is_ok()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_read_pushdown_many(
    reader: *mut Reader,
    fds: *const c_int,
    nfds: usize,
    function: *const Function,
    scratch_len: usize,
    entries: *mut Entry,
    count: usize,
) -> isize {
    call(-1, || {
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        // SAFETY: what C promises. That the results may be uninitialised is in their type.
        let theirs = unsafe { elements_mut(entries, count, "entries") }?;
        let common = Common { fds, nfds, function, scratch_len };
        let own = theirs.iter().map(Own::from);
        // SAFETY: what C promises.
        unsafe { submit_many(reader, &mut core, &common, ("entries", 0), own.zip(FIRST_TAG..)) }?;
        let (mut left, mut good) = (count, 0);
        while left > 0 {
            let on_end = &mut |index: usize, end: &End<'_>| {
                let Some(entry) = theirs.get_mut(index) else { return };
                // SAFETY: what C promises of each entry's scratch.
                let is_good =
                    unsafe { finish_own(end, (entry.scratch, scratch_len), &mut entry.outcome) };
                left -= 1;
                good += isize::from(is_good);
            };
            // SAFETY: what C promises of chains in flight.
            unsafe { wait(&mut core, on_end) };
        }
        Ok(good)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_submit_many(
    reader: *mut Reader,
    chains: *mut Chain,
    count: usize,
) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        // SAFETY: what C promises. That the results may be uninitialised is in their type.
        let theirs = unsafe { elements(chains.cast_const(), count, "chains") }?;
        let Some(common) = theirs.first().map(Common::of) else { return Ok(0) };
        if run_length(theirs) < count {
            return Err(Failure::invalid(
                "fds, nfds, function and scratch_len must be the same in all chains",
            ));
        }
        // SAFETY: the index is below `count`. Chains have their addresses as tags, as single ones do.
        let tag = |index| unsafe { chains.add(index) }.expose_provenance() as u64;
        let own = theirs.iter().map(Own::from).zip((0..count).map(tag));
        // SAFETY: what C promises.
        unsafe { submit_many(reader, &mut core, &common, ("chains", 0), own) }?;
        Ok(0)
    })
}

/// The number of chains at the beginning of `chains`, which is not empty, that can be sent together.
fn run_length(chains: &[Chain]) -> usize {
    let common = chains.first().map(Common::of);
    chains.iter().take_while(|chain| Some(Common::of(chain)) == common).count()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_read_pushdown_batch(
    reader: *mut Reader,
    chains: *mut Chain,
    count: usize,
) -> isize {
    call(-1, || {
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        // SAFETY: what C promises. That the results may be uninitialised is in their type.
        let theirs = unsafe { elements_mut(chains, count, "chains") }?;
        let depth = reader.session.queue_depth();
        let (mut next, mut running, mut good) = (0, 0, 0);
        while next < count || running > 0 {
            while next < count && running < depth {
                let room = count.min(next + depth - running);
                let run = run_length(&theirs[next..room]);
                // SAFETY: what C promises.
                running += unsafe { submit_run(reader, &mut core, theirs, next..next + run) };
                next += run;
            }
            if running == 0 {
                continue;
            }
            let on_end = &mut |index: usize, end: &End<'_>| {
                let Some(chain) = theirs.get_mut(index) else { return };
                let room = (chain.scratch, chain.scratch_len);
                // SAFETY: what C promises of each chain's scratch.
                good += isize::from(unsafe { finish_own(end, room, &mut chain.outcome) });
                running -= 1;
            };
            // SAFETY: what C promises of chains in flight.
            unsafe { wait(&mut core, on_end) };
        }
        Ok(good)
    })
}

/// Begins chains of a batch that can be sent together. Returns how many were begun; the others have failed.
///
/// # Safety
/// The pointers are what C promises, during this call.
unsafe fn submit_run(
    reader: &Reader,
    core: &mut Core,
    chains: &mut [Chain],
    run: Range<usize>,
) -> usize {
    let Some(first) = chains.get(run.start).filter(|_| run.len() > 1) else {
        // SAFETY: the caller's promise.
        return unsafe { submit_alone(reader, core, chains, run) };
    };
    let own = chains[run.clone()].iter().map(Own::from).zip(FIRST_TAG + run.start as u64..);
    // SAFETY: the caller's promise.
    match unsafe { submit_many(reader, core, &Common::of(first), ("chains", run.start), own) } {
        Ok(()) => run.len(),
        // Submit each alone, so that each gets its own error. SAFETY: the caller's promise.
        Err(_) => unsafe { submit_alone(reader, core, chains, run) },
    }
}

/// The same, but submits each chain alone.
///
/// # Safety
/// That of [`submit_run`].
unsafe fn submit_alone(
    reader: &Reader,
    core: &mut Core,
    chains: &mut [Chain],
    run: Range<usize>,
) -> usize {
    let mut begun = 0;
    for (index, chain) in chains.iter_mut().enumerate().take(run.end).skip(run.start) {
        let tag = FIRST_TAG as usize + index;
        // SAFETY: the caller's promise.
        match unsafe { submit(&reader.session, core, tag, chain) } {
            Ok(()) => begun += 1,
            Err(failure) => chain.outcome = MaybeUninit::new(outcome_of(&Err(failure))),
        }
    }
    begun
}
