//! Chains of two owners in the same arenas: neither finds data that the other left.

mod assembly;

use assembly::{CHAIN, EXIT, function, slot};
use bpfof_chain::{
    Answer, ChainId, DeviceRead, Engine, FileMap, Limits, Progress, Start, Suspended, Tables,
};
use bpfof_function::abi;
use proptest::prelude::*;

const BLOCK: u32 = 4096;
/// The byte that owner 1 writes wherever it can.
const CANARY: u8 = 0xc5;
const MEMSET: i32 = 3;
const FIND: i32 = 5;
const WORKSPACE: i32 = 12;

/// All memory that a call can reach, except the data that was read for it: address and size.
fn reach() -> [(u64, usize); 4] {
    let context_end = abi::CONTEXT + abi::context::BYTES as u64;
    [
        (abi::WORKSPACE, abi::WORKSPACE_BYTES),
        (abi::GUEST_BASE, (abi::CONTEXT - abi::GUEST_BASE) as usize),
        (context_end, (abi::SCRATCH - context_end) as usize),
        (abi::SCRATCH, abi::MAX_SCRATCH_BYTES),
    ]
}

/// Calls a helper with an address, the canary and a length. Preserves `r6`.
fn call(helper: i32, (at, bytes): (u64, usize)) -> [[u8; 8]; 4] {
    [
        slot(0xb7, 1, 0, 0, at as i32),
        slot(0xb7, 2, 0, 0, i32::from(CANARY)),
        slot(0xb7, 3, 0, 0, bytes as i32),
        slot(0x85, 0, 0, 0, helper),
    ]
}

/// Runs for three hops: requests the first read again in the first two, and ends the chain in the third.
fn end() -> Vec<[u8; 8]> {
    vec![
        slot(0xb7, 0, 0, 0, 0),
        slot(0x61, 2, 6, 36, 0), // r2 = hop
        slot(0x55, 2, 0, 2, 2),  // if r2 != 2 goto on
        slot(0x62, 6, 0, 52, 1), // done = 1
        EXIT,
        slot(0x62, 6, 0, 48, 1), // reads = 1
        slot(0x62, 6, 0, 192, BLOCK as i32),
        EXIT,
    ]
}

/// Fills all memory that it can reach with the canary.
fn filling() -> Vec<[u8; 8]> {
    let mut code = vec![slot(0xbf, 6, 1, 0, 0), slot(0x85, 0, 0, 0, WORKSPACE)];
    code.extend(reach().into_iter().flat_map(|place| call(MEMSET, place)));
    code.extend(call(MEMSET, (abi::DATA, BLOCK as usize)));
    code.extend(end());
    code
}

/// Returns the number, from 1, of the first place that contains a canary.
fn looking() -> Vec<[u8; 8]> {
    let mut code = vec![slot(0xbf, 6, 1, 0, 0), slot(0x85, 0, 0, 0, WORKSPACE)];
    for (number, place) in (1..).zip(reach().into_iter().chain([(abi::DATA, BLOCK as usize)])) {
        code.extend(call(FIND, place));
        // if r0 != length: return number
        code.push(slot(0x15, 0, 0, 2, place.1 as i32));
        code.extend([slot(0xb7, 0, 0, 0, number), EXIT]);
    }
    code.extend(end());
    code
}

/// Does not use the workspace, so the arena need not have one.
fn modest() -> Vec<[u8; 8]> {
    [vec![slot(0xbf, 6, 1, 0, 0)], end()].concat()
}

/// An engine with few arenas, for the chains of two owners.
struct House {
    engine: Engine,
    tables: Tables,
    waiting: Vec<(u64, ChainId, DeviceRead)>,
    resting: Vec<(u64, Suspended)>,
    ended: [usize; 3],
}

impl House {
    fn new() -> House {
        let functions = [filling(), looking(), modest()];
        let tables = Tables::new(vec![FileMap::whole_namespace(1, 1 << 20)]);
        let tables = (1..)
            .zip(functions)
            .fold(tables, |tables, (id, code)| tables.with_function(function(id, &code)));
        let engine = Engine::new(Limits { chains: 2, ..Limits::default() });
        House { engine, tables, waiting: Vec::new(), resting: Vec::new(), ended: [0; 3] }
    }

    /// Starts a chain: functions 1 and 3 are owner 1's, function 2 is owner 2's.
    fn start(&mut self, function: u32, scratch_bytes: u32) {
        self.start_of(if function == 2 { 2 } else { 1 }, function, scratch_bytes);
    }

    /// Does nothing if no arena is free.
    fn start_of(&mut self, owner: u64, function: u32, scratch_bytes: u32) {
        let start = Start {
            owner,
            function,
            first_size_bytes: BLOCK,
            scratch_bytes,
            answer_max_bytes: 0,
            ..CHAIN
        };
        let mut reads = Vec::new();
        if let Ok(chain) = self.engine.start(&start, &self.tables, |read| reads.push(read)) {
            self.waiting.extend(reads.into_iter().map(|read| (owner, chain, read)));
        }
    }

    fn complete(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let (owner, chain, read) = self.waiting.swap_remove(which % self.waiting.len());
        self.engine.data_mut(&read).fill(if owner == 1 { CANARY } else { 0 });
        let mut reads = Vec::new();
        match self.engine.completed(chain, true, &self.tables, |read| reads.push(read)) {
            Progress::Done(outcome) => {
                assert_eq!(outcome, Ok(Answer { hops: 3, length_bytes: 0 }), "owner {owner}");
                self.ended[self.engine.usage(chain).function as usize - 1] += 1;
                self.engine.release(chain);
            }
            Progress::Rest => self.resting.push((owner, self.engine.suspend(chain))),
            _ => {}
        }
        self.waiting.extend(reads.into_iter().map(|read| (owner, chain, read)));
    }

    fn give_way(&mut self, which: usize) {
        if !self.waiting.is_empty() {
            let (_, chain, _) = self.waiting[which % self.waiting.len()];
            self.engine.give_way(chain);
        }
    }

    fn resume(&mut self, which: usize) {
        if self.resting.is_empty() || self.engine.running() == 2 {
            return;
        }
        let (owner, suspended) = self.resting.swap_remove(which % self.resting.len());
        let mut reads = Vec::new();
        let resumed = self.engine.resume(&suspended, &self.tables, |read| reads.push(read));
        let chain = resumed.expect("there is an arena");
        self.waiting.extend(reads.into_iter().map(|read| (owner, chain, read)));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Start(u32, u32),
    Complete(usize),
    GiveWay(usize),
    Resume(usize),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4_u32, prop::sample::select(vec![0, 64, 4096, 16384]))
            .prop_map(|(function, scratch)| Step::Start(function, scratch)),
        8 => any::<usize>().prop_map(Step::Complete),
        3 => any::<usize>().prop_map(Step::GiveWay),
        3 => any::<usize>().prop_map(Step::Resume),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_data_of_another_owner_is_found(steps in prop::collection::vec(step(), 1..200)) {
        let mut house = House::new();
        for step in steps {
            match step {
                Step::Start(function, scratch) => house.start(function, scratch),
                Step::Complete(which) => house.complete(which),
                Step::GiveWay(which) => house.give_way(which),
                Step::Resume(which) => house.resume(which),
                Step::Trim => house.engine.trim(0),
            }
        }
        while !house.waiting.is_empty() || !house.resting.is_empty() {
            house.complete(0);
            house.resume(0);
        }
    }
}

/// Checks the test above: an owner does find its own data.
#[test]
fn an_owner_finds_its_own_data() {
    let mut house = House::new();
    house.start(1, 64);
    for _ in 0..3 {
        house.complete(0);
    }
    assert_eq!(house.ended, [1, 0, 0]);
    house.start_of(1, 2, 64);
    let (_, chain, read) = house.waiting.pop().expect("it starts");
    house.engine.data_mut(&read).fill(0);
    let progress = house.engine.completed(chain, true, &house.tables, |_| ());
    let Progress::Done(Err((error, 1))) = progress else { panic!("{progress:?}") };
    assert_eq!(error, bpfof_chain::ChainError::Abort(1), "in its workspace");
}
