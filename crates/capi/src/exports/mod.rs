//! The functions of `bpfof.h`, which documents the obligations of callers.
//!
//! # Safety
//! All functions rely on the caller's promises ("what C promises" below): pointers are NULL or
//! valid as the header says, handles were returned by this library and not closed yet, and strings
//! end in a zero. All other mistakes of callers are checked.
#![allow(unsafe_code)]

mod library;
mod log;
mod many;
mod plain;
mod reader;

use crate::failure::Failure;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function. On an error it keeps the message, sets errno and returns
/// `failed`; a panic counts as an error.
fn call<T>(failed: T, attempt: impl FnOnce() -> Result<T, Failure>) -> T {
    // All state that a panic may leave inconsistent is behind a lock, which the panic poisons.
    let outcome = catch_unwind(AssertUnwindSafe(attempt));
    match outcome.unwrap_or_else(|_| Err(Failure::internal())) {
        Ok(value) => value,
        Err(failure) => {
            failure.keep();
            // SAFETY: errno belongs to this thread, and is valid as long as the thread runs.
            unsafe { *libc::__errno_location() = failure.errno };
            failed
        }
    }
}

fn null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is NULL"))
}

/// Dereferences a pointer of the caller's. `what` is its name in messages.
///
/// # Safety
/// The pointer is NULL or valid while the call lasts.
unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A slice of `length` elements of the caller's; NULL is allowed if `length` is 0.
///
/// # Safety
/// The pointer is NULL or valid for `length` elements while the call lasts.
unsafe fn elements<'a, T>(
    pointer: *const T,
    length: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check_elements(pointer, length, what)?;
    // SAFETY: not NULL, so it is valid for `length` elements, which are at most `isize::MAX` bytes.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The same, mutable.
///
/// # Safety
/// That of [`elements`]; and no other code accesses the elements while the call lasts.
unsafe fn elements_mut<'a, T>(
    pointer: *mut T,
    length: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    check_elements(pointer, length, what)?;
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

fn check_elements<T>(pointer: *const T, length: usize, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    if length.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::invalid(format!(
            "{what}: {length} elements exceed the address space"
        )));
    }
    Ok(())
}

/// A string of the caller's.
///
/// # Safety
/// The string is NULL or ends in a zero, and is valid while the call lasts.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// The same, in UTF-8.
///
/// # Safety
/// That of [`text`].
unsafe fn utf8<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { text(pointer, what) }?;
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

/// Drops a handle that [`Box::into_raw`] has made.
///
/// # Safety
/// The pointer is NULL or such a handle, which is not used any more.
unsafe fn close<T>(handle: *mut T) {
    call((), || {
        if !handle.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::last_message;
    use std::io;

    fn errno() -> Option<i32> {
        io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(call(-1, || panic!("as a test")), -1);
        assert_eq!(errno(), Some(libc::ENOTRECOVERABLE));
        // SAFETY: it ends in a zero, and this thread keeps nothing else meanwhile.
        let message = unsafe { CStr::from_ptr(last_message()) };
        assert!(message.to_str().expect("UTF-8").contains("report"), "{message:?}");
    }

    #[test]
    fn null_pointers_are_refused() {
        let (none, seven): (*const u64, u64) = (std::ptr::null(), 7);
        // SAFETY: NULL, and a number that lives longer.
        unsafe {
            assert!(given(none, "it").is_err_and(|failure| failure.message == "it is NULL"));
            assert_eq!(*given(&raw const seven, "it").expect("a number"), 7);
            assert!(elements(none, 1, "it").is_err());
            assert!(elements(none, 0, "it").expect("nothing").is_empty());
            assert!(elements(&raw const seven, usize::MAX / 8, "it").is_err());
            assert!(utf8(c"\xff".as_ptr(), "it").is_err());
        }
    }
}
