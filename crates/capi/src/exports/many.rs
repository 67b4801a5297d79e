//! Chains over the same files with the same function, in one call.

use super::reader::{Reader, check, finish, give, outcome_of};
use super::{call, elements, elements_mut, given};
use crate::abi::{Entry, Read};
use crate::failure::Failure;
use crate::function::Function;
use bpfof_host::files::{FirstRead, PushdownFile, ReadEntry, ReadError, ReadPushdownMany};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The tag of the first entry; others follow. Chains of the caller's are not at such addresses: of
/// 64-bit processes the upper half of all addresses is the kernel's.
const FIRST_TAG: u64 = 1 << 63;
/// Longest single wait of an endless one.
const WAIT: Duration = Duration::from_secs(1);

/// What all entries have in common.
struct Common {
    fds: *const c_int,
    nfds: usize,
    function: *const Function,
    scratch_len: usize,
}

fn check_first(first: &Read, nfds: usize) -> Result<(), Failure> {
    if first.size == 0 {
        return Err(Failure::invalid("the first read has no bytes"));
    }
    if first.file as usize >= nfds {
        return Err(Failure::invalid("the first read is of a file that is not listed"));
    }
    Ok(())
}

/// Begins a chain for each entry.
///
/// # Safety
/// The pointers are what C promises, during this call.
unsafe fn submit(
    reader: &Reader,
    core: &mut super::reader::Core,
    common: &Common,
    entries: &[Entry],
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (fds, function) =
        unsafe { (elements(common.fds, common.nfds, "fds")?, given(common.function, "function")?) };
    let mut asked = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        check(common.nfds, common.scratch_len, entry.scratch, entry.argument_len)
            .and_then(|()| check_first(&entry.first, common.nfds))
            .map_err(|failure| failure.of_part(&format!("entries[{index}]")))?;
        // SAFETY: the caller's promise.
        let scratch = unsafe {
            elements(entry.scratch.cast::<u8>().cast_const(), entry.argument_len, "scratch")?
        };
        let Read { offset, size, file } = entry.first;
        let first_read = FirstRead { file: file as u16, offset_bytes: offset, size_bytes: size };
        asked.push(ReadEntry { first_read, scratch });
    }
    let files = fds.iter().map(|fd| reader.session.file(*fd));
    let files = files.collect::<Result<Vec<PushdownFile>, _>>()?;
    let many = ReadPushdownMany {
        files: &files,
        function: &function.loaded,
        entries: &asked,
        // 0 would be the default.
        scratch_size_bytes: (common.scratch_len as u32).max(1),
        answer_max_bytes: common.scratch_len as u32,
    };
    core.reader.submit_many(FIRST_TAG, &many).map_err(|error| match error {
        ReadError::Request(why) => Failure::invalid(why),
        error => Failure::of_chain(&error),
    })
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
        // SAFETY: what C promises.
        unsafe { submit(reader, &mut core, &common, theirs) }?;
        let (mut left, mut good, mut others) = (count, 0, VecDeque::new());
        while left > 0 {
            core.wait(WAIT, &mut |tag, end| {
                let index = (tag as u64).checked_sub(FIRST_TAG).map(|index| index as usize);
                let Some(entry) = index.and_then(|index| theirs.get_mut(index)) else {
                    // SAFETY: other tags are addresses of chains that must be there until they end.
                    unsafe { finish(tag, &end) };
                    return others.push_back(tag);
                };
                if let Ok((answer, _)) = &end {
                    // SAFETY: what C promises of each entry's scratch.
                    unsafe { give(answer, entry.scratch, scratch_len) };
                }
                entry.outcome = MaybeUninit::new(outcome_of(&end));
                left -= 1;
                good += isize::from(end.is_ok());
            });
        }
        core.ended.append(&mut others);
        Ok(good)
    })
}
