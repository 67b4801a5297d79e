//! Chains of this process: the engine, and the executor of its reads.

use crate::files::call::KeptChain;
use bpfof_chain::{
    ChainError, ChainId, DeviceRead, Engine, Limits, Outcome, Progress, Start, Suspended, Tables,
};
use std::io;
use std::time::Duration;

/// Most chains in flight: as many as the drives of one machine can serve at once. Each has an arena
/// of 92 KiB, of which the data area is pinned. Further chains wait.
pub(super) const CHAINS: usize = 256;

/// The caller's number for a chain, and its call.
pub(super) type Begun = (usize, KeptChain);

/// Executes the reads of chains, straight into their arenas.
pub(super) trait Reads {
    /// The files, by the engine's numbers.
    type Files;

    /// The functions and file maps of the engine.
    fn tables(files: &Self::Files) -> &Tables;

    /// Submits a read that `engine` has emitted.
    fn submit(&mut self, engine: &mut Engine, read: &DeviceRead, files: &Self::Files);

    /// One call into the kernel: sends all submitted reads, and waits for a completion.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Takes a completion: its chain, and whether the read succeeded.
    fn completed(&mut self) -> Option<(ChainId, bool)>;
}

/// Runs chains with the reads of `R`.
#[derive(Debug)]
pub(super) struct Chains<R> {
    /// Declared, and so dropped, before the engine, whose arenas the kernel writes to.
    pub(super) reads: R,
    engine: Engine,
    /// Reads that the engine has emitted and that were not submitted yet.
    emitted: Vec<DeviceRead>,
    /// Number and call of each chain, by the engine's index.
    begun: Vec<Option<Begun>>,
}

impl<R: Reads> Chains<R> {
    pub(super) fn new(reads: R) -> Self {
        let engine = Engine::new(Limits { chains: CHAINS, ..Limits::default() });
        Self { reads, engine, emitted: Vec::new(), begun: Vec::new() }
    }

    pub(super) fn running(&self) -> usize {
        self.engine.running()
    }

    pub(super) fn is_full(&self) -> bool {
        self.running() >= CHAINS
    }

    /// Begins a chain. The next [`turn`](Self::turn) sends its first reads.
    pub(super) fn start(
        &mut self,
        begun: Begun,
        start: &Start<'_>,
        files: &R::Files,
    ) -> Result<(), ChainError> {
        let emitted = &mut self.emitted;
        let chain = self.engine.start(start, R::tables(files), |read| emitted.push(read))?;
        self.begun(begun, chain, files);
        Ok(())
    }

    /// Continues a chain that was begun in the kernel.
    pub(super) fn resume(
        &mut self,
        begun: Begun,
        suspended: &Suspended,
        files: &R::Files,
    ) -> Result<(), ChainError> {
        let emitted = &mut self.emitted;
        let chain = self.engine.resume(suspended, R::tables(files), |read| emitted.push(read))?;
        self.begun(begun, chain, files);
        Ok(())
    }

    fn begun(&mut self, begun: Begun, chain: ChainId, files: &R::Files) {
        if self.begun.len() <= chain.index() {
            self.begun.resize(chain.index() + 1, None);
        }
        self.begun[chain.index()] = Some(begun);
        self.submit(files);
    }

    fn submit(&mut self, files: &R::Files) {
        for read in self.emitted.drain(..) {
            self.reads.submit(&mut self.engine, &read, files);
        }
    }

    /// Makes one call into the kernel, then takes all completed reads and continues their chains.
    /// `on_end` gets the outcome and scratch of each chain that has ended.
    ///
    /// # Errors
    /// The kernel's. The chains in flight then never end.
    pub(super) fn turn(
        &mut self,
        timeout: Duration,
        files: &R::Files,
        on_end: &mut dyn FnMut(Begun, Outcome, &[u8]),
    ) -> io::Result<()> {
        if self.engine.running() == 0 {
            return Ok(());
        }
        self.reads.wait(timeout)?;
        while let Some((chain, ok)) = self.reads.completed() {
            let emitted = &mut self.emitted;
            let tables = R::tables(files);
            let progress = self.engine.completed(chain, ok, tables, |read| emitted.push(read));
            let Progress::Done(outcome) = progress else {
                self.submit(files);
                continue;
            };
            if let Some(begun) = self.begun[chain.index()].take() {
                on_end(begun, outcome, self.engine.scratch(chain));
            }
            self.engine.release(chain);
        }
        Ok(())
    }
}
