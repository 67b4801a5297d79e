//! BPF-KV, the papers' store: lookups by pushdown.

use crate::failure::Failure;
use crate::files::{CHAINS_UNWATCHED, Files};
use crate::session::address;
use crate::watch::{Unlocked, watched};
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ARGUMENT_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfof_host::Options;
use bpfof_host::files::{FirstRead, ReadEntry, StorageFunction};
use bpfof_kv::Session;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// A database on a target's namespace, or in a file.
#[pyclass(frozen, module = "bpfof._bpfof")]
pub(crate) struct KeyValue(Place);

#[expect(clippy::large_enum_variant, reason = "there is one of it, in memory of Python's")]
enum Place {
    Namespace(Unlocked<Mutex<Session>>),
    File(Py<Files>, StorageFunction),
}

type Found = Vec<Option<Vec<u8>>>;

fn found_in_file(
    files: &Files,
    function: &StorageFunction,
    keys: &[u64],
) -> Result<Found, Failure> {
    let mut found = vec![None; keys.len()];
    let wanted = (0..).zip(keys).filter_map(|(at, key)| Some((at, get_argument(*key)?)));
    let (places, arguments): (Vec<usize>, Vec<[u8; GET_ARGUMENT_BYTES]>) = wanted.unzip();
    let first_read = FirstRead { file: 0, offset_bytes: 0, size_bytes: FIRST_READ_BYTES };
    let entry = |argument| ReadEntry { first_read, scratch: argument };
    let entries: Vec<_> = arguments.iter().map(|argument| entry(&argument[..])).collect();
    let ends = files.run(function, &entries, GET_SCRATCH_BYTES)?;
    for (place, end) in places.into_iter().zip(ends) {
        let (answer, ..) = end?;
        let value = get_answer(&answer).map_err(bpfof_kv::SessionError::from)?;
        found[place] = value.map(|value| value.to_vec());
    }
    Ok(found)
}

#[pymethods]
impl KeyValue {
    /// The database on the namespace of a target.
    #[staticmethod]
    fn on_target(py: Python<'_>, url: &str) -> PyResult<Self> {
        let url = address(url).map_err(Failure::question)?;
        let open = move |_: &_| Session::open(&url, Options::default(), 0).map_err(Failure::from);
        let session = watched(py, open)?;
        Ok(Self(Place::Namespace(Unlocked::new(Mutex::new(session)))))
    }

    /// The database in a file that was opened.
    #[staticmethod]
    fn in_file(py: Python<'_>, files: Py<Files>) -> PyResult<Self> {
        let opened = files.get().opened().clone();
        let function = watched(py, move |_| {
            let failed = |error| Failure::file(&error, opened.files[0].path(), &error);
            let file = opened.files[0].file().map_err(failed)?;
            let length = file.metadata().map_err(failed)?.len();
            let read = &mut |offset, data: &mut [u8]| file.read_exact_at(data, offset);
            bpfkv::detect::detect(length, read).map_err(bpfof_kv::SessionError::from)?;
            Ok::<_, Failure>(opened.maps.load_function(bpfkv::GET_OBJECT, 0)?)
        })?;
        Ok(Self(Place::File(files, function)))
    }

    /// The values of keys, in order; None for missing keys.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<u64>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let mut found = Found::with_capacity(keys.len());
        for keys in keys.chunks(CHAINS_UNWATCHED) {
            py.check_signals()?;
            found.extend(match &self.0 {
                Place::Namespace(session) => py.detach(|| {
                    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
                    let values = session.get_many(keys, false)?;
                    let bytes = values.into_iter().map(|value| value.map(|value| value.to_vec()));
                    Ok::<_, Failure>(bytes.collect())
                })?,
                Place::File(files, function) => {
                    let files = files.get();
                    py.detach(|| found_in_file(files, function, keys))?
                }
            });
        }
        Ok(found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }
}
