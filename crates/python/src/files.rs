//! Pushdown reads: chains over files, as libbpfof has them.

use crate::failure::Failure;
use crate::session::reach;
use crate::watch::{Unlocked, watched};
use bpfof_function::Object;
use bpfof_function::abi::{MAX_READS, MAX_SCRATCH_BYTES};
use bpfof_host::files::{
    Executor, FileMaps, FileRead, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadEntry, ReadPushdownMany, StorageFunction,
};
use bpfof_host::{Controller, Error, Options};
use bpfof_query::ask::Where;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum size of what one call of `read` returns, in bytes.
const READ_MAX_BYTES: usize = 1 << 30;
/// Number of chains of one call between two checks for Ctrl-C.
pub(crate) const CHAINS_UNWATCHED: usize = 4096;

/// Files on one namespace, and a connection to its target or none.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Files {
    opened: Unlocked<Opened>,
    reader: Unlocked<Mutex<PushdownReader>>,
    /// Where chains run.
    #[pyo3(get)]
    place: String,
    /// The reason why there is no target, if one was looked for.
    #[pyo3(get)]
    lost: Option<String>,
}

/// The part that loaded functions share.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) maps: Arc<FileMaps>,
    pub(crate) files: Vec<PushdownFile>,
}

/// A storage function, loaded at the target and on this machine.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Function(Unlocked<Loaded>);

#[derive(Debug)]
struct Loaded {
    maps: Arc<FileMaps>,
    function: StorageFunction,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(id) = self.function.id() {
            // A lost target has dropped the function as well.
            self.maps.with_controller(|target| target.unload_function(id));
        }
    }
}

/// A chain: offset and size of the first read in bytes, the argument, the index of the file.
type ChainTuple<'py> = (u64, u32, Bound<'py, PyBytes>, u16);
/// The end of a chain, with memory of its own: see [`EndTuple`].
type End = (Vec<u8>, bool, u32, u32);
/// The end of a chain: answer, whether it ran at the target, hops, how often it was discarded.
type EndTuple<'py> = (Bound<'py, PyBytes>, bool, u32, u32);

impl Files {
    pub(crate) fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Runs chains and waits for them.
    pub(crate) fn run(
        &self,
        function: &StorageFunction,
        entries: &[ReadEntry<'_>],
        scratch_bytes: u32,
    ) -> Result<Vec<Result<End, Failure>>, Failure> {
        let call = ReadPushdownMany {
            files: &self.opened.files,
            function,
            entries,
            scratch_size_bytes: scratch_bytes.max(1),
            answer_max_bytes: scratch_bytes,
        };
        let mut ends: Vec<_> = entries.iter().map(|_| None).collect();
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let has_target = self.opened.maps.has_target();
        let called = reader.read_pushdown_many(&call, &mut |end| {
            let result = end.result.map(|(answer, info)| {
                let is_remote = info.executor == Executor::Target;
                (answer.to_vec(), is_remote, info.hops, info.stale)
            });
            let result = result.map_err(|error| Failure::of_end(&error, has_target));
            if let Some(place) = ends.get_mut(end.tag as usize) {
                *place = Some(result);
            }
        });
        called.map_err(|error| Failure::of_read(&error, &error))?;
        let none = || Err(Failure::question("a chain without an end"));
        Ok(ends.into_iter().map(|end| end.unwrap_or_else(none)).collect())
    }
}

fn connect(place: &Where, falls_back: bool) -> Result<(FileMaps, Option<String>), Failure> {
    let Where::Target { url, device } = place else { return Ok((FileMaps::local(), None)) };
    let device = NamespaceDevice::new(device)?;
    let maps = Controller::connect(url, Options::default())
        .and_then(|controller| FileMaps::new(controller, url.nsid, device));
    match maps {
        Ok(maps) if !maps.has_target() => {
            let why = Error::NotPushdownTarget;
            if falls_back { Ok((maps, Some(why.to_string()))) } else { Err(why.into()) }
        }
        Ok(maps) => Ok((maps, None)),
        Err(error) if falls_back => Ok((FileMaps::local(), Some(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

#[pymethods]
impl Files {
    /// Opens files of one namespace.
    #[new]
    #[pyo3(signature = (paths, target=None, device=None, here=false, fallback=true))]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        target: Option<&str>,
        device: Option<PathBuf>,
        here: bool,
        fallback: bool,
    ) -> PyResult<Self> {
        if paths.is_empty() || paths.len() > MAX_READS {
            let what = format!("chains read 1 to {MAX_READS} files");
            return Err(Failure::question(what).into());
        }
        let reach = reach(target, device, here)?;
        let work = watched(py, move |_| {
            let mut places = Vec::new();
            for path in &paths {
                places.push(reach.place(path)?);
            }
            if places.iter().any(|place| *place != places[0]) {
                return Err(Failure::question("the files must all be on the same namespace"));
            }
            if let (Where::Here(why), false) = (&places[0], fallback || here) {
                return Err(Failure::question(format!("{}: {why}", paths[0].display())));
            }
            let (maps, lost) = connect(&places[0], fallback)?;
            let policy =
                Policy { fall_back: fallback, local: fallback || here, ..Policy::default() };
            let reader = PushdownReader::new(&maps, policy)?;
            let open = |path: &PathBuf| {
                maps.open(path).map_err(|error| {
                    Failure::file(format!("cannot open {}: {error}", path.display()), path, &error)
                })
            };
            let files = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let opened = Opened { maps: Arc::new(maps), files };
            Ok((opened, Mutex::new(reader), places[0].to_string(), lost))
        });
        let (opened, reader, place, lost) = work?;
        Ok(Self { opened: Unlocked::new(opened), reader: Unlocked::new(reader), place, lost })
    }

    /// Whether there is a connection to a target.
    #[getter]
    fn is_connected(&self) -> bool {
        let maps = &self.opened.maps;
        match self.reader.try_lock() {
            Ok(reader) => maps.has_target() && reader.is_connected(),
            // Another thread is using the reader.
            Err(_) => maps.is_connected(),
        }
    }

    /// Waits until the target has the maps of the files; returns whether it does.
    fn wait_mapped(&self, py: Python<'_>, timeout_seconds: f64) -> PyResult<bool> {
        let timeout = match Duration::try_from_secs_f64(timeout_seconds) {
            Ok(timeout) => timeout,
            Err(_) if timeout_seconds > 0.0 => Duration::MAX,
            Err(_) => return Err(Failure::question("timeout must be 0 seconds or more").into()),
        };
        let Opened { maps, files } = self.opened.clone();
        watched(py, move |stop| {
            let begun = Instant::now();
            let is_mapped = |file| {
                let left = timeout.saturating_sub(begun.elapsed());
                maps.wait_mapped_while(file, left, &mut || stop.goes_on())
            };
            Ok::<_, Failure>(files.iter().all(is_mapped))
        })
    }

    /// Loads a storage function from an object as clang writes it.
    #[pyo3(signature = (object, entry=None))]
    fn load(&self, py: Python<'_>, object: &[u8], entry: Option<&str>) -> PyResult<Function> {
        let parsed = Object::parse(object)
            .map_err(|error| Failure::question(format!("cannot load the function: {error}")))?;
        let entries = parsed.entries();
        let names = || entries.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        let index = match entry {
            None if entries.len() == 1 => 0,
            None => {
                let what = format!("give one of these entries: {}", names());
                return Err(Failure::question(what).into());
            }
            Some(wanted) => {
                let found = entries.iter().position(|one| one.name == wanted);
                found.ok_or_else(|| {
                    Failure::question(format!("no entry {wanted}; the object has {}", names()))
                })?
            }
        };
        let (maps, object) = (Arc::clone(&self.opened.maps), object.to_vec());
        let work = watched(py, move |_| {
            let function = maps.load_function(&object, index as u32)?;
            Ok::<_, Failure>(Loaded { maps, function })
        });
        Ok(Function(Unlocked::new(work?)))
    }

    /// Reads a file directly; less than `size` bytes only at its end.
    #[pyo3(signature = (offset, size, file=0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        size: usize,
        file: usize,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let Some(file) = self.opened.files.get(file) else {
            return Err(Failure::question("there is no file with this index"));
        };
        let data = py.detach(|| {
            let failed = |error| Failure::file(&error, file.path(), &error);
            // The metadata of a block device have no length.
            let end = |file: Arc<File>| (&*file).seek(SeekFrom::End(0));
            let length = file.file().and_then(end).map_err(failed)?;
            let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
            let size = size.min(left);
            if size > READ_MAX_BYTES {
                return Err(Failure::question(format!("read at most {READ_MAX_BYTES} bytes")));
            }
            let mut data = vec![0; size];
            let mut reads =
                [FileRead { file, offset_bytes: offset, data: &mut data, read_bytes: 0 }];
            let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            let read = reader.read_files(&mut reads);
            read.map_err(|error| Failure::of_end(&error, self.opened.maps.has_target()))?;
            let [FileRead { read_bytes, .. }] = reads;
            data.truncate(read_bytes);
            Ok(data)
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// Runs chains, many at a time, and waits for all of them; returns the answers in order.
    fn read_pushdown<'py>(
        &self,
        py: Python<'py>,
        function: &Function,
        chains: Vec<ChainTuple<'py>>,
        scratch_bytes: u32,
    ) -> PyResult<Vec<EndTuple<'py>>> {
        if !Arc::ptr_eq(&function.0.maps, &self.opened.maps) {
            let what = "the function was loaded by another bpfof.open(): load it with this one";
            return Err(Failure::question(what).into());
        }
        let chains: Vec<_> = chains
            .iter()
            .map(|(offset, size, argument, file)| (*offset, *size, argument.as_bytes(), *file))
            .collect();
        let mut entries = Vec::with_capacity(chains.len());
        for (offset_bytes, size_bytes, argument, file) in chains {
            if argument.len() > scratch_bytes as usize || scratch_bytes as usize > MAX_SCRATCH_BYTES
            {
                let what = format!(
                    "the argument must fit into scratch, which has at most {MAX_SCRATCH_BYTES} bytes"
                );
                return Err(Failure::question(what).into());
            }
            let first_read = FirstRead { file, offset_bytes, size_bytes };
            entries.push(ReadEntry { first_read, scratch: argument });
        }
        let mut ends = Vec::with_capacity(entries.len());
        for some in entries.chunks(CHAINS_UNWATCHED) {
            py.check_signals()?;
            ends.extend(py.detach(|| self.run(&function.0.function, some, scratch_bytes))?);
        }
        let end = |end: Result<End, Failure>| {
            let (answer, is_remote, hops, stale) = end?;
            Ok((PyBytes::new(py, &answer), is_remote, hops, stale))
        };
        ends.into_iter().map(end).collect()
    }
}
