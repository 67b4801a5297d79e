//! Suspended chains, which wait outside an arena.

use crate::chain::{FileVersion, Start};
use bpfof_function::SavedArena;

/// A chain between two hops, without its arena. See [`Engine::suspend`](crate::Engine::suspend).
#[derive(Debug)]
pub struct Suspended {
    pub(crate) arena: SavedArena,
    pub(crate) owner: u64,
    pub(crate) namespace: u32,
    pub(crate) unit_mask: u64,
    pub(crate) function: u32,
    pub(crate) last_function: u32,
    pub(crate) files: Box<[FileVersion]>,
    /// Serial numbers of the files' maps that the chain has read by; empty if they are not known.
    pub(crate) map_serials: Box<[u64]>,
    pub(crate) answer_max_bytes: u32,
    pub(crate) hop: u32,
    pub(crate) bytes_left: u64,
    pub(crate) instructions_left: u64,
}

impl Suspended {
    /// A chain that was started outside this engine, in the kernel: its start, its saved arena, and the budgets of
    /// `bytes` and `units` left after `hops` hops.
    pub fn of(
        start: &Start<'_>,
        arena: SavedArena,
        hops: u32,
        bytes: u64,
        units: u64,
    ) -> Suspended {
        Suspended {
            arena,
            owner: start.owner,
            namespace: start.namespace,
            unit_mask: u64::from(start.unit_bytes) - 1,
            function: start.function,
            last_function: start.function,
            files: start.files.into(),
            map_serials: Box::default(),
            answer_max_bytes: start.answer_max_bytes,
            hop: hops,
            bytes_left: bytes,
            instructions_left: units,
        }
    }

    /// Bytes of memory that the suspended chain takes.
    pub fn bytes(&self) -> usize {
        size_of::<Suspended>()
            + size_of_val(&*self.files)
            + size_of_val(&*self.map_serials)
            + self.arena.bytes()
    }

    /// Hops started.
    pub fn hops(&self) -> u32 {
        self.hop
    }
}
