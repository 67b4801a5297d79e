//! The cost of one hop of a chain on a memory namespace, including the function: 32 BPF-KV chains
//! that take turns as in a reactor.
//!
//! `kv-get/N`: lookups in a database of N levels. 3 levels fit the processor's cache, 5 (2.2 GiB)
//! do not. Divide by the hops of a get (levels + 1). `kv-range-64/N`: ranges of 64 pairs, usually
//! three leaves; `kv-sum-64/N`: the sum of 64 values.

use bpfkv::create::{Extent, write_database};
use bpfkv::pushdown::{
    AggregatePushdown, FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, RangePushdown,
    get_answer, get_argument,
};
use bpfkv::{Aggregate, KeyRange};
use bpfof_chain::{
    DeviceRead, Engine, FileMap, FileVersion, Function, Limits, Progress, Start, Tables,
    WHOLE_NAMESPACE,
};
use bpfof_device::MemoryNamespace;
use bpfof_function::{NativeFunction, Object};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::ControlFlow;

/// Chains in flight.
const DEPTH: u64 = 32;
/// Reads whose memory is prefetched together, as in a reactor.
const ROUND: usize = 16;

/// Pairs of a range.
const PAIRS: u64 = 64;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Get,
    Range,
    Sum,
}

struct World {
    work: Work,
    memory: MemoryNamespace,
    tables: Tables,
    engine: Engine,
    /// Reads of running chains, and first reads.
    active: VecDeque<DeviceRead>,
    fresh: VecDeque<DeviceRead>,
    round: VecDeque<DeviceRead>,
    keys: u64,
    random: u64,
}

impl World {
    fn new(levels: u32, work: Work) -> World {
        let extent = Extent::full(levels).expect("levels");
        let size = extent.layout().file_bytes().next_multiple_of(4096);
        let memory = MemoryNamespace::new(size, None).expect("address space");
        let mut sink = |offset, bytes: &[u8]| {
            memory.write(offset, bytes);
            Ok(())
        };
        write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("memory");
        let object = if work == Work::Get { bpfkv::GET_OBJECT } else { bpfkv::RANGE_OBJECT };
        let entry = Object::parse(object).expect("parses").into_entry(0).expect("entry");
        let native = NativeFunction::compile(&entry.program).expect("translates");
        let function = Function {
            id: 1,
            name: entry.name,
            instructions: 0,
            native,
            trace: Default::default(),
            peers: None,
            maps: Default::default(),
            memory: None,
        };
        let whole = FileMap::whole_namespace(1, size);
        World {
            work,
            memory,
            tables: Tables::new(vec![whole]).with_function(function),
            engine: Engine::new(Limits::default()),
            active: VecDeque::new(),
            fresh: VecDeque::new(),
            round: VecDeque::new(),
            keys: extent.keys(),
            random: 1,
        }
    }

    /// A world with chains in flight.
    fn filled(levels: u32, work: Work) -> World {
        let mut world = World::new(levels, work);
        for _ in 0..DEPTH {
            world.start();
        }
        world
    }

    fn start(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = ((u128::from(self.random) * u128::from(self.keys - PAIRS)) >> 64) as u64;
        let (get, range) = (get_argument(key).expect("a key"), KeyRange::new(key, key + PAIRS));
        let range = range.expect("in order");
        let call = match self.work {
            Work::Get => None,
            Work::Range => RangePushdown::new(&range, 0, 0).call(),
            Work::Sum => AggregatePushdown::new(&range, Aggregate::Sum, 0, 0).call(),
        };
        let (argument, answer_max_bytes, scratch_bytes) = match &call {
            None => (&get[..], GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES),
            Some(call) => (&call.argument[..], call.answer_max_bytes, call.scratch_size_bytes),
        };
        let start = Start {
            owner: 1,
            namespace: 1,
            unit_bytes: MemoryNamespace::UNIT_BYTES,
            function: 1,
            files: &[FileVersion { id: WHOLE_NAMESPACE, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: FIRST_READ_BYTES,
            argument,
            scratch_bytes,
            answer_max_bytes,
        };
        let World { engine, tables, fresh, .. } = self;
        engine.start(&start, tables, |read| fresh.push_back(read)).expect("starts");
    }

    /// Runs chains until `count` more have ended, with as many in flight as before.
    #[inline(never)]
    fn run(&mut self, mut count: u64) {
        while count > 0 {
            let World { engine, tables, active, fresh, round, memory, .. } = self;
            let Some(read) = round.pop_front() else {
                while round.len() < ROUND
                    && let Some(read) = active.pop_front().or_else(|| fresh.pop_front())
                {
                    round.push_back(read);
                }
                for read in round {
                    memory.prefetch(read.device_offset, read.length);
                }
                continue;
            };
            memory.read(read.device_offset, engine.data_mut(&read));
            let progress =
                engine.completed(read.chain, true, tables, |read| active.push_back(read));
            if let Progress::Done(outcome) = progress {
                let answer = outcome.expect("a sound database");
                let scratch = &engine.scratch(read.chain)[..answer.length_bytes as usize];
                if self.work == Work::Get {
                    black_box(get_answer(scratch).expect("an answer").expect("found"));
                } else {
                    black_box(scratch);
                }
                engine.release(read.chain);
                count -= 1;
                self.start();
            }
        }
    }
}

fn hops(criterion: &mut Criterion) {
    for (work, name) in
        [(Work::Get, "kv-get"), (Work::Range, "kv-range-64"), (Work::Sum, "kv-sum-64")]
    {
        let mut group = criterion.benchmark_group(name);
        for levels in [3, 5] {
            // Created only if the benchmark is not filtered out.
            let mut world = None;
            let elements = if work == Work::Get { u64::from(levels) + 1 } else { PAIRS };
            group.throughput(Throughput::Elements(elements));
            group.bench_function(levels.to_string(), |bencher| {
                let world = world.get_or_insert_with(|| World::filled(levels, work));
                bencher.iter_custom(|count| {
                    let begun = std::time::Instant::now();
                    world.run(count);
                    begun.elapsed()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, hops);
criterion_main!(benches);
