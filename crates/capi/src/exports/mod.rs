//! The functions of `bpfof.h`. What a caller must see to stands there.
//!
//! # Safety
//! All of them rely on what C promises by calling: pointers are NULL or valid for what the header
//! says of them, handles are those that this library gave out and has not taken back, and strings
//! end in a zero. Whatever else a caller may get wrong is checked.
#![allow(unsafe_code)]

mod library;
mod log;
mod many;
mod plain;
mod reader;

use crate::failure::Failure;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does what a function of the header does. An error leaves its message and errno, and `failed` is
/// returned; a panic is an error.
fn call<T>(failed: T, attempt: impl FnOnce() -> Result<T, Failure>) -> T {
    // What a panic leaves half done is behind a lock that it poisons.
    let outcome = catch_unwind(AssertUnwindSafe(attempt));
    match outcome.unwrap_or_else(|_| Err(Failure::internal())) {
        Ok(value) => value,
        Err(failure) => {
            failure.keep();
            // SAFETY: errno is this thread's, and there as long as the thread is.
            unsafe { *libc::__errno_location() = failure.errno };
            failed
        }
    }
}

fn null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is NULL"))
}

/// What a pointer of the caller's points to, which is called `what`.
///
/// # Safety
/// It is NULL or valid while the call lasts.
unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// `length` elements of the caller's; NULL is allowed for none.
///
/// # Safety
/// It is NULL or valid for as many while the call lasts.
unsafe fn elements<'a, T>(
    pointer: *const T,
    length: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check_elements(pointer, length, what)?;
    // SAFETY: not NULL, so it is valid for as many, and they are no more than memory can have.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The same, to be changed.
///
/// # Safety
/// That of [`elements`]; and nobody else uses them while the call lasts.
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
        return Err(Failure::invalid(format!("{what}: {length} elements fit no memory")));
    }
    Ok(())
}

/// A string of the caller's.
///
/// # Safety
/// It is NULL or ends in a zero, and is valid while the call lasts.
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

/// Ends what [`Box::into_raw`] has made a handle of.
///
/// # Safety
/// It is NULL or such a handle, which nobody uses any more.
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
    fn pointers_are_looked_at_before_they_are_used() {
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
