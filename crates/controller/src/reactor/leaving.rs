//! Drops removed namespaces that no command works on any more.
//!
//! No new command begins on a removed namespace, and commands stay in their slots. So if one pass over all slots finds
//! no command of a removed namespace, none is left. A pass takes several turns if there are many slots.

use super::closing::close;
use super::io::Io;
use super::state::{Core, Search};
use crate::limits::{DATA_TIMEOUT_NS, SLOTS_PER_TURN};
use crate::queue::{Slot, Stage};

/// Longest pause between two passes.
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// Begins a pass, in place of one that has not ended.
pub(super) fn begin_search<I: Io>(core: &mut Core<I>) {
    let unused = core.executor.namespaces.leaving();
    core.ticks.search = Some(Search { next: 0, unused, spent_ns: 0 });
    search_on(core);
}

/// Searches some slots; the others follow in later turns.
pub(super) fn search_on<I: Io>(core: &mut Core<I>) {
    let Some(mut search) = core.ticks.search.take() else { return };
    let begun_ns = core.io.now_ns();
    let end = core.table.indices().end;
    let mut left = SLOTS_PER_TURN;
    while search.next < end && left > 0 {
        let searched = search_connection(core, search.next, &mut search.unused);
        left = left.saturating_sub(searched.max(1));
        search.next += 1;
    }
    let now_ns = core.io.now_ns();
    search.spent_ns += now_ns.saturating_sub(begun_ns);
    if search.next < end {
        core.ticks.search = Some(search);
        return;
    }
    core.executor.namespaces.release(&search.unused);
    // Passes take no more than a tenth of the time.
    let pause_ns = (10 * search.spent_ns).min(PAUSE_MAX_NS);
    core.ticks.next_ns = core.ticks.next_ns.max(now_ns + pause_ns);
}

/// Notes the namespaces that a connection's commands work on; returns how many slots it has. Closes the connection if
/// it is slow to send data for a removed namespace: each piece is in time, but the transfer keeps the namespace.
fn search_connection<I: Io>(core: &mut Core<I>, index: u32, unused: &mut [bool]) -> usize {
    let Some(entry) = core.table.get(index).filter(|entry| !entry.connection.is_idle()) else {
        return 0;
    };
    let (queue, executor) = (&entry.connection.queue, &core.executor);
    let mut is_slow = false;
    let mut searched = 0;
    for slot in queue.slots() {
        searched += 1;
        let Some(place) = slot.state.namespace() else { continue };
        if let Some(unused) = unused.get_mut(place) {
            *unused = false;
        }
        is_slow |= executor.namespaces.is_leaving(place) && waits_too_long(slot, executor.now_ns);
    }
    if is_slow && !entry.closing && queue.is_fetching() {
        close(core, index, "it sends data for a removed namespace too slowly");
    }
    searched
}

/// Whether a command has waited too long for its host's data.
fn waits_too_long(slot: &Slot, now_ns: u64) -> bool {
    matches!(slot.transfer.stage, Stage::Waits | Stage::Fetching)
        && now_ns.saturating_sub(slot.begun_ns) > DATA_TIMEOUT_NS
}
