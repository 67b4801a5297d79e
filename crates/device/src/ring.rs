//! io_uring, and the buffers of its operations.
//!
//! Every buffer that the kernel may touch belongs to the ring from submission to completion, so that it cannot be freed
//! or reused in between. The exceptions are [`Ring::read_into`] and [`Ring::read_registered`], for memory that belongs
//! to the caller. Dropping a ring cancels the operations in flight and waits for them.
#![allow(unsafe_code)]

use crate::buffer::IoBuffer;
use crate::gather_buffer::Outgoing;
use crate::volume::Part;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// Why a ring cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel refuses io_uring.
    #[error(
        "io_uring is not available ({0}); check kernel.io_uring_disabled, container seccomp \
         rules and the memlock limit"
    )]
    Unavailable(io::Error),
    /// The kernel is too old.
    #[error("this kernel's io_uring lacks {0}; Linux 6.1 or later is needed")]
    Lacks(&'static str),
}

/// Memory that is returned with a completion.
#[derive(Debug)]
pub enum Buffer {
    /// The buffer of a receive.
    Bytes(Vec<u8>),
    /// The buffer of a file operation.
    Aligned(IoBuffer),
    /// The data of a send.
    Outgoing(Box<Outgoing>),
}

/// A completed operation.
#[derive(Debug)]
pub struct Completion {
    /// The token that the operation was submitted with.
    pub token: u64,
    /// The system call's result: a count, a descriptor, or a negative errno.
    pub result: i32,
    /// The operation's buffer, if the ring owned one.
    pub buffer: Option<Buffer>,
}

/// A file that an operation of a ring works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingFile {
    /// An open descriptor.
    Descriptor(RawFd),
    /// A slot of the ring's file table, filled by [`Ring::set_file`]. The kernel need not look up the descriptor for
    /// each operation.
    Registered(u32),
}

struct InFlight {
    token: u64,
    buffer: Option<Buffer>,
    /// Index in `groups`, if this is a part of an operation in parts.
    group: Option<u32>,
}

/// The memory that an operation in parts reads from or writes to.
pub(crate) enum Memory {
    None,
    Owned(IoBuffer),
    /// Memory of the caller of an unsafe method, who keeps it alive.
    Lent(*mut u8),
}

/// Combines the results of two successful parts.
type Join = fn(i32, i32) -> i32;

/// An operation in parts, which completes when all of them have.
struct Group {
    token: u64,
    /// The memory that its parts work on, if the ring owns it.
    buffer: Option<Buffer>,
    parts_left: u32,
    /// The combined result of the parts completed so far, or the first error.
    result: i32,
    join: Join,
}

/// One thread's io_uring. By default its entries are the small ones of sockets and files; NVMe commands need larger
/// ones ([`NvmeRing`](crate::NvmeRing)).
// More than 25 methods: one or two for each kernel operation in use.
pub struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    uring: IoUring<S, C>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    groups: Vec<Option<Group>>,
    free_groups: Vec<u32>,
    /// Entries that did not fit the submission queue.
    backlog: std::collections::VecDeque<S>,
    /// Whether any operation has read into memory of its caller.
    pub(crate) borrows: bool,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> std::fmt::Debug for Ring<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight())
    }
}

/// Threads of the kernel for operations that it cannot begin without waiting.
const WORKERS_MAX: u32 = 1024;

/// User data of the cancel operation's own completion.
const CANCEL: u64 = u64::MAX;

impl Ring {
    /// A ring for `entries` submissions at a time, to be used by the calling thread only.
    pub fn new(entries: u32) -> Result<Ring, RingError> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(4))
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .map_err(RingError::Unavailable)?;
        Ring::probed(uring)
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// A ring that may move from one thread to another, also with operations in flight.
    pub fn movable(entries: u32) -> Result<Self, RingError> {
        let uring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(4))
            .build(entries)
            .or_else(|_| IoUring::builder().build(entries))
            .map_err(RingError::Unavailable)?;
        Ring::probed(uring)
    }

    fn probed(uring: IoUring<S, C>) -> Result<Self, RingError> {
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(RingError::Unavailable)?;
        for (code, name) in [
            (opcode::Recv::CODE, "recv"),
            (opcode::Send::CODE, "send"),
            (opcode::SendMsg::CODE, "sendmsg"),
            (opcode::Read::CODE, "read"),
            (opcode::ReadFixed::CODE, "read into registered buffers"),
            (opcode::Write::CODE, "write"),
            (opcode::Fsync::CODE, "fsync"),
            (opcode::Fallocate::CODE, "fallocate"),
            (opcode::AsyncCancel::CODE, "cancel"),
        ] {
            if !probe.is_supported(code) {
                return Err(RingError::Lacks(name));
            }
        }
        // Threads of the kernel, which are made when they are needed. The default is four for each processor: few disks
        // that do not answer would take all of them from the others. Before Linux 5.15 that cannot be changed.
        let _ = uring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]);
        Ok(Ring {
            uring,
            in_flight: Vec::new(),
            free: Vec::new(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            backlog: Default::default(),
            borrows: false,
        })
    }

    /// Operations submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    pub(crate) fn push<E: Into<S>>(
        &mut self,
        token: u64,
        buffer: Option<Buffer>,
        entry: impl FnOnce(Option<&mut Buffer>) -> E,
    ) {
        self.enqueue(InFlight { token, buffer, group: None }, entry);
    }

    fn enqueue<E: Into<S>>(
        &mut self,
        in_flight: InFlight,
        entry: impl FnOnce(Option<&mut Buffer>) -> E,
    ) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() as u32 - 1
        });
        let slot = self.in_flight[index as usize].insert(in_flight);
        let mut entry: S = entry(slot.buffer.as_mut()).into();
        entry.set_user_data(u64::from(index));
        if self.backlog.is_empty() {
            // SAFETY: the entry's memory is owned by its in-flight slot or its group, or kept alive by the caller of
            // `read_into`, `read_registered` or `read_parts_into`, until the completion is taken.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    fn push_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Starts an operation in parts. `entry` makes the entry of each part from the address of its bytes in memory. The
    /// result is the sum of the parts' results, or the first error.
    fn push_parts<E: Into<S>>(
        &mut self,
        token: u64,
        memory: Memory,
        parts: &[Part],
        entry: impl Fn(&Part, *mut u8) -> E,
    ) {
        self.push_joined(token, memory, (parts, |one, other| one + other), entry);
    }

    /// The same with another function to combine two successful results; the first call gets 0 and a part's result.
    pub(crate) fn push_joined<E: Into<S>>(
        &mut self,
        token: u64,
        memory: Memory,
        (parts, join): (&[Part], Join),
        entry: impl Fn(&Part, *mut u8) -> E,
    ) {
        let (base, buffer) = match memory {
            Memory::None => (std::ptr::null_mut(), None),
            Memory::Lent(base) => {
                self.borrows = true;
                (base, None)
            }
            Memory::Owned(mut buffer) => {
                let bytes: u64 = parts.iter().map(|part| part.length).sum();
                assert_eq!(bytes, buffer.len() as u64, "the parts are those of the buffer");
                (buffer.as_mut_ptr(), Some(Buffer::Aligned(buffer)))
            }
        };
        let parts_left = parts.len() as u32;
        let group = Some(Group { token, buffer, parts_left, result: 0, join });
        let index = match self.free_groups.pop() {
            Some(index) => {
                self.groups[index as usize] = group;
                index
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        };
        let mut at = 0;
        for part in parts {
            let in_flight = InFlight { token, buffer: None, group: Some(index) };
            let place = base.wrapping_add(at);
            self.enqueue(in_flight, |_| entry(part, place));
            at += part.length as usize;
        }
    }

    /// Makes each completion increment an event counter, so that another ring can wait for this one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn signal(&self, event: impl AsFd) -> io::Result<()> {
        self.uring.submitter().register_eventfd(event.as_fd().as_raw_fd())
    }

    /// Receives from a socket into `buffer[filled..]`.
    pub fn recv(&mut self, fd: RawFd, buffer: Vec<u8>, filled: usize, token: u64) {
        self.push(token, Some(Buffer::Bytes(buffer)), |buffer| {
            let Some(Buffer::Bytes(bytes)) = buffer else { unreachable!("given above") };
            let free = &mut bytes[filled..];
            opcode::Recv::new(types::Fd(fd), free.as_mut_ptr(), free.len() as u32).build()
        });
    }

    /// Sends on a socket. If `outgoing` [is all own](Outgoing::is_own) bytes, sends all of them, so that the result is
    /// short only on an error. Otherwise sends as much as the socket takes at once, so that lent memory is read during
    /// the submission or not at all; -EAGAIN means that the socket takes nothing. With `in_parts` the result may be
    /// short for own bytes, too: kernel TLS sockets reject waiting for all.
    pub fn send(&mut self, fd: RawFd, outgoing: Box<Outgoing>, in_parts: bool, token: u64) {
        self.push(token, Some(Buffer::Outgoing(outgoing)), |buffer| {
            let Some(Buffer::Outgoing(outgoing)) = buffer else { unreachable!("given above") };
            let fd = types::Fd(fd);
            if outgoing.is_own() {
                let own = outgoing.own();
                let wait = if in_parts { 0 } else { libc::MSG_WAITALL };
                return opcode::Send::new(fd, own.as_ptr(), own.len() as u32)
                    .flags(wait | libc::MSG_NOSIGNAL)
                    .build();
            }
            opcode::SendMsg::new(fd, outgoing.header())
                .flags((libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32)
                .build()
        });
    }

    /// Waits for an event counter to be written, from any thread.
    pub fn read_event(&mut self, event: impl AsFd, token: u64) {
        let fd = event.as_fd().as_raw_fd();
        self.push(token, Some(Buffer::Bytes(vec![0; 8])), |buffer| {
            let Some(Buffer::Bytes(bytes)) = buffer else { unreachable!("given above") };
            opcode::Read::new(types::Fd(fd), bytes.as_mut_ptr(), 8).build()
        });
    }

    /// Waits for a descriptor to be readable.
    pub fn readable(&mut self, fd: RawFd, token: u64) {
        let events = libc::POLLIN as u32;
        self.push(token, None, |_| opcode::PollAdd::new(types::Fd(fd), events).build());
    }

    /// Ends all operations that wait for a descriptor or use it, before it is closed: each of them completes.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn cancel(&mut self, fd: RawFd) -> io::Result<()> {
        self.submit(None)?;
        let of_fd = types::CancelBuilder::fd(types::Fd(fd)).all();
        match self.uring.submitter().register_sync_cancel(None, of_fd) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads `buffer.len()` bytes of a file at `offset`.
    pub fn read(&mut self, fd: RawFd, buffer: IoBuffer, offset: u64, token: u64) {
        self.push(token, Some(Buffer::Aligned(buffer)), |buffer| {
            let Some(Buffer::Aligned(bytes)) = buffer else { unreachable!("given above") };
            opcode::Read::new(types::Fd(fd), bytes.as_mut_ptr(), bytes.len() as u32)
                .offset(offset)
                .build()
        });
    }

    /// Reads `length` bytes of a file at `offset` into memory that the caller owns.
    ///
    /// # Safety
    /// `to` must stay valid for writes of `length` bytes, and nothing else may access them, until the completion has
    /// been taken or the ring has been dropped.
    pub unsafe fn read_into(
        &mut self,
        fd: RawFd,
        to: *mut u8,
        length: u32,
        offset: u64,
        token: u64,
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.read_registered(RingFile::Descriptor(fd), None, (to, length), offset, token) }
    }

    /// Makes empty tables for `files` registered files and `buffers` registered buffers.
    ///
    /// # Errors
    /// The kernel's error: there are tables already, or too many entries.
    pub fn make_tables(&mut self, files: u32, buffers: u32) -> io::Result<()> {
        self.uring.submitter().register_files_sparse(files)?;
        self.uring.submitter().register_buffers_sparse(buffers)
    }

    /// Fills a slot of the file table, or empties it. The ring holds the file open until then.
    ///
    /// # Errors
    /// The kernel's error, for example for a slot outside the table.
    pub fn set_file(&mut self, slot: u32, fd: Option<RawFd>) -> io::Result<()> {
        self.uring.submitter().register_files_update(slot, &[fd.unwrap_or(-1)]).map(drop)
    }

    /// Fills a slot of the buffer table: the kernel pins the memory once instead of for each operation.
    ///
    /// # Safety
    /// The memory must stay valid for writes until the ring is dropped.
    ///
    /// # Errors
    /// The kernel's error, for example when the limit of locked memory is reached.
    pub unsafe fn set_buffer(
        &mut self,
        slot: u32,
        memory: *mut u8,
        length: usize,
    ) -> io::Result<()> {
        let memory = libc::iovec { iov_base: memory.cast(), iov_len: length };
        // SAFETY: the caller keeps the memory valid while the table has it.
        unsafe { self.uring.submitter().register_buffers_update(slot, &[memory], None) }
    }

    /// Reads `length` bytes of a file at `offset` into memory that the caller owns; `buffer` is the slot registered for
    /// this memory, if any.
    ///
    /// # Safety
    /// As for [`read_into`](Self::read_into).
    pub unsafe fn read_registered(
        &mut self,
        file: RingFile,
        buffer: Option<u16>,
        (to, length): (*mut u8, u32),
        offset: u64,
        token: u64,
    ) {
        self.borrows = true;
        self.push(token, None, |_| match (file, buffer) {
            (RingFile::Descriptor(fd), None) => {
                opcode::Read::new(types::Fd(fd), to, length).offset(offset).build()
            }
            (RingFile::Registered(slot), None) => {
                opcode::Read::new(types::Fixed(slot), to, length).offset(offset).build()
            }
            (RingFile::Descriptor(fd), Some(buffer)) => {
                opcode::ReadFixed::new(types::Fd(fd), to, length, buffer).offset(offset).build()
            }
            (RingFile::Registered(slot), Some(buffer)) => {
                opcode::ReadFixed::new(types::Fixed(slot), to, length, buffer)
                    .offset(offset)
                    .build()
            }
        });
    }

    /// Writes `buffer` to a file at `offset`; with `fua`, durably.
    pub fn write(&mut self, fd: RawFd, buffer: IoBuffer, offset: u64, fua: bool, token: u64) {
        self.push(token, Some(Buffer::Aligned(buffer)), |buffer| {
            let Some(Buffer::Aligned(bytes)) = buffer else { unreachable!("given above") };
            opcode::Write::new(types::Fd(fd), bytes.as_ptr(), bytes.len() as u32)
                .offset(offset)
                .rw_flags(if fua { libc::RWF_DSYNC } else { 0 })
                .build()
        });
    }

    /// Reads `buffer.len()` bytes from the parts, whose lengths add up to it. The result is the number of bytes read,
    /// or the error of a part.
    ///
    /// # Panics
    /// If the parts' lengths add up to another number, or there are no parts.
    pub fn read_parts(&mut self, parts: &[Part], buffer: IoBuffer, token: u64) {
        match parts {
            [] => panic!("there is something to read"),
            [part] => self.read(part.fd, buffer, part.offset, token),
            parts => self.push_parts(token, Memory::Owned(buffer), parts, read_entry),
        }
    }

    /// Reads from the parts into memory that the caller owns; the result is as for [`read_parts`](Self::read_parts).
    ///
    /// # Safety
    /// As [`read_into`](Self::read_into), for the total length of the parts.
    ///
    /// # Panics
    /// If there are no parts.
    pub unsafe fn read_parts_into(&mut self, parts: &[Part], to: *mut u8, token: u64) {
        assert!(!parts.is_empty(), "there is something to read");
        if let [part] = parts {
            // SAFETY: as the caller promises.
            return unsafe {
                self.read_into(part.fd, to, part.length as u32, part.offset, token);
            };
        }
        self.push_parts(token, Memory::Lent(to), parts, read_entry);
    }

    /// Writes `buffer` to the parts, whose lengths add up to its length; with `fua`, durably. The result is as for
    /// [`read_parts`](Self::read_parts).
    ///
    /// # Panics
    /// If the parts' lengths add up to another number, or there are no parts.
    pub fn write_parts(&mut self, parts: &[Part], buffer: IoBuffer, fua: bool, token: u64) {
        match parts {
            [] => panic!("there is something to write"),
            [part] => self.write(part.fd, buffer, part.offset, fua, token),
            parts => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                self.push_parts(token, Memory::Owned(buffer), parts, |part, from| {
                    opcode::Write::new(types::Fd(part.fd), from, part.length as u32)
                        .offset(part.offset)
                        .rw_flags(flags)
                        .build()
                });
            }
        }
    }

    /// Makes all completed writes of these files durable.
    ///
    /// # Panics
    /// If there are no files.
    pub fn sync_parts(&mut self, files: &[Part], token: u64) {
        let entry = |part: &Part| {
            opcode::Fsync::new(types::Fd(part.fd)).flags(types::FsyncFlags::DATASYNC).build()
        };
        match files {
            [] => panic!("there is something to flush"),
            [file] => self.push(token, None, |_| entry(file)),
            files => self.push_parts(token, Memory::None, files, |file, _| entry(file)),
        }
    }

    /// Makes the parts read as zeroes, and deallocates their blocks or, where the files
    /// [can](crate::FileNamespace::keeps_blocks), keeps them.
    ///
    /// # Panics
    /// If there are no parts.
    pub fn zero_parts(&mut self, parts: &[Part], deallocate: bool, token: u64) {
        let how = if deallocate { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        let entry = |part: &Part| {
            opcode::Fallocate::new(types::Fd(part.fd), part.length)
                .offset(part.offset)
                .mode(how | libc::FALLOC_FL_KEEP_SIZE)
                .build()
        };
        match parts {
            [] => panic!("there is something to zero"),
            [part] => self.push(token, None, |_| entry(part)),
            parts => self.push_parts(token, Memory::None, parts, |part, _| entry(part)),
        }
    }

    /// Submits queued entries. With `wait`, sleeps until there is a completion or the time is up.
    pub fn submit(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.push_backlog();
        let outcome = match wait {
            Some(time) => {
                let time = types::Timespec::new().sec(time.as_secs()).nsec(time.subsec_nanos());
                let arguments = types::SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(1, &arguments)
            }
            None => {
                let queue = self.uring.submission();
                let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
                drop(queue);
                let mut submitted = if idle { Ok(0) } else { self.uring.submit() };
                // More entries than the queue holds.
                while matches!(submitted, Ok(count) if count > 0) && !self.backlog.is_empty() {
                    self.push_backlog();
                    submitted = self.uring.submit();
                }
                submitted
            }
        };
        match outcome.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {
                Ok(())
            }
            Err((_, error)) => Err(error),
        }
    }

    /// Whether a completion can be taken, now or after the kernel's deferred work has run.
    #[inline]
    pub fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Takes a completed operation.
    #[inline]
    pub fn completion(&mut self) -> Option<Completion> {
        loop {
            let entry: cqueue::Entry = self.uring.completion().next()?.into();
            if entry.user_data() == CANCEL {
                continue;
            }
            let index = entry.user_data() as usize;
            let Some(InFlight { token, buffer, group }) = self.in_flight[index].take() else {
                unreachable!("each submission completes once");
            };
            self.free.push(index as u32);
            let Some(group) = group else {
                return Some(Completion { token, result: entry.result(), buffer });
            };
            if let Some(completion) = self.part_completed(group, entry.result()) {
                return Some(completion);
            }
        }
    }

    /// Accounts for a completed part; returns the group's completion after the last part.
    fn part_completed(&mut self, index: u32, result: i32) -> Option<Completion> {
        let group = self.groups[index as usize].as_mut()?;
        group.parts_left -= 1;
        group.result = match (group.result, result) {
            (error @ ..0, other @ ..0) => {
                if has_no_room(error) {
                    other
                } else {
                    error
                }
            }
            (error @ ..0, _) | (_, error @ ..0) => error,
            (before, result) => (group.join)(before, result),
        };
        if group.parts_left > 0 {
            return None;
        }
        let Group { token, result, buffer, .. } = self.groups[index as usize].take()?;
        self.free_groups.push(index);
        Some(Completion { token, result, buffer })
    }
}

/// Whether an error says that a write has no room. Another error of the same operation says more: a disk may have lost
/// earlier writes.
fn has_no_room(result: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EROFS].contains(&-result)
}

fn read_entry(part: &Part, to: *mut u8) -> squeue::Entry {
    opcode::Read::new(types::Fd(part.fd), to, part.length as u32).offset(part.offset).build()
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Ring<S, C> {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.backlog) {
            // The kernel has never seen this entry.
            self.in_flight[entry.get_user_data() as usize] = None;
            self.free.push(entry.get_user_data() as u32);
        }
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        let cancel: S = cancel.user_data(CANCEL).into();
        let (mut left, mut is_cancelled) = (self.in_flight(), false);
        while left > 0 {
            // The queue has room for the cancel entry once the queued entries have been submitted.
            // SAFETY: a cancel refers to no memory.
            is_cancelled = is_cancelled || unsafe { self.uring.submission().push(&cancel) }.is_ok();
            if self.submit(Some(Duration::from_millis(100))).is_err() {
                // The kernel delivers no more completions; free no memory that it may still write to.
                if self.borrows {
                    // The callers would free their memory once the ring is gone.
                    let why = "an io_uring is dropped with reads in flight that cannot be \
                               cancelled";
                    let _ = writeln!(io::stderr(), "{why}");
                    std::process::abort();
                }
                std::mem::forget(std::mem::take(&mut self.in_flight));
                std::mem::forget(std::mem::take(&mut self.groups));
                return;
            }
            // Completions of single parts are not returned, so count the operations in flight.
            while self.completion().is_some() {}
            left = self.in_flight();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileNamespace;
    use crate::skip::skip;
    use crate::volume::{Layout, Volume};

    fn complete(ring: &mut Ring, count: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        while completions.len() < count {
            ring.submit(Some(Duration::from_secs(10))).expect("the kernel answers");
            completions.extend(std::iter::from_fn(|| ring.completion()));
        }
        completions
    }

    #[test]
    fn parts_are_one_operation() {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = ["a", "b", "c"].map(|name| directory.path().join(name));
        let layout = Layout::Striped { chunk_bytes: 4096 };
        let volume = Volume::open(&paths, Some(1 << 20), 512, layout).expect("it opens");
        let mut lent = IoBuffer::new(8192);
        // A queue with fewer entries than there are parts.
        let mut ring = Ring::new(4).expect("a ring");
        let pattern: Vec<u8> = (0..100_000u32 / 512 * 512).map(|at| (at / 7) as u8).collect();
        let mut parts = Vec::new();
        let mut buffer = IoBuffer::new(pattern.len());
        buffer.copy_from_slice(&pattern);
        volume.parts(512, pattern.len() as u64, &mut parts);
        assert!(parts.len() > 20);
        ring.write_parts(&parts, buffer, true, 1);
        let [written] = &complete(&mut ring, 1)[..] else { panic!("one completion") };
        assert_eq!((written.token, written.result), (1, pattern.len() as i32));
        // Several operations at once, each completed once: a read of everything, a read of one block, a flush, and
        // holes in an area that is not read.
        ring.read_parts(&parts, IoBuffer::new(pattern.len()), 2);
        volume.parts(1024, 512, &mut parts);
        ring.read_parts(&parts, IoBuffer::new(512), 3);
        volume.whole(&mut parts);
        ring.sync_parts(&parts, 4);
        volume.extents(1 << 20, 1 << 20, &mut parts);
        assert_eq!(parts.len(), 3);
        ring.zero_parts(&parts, true, 5);
        volume.parts(512, 8192, &mut parts);
        // SAFETY: `lent` lives longer than the ring, and is not touched before the completion.
        unsafe { ring.read_parts_into(&parts, lent.as_mut_ptr(), 6) };
        let mut completions = complete(&mut ring, 5);
        completions.sort_by_key(|completion| completion.token);
        let results: Vec<_> = completions.iter().map(|done| (done.token, done.result)).collect();
        assert_eq!(results, [(2, pattern.len() as i32), (3, 512), (4, 0), (5, 0), (6, 8192)]);
        let Some(Buffer::Aligned(all)) = &completions[0].buffer else { panic!("no buffer") };
        assert!(all[..] == pattern && lent[..] == pattern[..8192]);
        let Some(Buffer::Aligned(one)) = &completions[1].buffer else { panic!("no buffer") };
        assert!(one[..] == pattern[512..1024]);

        // One part fails, first or last: the whole operation has its error.
        let good = parts[0];
        for (parts, token) in
            [([good, Part { fd: -1, ..good }], 7), ([Part { fd: -1, ..good }, good], 8)]
        {
            ring.read_parts(&parts, IoBuffer::new(2 * good.length as usize), token);
            let [failed] = &complete(&mut ring, 1)[..] else { panic!("one completion") };
            assert_eq!((failed.token, failed.result), (token, -libc::EBADF));
        }
        // Drop the ring with parts in flight and in the backlog: the kernel keeps access to no memory.
        volume.parts(0, 65536, &mut parts);
        ring.read_parts(&parts, IoBuffer::new(65536), 9);
        assert_eq!(ring.in_flight(), parts.len());
    }

    /// Blocks that are not to be deallocated stay the file's: later writes find room.
    #[test]
    fn zeroes_keep_blocks_or_give_them_back() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let namespace = FileNamespace::open(&path, Some(1 << 20), 512).expect("it opens");
        if !namespace.keeps_blocks() {
            return skip("the file system of temporary files only deallocates");
        }
        std::fs::write(&path, vec![7u8; 1 << 20]).expect("written");
        std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("allocated");
        let mut ring = Ring::new(4).expect("a ring");
        let parts = [Part { fd: namespace.fd(), offset: 0, length: 1 << 20 }];
        let mut found = Vec::new();
        for deallocate in [false, true] {
            ring.zero_parts(&parts, deallocate, 1);
            assert_eq!(complete(&mut ring, 1)[0].result, 0);
            let is_zero = std::fs::read(&path).expect("read").iter().all(|byte| *byte == 0);
            let bytes = 512 * std::fs::metadata(&path).expect("there").blocks();
            found.push((is_zero, bytes >= 1 << 20));
        }
        assert_eq!(found, [(true, true), (true, false)]);
    }

    /// Runs in a child process, because the process must abort.
    #[test]
    fn a_ring_with_reads_that_cannot_be_cancelled_aborts() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};

        const CHILD: &str = "BPFOF_RING_CHILD";
        if std::env::var_os(CHILD).is_none() {
            let name = "ring::tests::a_ring_with_reads_that_cannot_be_cancelled_aborts";
            let mut child = Command::new(std::env::current_exe().expect("this program"));
            let child = child.args([name, "--exact"]).env(CHILD, "1");
            let child = child.stdout(Stdio::null()).stderr(Stdio::null());
            let status = child.status().expect("it runs");
            assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
            return;
        }
        let (silent, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut memory = [0; 8];
        let mut ring = Ring::new(4).expect("a ring");
        // SAFETY: `memory` lives longer than the ring, and is not touched.
        unsafe { ring.read_into(silent.as_raw_fd(), memory.as_mut_ptr(), 8, 0, 1) };
        ring.submit(None).expect("submitted");
        // Replaces the ring's descriptor by a file that takes no operations.
        let null = std::fs::File::open("/dev/null").expect("there is one");
        // SAFETY: touches no memory of ours.
        unsafe { libc::dup2(null.as_raw_fd(), ring.uring.as_raw_fd()) };
        drop(ring);
    }
}
