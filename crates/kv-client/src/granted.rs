//! Lookups in a database file by the grant daemon, for processes that may not read whole namespaces.

use crate::error::{SessionError, explain_command};
use bpfkv::Value;
use bpfkv::detect;
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadError, ReadPushdown,
    StorageFunction,
};
use bpfof_host::grant::GrantClient;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take for the file before lookups run here.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait of a lookup before it looks around.
const WAIT: Duration = Duration::from_secs(1);

/// A database in a file, which this process can read.
pub struct GrantedFile {
    reader: PushdownReader,
    function: StorageFunction,
    file: [PushdownFile; 1],
    at_target: bool,
    // Last: what is above belongs to it.
    _maps: FileMaps,
}

impl GrantedFile {
    /// Opens the database in the file `path`, and asks the daemon at `socket` for a grant. Without one lookups
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
        // Why there is none is told by refusal().
        let _ = maps.wait_mapped(&file[0], PATIENCE);
        let reader = PushdownReader::new(&maps, Policy::default())?;
        Ok(Self { reader, function, file, at_target: false, _maps: maps })
    }

    /// Why the target cannot read the file, if it cannot.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match (self.function.id(), self.file[0].refusal()) {
            (None, _) => Some("the daemon does not allow the function".to_owned()),
            (_, refusal) => refusal.map(|refusal| refusal.to_string()),
        }
    }

    /// Whether the last lookup ran at the target.
    #[must_use]
    pub const fn was_at_target(&self) -> bool {
        self.at_target
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn get(&mut self, key: u64) -> Result<Option<Value>, SessionError> {
        let Some(argument) = get_argument(key) else { return Ok(None) };
        let call = ReadPushdown {
            files: &self.file,
            first_read: FirstRead { file: 0, offset_bytes: 0, size_bytes: FIRST_READ_BYTES },
            function: &self.function,
            scratch: &argument,
            scratch_size_bytes: GET_SCRATCH_BYTES,
            answer_max_bytes: GET_ANSWER_BYTES as u32,
        };
        self.reader.submit(0, &call).map_err(explain_read)?;
        let mut end = None;
        while end.is_none() {
            self.reader.wait(WAIT, &mut |completion| {
                end = Some(completion.result.map(|(answer, info)| (answer.to_vec(), info)));
            });
        }
        let Some(end) = end else { return Ok(None) };
        let (answer, info) = end.map_err(explain_read)?;
        self.at_target = info.executor == Executor::Target;
        Ok(get_answer(&answer)?.copied())
    }
}

/// A failed lookup in BPF-KV's words where the function itself complained.
fn explain_read(error: ReadError) -> SessionError {
    match error {
        ReadError::Command(command) => SessionError::Aborted(explain_command(&command)),
        ReadError::Target(error) => SessionError::Host(error),
        error => SessionError::Read(std::io::Error::other(error)),
    }
}
