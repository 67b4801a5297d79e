//! Compares the engine with a naive model: random files, maps and function outputs.
//!
//! The function under test is a small eBPF program that copies its outputs from the block it is
//! given. So random blocks cause random behaviour, and the model only has to interpret the same
//! blocks byte by byte.

mod assembly;

use assembly::{CHAIN, EXIT, function, slot};
use bpfof_chain::*;
use bpfof_function::abi;
use bpfof_nvme::tcp::data_digest;
use proptest::prelude::*;
use std::collections::VecDeque;

const BLOCK: u64 = 512;
const NAMESPACE_BLOCKS: u64 = 64;
/// The outputs in the context's layout, from `reads` on, followed by the return code.
const ORDER_BYTES: usize = abi::context::BYTES - abi::context::READS;
const RETURN_AT: usize = ORDER_BYTES;
const SMALLEST_ORDER: u32 = ORDER_BYTES as u32 + 8;

/// Counts its calls and accumulates a digest of its input in scratch, and obeys the block; ends the
/// chain on a short block.
fn obedient() -> Function {
    let code = [
        slot(0xbf, 6, 1, 0, 0),  // r6 = ctx
        slot(0x79, 7, 6, 0, 0),  // r7 = data
        slot(0x79, 8, 6, 16, 0), // r8 = scratch
        slot(0x79, 2, 8, 0, 0),  // scratch[0] += 1
        slot(0x07, 2, 0, 0, 1),
        slot(0x7b, 8, 2, 0, 0),
        slot(0x79, 9, 6, 8, 0), // r9 = data_end - data
        slot(0x1f, 9, 7, 0, 0),
        slot(0xbf, 1, 7, 0, 0), // r0 = crc32c(data, 0, r9)
        slot(0xb7, 2, 0, 0, 0),
        slot(0xbf, 3, 9, 0, 0),
        slot(0x85, 0, 0, 0, 4),
        slot(0x79, 2, 8, 8, 0), // scratch[8] = (scratch[8] * 31 + offset) ^ r0
        slot(0x27, 2, 0, 0, 31),
        slot(0x79, 3, 6, 24, 0),
        slot(0x0f, 2, 3, 0, 0),
        slot(0xaf, 2, 0, 0, 0),
        slot(0x7b, 8, 2, 8, 0),
        slot(0x35, 9, 0, 4, SMALLEST_ORDER as i32), // if r9 >= smallest goto obey
        slot(0x62, 6, 0, 52, 1),                    // done = 1
        slot(0x62, 6, 0, 56, 16),                   // out_len = 16
        slot(0xb7, 0, 0, 0, 0),
        EXIT,
        slot(0xbf, 1, 6, 0, 0), // obey: memmove(&ctx->reads, data, ORDER)
        slot(0x07, 1, 0, 0, 48),
        slot(0xbf, 2, 7, 0, 0),
        slot(0xb7, 3, 0, 0, ORDER_BYTES as i32),
        slot(0x85, 0, 0, 0, 2),
        slot(0x61, 0, 7, RETURN_AT as i16, 0),
        EXIT,
    ];
    function(1, &code)
}

#[derive(Clone, Debug)]
struct Order {
    reads: u32,
    done: bool,
    out_len: u32,
    code: u32,
    next: Vec<(u64, u32, u32)>,
}

impl Order {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SMALLEST_ORDER as usize];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let base = abi::context::READS;
        put(0, &self.reads.to_le_bytes());
        put(abi::context::DONE - base, &u32::from(self.done).to_le_bytes());
        put(abi::context::OUT_LEN - base, &self.out_len.to_le_bytes());
        for (index, (offset, size, file)) in self.next.iter().enumerate() {
            put(abi::context::NEXT_OFFSET - base + 8 * index, &offset.to_le_bytes());
            put(abi::context::NEXT_SIZE - base + 4 * index, &size.to_le_bytes());
            put(abi::context::NEXT_FILE - base + 4 * index, &file.to_le_bytes());
        }
        put(RETURN_AT, &self.code.to_le_bytes());
        bytes
    }
}

/// The namespace's bytes, and for each file its length and its map (file block → namespace block).
#[derive(Clone, Debug)]
struct World {
    namespace: Vec<u8>,
    files: Vec<(Vec<Option<u64>>, u64)>,
    first: (u32, u64, u32),
    limits: Limits,
    answer_max: u32,
    scratch: u32,
    /// The device's unit of reads in bytes.
    unit: u64,
}

fn file_map(blocks: &[Option<u64>], length: u64) -> FileMap {
    let mut extents: Vec<Extent> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let Some(block) = block else { continue };
        let (file_offset, device_offset) = (index as u64 * BLOCK, block * BLOCK);
        match extents.last_mut() {
            Some(last)
                if last.file_offset + last.length == file_offset
                    && last.device_offset + last.length == device_offset =>
            {
                last.length += BLOCK;
            }
            _ => extents.push(Extent { file_offset, device_offset, length: BLOCK }),
        }
    }
    FileMap::new(1, 1, length, extents, NAMESPACE_BLOCKS * BLOCK, BLOCK as u32).expect("valid")
}

/// The expected result of the chain: (calls, digest of offsets and data, hops) or the error.
fn model(world: &World) -> Result<(u64, u64, u32), ChainError> {
    let (mut calls, mut digest, mut hops) = (0u64, 0u64, 0);
    let mut bytes_left = world.limits.bytes;
    let mut reads = vec![world.first];
    loop {
        let units = |(_, offset, size): (u32, u64, u32)| {
            (offset + u64::from(size)).div_ceil(world.unit) - offset / world.unit
        };
        let mut data = Vec::new();
        let mut total = 0;
        for &read in &reads {
            let bytes = read_file(world, read)?;
            total += units(read) * world.unit;
            if total > abi::MAX_HOP_BYTES as u64 {
                return Err(ChainError::InvalidOutput(InvalidOutput::HopTooLarge));
            }
            data.push((read.1, bytes));
        }
        if reads.is_empty() {
            return Err(ChainError::InvalidOutput(InvalidOutput::NoProgress));
        }
        bytes_left = bytes_left.checked_sub(total).ok_or(ChainError::ByteBudget)?;
        hops += 1;
        let mut context = (0u32, Vec::new());
        for (offset, block) in data {
            calls += 1;
            let crc = u32::from_le_bytes(data_digest(&block));
            digest = digest.wrapping_mul(31).wrapping_add(offset) ^ u64::from(crc);
            if block.len() < SMALLEST_ORDER as usize {
                return finish(world, 16).map(|()| (calls, digest, hops));
            }
            let order = parse(&block);
            if order.code != 0 {
                return Err(ChainError::Abort(order.code));
            }
            if order.done {
                return finish(world, order.out_len).map(|()| (calls, digest, hops));
            }
            context = (order.reads, order.next);
        }
        if hops >= world.limits.hops {
            return Err(ChainError::HopBudget);
        }
        if context.0 > 16 {
            return Err(ChainError::InvalidOutput(InvalidOutput::TooManyReads));
        }
        reads = context.1.into_iter().take(context.0 as usize).map(|(o, s, f)| (f, o, s)).collect();
        reads.retain(|read| read.2 > 0);
    }
}

fn finish(world: &World, length: u32) -> Result<(), ChainError> {
    if length > world.scratch {
        return Err(ChainError::InvalidOutput(InvalidOutput::AnswerOutsideScratch));
    }
    if length > world.answer_max { Err(ChainError::AnswerTooLong(length)) } else { Ok(()) }
}

fn parse(block: &[u8]) -> Order {
    let base = abi::context::READS;
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4"));
    let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8"));
    let next = (0..16).map(|index| {
        (
            u64_at(abi::context::NEXT_OFFSET - base + 8 * index),
            u32_at(abi::context::NEXT_SIZE - base + 4 * index),
            u32_at(abi::context::NEXT_FILE - base + 4 * index),
        )
    });
    Order {
        reads: u32_at(0),
        done: u32_at(abi::context::DONE - base) != 0,
        out_len: u32_at(abi::context::OUT_LEN - base),
        code: u32_at(RETURN_AT),
        next: next.collect(),
    }
}

fn read_file(world: &World, (file, offset, size): (u32, u64, u32)) -> Result<Vec<u8>, ChainError> {
    let no_file = ChainError::InvalidOutput(InvalidOutput::NoSuchFile);
    let (blocks, length) = world.files.get(file as usize).ok_or(no_file)?;
    let outside = ChainError::OutsideFile(file);
    let end = offset.checked_add(u64::from(size)).filter(|end| end <= length).ok_or(outside)?;
    (offset..end)
        .map(|at| {
            let block = blocks.get((at / BLOCK) as usize).copied().flatten().ok_or(outside)?;
            Ok(world.namespace[(block * BLOCK + at % BLOCK) as usize])
        })
        .collect()
}

/// Runs the engine, completing its reads in an order that `shuffle` picks.
fn run(
    world: &World,
    shuffle: &mut dyn FnMut(usize) -> usize,
) -> Result<(u64, u64, u32), ChainError> {
    let mut tables = Tables::new(vec![]).with_function(obedient());
    for (index, (blocks, length)) in world.files.iter().enumerate() {
        tables = tables.with_map(index as u32 + 1, file_map(blocks, *length));
    }
    let files: Vec<_> =
        (1..=world.files.len() as u32).map(|id| FileVersion { id, version: 1 }).collect();
    // Interrupts after each call, or never.
    let mut engine = Engine::new(world.limits).with_slice([0, u64::MAX][shuffle(2)]);
    let mut queue = VecDeque::new();
    let start = Start {
        unit_bytes: world.unit as u32,
        files: &files,
        first_file: world.first.0,
        first_offset_bytes: world.first.1,
        first_size_bytes: world.first.2,
        scratch_bytes: world.scratch,
        answer_max_bytes: world.answer_max,
        ..CHAIN
    };
    let mut id = engine.start(&start, &tables, |read| queue.push_back(read))?;
    loop {
        let read = queue.remove(shuffle(queue.len())).expect("a chain that runs has reads");
        let at = read.device_offset as usize;
        assert_eq!((read.device_offset | u64::from(read.length)) % world.unit, 0);
        let data = &world.namespace[at..at + read.length as usize];
        engine.data_mut(&read).copy_from_slice(data);
        if shuffle(4) == 0 {
            engine.give_way(id);
        }
        let mut progress =
            engine.completed(read.chain, true, &tables, |read| queue.push_back(read));
        while progress == Progress::Calls {
            progress = engine.go_on(id, true, &tables, |read| queue.push_back(read));
        }
        let outcome = match progress {
            Progress::Reads => continue,
            Progress::Calls => unreachable!("gone on with above"),
            Progress::Rest => {
                assert!(queue.is_empty());
                let suspended = engine.suspend(id);
                assert_eq!(engine.running(), 0);
                disturb(&mut engine, &start, &tables);
                match engine.resume(&suspended, &tables, |read| queue.push_back(read)) {
                    Ok(resumed) => id = resumed,
                    Err(error) => return Err(error),
                }
                continue;
            }
            Progress::Done(outcome) => outcome,
        };
        assert!(queue.is_empty());
        let word = |at: usize| {
            u64::from_le_bytes(engine.scratch(id)[at..at + 8].try_into().expect("8 bytes"))
        };
        let result = (word(0), word(8));
        engine.release(id);
        assert_eq!(engine.running(), 0);
        return outcome.map(|a| (result.0, result.1, a.hops)).map_err(|(error, _)| error);
    }
}

/// Runs another owner's chain, which may use the same arena.
fn disturb(engine: &mut Engine, start: &Start<'_>, tables: &Tables) {
    let other = Start { owner: 2, argument: &[0xa5; 64], scratch_bytes: 4096, ..*start };
    if let Ok(id) = engine.start(&other, tables, |_| ()) {
        let mut progress = engine.completed(id, false, tables, |_| ());
        while progress == Progress::Reads {
            progress = engine.completed(id, false, tables, |_| ());
        }
        assert!(matches!(progress, Progress::Done(Err((ChainError::Device, _)))));
        engine.release(id);
    }
}

fn order(files: u32) -> impl Strategy<Value = Order> {
    let offset = prop_oneof![
        8 => (0..40u64).prop_map(|block| block * BLOCK),
        2 => 0..20_000u64,
        1 => any::<u64>()
    ];
    let size = prop_oneof![
        6 => Just(BLOCK as u32),
        2 => 0..2000u32,
        1 => Just(6000),
        1 => any::<u32>()
    ];
    let next = proptest::collection::vec((offset, size, 0..files + files / 3), 16);
    let reads = prop_oneof![8 => 1..4u32, 2 => 0..17u32, 1 => any::<u32>()];
    let done = proptest::bool::weighted(0.1);
    let out_len = prop_oneof![Just(16u32), 0..5000u32, 16_383..16_386u32];
    let code = prop_oneof![20 => Just(0u32), 1 => any::<u32>()];
    (reads, done, out_len, code, next).prop_map(|(reads, done, out_len, code, next)| Order {
        reads,
        done,
        out_len,
        code,
        next,
    })
}

fn world() -> impl Strategy<Value = World> {
    let file = (
        proptest::collection::vec(
            prop_oneof![9 => (0..NAMESPACE_BLOCKS).prop_map(Some), 1 => Just(None)],
            40,
        ),
        prop_oneof![Just(40 * BLOCK), 0..21_000u64],
    );
    let files = proptest::collection::vec(file, 1..5);
    files.prop_flat_map(|files| {
        let count = files.len() as u32;
        let orders = proptest::collection::vec(order(count), NAMESPACE_BLOCKS as usize);
        let limits = (1..40u32, prop_oneof![Just(1u64 << 30), 0..60_000u64]);
        let scratch = prop_oneof![Just(16u32), Just(4096), Just(16_384), 16..16_385u32];
        let sizes = (prop_oneof![Just(16_384u32), 0..4096u32], scratch);
        let unit = prop_oneof![Just(64), Just(BLOCK)];
        (Just(files), orders, limits, sizes, 0..count, unit).prop_map(
            |(files, orders, (hops, bytes), (answer_max, scratch), first, unit)| {
                let mut namespace = vec![0; (NAMESPACE_BLOCKS * BLOCK) as usize];
                for (block, order) in orders.iter().enumerate() {
                    let bytes = order.bytes();
                    namespace[block * BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                let limits = Limits { hops, bytes, ..Limits::default() };
                let first = (first, 0, BLOCK as u32);
                World { namespace, files, first, limits, answer_max, scratch, unit }
            },
        )
    })
}

/// The engine may find the errors of one hop in another order than the model; only then may the
/// errors differ.
fn same_end(a: &ChainError, b: &ChainError) -> bool {
    let planning = |error: &ChainError| {
        matches!(
            error,
            ChainError::OutsideFile(_)
                | ChainError::InvalidOutput(InvalidOutput::NoSuchFile | InvalidOutput::HopTooLarge)
        )
    };
    a == b || planning(a) && planning(b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_engine_agrees_with_the_model(world in world(), picks in any::<[u8; 16]>()) {
        let mut turn = 0;
        let actual = run(&world, &mut |choices| {
            turn += 1;
            usize::from(picks[turn % picks.len()]) % choices
        });
        match (model(&world), actual) {
            (Err(expected), Err(actual)) => prop_assert!(same_end(&expected, &actual), "{expected:?} {actual:?}"),
            (expected, actual) => prop_assert_eq!(expected, actual),
        }
    }
}

fn one_file_world() -> World {
    let order = Order { reads: 1, done: false, out_len: 0, code: 0, next: vec![(0, 512, 0)] };
    let mut namespace = vec![0; (NAMESPACE_BLOCKS * BLOCK) as usize];
    namespace[..SMALLEST_ORDER as usize].copy_from_slice(&order.bytes());
    let limits = Limits { hops: 1000, ..Limits::default() };
    World {
        namespace,
        files: vec![(vec![Some(0)], 512)],
        first: (0, 0, 512),
        limits,
        answer_max: 16,
        scratch: 4096,
        unit: BLOCK,
    }
}

#[test]
fn a_pointer_cycle_ends_with_the_hop_budget() {
    assert_eq!(run(&one_file_world(), &mut |_| 0), Err(ChainError::HopBudget));
}

/// Starts the chain of the one-file world and changes the tables between its first two hops.
fn change_tables(change: impl Fn(&Tables) -> Tables) -> Progress {
    let world = one_file_world();
    let tables = Tables::new(vec![])
        .with_function(obedient())
        .with_map(1, file_map(&world.files[0].0, world.files[0].1));
    let mut engine = Engine::new(world.limits);
    let mut reads = Vec::new();
    let files = &[FileVersion { id: 1, version: 1 }];
    let start = Start { files, scratch_bytes: 4096, answer_max_bytes: 16, ..CHAIN };
    let id = engine.start(&start, &tables, |read| reads.push(read)).expect("starts");
    let read = reads.pop().expect("one read");
    engine.data_mut(&read).copy_from_slice(&world.namespace[..512]);
    assert_eq!(engine.completed(id, true, &tables, |read| reads.push(read)), Progress::Reads);
    let read = reads.pop().expect("the next read");
    engine.data_mut(&read).copy_from_slice(&world.namespace[..512]);
    let changed = change(&tables);
    let progress = engine.completed(id, true, &changed, |_| ());
    if progress != Progress::Reads {
        engine.release(id);
    }
    // A chain that rests meanwhile ends in the same way, in another arena.
    let id = engine.start(&start, &tables, |read| reads.push(read)).expect("starts");
    let read = reads.pop().expect("one read");
    engine.data_mut(&read).copy_from_slice(&world.namespace[..512]);
    engine.give_way(id);
    assert_eq!(engine.completed(id, true, &tables, |_| ()), Progress::Rest);
    let suspended = engine.suspend(id);
    engine.start(&start, &tables, |_| ()).expect("another chain takes the arena");
    let resumed = engine.resume(&suspended, &changed, |_| ());
    match progress {
        Progress::Done(Err((error, _))) => assert_eq!(resumed, Err(error)),
        _ => assert!(resumed.is_ok(), "{resumed:?}"),
    }
    progress
}

#[test]
fn a_map_that_changes_under_a_chain_stops_it() {
    let newer = FileMap::new(1, 2, 512, vec![], 1 << 20, 512).expect("valid");
    let stale = change_tables(|tables| tables.with_map(1, newer.clone()));
    assert_eq!(stale, Progress::Done(Err((ChainError::StaleFileMap(0), 2))));
    // The blocks may have been another file's between the two maps.
    let world = one_file_world();
    let same = || file_map(&world.files[0].0, world.files[0].1);
    let again = change_tables(|tables| tables.without_map(1).with_map(1, same()));
    assert_eq!(again, Progress::Done(Err((ChainError::StaleFileMap(0), 2))));
    let grown = change_tables(|tables| tables.with_resized_map(1, same()));
    assert_eq!(grown, Progress::Reads);
    let gone = change_tables(|tables| tables.without_map(1));
    assert_eq!(gone, Progress::Done(Err((ChainError::UnknownFile(0), 2))));
    let unloaded = change_tables(|tables| tables.without_function(1));
    assert_eq!(unloaded, Progress::Done(Err((ChainError::UnknownFunction, 2))));
    assert_eq!(change_tables(|tables| tables.without_map(99)), Progress::Reads);
}

#[test]
fn a_failed_device_read_and_a_full_engine_are_errors() {
    let world = one_file_world();
    let tables = Tables::new(vec![FileMap::whole_namespace(1, 4096)]).with_function(obedient());
    let mut engine = Engine::new(Limits { chains: 1, ..world.limits });
    let start = Start { scratch_bytes: 4096, answer_max_bytes: 16, ..CHAIN };
    let id = engine.start(&start, &tables, |_| ()).expect("starts");
    assert_eq!(engine.start(&start, &tables, |_| ()), Err(ChainError::TooManyChains));
    let outcome = engine.completed(id, false, &tables, |_| ());
    assert_eq!(outcome, Progress::Done(Err((ChainError::Device, 0))));
    engine.release(id);
    // A cancelled read ends its chain with Interrupted; the next chain in the same arena is not affected.
    for expected in [ChainError::Interrupted, ChainError::Device] {
        let id = engine.start(&start, &tables, |_| ()).expect("starts");
        if expected == ChainError::Interrupted {
            engine.interrupt(id);
        }
        let outcome = engine.completed(id, false, &tables, |_| ());
        assert_eq!(outcome, Progress::Done(Err((expected, 0))));
        engine.release(id);
    }
    let outside = Start { first_offset_bytes: 4000, ..start };
    assert_eq!(engine.start(&outside, &tables, |_| ()), Err(ChainError::OutsideFile(0)));
    assert_eq!(engine.running(), 0);
}
