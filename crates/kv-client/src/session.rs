//! A connection to a target with BPF-KV on its namespace.

use crate::error::SessionError;
use bpfkv::pushdown::{FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES};
use bpfkv::{Cache, detect};
use bpfof_host::{
    Controller, Error, FileVersion, FirstRead, FirstReads, FunctionId, Lane, Options, PushdownCall,
    PushdownLimits, PushdownVectorCall, Status, TargetUrl, VectorAnswer, VectorArguments,
};
use std::io;

/// The whole namespace as one file: every target has this file map.
pub(crate) const WHOLE_NAMESPACE: [FileVersion; 1] = [FileVersion { id: 0, version: 1 }];

/// A connection to a target, with a database on its namespace.
pub struct Session {
    /// The association with the target.
    pub controller: Controller,
    /// The I/O queue for requests.
    pub lane: Lane,
    /// The namespace with the database.
    pub nsid: u32,
    /// The loaded function [`bpfkv::GET_OBJECT`].
    pub get: FunctionId,
    /// The loaded function [`bpfkv::RANGE_OBJECT`].
    pub range: FunctionId,
    /// The target's limits.
    pub limits: PushdownLimits,
    /// The top levels of the tree.
    pub cache: Cache,
    /// Levels of the tree.
    pub levels: u32,
}

/// Connects without checking for a database on the namespace.
///
/// # Errors
/// The target cannot be reached, or refuses the connection.
pub fn connect(url: &TargetUrl, options: Options) -> Result<(Controller, Lane), Error> {
    let controller = Controller::connect(url, options)?;
    let lane = controller.open_lane()?;
    Ok((controller, lane))
}

impl Session {
    /// Connects, finds the database, loads its functions and caches the top levels of its tree.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(
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
        let levels = detected.levels;
        let cache = Cache::load(0, &mut |_, _| Ok(()))?;
        let mut session = Session { controller, lane, nsid, get, range, limits, cache, levels };
        session.cache_levels(cached_levels)?;
        Ok(session)
    }

    /// Caches the top levels of the tree on the host.
    ///
    /// # Errors
    /// [`SessionError::Cache`].
    pub fn cache_levels(&mut self, levels: u32) -> Result<(), SessionError> {
        let (lane, nsid) = (&mut self.lane, self.nsid);
        self.cache = Cache::load(levels, &mut |offset, data| read(lane, nsid, offset, data))?;
        Ok(())
    }

    /// The read of the node at `offset_bytes` that a call begins with.
    #[must_use]
    pub const fn first_read(offset_bytes: u64) -> FirstRead {
        FirstRead { file: 0, offset_bytes, size_bytes: FIRST_READ_BYTES }
    }

    /// One command that gets many keys, with these first reads.
    pub fn get_vector<'a>(
        &self,
        first: FirstReads<'a>,
        arguments: VectorArguments<'a>,
    ) -> PushdownVectorCall<'a> {
        let (chains, answer_max_bytes) = (arguments.count() as u16, GET_ANSWER_BYTES as u32);
        PushdownVectorCall {
            nsid: self.nsid,
            function: self.get.0,
            files: &WHOLE_NAMESPACE,
            first,
            arguments,
            scratch_size_bytes: GET_SCRATCH_BYTES,
            answer_max_bytes,
            room_bytes: VectorAnswer::room_bytes(chains, answer_max_bytes) as u32,
        }
    }

    /// A call of one of the functions on the database; the pair is the longest answer and the size
    /// of scratch, in bytes.
    pub fn call<'a>(
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
    // A multiple of every logical block size that targets of this project have.
    const BLOCK: u64 = 4096;
    let start = offset / BLOCK * BLOCK;
    let end = (offset + data.len() as u64).next_multiple_of(BLOCK);
    let mut blocks = vec![0; (end - start) as usize];
    let whole = lane.read(nsid, start, &mut blocks);
    let from = (offset - start) as usize;
    match whole {
        Ok(()) => data.copy_from_slice(&blocks[from..from + data.len()]),
        Err(error) if is_behind_the_end(&error) => {
            lane.read(nsid, offset, data).map_err(io::Error::other)?;
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    Ok(())
}

/// Whether a read went beyond the namespace, which may end within the last 4096 bytes.
fn is_behind_the_end(error: &Error) -> bool {
    matches!(error, Error::Command { source, .. } if source.status.same_code(Status::LBA_OUT_OF_RANGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_host::CommandError;

    /// Any other error is returned unchanged.
    #[test]
    fn only_a_read_behind_the_end_is_tried_again() {
        let failed = |status| {
            let source = CommandError { status, dw0: 0, dw1: 0 };
            is_behind_the_end(&Error::Command { command: "Read", source })
        };
        assert!(failed(Status::LBA_OUT_OF_RANGE.with_dnr()));
        assert!(!failed(Status::UNRECOVERED_READ_ERROR) && !is_behind_the_end(&Error::DataDigest));
    }
}
