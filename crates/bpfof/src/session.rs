//! A connection to a target with BPF-KV on its namespace.

use bpfkv::pushdown::{FIRST_READ_BYTES, describe_abort};
use bpfkv::{Cache, detect};
use bpfof_host::{
    CommandError, Controller, Error, FileVersion, FunctionId, Lane, Options, PushdownCall,
    RequestError, Status, TargetUrl,
};
use std::io;

/// The namespace as one file, which every target knows.
pub(crate) const WHOLE_NAMESPACE: [FileVersion; 1] = [FileVersion { id: 0, version: 1 }];

/// What went wrong with a store over the network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Host(#[from] Error),
    #[error(transparent)]
    Detect(#[from] detect::DetectError),
    #[error(transparent)]
    Cache(#[from] bpfkv::CacheError),
    #[error("{0}")]
    Corrupt(String),
}

/// A connected store.
pub(crate) struct Session {
    pub(crate) controller: Controller,
    pub(crate) lane: Lane,
    pub(crate) nsid: u32,
    pub(crate) get: FunctionId,
    pub(crate) range: FunctionId,
    /// Hops one chain may take at this target.
    pub(crate) hops_max: u32,
    /// Largest scratch of a chain at this target, in bytes.
    pub(crate) scratch_max_bytes: u32,
    pub(crate) cache: Cache,
    /// Levels of the tree.
    pub(crate) levels: u32,
}

/// Connects without looking at what is on the namespace.
pub(crate) fn connect(url: &TargetUrl, options: Options) -> Result<(Controller, Lane), Error> {
    let controller = Controller::connect(url, options)?;
    let lane = controller.open_lane()?;
    Ok((controller, lane))
}

impl Session {
    /// Connects, finds the database, loads its functions and caches the top levels of its tree.
    pub(crate) fn open(
        url: &TargetUrl,
        options: Options,
        cached_levels: u32,
    ) -> Result<Session, SessionError> {
        let (mut controller, mut lane) = connect(url, options)?;
        let nsid = url.nsid;
        let limits = controller.pushdown_limits()?;
        let size_bytes = controller.identify_namespace(nsid)?.size_bytes();
        let detected =
            detect::detect(size_bytes, &mut |offset, data| read(&mut lane, nsid, offset, data))?;
        let get = controller.load_function(bpfkv::GET_OBJECT, 0)?;
        let range = controller.load_function(bpfkv::RANGE_OBJECT, 0)?;
        let (hops_max, scratch_max_bytes) = (limits.hops, limits.scratch_bytes);
        let levels = detected.levels;
        let cache = Cache::load(0, &mut |_, _| Ok(()))?;
        let mut session = Session {
            controller,
            lane,
            nsid,
            get,
            range,
            hops_max,
            scratch_max_bytes,
            cache,
            levels,
        };
        session.cache_levels(cached_levels)?;
        Ok(session)
    }

    /// Holds the top levels of the tree on the host.
    pub(crate) fn cache_levels(&mut self, levels: u32) -> Result<(), SessionError> {
        let (lane, nsid) = (&mut self.lane, self.nsid);
        self.cache = Cache::load(levels, &mut |offset, data| read(lane, nsid, offset, data))?;
        Ok(())
    }

    /// A call of one of the functions on the database, with the longest answer and the scratch that
    /// it needs, in bytes.
    pub(crate) fn call<'a>(
        &self,
        function: FunctionId,
        first_offset_bytes: u64,
        scratch: &'a [u8],
        (answer_max_bytes, scratch_size_bytes): (u32, u32),
    ) -> PushdownCall<'a> {
        PushdownCall {
            nsid: self.nsid,
            function: function.0,
            files: &WHOLE_NAMESPACE,
            first_file: 0,
            first_offset_bytes,
            first_size_bytes: FIRST_READ_BYTES,
            scratch,
            scratch_size_bytes,
            answer_max_bytes,
        }
    }
}

/// Reads any range of a namespace: rounds it out to whole blocks.
pub(crate) fn read(lane: &mut Lane, nsid: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
    // Every block size we serve divides this.
    const BLOCK: u64 = 4096;
    let start = offset / BLOCK * BLOCK;
    let end = (offset + data.len() as u64).next_multiple_of(BLOCK);
    let mut blocks = vec![0; (end - start) as usize];
    let whole = lane.read(nsid, start, &mut blocks);
    let from = (offset - start) as usize;
    match whole {
        Ok(()) => data.copy_from_slice(&blocks[from..from + data.len()]),
        // The namespace may end within the last 4096 bytes.
        Err(_) => lane.read(nsid, offset, data).map_err(io::Error::other)?,
    }
    Ok(())
}

/// A failed chain in BPF-KV's words where the function itself complained.
pub(crate) fn explain(error: Error) -> SessionError {
    if let Error::Command { source, .. } = &error
        && let Some(text) = abort_text(source)
    {
        return SessionError::Corrupt(text);
    }
    SessionError::Host(error)
}

/// The same for a request of a lane.
pub(crate) fn explain_request(error: RequestError) -> String {
    match &error {
        RequestError::Command(command) => abort_text(command).unwrap_or_else(|| error.to_string()),
        _ => error.to_string(),
    }
}

fn abort_text(error: &CommandError) -> Option<String> {
    error.status.same_code(Status::FUNCTION_ABORT).then(|| describe_abort(error.dw0))
}
