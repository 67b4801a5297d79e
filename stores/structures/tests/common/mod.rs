//! A target on loopback with one file, and one storage function that reads it.
#![allow(dead_code)] // Each test uses a part.

use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::{
    Controller, Error, Extent, FileMapObject, FileVersion, FunctionId, Lane, Options, PushdownCall,
    Status,
};
use bpfof_structures::{Damage, Place};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

const NQN: &str = "nqn.2026-01.io.bpf-of:structures";
const LBA_BYTES: usize = 512;
const FILE_MAX_BYTES: usize = 4 << 20;
const FILE: u32 = 7;

/// Chains run at the target; plain reads read the same bytes.
pub(crate) struct World {
    bytes: Vec<u8>,
    lane: Lane,
    function: FunctionId,
    version: u64,
    controller: Controller,
    _server: Server,
}

thread_local! {
    static KEPT: Cell<Option<World>> = const { Cell::new(None) };
}

/// A world that the cases of a property test share, because starting a target takes longer than
/// most cases.
pub(crate) struct Kept(Option<World>);

impl Deref for Kept {
    type Target = World;

    fn deref(&self) -> &World {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.set(self.0.take());
    }
}

impl World {
    /// The world of this thread; every thread works with one object.
    pub(crate) fn kept(object: &[u8]) -> Kept {
        Kept(Some(KEPT.take().unwrap_or_else(|| World::new(object))))
    }

    pub(crate) fn new(object: &[u8]) -> World {
        let size_bytes = 2 * FILE_MAX_BYTES as u64;
        let source = NamespaceSource::Memory { size_bytes, latency_us: 0, iops: 0 };
        let namespace = NamespaceConfig::new(source, LBA_BYTES as u32);
        let server = Server::start(&TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            nqn: NQN.to_owned(),
            namespaces: vec![namespace],
            ..TargetConfig::default()
        });
        let server = server.expect("the target starts");
        let url = format!("nvme-tcp://{}/{NQN}", server.address()).parse().expect("an address");
        let mut controller =
            Controller::connect(&url, Options::default()).expect("a target is there");
        let function = controller.load_function(object, 0).expect("a good function");
        let lane = controller.open_lane().expect("a lane");
        World { bytes: Vec::new(), lane, function, version: 0, controller, _server: server }
    }

    /// Loads another function, which the first one may tail-call.
    pub(crate) fn load(&mut self, object: &[u8]) -> u32 {
        self.controller.load_function(object, 0).expect("a good function").0
    }

    /// Stores the bytes of the file, in two extents, the second one first.
    pub(crate) fn store(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= FILE_MAX_BYTES && !bytes.is_empty());
        self.bytes = bytes.to_vec();
        let mut padded = bytes.to_vec();
        // Bytes after the end of the file are not part of it.
        padded.resize(bytes.len().next_multiple_of(LBA_BYTES), 0xa5);
        let cut = (padded.len() / 2).next_multiple_of(LBA_BYTES);
        let pieces = [(0, FILE_MAX_BYTES, &padded[..cut]), (cut, 0, &padded[cut..])];
        let mut extents = Vec::new();
        for (at, place, piece) in pieces {
            if piece.is_empty() {
                continue;
            }
            self.lane.write(1, place as u64, piece).expect("written");
            extents.push(Extent {
                file_offset: at as u64,
                device_offset: place as u64,
                length_bytes: piece.len() as u64,
            });
        }
        self.version += 1;
        let map = FileMapObject {
            file: FILE,
            nsid: 1,
            version: self.version,
            length_bytes: bytes.len() as u64,
            extents,
        };
        self.controller.set_file_map(&map).expect("a good map");
    }

    /// Runs one chain. It must end with an answer, or with damage that the function or the target
    /// reports.
    pub(crate) fn chain(
        &mut self,
        first: Place,
        argument: &[u8],
        scratch_bytes: usize,
    ) -> Result<Vec<u8>, Damage> {
        let call = PushdownCall {
            nsid: 1,
            function: self.function.0,
            files: &[FileVersion { id: FILE, version: self.version }],
            first_file: 0,
            first_offset_bytes: first.offset_bytes,
            first_size_bytes: first.size_bytes,
            scratch: argument,
            scratch_size_bytes: scratch_bytes as u32,
            answer_max_bytes: scratch_bytes as u32,
        };
        let mut answer = Vec::new();
        match self.lane.pushdown(&call, &mut answer) {
            Ok(_) => Ok(answer),
            Err(Error::Command { source, .. }) => {
                let damage = if source.status.same_code(Status::FUNCTION_ABORT) {
                    Damage::from_abort_code(source.dw0)
                } else {
                    let outside = source.status.same_code(Status::READ_OUTSIDE_FILE);
                    outside.then_some(Damage::Unreadable)
                };
                Err(damage.unwrap_or_else(|| panic!("{source}")))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads the file plainly.
    pub(crate) fn reader(&self) -> impl FnMut(u64, usize) -> Option<Vec<u8>> {
        |offset, size| {
            let from = usize::try_from(offset).ok()?;
            Some(self.bytes.get(from..from.checked_add(size)?)?.to_vec())
        }
    }
}
