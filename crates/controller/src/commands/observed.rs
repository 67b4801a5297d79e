//! Records commands that have ended, if an observer watches them or they were slow.

use crate::connection::Connection;
use crate::executor::Executor;
use crate::metrics::{Class, Counted};
use crate::observe::observed::{Observed, Outcome};
use crate::queue::Slot;
use bpfof_chain::{ChainId, Outcome as ChainOutcome};
use bpfof_nvme::Status;

/// Records a command that is not a chain.
#[cold]
pub(super) fn command_ended(
    connection: &Connection,
    executor: &mut Executor,
    taken: &Slot,
    (counted, bytes, status): (Counted, u64, Status),
) {
    let Executor { observer, namespaces, now_ns, .. } = executor;
    let Some(place) = taken.state.namespace() else { return };
    let namespace = namespaces.get(place);
    observer.ended(connection, counted.latency_ns, |observed| {
        observed.class = counted.class;
        (observed.begun_ns, observed.ended_ns) = (taken.begun_ns, *now_ns);
        observed.data_ns = taken.transfer.waited_ns();
        observed.arena_ns = 0;
        (observed.nsid, observed.bytes) = (namespace.nsid, bytes);
        observed.is_of_device = namespace.backend.memory().is_none_or(|of| of.latency().is_some());
        observed.outcome = Outcome::Status(status);
        clear_chain(observed);
    });
}

/// Clears the values that an earlier chain left in this entry.
fn clear_chain(observed: &mut Observed) {
    let chain = &mut observed.chain;
    (chain.hops, chain.units, chain.is_logged, chain.function) = (0, 0, false, 0);
    chain.function_name.clear();
}

/// Records a chain of a command that arrived at `begun_ns`. The chain's arena must not have been
/// released yet.
#[cold]
pub(super) fn chain_ended(
    connection: &Connection,
    executor: &mut Executor,
    (place, begun_ns, chain): (usize, u64, ChainId),
    outcome: &ChainOutcome,
) {
    let Executor { observer, namespaces, now_ns, arenas, .. } = executor;
    let Some(association) = connection.phase.association() else { return };
    let (usage, owner) = (arenas.engine.usage(chain), arenas.owner(chain));
    let (nsid, tables) = (namespaces.get(place).nsid, &association.tables);
    let function = tables.function_index(usage.function);
    let function = function.and_then(|index| tables.functions().get(index));
    let duration_ns = now_ns.saturating_sub(begun_ns);
    observer.chain_ended(connection, (chain, owner.is_logged), duration_ns, |observed| {
        observed.class = Class::Chain;
        (observed.begun_ns, observed.ended_ns) = (begun_ns, *now_ns);
        observed.data_ns = 0;
        observed.arena_ns = owner.since_ns.saturating_sub(begun_ns);
        (observed.nsid, observed.bytes) = (nsid, usage.bytes);
        observed.outcome = match outcome {
            Ok(_) => Outcome::Status(Status::SUCCESS),
            Err((error, _)) => Outcome::Chain(*error),
        };
        let chain = &mut observed.chain;
        chain.function = usage.function;
        chain.function_name.clear();
        chain.function_name.push_str(function.map_or("", |function| &function.name));
        (chain.hops, chain.units) = (usage.hops, usage.units);
    });
}
