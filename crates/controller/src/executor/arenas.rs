//! The running chains, their arenas and their owners.

use crate::limits::{KEPT_ARENAS, SLICE_UNITS};
use crate::observe::HopLog;
use crate::operation::CommandId;
use bpfof_chain::{ChainId, DeviceRead, Engine, Limits, Outcome};
use bpfof_function::Arena;
use bpfof_function::memory::{Account, Charge};
use std::sync::Arc;

/// Memory of an arena, with the log of its chain.
const ARENA_BYTES: usize = Arena::MEMORY_BYTES + HopLog::BYTES;

/// The owner of a running chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) command: CommandId,
    /// The chain's index, if the command is a vector.
    pub(crate) entry: Option<u16>,
    /// The place of its namespace.
    pub(crate) namespace: usize,
    /// When it got its arena.
    pub(crate) since_ns: u64,
    /// Set when it has been asked to give up its arena.
    pub(super) asked: Option<Asked>,
    /// Its hops are logged.
    pub(crate) is_logged: bool,
}

/// How a chain was asked to give way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) at_ns: u64,
    /// It gives way to others of its group, host or association, and not to the connection that needed an arena most.
    pub(super) is_within: bool,
}

impl Owner {
    pub(crate) fn gives_way(&self) -> bool {
        self.asked.is_some()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Arenas {
    pub(crate) engine: Engine,
    /// Charge for the engine's arenas.
    memory: Charge,
    /// Reads that a chain has just asked for.
    pub(super) reads: Vec<DeviceRead>,
    /// Chains that have just ended, and their outcomes.
    pub(crate) ended: Vec<(ChainId, Outcome)>,
    /// By chain index.
    owners: Vec<Owner>,
}

impl Arenas {
    /// Arenas within these limits, whose memory is charged to this account.
    pub(super) fn new(limits: Limits, account: &Arc<Account>) -> Arenas {
        let kept = KEPT_ARENAS.min(limits.chains) * ARENA_BYTES;
        Arenas {
            engine: Engine::new(limits).with_slice(SLICE_UNITS),
            memory: account.charge_anyway(kept),
            reads: Vec::new(),
            ended: Vec::new(),
            owners: Vec::new(),
        }
    }

    /// Chains that can still be started within their limit.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        self.engine.limits().chains - self.engine.running()
    }

    /// Whether there is memory for arenas of `more` chains than are running.
    #[inline]
    pub(crate) fn has_arena(&mut self, more: usize) -> bool {
        let wanted = (self.engine.running() + more) * ARENA_BYTES;
        wanted <= self.memory.bytes() || self.memory.resize(wanted).is_ok()
    }

    /// Drops unused arenas beyond the first `keep`.
    pub(crate) fn trim(&mut self, keep: usize) {
        self.engine.trim(keep);
        self.owners.truncate(self.engine.arenas());
        let bytes = self.engine.arenas().max(keep) * ARENA_BYTES;
        if bytes < self.memory.bytes() {
            // Shrinking is never refused.
            let _ = self.memory.resize(bytes);
        }
    }

    /// Notes the owner of a chain that has just got an arena.
    #[inline]
    pub(super) fn own(&mut self, chain: ChainId, owner: Owner) {
        match self.owners.get_mut(chain.index()) {
            Some(slot) => *slot = owner,
            None => self.owners.push(owner),
        }
    }

    /// The owner of a running chain.
    #[inline]
    pub(crate) fn owner(&self, chain: ChainId) -> Owner {
        self.owners[chain.index()]
    }

    /// The owner of a running chain, mutable.
    pub(super) fn owner_mut(&mut self, chain: ChainId) -> &mut Owner {
        &mut self.owners[chain.index()]
    }

    /// The running chains and their owners.
    pub(crate) fn running(&self) -> impl Iterator<Item = (ChainId, &Owner)> {
        let all = self.owners.iter().enumerate();
        let all = all.map(|(index, owner)| (ChainId::from_index(index), owner));
        all.filter(|(chain, _)| self.engine.is_running(*chain))
    }

    /// Whether a chain lets others of its connection go first after this hop.
    #[inline]
    pub(crate) fn yields(&self, chain: ChainId) -> bool {
        use crate::limits::HOPS_IN_A_ROW;
        self.engine.usage(chain).hops % HOPS_IN_A_ROW == HOPS_IN_A_ROW - 1
    }
}
