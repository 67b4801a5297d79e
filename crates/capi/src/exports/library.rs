//! Opening, files, functions, errors, versions.

use super::{call, close, elements, given, null, text, utf8};
use crate::failure::{Failure, last_message};
use crate::function::Function;
use crate::options::Options;
use crate::session::{Session, timeout_of_ms};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// A `struct bpfof`.
#[derive(Debug)]
pub(crate) struct Handle(pub(super) Arc<Session>);

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Parses one part of the version number.
const fn part(text: &str) -> u32 {
    let (bytes, mut index, mut number) = (text.as_bytes(), 0, 0);
    while index < bytes.len() {
        number = number * 10 + (bytes[index] - b'0') as u32;
        index += 1;
    }
    number
}

#[unsafe(no_mangle)]
extern "C" fn bpfof_version() -> u32 {
    const NUMBER: u32 = part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + part(env!("CARGO_PKG_VERSION_PATCH"));
    NUMBER
}

#[unsafe(no_mangle)]
extern "C" fn bpfof_version_string() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn bpfof_error() -> *const c_char {
    last_message()
}

/// Copies the options of a program, which may be compiled with another version of the header.
///
/// # Safety
/// `options` is NULL or valid for as many bytes as its first field says.
unsafe fn options_of(options: *const Options) -> Result<Options, Failure> {
    let mut ours = Options::default();
    if options.is_null() {
        return Ok(ours);
    }
    // SAFETY: the structure begins with its size, in every version.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=4096).contains(&size) {
        let why = "options.size is not set; initialize options with BPFOF_OPTIONS_INIT";
        return Err(Failure::invalid(why));
    }
    // SAFETY: the structure is as long as it says.
    let theirs = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    let known = size.min(size_of::<Options>());
    if theirs[known..].iter().any(|byte| *byte != 0) {
        let why = "options has settings that this version of the library does not know";
        return Err(Failure::new(libc::E2BIG, why));
    }
    // SAFETY: both are valid for `known` bytes, and any bytes are numbers.
    unsafe { ptr::copy_nonoverlapping(theirs.as_ptr(), (&raw mut ours).cast::<u8>(), known) };
    Ok(ours)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_open(
    url: *const c_char,
    device: *const c_char,
    options: *const Options,
) -> *mut Handle {
    call(ptr::null_mut(), || {
        // SAFETY: what C promises.
        let options = unsafe { options_of(options) }?;
        let target = match url.is_null() {
            true => None,
            false => {
                // SAFETY: what C promises.
                let url = unsafe { utf8(url, "url") }?;
                // A grant daemon may know the namespace itself.
                let device = match device.is_null() && url.starts_with("grantd:") {
                    true => &b""[..],
                    // SAFETY: what C promises.
                    false => unsafe { text(device, "device") }?.to_bytes(),
                };
                Some((url, Path::new(OsStr::from_bytes(device))))
            }
        };
        let (session, why) = Session::open(target, &options)?;
        if let Some(why) = why {
            why.keep();
        }
        Ok(Box::into_raw(Box::new(Handle(Arc::new(session)))))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_close(handle: *mut Handle) {
    // SAFETY: what C promises.
    unsafe { close(handle) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_has_target(handle: *const Handle) -> c_int {
    // SAFETY: what C promises.
    call(0, || Ok(unsafe { given(handle, "bpfof") }?.0.maps().has_target().into()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_add(handle: *mut Handle, fd: c_int) -> c_int {
    // SAFETY: what C promises.
    call(-1, || unsafe { given(handle, "bpfof") }?.0.file(fd).map(|_| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_add_path(
    handle: *mut Handle,
    path: *const c_char,
    number: c_int,
) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let (session, path) = unsafe { (&given(handle, "bpfof")?.0, text(path, "path")?) };
        session.add_path(number, OsStr::from_bytes(path.to_bytes()).into()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_add_own(handle: *mut Handle, fd: c_int) -> c_int {
    // SAFETY: what C promises.
    call(-1, || unsafe { given(handle, "bpfof") }?.0.add_own(fd).map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_refresh(handle: *mut Handle, fd: c_int) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        unsafe { given(handle, "bpfof") }?.0.file(fd)?.refresh();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_wait_mapped(handle: *mut Handle, fd: c_int, timeout_ms: c_int) -> c_int {
    call(-1, || {
        // SAFETY: what C promises.
        let session = &unsafe { given(handle, "bpfof") }?.0;
        session.wait_mapped(fd, timeout_of_ms(timeout_ms)).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_forget(handle: *mut Handle, fd: c_int) -> c_int {
    // SAFETY: what C promises.
    call(-1, || unsafe { given(handle, "bpfof") }?.0.forget(fd).map(|()| 0))
}

/// Loads `object`; `entry` may be NULL.
///
/// # Safety
/// What C promises.
unsafe fn load(
    handle: *mut Handle,
    object: &[u8],
    entry: *const c_char,
) -> Result<*mut Function, Failure> {
    // SAFETY: the caller's promise.
    let session = &unsafe { given(handle, "bpfof") }?.0;
    // SAFETY: the caller's promise.
    let entry = if entry.is_null() { None } else { Some(unsafe { utf8(entry, "entry") }?) };
    Ok(Box::into_raw(Box::new(Function::load(session, object, entry)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_function_load(
    handle: *mut Handle,
    object: *const c_void,
    length: usize,
    entry: *const c_char,
) -> *mut Function {
    call(ptr::null_mut(), || {
        // SAFETY: what C promises.
        let object = unsafe { elements(object.cast::<u8>(), length, "object") }?;
        // SAFETY: what C promises.
        unsafe { load(handle, object, entry) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_function_load_file(
    handle: *mut Handle,
    path: *const c_char,
    entry: *const c_char,
) -> *mut Function {
    call(ptr::null_mut(), || {
        if handle.is_null() {
            return Err(null("bpfof"));
        }
        // SAFETY: what C promises.
        let path = unsafe { text(path, "path") }?;
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let object = std::fs::read(path)
            .map_err(|error| Failure::io(&format!("cannot read {}", path.display()), &error))?;
        // SAFETY: what C promises.
        unsafe { load(handle, &object, entry) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_function_unload(function: *mut Function) {
    // SAFETY: what C promises.
    unsafe { close(function) }
}
