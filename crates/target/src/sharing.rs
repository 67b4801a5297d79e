//! How connections share the chains of a reactor: who asks for more than there are waits.
//!
//! A connection may have as many chains running as are left for others: alone half of them, and whoever
//! comes finds some. Beyond that its next command that needs one stays where it was received, with all
//! that came after it, and connections that wait go on in the order in which they came.

use crate::connection::Connection;
use crate::executor::Executor;
use bpfof_nvme::{Sqe, opcode};

impl Executor {
    /// Lets connections that wait go on, as far as chains have ended. `goes_on` tells a connection; false
    /// if it still has to wait.
    pub(crate) fn feed_starved(&mut self, mut goes_on: impl FnMut(&Executor, u32) -> bool) {
        for _ in 0..self.starved.len().min(self.free_chains()) {
            let Some(index) = self.starved.pop_front() else { return };
            if !goes_on(self, index) {
                self.starved.push_back(index);
            }
        }
    }
}

impl Connection {
    /// Whether it may start no further chain now.
    #[inline]
    fn has_its_share(&self, x: &Executor) -> bool {
        self.chains >= x.free_chains()
    }

    /// Begins to wait if a command needs a chain and there is none for it; whether that is so.
    #[inline]
    pub(crate) fn wait_for_chain(&mut self, sqe: &Sqe, x: &mut Executor) -> bool {
        let waits = matches!(sqe.opcode, opcode::nvm::PUSHDOWN | opcode::nvm::PUSHDOWN_SHORT)
            && self.has_its_share(x)
            && self.queue.as_ref().is_some_and(|queue| queue.id != 0);
        if waits {
            self.waits_for_chain = true;
            x.starved.push_back(self.index);
        }
        waits
    }

    /// Looks again whether there is a chain; whether it still has to wait.
    pub(crate) fn still_waits(&mut self, x: &Executor) -> bool {
        self.waits_for_chain &= self.has_its_share(x);
        self.waits_for_chain
    }

    /// Gives up its place among those that wait.
    pub(crate) fn stop_waiting(&mut self, x: &mut Executor) {
        if std::mem::take(&mut self.waits_for_chain) {
            x.starved.retain(|index| *index != self.index);
        }
    }
}
