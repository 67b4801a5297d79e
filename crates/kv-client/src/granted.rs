//! Lookups in a database file with a grant from the grant daemon, for processes that may not read whole namespaces.

use crate::error::{SessionError, explain_command};
use crate::queries::Looked;
use bpfkv::Value;
use bpfkv::detect;
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfof_host::files::{
    FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadEntry, ReadError,
    ReadPushdownMany, StorageFunction,
};
use bpfof_host::grant::GrantClient;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How long to wait for the daemon's grant before lookups run on this machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// A database in a file, which this process can read.
pub struct GrantedFile {
    reader: PushdownReader,
    function: StorageFunction,
    file: [PushdownFile; 1],
    // Last field, because the fields above belong to it and must be dropped first.
    _maps: FileMaps,
}

impl GrantedFile {
    /// Opens the database in the file `path`, and requests a grant from the daemon at `socket`. Without a grant lookups
    /// run on this machine.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(socket: &Path, path: &Path) -> Result<Self, SessionError> {
        let file = File::open(path).map_err(SessionError::Read)?;
        let length = file.metadata().map_err(SessionError::Read)?.len();
        detect::detect(length, &mut |offset, data| file.read_exact_at(data, offset))?;
        let client = GrantClient::connect(socket, Some(file.as_fd()));
        let maps = FileMaps::granted(client.map_err(bpfof_host::Error::from)?)?;
        let function = maps.load_function(bpfkv::GET_OBJECT, 0)?;
        let file = [maps.add(file, path.to_owned())];
        // refusal() says why there is no grant.
        let _ = maps.wait_mapped(&file[0], PATIENCE);
        let reader = PushdownReader::new(&maps, Policy::default())?;
        Ok(Self { reader, function, file, _maps: maps })
    }

    /// Why the target cannot run lookups in the file, if it cannot.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match (self.function.id(), self.file[0].refusal()) {
            (None, _) => Some("the grant daemon does not allow the function".to_owned()),
            (_, refusal) => refusal.map(|refusal| refusal.to_string()),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn get(&mut self, key: u64) -> Result<Option<Value>, SessionError> {
        self.get_each(&[key])?.pop().unwrap_or(Ok(None))
    }

    /// The value of each key, or why it cannot be looked up, in their order.
    ///
    /// # Errors
    /// [`SessionError`] for an error that does not belong to a single key.
    pub fn get_each(&mut self, keys: &[u64]) -> Result<Vec<Looked>, SessionError> {
        let wanted = (0..).zip(keys).filter_map(|(at, key)| Some((at, get_argument(*key)?)));
        let (places, arguments): (Vec<usize>, Vec<_>) = wanted.unzip();
        let first_read = FirstRead { file: 0, offset_bytes: 0, size_bytes: FIRST_READ_BYTES };
        let entry = |argument| ReadEntry { first_read, scratch: argument };
        let entries: Vec<_> = arguments.iter().map(|argument| entry(&argument[..])).collect();
        let call = ReadPushdownMany {
            files: &self.file,
            function: &self.function,
            entries: &entries,
            scratch_size_bytes: GET_SCRATCH_BYTES,
            answer_max_bytes: GET_ANSWER_BYTES as u32,
        };
        let mut values: Vec<Looked> = keys.iter().map(|_| Ok(None)).collect();
        let read = self.reader.read_pushdown_many(&call, &mut |completion| {
            let value = completion
                .result
                .map_err(explain_read)
                .and_then(|(answer, _)| Ok(get_answer(answer)?.copied()));
            values[places[completion.tag as usize]] = value;
        });
        read.map_err(explain_read)?;
        Ok(values)
    }
}

/// The error of a failed lookup, in BPF-KV's terms if the function aborted it.
fn explain_read(error: ReadError) -> SessionError {
    match error {
        ReadError::Command(command) => SessionError::Aborted(explain_command(&command)),
        ReadError::Target(error) => SessionError::Host(error),
        error => SessionError::Read(std::io::Error::other(error)),
    }
}
