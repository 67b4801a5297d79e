//! The charges of chains beside their functions, and helpers that only chains have: an engine on a namespace in memory,
//! driven as a reactor drives it.

use super::charge::{Charge, OBJECT, Problem, ROUND_NS};
use super::kernels::{Request, program};
use crate::machine::free_memory_bytes;
use crate::measurement::median;
use bpfof_chain::{
    DeviceRead, Engine, FileMap, FileVersion, Function, Limits, Progress, Start, Tables,
    WHOLE_NAMESPACE,
};
use bpfof_device::MemoryNamespace;
use bpfof_function::{NativeFunction, Object, abi};
use std::collections::VecDeque;
use std::time::Instant;

/// Size of the namespace, if there is enough memory: far more than all caches of a processor hold.
const NAMESPACE_BYTES: u64 = 1 << 30;
/// The part of it that is read where data must be in a cache.
const CACHED_BYTES: u64 = 32 << 10;
/// Reads whose memory is prefetched together, as in a reactor.
const ROUND: usize = 16;
/// Chains in flight.
const DEPTH: usize = 32;
/// Chains in flight whose arenas together exceed all caches.
const DEPTH_UNCACHED: usize = 1000;
/// Size of a read where it does not matter, in bytes; kernels read at multiples of it.
const READ_BYTES: u64 = 512;
/// The largest read, in bytes.
const LARGE_READ_BYTES: u64 = 56 << 10;
/// The smallest and the largest relevant size of scratch.
const SMALL_SCRATCH_BYTES: usize = 64;
const LARGE_SCRATCH_BYTES: usize = abi::MAX_SCRATCH_BYTES;
/// Hops of a chain whose hops are measured.
const HOPS: u64 = 1 << 20;
/// The most lines of trace that a call may write.
const LINES: u64 = bpfof_chain::trace::LINES_PER_CALL as u64;
/// The most tail calls that a call may make, rounded down to an even number.
const TAIL_CALLS: u64 = bpfof_chain::engine::MAX_TAIL_CALLS as u64 & !1;

/// The chains of a measurement.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// The function's name in charges.bpf.c.
    entry: &'static str,
    /// The request of each chain, and its count.
    request: Request,
    count: u64,
    scratch_bytes: usize,
    depth: usize,
    /// The number of owners of chains: one, or two in turn, so that each arena goes to the other owner.
    owners: u64,
    /// Whether each chain is suspended and resumed after every hop.
    gives_way: bool,
}

impl Plan {
    /// Chains of one hop.
    fn one_hop(scratch_bytes: usize) -> Plan {
        Plan {
            entry: "hop",
            request: Request { length: READ_BYTES, ..Request::default() },
            count: 0,
            scratch_bytes,
            depth: DEPTH,
            owners: 1,
            gives_way: false,
        }
    }

    /// Chains of many hops, each with reads of `length` bytes at random places in the first `within_bytes` bytes.
    fn hops(entry: &'static str, length: u64, within_bytes: u64) -> Plan {
        let operand = (within_bytes - length) / READ_BYTES;
        let request = Request { length, operand, ..Request::default() };
        Plan { entry, request, count: HOPS, ..Plan::one_hop(SMALL_SCRATCH_BYTES) }
    }
}

/// One charge, and how it is measured.
struct Case {
    name: &'static str,
    plan: Plan,
    /// The same chains without the charged operation.
    without: Option<Plan>,
    /// `reads` reads contain `things` charged operations.
    reads: u64,
    things: u64,
}

/// All cases, in a namespace of this many bytes.
fn cases(namespace_bytes: u64) -> Vec<Case> {
    let whole = |name, plan, reads| Case { name, plan, without: None, reads, things: 1 };
    let without =
        |name, plan, without, things| Case { name, plan, without: Some(without), reads: 1, things };
    let [small, large] = [SMALL_SCRATCH_BYTES, LARGE_SCRATCH_BYTES].map(Plan::one_hop);
    let helper = |entry, count, operand| Plan {
        entry,
        request: Request { operand, ..small.request },
        count,
        ..Plan::one_hop(abi::DEFAULT_SCRATCH_BYTES)
    };
    let cached = Plan::hops("hop", READ_BYTES, CACHED_BYTES);
    let wiping = |owners| Plan {
        entry: "workspace_hop",
        depth: DEPTH_UNCACHED,
        owners,
        ..Plan::one_hop(SMALL_SCRATCH_BYTES)
    };
    let with_workspace = Plan {
        scratch_bytes: LARGE_SCRATCH_BYTES,
        ..Plan::hops("workspace_hop", READ_BYTES, CACHED_BYTES)
    };
    let gives_way = |plan| Plan { gives_way: true, ..plan };
    vec![
        whole("chain of one hop, 64 bytes of scratch", small, 1),
        whole("chain of one hop, 16 KiB of scratch", large, 1),
        whole("hop of 512 bytes, in a cache", cached, 1),
        whole("hop of 512 bytes, in no cache", Plan::hops("hop", READ_BYTES, namespace_bytes), 1),
        whole(
            "hop of 56 KiB, in no cache",
            Plan::hops("hop", LARGE_READ_BYTES, namespace_bytes),
            1,
        ),
        whole(
            "hop of 16 reads of 512 bytes, in no cache",
            Plan::hops("fan_out", READ_BYTES, namespace_bytes),
            abi::MAX_READS as u64,
        ),
        without("wiping an arena with its workspace", wiping(2), wiping(1), 1),
        without("suspending and resuming a small chain", gives_way(cached), cached, 1),
        without(
            "suspending and resuming with workspace and 16 KiB of scratch",
            gives_way(with_workspace),
            with_workspace,
            1,
        ),
        without("trace", helper("trace", LINES, 0), helper("trace", 0, 0), LINES),
        without(
            "tail call between functions with 3 KiB of static data",
            helper("tail_call", TAIL_CALLS, 1),
            helper("tail_call", 0, 1),
            TAIL_CALLS,
        ),
    ]
}

/// Shared by all chains.
struct Ground {
    memory: MemoryNamespace,
    /// The same kernels twice, because functions of different objects have separate static data.
    objects: [Object; 2],
}

impl Ground {
    /// A namespace of this many bytes, all of whose pages are allocated.
    fn new(bytes: u64) -> Result<Ground, Problem> {
        const PIECE_BYTES: usize = 1 << 20;
        let memory = MemoryNamespace::new(bytes, None)?;
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let length = (bytes - offset).min(PIECE_BYTES as u64);
            memory.write(offset, &vec![1; length as usize]);
        }
        Ok(Ground { memory, objects: [Object::parse(OBJECT)?, Object::parse(OBJECT)?] })
    }

    /// Tables with a kernel as two functions, 1 and 2. For the first the tables have a trace of their own.
    fn tables(&self, entry: &str) -> Result<Tables, Problem> {
        let whole = FileMap::whole_namespace(1, self.memory.size_bytes());
        let mut tables = Tables::new(vec![whole]).with_trace(1, None);
        for (id, object) in (1..).zip(&self.objects) {
            tables = tables.with_function(Function {
                id,
                name: entry.to_owned(),
                instructions: 0,
                native: NativeFunction::compile(program(object, entry)?)?,
                memory: None,
                trace: Default::default(),
                peers: None,
                maps: Default::default(),
            });
        }
        Ok(tables)
    }
}

/// The chains of a plan, in progress.
struct World<'a> {
    plan: Plan,
    memory: &'a MemoryNamespace,
    tables: Tables,
    engine: Engine,
    /// Reads of chains that have begun, and first reads of new chains.
    active: VecDeque<DeviceRead>,
    fresh: VecDeque<DeviceRead>,
    round: VecDeque<DeviceRead>,
    started: u64,
}

impl<'a> World<'a> {
    /// Makes a world with all of its chains in flight.
    fn new(plan: Plan, ground: &'a Ground) -> Result<World<'a>, Problem> {
        let mut world = World {
            plan,
            memory: &ground.memory,
            tables: ground.tables(plan.entry)?,
            engine: Engine::new(Limits::default()),
            active: VecDeque::new(),
            fresh: VecDeque::new(),
            round: VecDeque::new(),
            started: 0,
        };
        for _ in 0..plan.depth {
            world.start()?;
        }
        Ok(world)
    }

    /// Starts a chain, which reads other places than the others.
    fn start(&mut self) -> Result<(), String> {
        let World { plan, tables, engine, fresh, started, .. } = self;
        // Chains end in the order in which they began, and the next chain gets the same arena.
        let owner = 1 + *started / plan.depth as u64 % plan.owners;
        *started += 1;
        let argument = Request { state: *started, ..plan.request }.bytes(plan.count);
        let start = Start {
            owner,
            namespace: 1,
            unit_bytes: MemoryNamespace::UNIT_BYTES,
            function: 1,
            files: &[FileVersion { id: WHOLE_NAMESPACE, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: READ_BYTES as u32,
            argument: &argument[..argument.len().min(plan.scratch_bytes)],
            scratch_bytes: plan.scratch_bytes as u32,
            answer_max_bytes: plan.scratch_bytes as u32,
        };
        let outcome = engine.start(&start, tables, |read| fresh.push_back(read));
        outcome.map(|_| ()).map_err(|error| format!("{}: {error}", plan.entry))
    }

    /// Makes this many reads, with a constant number of chains in flight.
    fn run(&mut self, mut reads: u64) -> Result<(), String> {
        while reads > 0 {
            let World { plan, memory, tables, engine, active, fresh, round, .. } = self;
            let Some(read) = round.pop_front() else {
                while round.len() < ROUND
                    && let Some(read) = active.pop_front().or_else(|| fresh.pop_front())
                {
                    round.push_back(read);
                }
                for read in round.iter() {
                    memory.prefetch(read.device_offset, read.length);
                }
                if round.is_empty() {
                    return Err(format!("{}: no chain is in flight", plan.entry));
                }
                continue;
            };
            memory.read(read.device_offset, engine.data_mut(&read));
            reads -= 1;
            if plan.gives_way {
                engine.give_way(read.chain);
            }
            let failed = |error: &dyn std::fmt::Display| Err(format!("{}: {error}", plan.entry));
            match engine.completed(read.chain, true, tables, |read| active.push_back(read)) {
                Progress::Reads => {}
                Progress::Rest => {
                    let suspended = engine.suspend(read.chain);
                    let resumed = engine.resume(&suspended, tables, |read| active.push_back(read));
                    if let Err(error) = resumed {
                        return failed(&error);
                    }
                }
                Progress::Done(Ok(_)) => {
                    engine.release(read.chain);
                    self.start()?;
                }
                Progress::Done(Err((error, _))) => return failed(&error),
                Progress::Calls => return failed(&"its calls are interrupted without a limit"),
            }
        }
        Ok(())
    }

    /// ns and units of this many reads.
    fn timed(&mut self, reads: u64) -> Result<(f64, f64), String> {
        self.engine.take_spent();
        let started = Instant::now();
        self.run(reads)?;
        let ns = started.elapsed().as_nanos() as f64;
        Ok((ns, self.engine.take_spent() as f64))
    }
}

impl Case {
    /// Measures the charge in a world with the operation and one without it.
    fn measure(
        &self,
        section: &'static str,
        rounds: usize,
        ground: &Ground,
    ) -> Result<Charge, Problem> {
        let mut with = World::new(self.plan, ground)?;
        let mut without = self.without.map(|plan| World::new(plan, ground)).transpose()?;
        // Until each arena has belonged to both owners.
        for world in [Some(&mut with), without.as_mut()].into_iter().flatten() {
            world.run(3 * world.plan.depth as u64)?;
        }
        let mut reads = ROUND as u64;
        while with.timed(reads)?.0 < ROUND_NS {
            reads *= 2;
        }
        let things = reads as f64 / self.reads as f64 * self.things as f64;
        let (mut clock_ns, mut units) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (with_ns, with_units) = with.timed(reads)?;
            let (without_ns, without_units) = match &mut without {
                Some(without) => without.timed(reads)?,
                None => (0.0, 0.0),
            };
            clock_ns.push((with_ns - without_ns) / things);
            units.push((with_units - without_units) / things);
        }
        Ok(Charge::new(section, self.name, median(&clock_ns), median(&units)))
    }
}

/// Measures all cases.
pub(super) fn measure(section: &'static str, rounds: usize) -> Result<Vec<Charge>, Problem> {
    let free = free_memory_bytes().unwrap_or(NAMESPACE_BYTES);
    let bytes = NAMESPACE_BYTES.min(free / 2 / 4096 * 4096);
    let ground = Ground::new(bytes)?;
    cases(bytes).iter().map(|case| case.measure(section, rounds, &ground)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL_BYTES: u64 = 1 << 20;

    /// Units of this many reads.
    fn spent(plan: Plan, ground: &Ground, reads: u64) -> u64 {
        let plan = Plan { depth: plan.depth.min(8), ..plan };
        let mut world = World::new(plan, ground).expect(plan.entry);
        // Excludes the costs of starting and of the arenas' first owners.
        world.run(3 * plan.depth as u64).expect(plan.entry);
        world.engine.take_spent();
        world.run(reads).expect(plan.entry);
        world.engine.take_spent()
    }

    #[test]
    fn every_chain_goes_on_and_pays_for_what_it_does() {
        let ground = Ground::new(SMALL_BYTES).expect("address space");
        for case in cases(SMALL_BYTES) {
            let [few, many] = [64, 128].map(|reads| spent(case.plan, &ground, reads));
            assert!(many > few && few > 64, "{}: {few} units, then {many}", case.name);
            if let Some(without) = case.without {
                let without = spent(without, &ground, 64);
                assert!(few > without, "{}: {few} units, {without} without it", case.name);
            }
        }
    }

    #[test]
    fn helpers_of_chains_do_what_is_measured() {
        let ground = Ground::new(SMALL_BYTES).expect("address space");
        let cases = cases(SMALL_BYTES);
        let named = |name: &str| cases.iter().find(|case| case.name == name).expect(name);
        let mut world = World::new(named("trace").plan, &ground).expect("trace");
        world.run(1).expect("trace");
        let lines = world.tables.trace_of(1).expect("it is kept apart").report();
        assert_eq!(lines.lines().count() as u64, LINES);
        let case = named("tail call between functions with 3 KiB of static data");
        // A call pays 500 units for each tail call.
        let [with, without] = [TAIL_CALLS, 0].map(|count| {
            let plan = Plan { count, ..case.plan };
            spent(plan, &ground, 1)
        });
        assert!(with - without >= 500 * TAIL_CALLS, "{with} {without}");
    }

    #[test]
    fn arenas_go_from_owner_to_owner() {
        let ground = Ground::new(SMALL_BYTES).expect("address space");
        let cases = cases(SMALL_BYTES);
        let case = cases.iter().find(|case| case.name.starts_with("wiping")).expect("there is one");
        let without = case.without.expect("one owner");
        let [with, without] = [case.plan, without].map(|plan| spent(plan, &ground, 64));
        // Each of 64 chains pays the same for an arena of the other owner; nothing else differs.
        assert!((with - without) % 64 == 0 && with - without > 64 * 10_000, "{with} {without}");
    }
}
