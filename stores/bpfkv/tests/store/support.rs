//! Databases made by hand, and drivers for cursors and storage functions over bytes in memory.

use bpfkv::create::{Extent, write_database};
use bpfkv::format::{FANOUT, NO_KEY, POINTER_ON_DISK};
use bpfkv::pushdown::{
    AggregatePushdown, BadAnswer, Call, GET_SCRATCH_BYTES, RangePushdown, get_answer, get_argument,
};
use bpfkv::{
    Aggregate, AggregateCursor, Corrupt, GetCursor, KeyRange, Pair, RangeCursor, ReadRequest, Step,
    Summary, Value,
};
use bpfof_function::abi::{self, context};
use bpfof_function::{Alone, Arena, Exit, Fault, NativeFunction, Object, Program, interpret};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// More steps than any walk over the small databases of these tests takes.
const STEPS_MAX: usize = 2_000;

/// SplitMix64: shapes of trees from one seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

pub(crate) type Model = BTreeMap<u64, Value>;

/// A stock database in memory.
pub(crate) fn stock(extent: &Extent) -> Vec<u8> {
    let mut file = vec![0; extent.layout().file_bytes() as usize];
    let mut sink = |offset: u64, bytes: &[u8]| {
        file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    write_database(extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).unwrap();
    file
}

/// A database of any keys: nodes filled at random, at scattered offsets, over a log in the order of
/// keys or not. The model must not be empty.
pub(crate) fn sparse(model: &Model, random: &mut Random, sorted_log: bool) -> Vec<u8> {
    let slots = model.len() + random.below(20);
    let log: Vec<usize> = if sorted_log { (0..slots).collect() } else { random.shuffled(slots) };
    laid_out(model, random, None, &log)
}

/// The same with this many keys in each node but the last of a level, and the values in these slots
/// of the log.
pub(crate) fn laid_out(
    model: &Model,
    random: &mut Random,
    fill: Option<usize>,
    log: &[usize],
) -> Vec<u8> {
    // Each level from the leaves up: nodes of (key, index below).
    let mut levels: Vec<Vec<Vec<(u64, usize)>>> = Vec::new();
    let mut below: Vec<(u64, usize)> = model.keys().copied().zip(0..).collect();
    loop {
        let mut nodes = Vec::new();
        let mut rest = below.as_slice();
        while !rest.is_empty() {
            let least = if below.len() > FANOUT { 2 } else { FANOUT };
            let by_chance = least + random.below(FANOUT - least + 1);
            let fill = fill.unwrap_or(by_chance).min(rest.len());
            nodes.push(rest[..fill].to_vec());
            rest = &rest[fill..];
        }
        below = nodes.iter().map(|node| node[0].0).zip(0..).collect();
        levels.push(nodes);
        if below.len() == 1 {
            break;
        }
    }
    levels.reverse();
    let count: usize = levels.iter().map(Vec::len).sum();
    let mut blocks = vec![0];
    blocks.extend(random.shuffled(count - 1).iter().map(|block| block + 1));
    let slots = log.iter().max().expect("keys") + 1;
    let mut file = vec![0; count * 512 + slots.div_ceil(8) * 512];
    let mut first = 0;
    for (depth, nodes) in levels.iter().enumerate() {
        let leaf = depth + 1 == levels.len();
        let first_below = first + nodes.len();
        for (i, node) in nodes.iter().enumerate() {
            let next = if i + 1 < nodes.len() { blocks[first + i + 1] * 512 } else { 0 };
            let mut words = vec![next as u64, u64::from(leaf)];
            words.extend(node.iter().map(|slot| slot.0));
            words.resize(2 + FANOUT, NO_KEY);
            words.extend(node.iter().map(|slot| {
                let below = if leaf {
                    count * 512 + log[slot.1] * 64
                } else {
                    blocks[first_below + slot.1] * 512
                };
                below as u64 | POINTER_ON_DISK
            }));
            for (at, word) in words.iter().enumerate() {
                let at = blocks[first + i] * 512 + at * 8;
                file[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        first = first_below;
    }
    for (value, slot) in model.values().zip(log) {
        file[count * 512 + slot * 64..][..64].copy_from_slice(value);
    }
    file
}

/// Why a query has no result.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    Corrupt(Corrupt),
    OutsideFile,
    TooManySteps,
    Abort(u64),
    Fault(Fault),
    BadOutput,
    BadAnswer(BadAnswer),
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Failure {
        Failure::Corrupt(corrupt)
    }
}

impl From<BadAnswer> for Failure {
    fn from(answer: BadAnswer) -> Failure {
        Failure::BadAnswer(answer)
    }
}

pub(crate) fn read(file: &[u8], request: ReadRequest) -> Result<&[u8], Failure> {
    usize::try_from(request.offset_bytes)
        .ok()
        .and_then(|offset| file.get(offset..)?.get(..request.length_bytes as usize))
        .ok_or(Failure::OutsideFile)
}

/// Feeds the reads of one step in a random order.
fn feed_all(
    file: &[u8],
    reads: &[ReadRequest],
    random: &mut Random,
    mut feed: impl FnMut(usize, &[u8]) -> Result<(), Corrupt>,
) -> Result<(), Failure> {
    for index in random.shuffled(reads.len()) {
        feed(index, read(file, reads[index])?)?;
    }
    Ok(())
}

pub(crate) fn plain_get(file: &[u8], key: u64, start: u64) -> Result<Option<Value>, Failure> {
    let mut cursor = GetCursor::new();
    cursor.reset(key, start);
    for _ in 0..STEPS_MAX {
        let request = match cursor.step() {
            Step::Read(reads) => reads[0],
            Step::Done(value) => return Ok(value.copied()),
        };
        cursor.feed(0, read(file, request)?)?;
    }
    Err(Failure::TooManySteps)
}

/// The pairs, and the reads of each step.
pub(crate) type Plan = Vec<Vec<ReadRequest>>;

pub(crate) fn plain_range(
    file: &[u8],
    range: &KeyRange,
    start: u64,
    random: &mut Random,
) -> Result<(Vec<Pair>, Plan), Failure> {
    let mut cursor = RangeCursor::new();
    cursor.reset(range, start);
    let (mut pairs, mut plan) = (Vec::new(), Vec::new());
    for _ in 0..STEPS_MAX {
        let reads = match cursor.step() {
            Step::Read(reads) => reads.to_vec(),
            Step::Done(()) => {
                pairs.extend_from_slice(cursor.pairs());
                return Ok((pairs, plan));
            }
        };
        feed_all(file, &reads, random, |index, data| cursor.feed(index, data))?;
        plan.push(reads);
        if random.below(2) == 0 {
            pairs.extend_from_slice(cursor.pairs());
            cursor.clear_pairs();
        }
    }
    Err(Failure::TooManySteps)
}

pub(crate) fn plain_aggregate(
    file: &[u8],
    range: &KeyRange,
    aggregate: Aggregate,
    start: u64,
    random: &mut Random,
) -> Result<Summary, Failure> {
    let mut cursor = AggregateCursor::new();
    cursor.reset(range, aggregate, start);
    for _ in 0..STEPS_MAX {
        let reads = match cursor.step() {
            Step::Read(reads) => reads.to_vec(),
            Step::Done(summary) => return Ok(summary),
        };
        feed_all(file, &reads, random, |index, data| cursor.feed(index, data))?;
    }
    Err(Failure::TooManySteps)
}

/// A storage function and the chain that runs it.
pub(crate) struct Function {
    program: Program,
    native: NativeFunction,
    /// Hops after which a chain ends with a failure.
    hop_budget: u32,
}

impl Function {
    pub(crate) fn load(object: &[u8]) -> Function {
        let program = Object::parse(object).unwrap().into_entry(0).unwrap().program;
        let native = NativeFunction::compile(&program).unwrap();
        Function { program, native, hop_budget: STEPS_MAX as u32 }
    }

    pub(crate) fn with_hop_budget(mut self, hops: u32) -> Function {
        self.hop_budget = hops;
        self
    }

    /// Runs a chain on both engines, requires that they agree, returns the answer and the reads of
    /// each hop. The chain gets `scratch_bytes` of scratch; the bytes after it are left from an
    /// earlier chain.
    pub(crate) fn run(
        &self,
        file: &[u8],
        first_offset_bytes: u64,
        argument: &[u8],
        scratch_bytes: u32,
    ) -> Result<(Vec<u8>, Plan), Failure> {
        let interpreted = self.chain(file, first_offset_bytes, (argument, scratch_bytes), false);
        let native = self.chain(file, first_offset_bytes, (argument, scratch_bytes), true);
        assert_eq!(interpreted, native);
        native
    }

    /// The same for a call of `range`.
    pub(crate) fn run_call(&self, file: &[u8], call: &Call) -> Result<(Vec<u8>, Plan), Failure> {
        let scratch_bytes = call.scratch_size_bytes;
        let ran = self.run(file, call.first_offset_bytes, &call.argument, scratch_bytes)?;
        assert!(ran.0.len() <= call.answer_max_bytes as usize);
        Ok(ran)
    }

    fn chain(
        &self,
        file: &[u8],
        first_offset_bytes: u64,
        (argument, scratch_bytes): (&[u8], u32),
        native: bool,
    ) -> Result<(Vec<u8>, Plan), Failure> {
        let mut arena = Arena::new();
        arena.begin_chain(&[0xa5; abi::MAX_SCRATCH_BYTES], abi::MAX_SCRATCH_BYTES);
        arena.begin_chain(argument, scratch_bytes as usize);
        let mut reads = vec![ReadRequest { offset_bytes: first_offset_bytes, length_bytes: 512 }];
        let mut plan = Vec::new();
        for hop in 0..self.hop_budget {
            arena.begin_hop(hop);
            let mut start = 0;
            for (index, request) in (0..).zip(&reads) {
                let bytes = read(file, *request)?;
                let data = start..start + bytes.len();
                start = data.end.next_multiple_of(512);
                arena.data_mut(data.clone()).copy_from_slice(bytes);
                let limit = arena.begin_call(data, request.offset_bytes, 0, index);
                let mut budget = 100_000;
                let code = if native {
                    self.native.call(&mut arena, limit, &mut budget, &mut Alone)
                } else {
                    interpret(&self.program, &mut arena, limit, &mut budget, &mut Alone)
                };
                match code.map_err(Failure::Fault)? {
                    Exit::Return(0) => {}
                    Exit::Return(code) => return Err(Failure::Abort(code)),
                    Exit::TailCall(_) => unreachable!("no other function is there"),
                }
                if arena.context_u32(context::DONE) != 0 {
                    plan.push(reads);
                    let length = arena.context_u32(context::OUT_LEN) as usize;
                    let answer = arena.scratch().get(..length).ok_or(Failure::BadOutput)?;
                    let behind = &arena.bytes()[SCRATCH_AT..][..abi::MAX_SCRATCH_BYTES];
                    let behind = &behind[scratch_bytes as usize..];
                    assert!(behind.iter().all(|byte| *byte == 0xa5), "written behind scratch");
                    return Ok((answer.to_vec(), plan));
                }
            }
            let next = next_reads(&arena).ok_or(Failure::BadOutput)?;
            plan.push(std::mem::replace(&mut reads, next));
        }
        Err(Failure::TooManySteps)
    }
}

/// The offset of scratch in an arena.
const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;

/// The reads that the function requests: within the protocol's limits even on blocks of 4096 bytes.
fn next_reads(arena: &Arena) -> Option<Vec<ReadRequest>> {
    let count = arena.context_u32(context::READS) as usize;
    let reads: Vec<ReadRequest> = (0..count.min(abi::MAX_READS))
        .map(|i| ReadRequest {
            offset_bytes: arena.context_u64(context::NEXT_OFFSET + i * 8),
            length_bytes: arena.context_u32(context::NEXT_SIZE + i * 4),
        })
        .collect();
    let bytes: u64 = reads
        .iter()
        .map(|read| {
            let end = read.offset_bytes.saturating_add(u64::from(read.length_bytes));
            end.div_ceil(4096) * 4096 - read.offset_bytes / 4096 * 4096
        })
        .sum();
    let fits = (1..=abi::MAX_READS).contains(&count) && bytes <= abi::MAX_HOP_BYTES as u64;
    fits.then_some(reads)
}

pub(crate) fn pushed_get(
    get: &Function,
    file: &[u8],
    key: u64,
    start: u64,
) -> Result<Option<Value>, Failure> {
    let Some(argument) = get_argument(key) else { return Ok(None) };
    let (answer, _) = get.run(file, start, &argument, GET_SCRATCH_BYTES)?;
    Ok(get_answer(&answer)?.copied())
}

/// The pairs, and the plan of each call.
pub(crate) fn pushed_range(
    function: &Function,
    file: &[u8],
    range: &KeyRange,
    start: u64,
    hops_max: u32,
) -> Result<(Vec<Pair>, Vec<Plan>), Failure> {
    pushed_pairs(function, file, RangePushdown::new(range, start, hops_max), hops_max)
}

pub(crate) fn pushed_pairs(
    function: &Function,
    file: &[u8],
    mut pushdown: RangePushdown,
    hops_max: u32,
) -> Result<(Vec<Pair>, Vec<Plan>), Failure> {
    let (mut pairs, mut plans) = (Vec::new(), Vec::new());
    while let Some(call) = pushdown.call() {
        let (answer, plan) = function.run_call(file, &call)?;
        assert!(hops_max < 11 || plan.len() <= hops_max as usize);
        let answered = pushdown.answer(&answer)?;
        pairs.extend(answered.map(|(key, value)| Pair { key, value: *value }));
        plans.push(plan);
    }
    Ok((pairs, plans))
}

pub(crate) fn pushed_aggregate(
    function: &Function,
    file: &[u8],
    range: &KeyRange,
    aggregate: Aggregate,
    start: u64,
    hops_max: u32,
) -> Result<(Summary, usize), Failure> {
    let mut pushdown = AggregatePushdown::new(range, aggregate, start, hops_max);
    let mut calls = 0;
    while let Some(call) = pushdown.call() {
        let (answer, _) = function.run_call(file, &call)?;
        pushdown.answer(&answer)?;
        calls += 1;
    }
    Ok((*pushdown.summary(), calls))
}
