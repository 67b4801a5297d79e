//! The crate `rocksdb` with point reads at the storage target: one line of a program changes.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let options = rocksdb::Options::default();
//! // let db = rocksdb::DB::open(&options, "/mnt/db")?;
//! let db = bpfof_rocksdb::open(
//!     &options,
//!     "/mnt/db",
//!     "url=nvme-tcp://10.0.0.2:4420/nqn.2026-01.io.example:db;device=/dev/nvme1n1",
//! )?;
//! # Ok(())
//! # }
//! ```
//!
//! The result is a [`rocksdb::DB`]: `get`, `multi_get` and iterators are pushed down, and everything else is as always.
//! `db.property_int_value("bpfof.gets.target")` and the other properties listed in `bpfof/rocksdb.h` show how reads
//! were served; docs/rocksdb.md explains them.
//!
//! Column families that the program creates are pushed down like the default one. But RocksDB opens a database for
//! writing only if all of its families are named, and these functions name the default one: a database that keeps
//! families of its own can be opened for reading only. `TransactionDB` and `OptimisticTransactionDB` are opened without
//! this crate, and read by RocksDB.

use rocksdb::{AsRawPtr, DB, Options};
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::fmt;
use std::path::Path;

// Linked for the integration's C++ code, which calls it; no Rust code here does.
use bpfof as _;

unsafe extern "C" {
    fn bpfof_rocksdb_begin(
        options: *mut librocksdb_sys::rocksdb_options_t,
        pushdown: *const c_char,
        path: *const c_char,
        access: c_uint,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn bpfof_rocksdb_end(opening: *mut c_void, db: *mut librocksdb_sys::rocksdb_t);
}

/// `enum bpfof_rocksdb_access` of `bpfof/rocksdb_c.h`.
#[derive(Clone, Copy)]
enum Access {
    Primary = 0,
    ReadOnly = 1,
    Secondary = 2,
}

/// Why a database was not opened.
#[derive(Debug)]
pub enum Error {
    /// Pushdown is not possible: settings or options rule it out, or the target cannot be reached.
    Pushdown(String),
    /// RocksDB cannot open the database.
    RocksDb(rocksdb::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pushdown(why) => f.write_str(why),
            Self::RocksDb(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pushdown(_) => None,
            Self::RocksDb(error) => Some(error),
        }
    }
}

/// As [`DB::open_for_read_only`], with the target that `pushdown` names as for [`open`]. No process may write to
/// the database meanwhile.
///
/// # Errors
/// As [`open`].
pub fn open_for_read_only(
    options: &Options,
    path: impl AsRef<Path>,
    error_if_log_file_exist: bool,
    pushdown: &str,
) -> Result<DB, Error> {
    open_by(options, path.as_ref(), pushdown, Access::ReadOnly, |options, path| {
        DB::open_for_read_only(options, path, error_if_log_file_exist)
    })
}

/// As [`DB::open_as_secondary`], with the target that `pushdown` names as for [`open`]. The instance follows the
/// primary, a process on this machine that has the database at `path` open, whenever [`DB::try_catch_up_with_primary`]
/// is called.
///
/// # Errors
/// As [`open`].
pub fn open_as_secondary(
    options: &Options,
    path: impl AsRef<Path>,
    secondary_path: impl AsRef<Path>,
    pushdown: &str,
) -> Result<DB, Error> {
    open_by(options, path.as_ref(), pushdown, Access::Secondary, |options, path| {
        DB::open_as_secondary(options, path, secondary_path.as_ref())
    })
}

/// As [`DB::open`], with the target that `pushdown` names: `NAME=VALUE`, separated by `;`, with the names of
/// `PushdownOptions` in `bpfof/rocksdb.h`.
///
/// # Errors
/// [`Error::Pushdown`], before the database is touched, or the error of [`DB::open`].
pub fn open(options: &Options, path: impl AsRef<Path>, pushdown: &str) -> Result<DB, Error> {
    open_by(options, path.as_ref(), pushdown, Access::Primary, |options, path| {
        DB::open(options, path)
    })
}

fn open_by(
    options: &Options,
    path: &Path,
    pushdown: &str,
    access: Access,
    open: impl FnOnce(&Options, &Path) -> Result<DB, rocksdb::Error>,
) -> Result<DB, Error> {
    let no_nul = |_| Error::Pushdown("pushdown settings and paths have no zero bytes".to_owned());
    let settings = CString::new(pushdown).map_err(no_nul)?;
    let shown = CString::new(path.to_string_lossy().into_owned()).map_err(no_nul)?;
    // Cloned, because the caller may use its options for other databases, too.
    let ours = options.clone();
    let mut error = std::ptr::null_mut();
    // SAFETY: `ours` lives longer than the call; the strings end with zero; `error` is null.
    let opening = unsafe {
        bpfof_rocksdb_begin(
            ours.as_raw_ptr(),
            settings.as_ptr(),
            shown.as_ptr(),
            access as c_uint,
            &raw mut error,
        )
    };
    if opening.is_null() {
        // SAFETY: a failed call leaves a string that this function owns.
        let why = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
        // SAFETY: it was allocated as RocksDB's errors are, and is not used any more.
        unsafe { librocksdb_sys::rocksdb_free(error.cast()) };
        return Err(Error::Pushdown(why));
    }
    let opened = open(&ours, path);
    let raw = match &opened {
        // SAFETY: no other code has the database yet.
        Ok(db) => unsafe { db.as_raw_ptr() },
        Err(_) => std::ptr::null_mut(),
    };
    // SAFETY: `opening` is used once, and `raw`, unless null, was opened with the options that it has changed.
    unsafe { bpfof_rocksdb_end(opening, raw) };
    opened.map_err(Error::RocksDb)
}
