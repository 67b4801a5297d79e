//! What one hop of a chain costs on a memory namespace, the function included: BPF-KV gets, 32
//! chains taking turns as in a reactor. Divide by the hops of a get (levels + 1).
//!
//! `kv-get/N`: a database of N levels. 3 fits the processor's cache, 5 (2.2 GiB) does not.

use bpfkv::create::{Extent, write_database};
use bpfkv::pushdown::{FIRST_READ_BYTES, GET_ANSWER_BYTES, get_answer, get_argument};
use bpfof_chain::{
    DeviceRead, Engine, FileMap, FileVersion, Function, Limits, Start, Tables, WHOLE_NAMESPACE,
};
use bpfof_device::{DelayQueue, MemoryNamespace};
use bpfof_function::{NativeFunction, Object};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::ops::ControlFlow;

/// Chains in flight.
const DEPTH: u64 = 32;

struct World {
    memory: MemoryNamespace,
    tables: Tables,
    engine: Engine,
    queue: DelayQueue<DeviceRead>,
    keys: u64,
    random: u64,
}

impl World {
    fn new(levels: u32) -> World {
        let extent = Extent::full(levels).expect("levels");
        let size = extent.layout().file_bytes().next_multiple_of(4096);
        let memory = MemoryNamespace::new(size, None).expect("address space");
        let mut sink = |offset, bytes: &[u8]| {
            memory.write(offset, bytes);
            Ok(())
        };
        write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("memory");
        let entry = Object::parse(bpfkv::GET_OBJECT).expect("parses").into_entry(0).expect("entry");
        let native = NativeFunction::compile(&entry.program).expect("translates");
        let function = Function { id: 1, name: entry.name, instructions: 0, native };
        let whole = FileMap::whole_namespace(1, size);
        World {
            memory,
            tables: Tables::new(vec![whole]).with_function(function),
            engine: Engine::new(Limits::default()),
            queue: DelayQueue::default(),
            keys: extent.keys(),
            random: 1,
        }
    }

    fn start(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = ((u128::from(self.random) * u128::from(self.keys)) >> 64) as u64;
        let start = Start {
            owner: 1,
            namespace: 1,
            block_bytes: 512,
            function: 1,
            files: &[FileVersion { id: WHOLE_NAMESPACE, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: FIRST_READ_BYTES,
            argument: &get_argument(key).expect("a key"),
            answer_max_bytes: GET_ANSWER_BYTES as u32,
        };
        let World { engine, tables, queue, .. } = self;
        engine.start(&start, tables, |read| queue.push(None, 0, read)).expect("starts");
    }

    /// Runs chains until `count` more have ended, with as many in flight as before.
    #[inline(never)]
    fn run(&mut self, mut count: u64) {
        while count > 0 {
            let World { engine, tables, queue, memory, .. } = self;
            let soon = |read: &DeviceRead| memory.prefetch(read.device_offset, read.length);
            let read = queue.pop(0, soon).expect("chains in flight have reads");
            memory.read(read.device_offset, engine.data_mut(&read));
            let outcome =
                engine.completed(read.chain, true, tables, |read| queue.push_active(read, soon));
            if let Some(outcome) = outcome {
                let answer = outcome.expect("a sound database");
                let scratch = &engine.scratch(read.chain)[..answer.length_bytes as usize];
                black_box(get_answer(scratch).expect("an answer").expect("found"));
                engine.release(read.chain);
                count -= 1;
                self.start();
            }
        }
    }
}

fn hops(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kv-get");
    for levels in [3, 5] {
        let mut world = World::new(levels);
        for _ in 0..DEPTH {
            world.start();
        }
        group.throughput(Throughput::Elements(u64::from(levels) + 1));
        group.bench_function(levels.to_string(), |bencher| {
            bencher.iter_custom(|count| {
                let begun = std::time::Instant::now();
                world.run(count);
                begun.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, hops);
criterion_main!(benches);
