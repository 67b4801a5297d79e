//! How a turn begins and ends.

use super::chains::granted;
use super::closing::{close_ended, flush, remove_if_done, resume};
use super::io::Io;
use super::state::{Core, Turn};
use super::upkeep::tick;
use super::waiting_files;
use crate::transport::Port;

/// Begins a turn.
pub(crate) fn begin<I: Io>(core: &mut Core<I>) {
    let now_ns = core.io.now_ns();
    core.executor.now_ns = now_ns;
    if let Some(since_ns) = core.idle.since_ns.take() {
        core.idle.total_ns += now_ns.saturating_sub(since_ns);
    }
    core.turn = Turn::new(now_ns);
    core.turnover.add(now_ns);
}

/// Hands file operations to the ring, sends, and receives again.
pub(crate) fn end<I: Io>(core: &mut Core<I>) {
    close_ended(core);
    fence(core);
    submit_file_operations(core);
    let mut with_arena = Vec::new();
    core.executor.grant_arenas(|index| with_arena.push(index));
    for index in with_arena {
        granted(core, index);
    }
    let mut dirty = std::mem::take(&mut core.dirty);
    // All sends come before all receives, so that they also complete before them: borrowed data that a socket did not
    // take is copied before commands change it.
    for &index in &dirty {
        let Some(entry) = core.table.get_mut(index) else { continue };
        entry.dirty = false;
        entry.connection.publish_tally();
        flush(core, index);
        note_answers(core, index);
    }
    for index in dirty.drain(..) {
        resume(core, index);
        remove_if_done(core, index);
    }
    // Resuming may have marked connections again: the next turn handles these.
    if core.dirty.is_empty() {
        core.dirty = dirty;
    }
    submit_file_operations(core);
    tick(core);
}

/// Waits for all reactors on behalf of the commands that need it: one fence at a time for all of them, so that reactors
/// do not get more messages than they take.
fn fence<I: Io>(core: &mut Core<I>) {
    if core.awaits_fence || core.executor.outbox.fences.is_empty() {
        return;
    }
    core.awaits_fence = true;
    core.io.fence(std::mem::take(&mut core.executor.outbox.fences));
}

/// Notes with which send of a connection its watched answers leave.
#[inline]
fn note_answers<I: Io>(core: &mut Core<I>, index: u32) {
    if core.executor.observer.slowest.has_leaving()
        && let Some(entry) = core.table.get(index)
    {
        let slowest = &mut core.executor.observer.slowest;
        match &entry.connection.port {
            Port::Tcp(port) => {
                // Answers that are not in the send in progress are in the next one.
                let more = u64::from(port.is_sending() && port.has_unsent());
                slowest.leaves_with(index, entry.sends + 1 + more);
            }
            // Messages leave one by one.
            Port::Message(_) => slowest.forget(index),
        }
    }
}

fn submit_file_operations<I: Io>(core: &mut Core<I>) {
    let mut operations = std::mem::take(&mut core.executor.outbox.file_operations);
    for operation in operations.drain(..) {
        core.io.file(&mut core.executor, operation);
    }
    core.executor.outbox.file_operations = operations;
    core.executor.outbox.more_operations = 0;
    if !core.executor.outbox.resumed.is_empty() || !core.dropping.is_empty() {
        waiting_files::submit(core);
    }
}
