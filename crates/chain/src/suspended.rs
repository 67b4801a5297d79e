//! Chains that wait outside an arena.

use crate::chain::FileVersion;
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
    pub(crate) answer_max_bytes: u32,
    pub(crate) hop: u32,
    pub(crate) bytes_left: u64,
    pub(crate) instructions_left: u64,
}

impl Suspended {
    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Suspended>() + size_of_val(&*self.files) + self.arena.bytes()
    }

    /// Hops begun.
    pub fn hops(&self) -> u32 {
        self.hop
    }
}
