//! io_uring, with the buffers it works on.
//!
//! Every buffer that the kernel may touch belongs to the ring from submission to completion, so
//! that nothing can free or reuse it meanwhile. The exceptions are [`Ring::read_into`] and
//! [`Ring::read_registered`], for memory with an owner of its own. Dropping a ring cancels what is in
//! flight and waits for it.
#![allow(unsafe_code)]

use crate::buffer::IoBuffer;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Why a ring cannot be had.
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

/// Memory that comes back with a completion.
#[derive(Debug)]
pub enum Buffer {
    /// Of a socket operation.
    Bytes(Vec<u8>),
    /// Of a file operation.
    Aligned(IoBuffer),
}

/// A completed operation.
#[derive(Debug)]
pub struct Completion {
    /// What the operation was submitted with.
    pub token: u64,
    /// The system call's result: a count, a descriptor, or a negative errno.
    pub result: i32,
    /// The buffer it worked on, if it owned one.
    pub buffer: Option<Buffer>,
}

/// A file, as an operation of a ring names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingFile {
    /// An open descriptor.
    Descriptor(RawFd),
    /// A slot of the ring's table, which [`Ring::set_file`] filled. The kernel need not look the
    /// descriptor up for each operation.
    Registered(u32),
}

struct InFlight {
    token: u64,
    buffer: Option<Buffer>,
}

/// One thread's io_uring. The kinds of its entries are those of sockets and files; commands of NVMe
/// take larger ones ([`NvmeRing`](crate::NvmeRing)).
pub struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    uring: IoUring<S, C>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// Entries that did not fit the submission queue.
    backlog: std::collections::VecDeque<S>,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> std::fmt::Debug for Ring<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight())
    }
}

/// The cancel operation's own completion.
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
    /// A ring that one thread after the other may use, also with operations in flight.
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
            (opcode::Accept::CODE, "accept"),
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
        Ok(Ring { uring, in_flight: Vec::new(), free: Vec::new(), backlog: Default::default() })
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
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() as u32 - 1
        });
        let slot = self.in_flight[index as usize].insert(InFlight { token, buffer });
        let mut entry: S = entry(slot.buffer.as_mut()).into();
        entry.set_user_data(u64::from(index));
        if self.backlog.is_empty() {
            // SAFETY: the entry's memory is owned by its in-flight slot, or kept alive by the
            // caller of `read_into` or `read_registered`, until the completion is taken.
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

    /// Receives from a socket into `buffer[filled..]`.
    pub fn recv(&mut self, fd: RawFd, buffer: Vec<u8>, filled: usize, token: u64) {
        self.push(token, Some(Buffer::Bytes(buffer)), |buffer| {
            let Some(Buffer::Bytes(bytes)) = buffer else { unreachable!("given above") };
            let free = &mut bytes[filled..];
            opcode::Recv::new(types::Fd(fd), free.as_mut_ptr(), free.len() as u32).build()
        });
    }

    /// Sends all of `buffer[from..]` on a socket; the result is short only on an error.
    pub fn send(&mut self, fd: RawFd, buffer: Vec<u8>, from: usize, token: u64) {
        self.push(token, Some(Buffer::Bytes(buffer)), |buffer| {
            let Some(Buffer::Bytes(bytes)) = buffer else { unreachable!("given above") };
            let rest = &bytes[from..];
            opcode::Send::new(types::Fd(fd), rest.as_ptr(), rest.len() as u32)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
                .build()
        });
    }

    /// Accepts one connection; the result is its descriptor (see [`Ring::adopt`]).
    pub fn accept(&mut self, listener: RawFd, token: u64) {
        self.push(token, None, |_| {
            let null = std::ptr::null_mut();
            opcode::Accept::new(types::Fd(listener), null, null.cast())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        });
    }

    /// Takes ownership of the descriptor that an accept returned. None for an error.
    pub fn adopt(completion: &Completion) -> Option<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: a non-negative result of an accept is a new descriptor that nobody owns yet.
        (completion.result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(completion.result) })
    }

    /// Waits for an event counter to be written, from any thread.
    pub fn read_event(&mut self, event: &OwnedFd, token: u64) {
        let fd = event.as_raw_fd();
        self.push(token, Some(Buffer::Bytes(vec![0; 8])), |buffer| {
            let Some(Buffer::Bytes(bytes)) = buffer else { unreachable!("given above") };
            opcode::Read::new(types::Fd(fd), bytes.as_mut_ptr(), 8).build()
        });
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

    /// Reads `length` bytes of a file at `offset` into memory with an owner of its own.
    ///
    /// # Safety
    /// `to` must stay valid for writes of `length` bytes, and nobody else may touch them, until
    /// the completion has been taken or the ring has been dropped.
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
    /// The kernel's answer: there are tables already, or too many entries.
    pub fn make_tables(&mut self, files: u32, buffers: u32) -> io::Result<()> {
        self.uring.submitter().register_files_sparse(files)?;
        self.uring.submitter().register_buffers_sparse(buffers)
    }

    /// Fills a slot of the file table, or empties it. The ring holds the file open until then.
    ///
    /// # Errors
    /// The kernel's answer, among others for a slot outside the table.
    pub fn set_file(&mut self, slot: u32, fd: Option<RawFd>) -> io::Result<()> {
        self.uring.submitter().register_files_update(slot, &[fd.unwrap_or(-1)]).map(drop)
    }

    /// Fills a slot of the buffer table: the kernel pins the memory once instead of for each
    /// operation.
    ///
    /// # Safety
    /// The memory must stay valid for writes until the ring is dropped.
    ///
    /// # Errors
    /// The kernel's answer, among others when the limit of locked memory is reached.
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

    /// Reads `length` bytes of a file at `offset` into memory with an owner of its own; `buffer` is
    /// the slot that has this memory, if one has.
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

    /// Makes all completed writes of a file durable.
    pub fn sync(&mut self, fd: RawFd, token: u64) {
        self.push(token, None, |_| {
            opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build()
        });
    }

    /// Makes a range of a file read as zeroes, giving its blocks back.
    pub fn zero(&mut self, fd: RawFd, offset: u64, length: u64, token: u64) {
        self.push(token, None, |_| {
            opcode::Fallocate::new(types::Fd(fd), length)
                .offset(offset)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build()
        });
    }

    /// Submits what is queued. With `wait`, sleeps until a completion is there or the time is up.
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
                if idle { Ok(0) } else { self.uring.submit() }
            }
        };
        match outcome.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {
                Ok(())
            }
            Err((_, error)) => Err(error),
        }
    }

    /// Whether a completion can be taken without asking the kernel, or the kernel has one to give.
    #[inline]
    pub fn has_news(&mut self) -> bool {
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
            let Some(InFlight { token, buffer }) = self.in_flight[index].take() else {
                unreachable!("each submission completes once");
            };
            self.free.push(index as u32);
            return Some(Completion { token, result: entry.result(), buffer });
        }
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Ring<S, C> {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.backlog) {
            // The kernel has never seen it.
            self.in_flight[entry.get_user_data() as usize] = None;
            self.free.push(entry.get_user_data() as u32);
        }
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        // SAFETY: a cancel refers to no memory.
        let _ = unsafe { self.uring.submission().push(&cancel.user_data(CANCEL).into()) };
        let mut left = self.in_flight();
        while left > 0 {
            if self.submit(Some(Duration::from_millis(100))).is_err() {
                // The kernel gives no completions any more; free nothing it may still write to.
                std::mem::forget(std::mem::take(&mut self.in_flight));
                return;
            }
            while self.completion().is_some() {
                left = self.in_flight();
            }
        }
    }
}
