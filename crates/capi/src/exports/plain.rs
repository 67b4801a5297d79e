//! Reads without a function, and the state of a reader's connection.

use super::reader::Reader;
use super::{call, elements_mut, given, null};
use crate::abi::FileRead as Asked;
use crate::failure::Failure;
use crate::session::timeout_of;
use bpfof_host::files::FileRead;
use std::ffi::c_int;
use std::time::Instant;

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_read_files(
    reader: *mut Reader,
    reads: *mut Asked,
    count: usize,
) -> c_int {
    // SAFETY: what C promises.
    unsafe { bpfof_read_files_within(reader, reads, count, -1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_read_files_within(
    reader: *mut Reader,
    reads: *mut Asked,
    count: usize,
    timeout_us: i64,
) -> c_int {
    call(-1, || {
        let end = timeout_of(timeout_us).map(|timeout| Instant::now() + timeout);
        // SAFETY: what C promises.
        let reader = unsafe { given(reader, "reader") }?;
        let mut core = reader.lock()?;
        if core.reader.in_flight() > 0 {
            let why = "submitted chains have not ended; call bpfof_poll() first";
            return Err(Failure::new(libc::EBUSY, why));
        }
        // SAFETY: what C promises.
        let theirs = unsafe { elements_mut(reads, count, "reads") }?;
        let mut files = Vec::with_capacity(count);
        reader.session.files(theirs.iter().map(|read| read.fd), &mut files)?;
        let mut ours = Vec::with_capacity(count);
        for (read, file) in theirs.iter().zip(&files) {
            // SAFETY: what C promises. The bytes may be uninitialised, which does not matter: they are written before
            // they are read.
            let data = unsafe { elements_mut(read.data.cast::<u8>(), read.size, "data") }?;
            ours.push(FileRead { file, offset_bytes: read.offset, data, read_bytes: 0 });
        }
        let read = core.reader.read_files_until(&mut ours, end);
        read.map_err(|error| Failure::of_chain(&error))?;
        for (theirs, ours) in theirs.iter_mut().zip(&ours) {
            theirs.length = ours.read_bytes;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_reader_is_connected(reader: *const Reader) -> c_int {
    call(0, || {
        // SAFETY: what C promises.
        let core = unsafe { given(reader, "reader") }?.lock()?;
        Ok(core.reader.is_connected().into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_reader_traffic(
    reader: *const Reader,
    sent: *mut u64,
    received: *mut u64,
) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let core = unsafe { given(reader, "reader") }?.lock()?;
        if sent.is_null() || received.is_null() {
            return Err(null("sent or received"));
        }
        let (to, from) = core.reader.traffic();
        // SAFETY: not NULL, so there is room for a number.
        unsafe {
            sent.write(to);
            received.write(from);
        }
        Ok(0)
    })
}
