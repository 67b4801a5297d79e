//! Strided loops: loops that walk through memory at a fixed step, and need no budget to end.
//!
//! The arena is small. A loop that in every iteration adds the same step to a register, and accesses memory through it,
//! soon leaves the arena and faults, unless it ends before. Such a loop, a *scan*, does not charge the budget in each
//! iteration, which would cost more than all other checks of a tight loop. It charges once, when it is left, for the
//! distance that the register has covered.

use crate::cost::{Costs, SCAN_OFFSETS_BYTES, SCAN_UNITS_PER_BYTE};
use crate::helper::Helper;
use crate::instruction::{AluOp, Instruction, Operand, Register};
use std::cmp::Reverse;
use std::ops::Range;

/// Maximum slots from the first to the last of a scan: a set of them fits into one machine word. In longer loops the
/// charge of an iteration is negligible.
const SPAN_MAX: usize = u64::BITS as usize;

/// Maximum loops of a program that are examined. Programs have some dozens; each takes about 10 µs.
const MAX_LOOPS: usize = 512;

/// A strided loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The register that walks.
    pub(crate) register: Register,
    /// Bytes that each iteration adds to it; not 0.
    pub(crate) step: i32,
    /// Price of an iteration, in units: all instructions of the loop.
    pub(crate) turn: i64,
    /// Price in addition to the iterations, in units, if the scan may be entered behind a point where it is left: the
    /// path forward to the entry executes more than the jumps back from the exit pay for.
    pub(crate) toll: i64,
}

impl Scan {
    /// Price of leaving it after the register has moved from one address to another. The arena bounds the distance, so
    /// this is small.
    pub(crate) fn cost(&self, from: u64, to: u64) -> u64 {
        let way = if self.step > 0 { to.wrapping_sub(from) } else { from.wrapping_sub(to) };
        // One more for the iteration in progress.
        let turns = way / u64::from(self.step.unsigned_abs()) + 1;
        turns.wrapping_mul(self.turn as u64).wrapping_add(self.toll as u64)
    }
}

/// The scans of a program, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scans {
    scans: Vec<Scan>,
    /// By slot: 0, or one more than the index of its scan.
    by_slot: Vec<u16>,
}

impl Scans {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.scans.is_empty()
    }

    /// Finds the scans of checked instructions. Of two nested loops the outer one is preferred.
    pub(crate) fn find(
        instructions: &[Instruction],
        functions: &[Range<u32>],
        costs: &Costs,
    ) -> Scans {
        let mut scans = Scans { scans: Vec::new(), by_slot: vec![0; instructions.len()] };
        let mut loops = 0;
        for function in functions {
            let mut spans: Vec<(usize, usize)> = function
                .clone()
                .filter_map(|pc| {
                    Some((instructions[pc as usize].jump_target()? as usize, pc as usize))
                })
                .filter(|(first, last)| first <= last && last - first < SPAN_MAX)
                .collect();
            spans.sort_by_key(|(first, last)| Reverse(last - first));
            spans.truncate(MAX_LOOPS - loops);
            loops += spans.len();
            for (first, last) in spans {
                scans.add(first, &instructions[first..=last], costs);
            }
        }
        scans.set_tolls(instructions, functions, costs);
        scans
    }

    /// Sets each toll: the largest path price to an entry of the scan, less the smallest path price to an exit.
    fn set_tolls(&mut self, instructions: &[Instruction], functions: &[Range<u32>], costs: &Costs) {
        let mut entered = vec![0; self.scans.len()];
        let mut left = vec![i64::MAX; self.scans.len()];
        for pc in functions.iter().cloned().flatten() {
            let instruction = &instructions[pc as usize];
            let following = instruction.runs_on().then_some(pc + 1);
            for next in [instruction.jump_target(), following].into_iter().flatten() {
                let [from, to] = [pc, next].map(|pc| self.at(pc));
                if from == to {
                    continue;
                }
                if let Some(scan) = from {
                    left[scan] = costs.before(pc).min(left[scan]);
                }
                if let Some(scan) = to {
                    entered[scan] = costs.before(next).max(entered[scan]);
                }
            }
        }
        for (scan, (entered, left)) in self.scans.iter_mut().zip(entered.into_iter().zip(left)) {
            scan.toll = entered.saturating_sub(left).max(0);
        }
    }

    /// Index of the scan that a slot belongs to.
    #[inline]
    pub(crate) fn at(&self, pc: u32) -> Option<usize> {
        usize::from(self.by_slot[pc as usize]).checked_sub(1)
    }

    /// The scan with this index.
    pub(crate) fn get(&self, index: usize) -> Scan {
        self.scans[index]
    }

    /// Adds the loop of these slots, if it is a scan and shares no slot with another one.
    fn add(&mut self, first: usize, span: &[Instruction], costs: &Costs) {
        let graph = Graph::new(first, span);
        let members = graph.members();
        let slots = || (0..span.len()).filter(|slot| members >> slot & 1 != 0);
        if slots().any(|slot| self.by_slot[first + slot] != 0) {
            return;
        }
        let turn = slots().map(|slot| costs.own((first + slot) as u32)).sum();
        let Some((register, step)) = (0..10)
            .filter_map(Register::new)
            .find_map(|register| Some((register, graph.step(members, span, register, turn)?)))
        else {
            return;
        };
        self.scans.push(Scan { register, step, turn, toll: 0 });
        for slot in slots() {
            self.by_slot[first + slot] = self.scans.len() as u16;
        }
    }
}

/// The control flow within a span of slots: from the target of a jump backwards to the jump. Sets of slots are bits,
/// the first slot is the lowest bit.
struct Graph {
    /// By slot: its successors within the span.
    next: Vec<u64>,
}

impl Graph {
    fn new(first: usize, span: &[Instruction]) -> Graph {
        let bit = |slot: usize| if slot < span.len() { 1 << slot } else { 0 };
        let next = span.iter().enumerate().map(|(slot, instruction)| {
            let target = instruction.jump_target();
            let jump = target.map_or(0, |target| bit((target as usize).wrapping_sub(first)));
            if instruction.runs_on() { jump | bit(slot + 1) } else { jump }
        });
        Graph { next: next.collect() }
    }

    /// The successors of any of these slots.
    fn after(&self, slots: u64) -> u64 {
        let each = self.next.iter().enumerate();
        each.filter(|(slot, _)| slots >> slot & 1 != 0).fold(0, |all, (_, next)| all | next)
    }

    /// The slots on a path from the first to the last, which form a loop with them.
    fn members(&self) -> u64 {
        let grow = |mut set: u64, step: &dyn Fn(u64) -> u64| loop {
            let more = set | step(set);
            if more == set {
                return set;
            }
            set = more;
        };
        let before = |set: u64| {
            let each = self.next.iter().enumerate();
            each.filter(|(_, next)| **next & set != 0).fold(0, |all, (slot, _)| all | 1 << slot)
        };
        let last = 1 << (self.next.len() - 1);
        grow(1, &|set| self.after(set)) & grow(last, &before)
    }

    /// Whether there is no cycle within these slots.
    fn is_acyclic(&self, mut slots: u64) -> bool {
        loop {
            let rest = slots & self.after(slots);
            if rest == slots {
                return slots == 0;
            }
            slots = rest;
        }
    }

    /// The step of the register, if the members are a scan by it. An iteration costs `turn`.
    fn step(
        &self,
        members: u64,
        span: &[Instruction],
        register: Register,
        turn: i64,
    ) -> Option<i32> {
        // The register stays within the arena, extended by the distance between the offsets of the accesses.
        let (mut steps, mut accesses, mut step, mut near) = (0, 0, None, None);
        for (slot, instruction) in span.iter().enumerate() {
            if members >> slot & 1 == 0 {
                continue;
            }
            match *instruction {
                Instruction::Alu {
                    wide: true,
                    op: AluOp::Add,
                    dst,
                    src: Operand::Immediate(add),
                } if dst == register => {
                    if *step.get_or_insert(add) != add {
                        return None;
                    }
                    steps |= 1 << slot;
                }
                // Code executed elsewhere must not run before the iterations here are paid.
                Instruction::CallLocal { .. }
                | Instruction::CallHelper { helper: Helper::TailCall } => return None,
                _ if instruction.may_write(register) => return None,
                Instruction::Load { base, offset, .. }
                | Instruction::Store { base, offset, .. }
                | Instruction::Atomic { base, offset, .. }
                    if base == register
                        && near.get_or_insert(offset).abs_diff(offset)
                            <= SCAN_OFFSETS_BYTES / 2 =>
                {
                    accesses |= 1 << slot;
                }
                _ => {}
            }
        }
        let step: i32 = step?;
        if accesses == 0 {
            return None;
        }
        let is_short = turn <= SCAN_UNITS_PER_BYTE * i64::from(step.unsigned_abs());
        let is_always =
            || self.is_acyclic(members & !steps) && self.is_acyclic(members & !accesses);
        (is_short && is_always()).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alone, Arena, Exit, FaultKind, NativeFunction, Program, abi, interpret};

    type Slot = [u8; 8];

    fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Slot {
        let [o0, o1] = offset.to_le_bytes();
        let [i0, i1, i2, i3] = immediate.to_le_bytes();
        [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
    }

    const EXIT: Slot = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn mov(dst: u8, immediate: i32) -> Slot {
        slot(0xb7, dst, 0, 0, immediate)
    }

    fn add(dst: u8, immediate: i32) -> Slot {
        slot(0x07, dst, 0, 0, immediate)
    }

    /// `r0 = *(u8 *)(base + offset)`
    fn load(base: u8, offset: i16) -> Slot {
        slot(0x71, 0, base, offset, 0)
    }

    /// `if dst < immediate goto`
    fn below(dst: u8, immediate: u64, offset: i16) -> Slot {
        slot(0xa5, dst, 0, offset, immediate as i32)
    }

    /// Price of an iteration of a load, a step and a jump; and of a path through a function of a move, these, and an
    /// exit.
    const TURN: i64 = 12 + 1 + 6;
    const WHOLE: i64 = 1 + TURN + 1;

    fn program(slots: &[Slot]) -> Program {
        Program::parse(slots.as_flattened()).expect("valid")
    }

    /// The scan of each slot, by index.
    fn scans(slots: &[Slot]) -> Vec<Option<usize>> {
        let program = program(slots);
        let (instructions, functions) = (program.instructions(), program.functions());
        let costs = Costs::of(instructions, functions);
        let found = Scans::find(instructions, functions, &costs);
        (0..slots.len() as u32).map(|pc| found.at(pc)).collect()
    }

    fn is_scan(body: &[Slot]) -> bool {
        let jump = slot(0x15, 0, 0, -(body.len() as i16) - 1, 0);
        scans(&[body, &[jump, EXIT]].concat())[0].is_some()
    }

    /// Result and rest of the budget on both engines, with 512 bytes of zeros as data.
    fn run(program: &Program, budget: i64) -> (Result<Exit, FaultKind>, i64) {
        let native = NativeFunction::compile(program).expect("translates");
        let [oracle, translated] = [false, true].map(|by_native| {
            let mut arena = Arena::new();
            arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
            arena.begin_hop(0);
            let limit = arena.begin_call(0..512, 0, 0, 0);
            let mut left = budget;
            let result = if by_native {
                native.call(&mut arena, limit, &mut left, &mut Alone)
            } else {
                interpret(program, &mut arena, limit, &mut left, &mut Alone)
            };
            (result.map_err(|fault| (fault.kind, fault.pc)), if result.is_ok() { left } else { 0 })
        });
        assert_eq!(oracle, translated);
        (oracle.0.map_err(|(kind, _)| kind), oracle.1)
    }

    #[test]
    fn loops_that_must_leave_the_arena_are_scans() {
        assert!(is_scan(&[load(1, 0), add(1, 1)]));
        assert!(is_scan(&[load(1, 0), add(1, -8)]));
        // A step of one byte permits a load, a branch and a little more, not two loads.
        assert!(is_scan(&[load(1, 0), below(2, 9, 0), add(1, 1)]));
        assert!(!is_scan(&[load(1, 0), load(2, 0), add(1, 1)]));
        assert!(is_scan(&[load(1, 0), load(2, 0), add(1, 2)]));
        assert!(!is_scan(&[load(2, 0), add(1, 1)]), "no access through the induction variable");
        assert!(!is_scan(&[load(1, 0), add(1, 0)]), "stands still");
        assert!(!is_scan(&[load(1, 0), add(1, 4), add(1, -4)]), "comes back");
        assert!(!is_scan(&[load(1, 0), slot(0x04, 1, 0, 0, 4)]), "wraps at 32 bits");
        assert!(!is_scan(&[load(1, 0), slot(0x0f, 1, 2, 0, 0)]), "a step that may be 0");
        assert!(!is_scan(&[load(1, 0), add(1, 8), mov(1, 0)]), "is set");
        let memset = slot(0x85, 0, 0, 0, 3);
        assert!(!is_scan(&[load(1, 0), memset, add(1, 8)]), "is cleared by a helper");
        assert!(is_scan(&[load(6, 0), memset, add(6, 8)]));
        let tail_call = slot(0x85, 0, 0, 0, 6);
        assert!(!is_scan(&[load(6, 0), tail_call, add(6, 8)]));
        assert!(is_scan(&[load(1, 300), load(1, 44), add(1, 2)]));
        assert!(is_scan(&[load(1, 300), load(1, -32768), add(1, 2)]), "the first is enough");
        let far = [load(1, 32760), slot(0x05, 0, 0, 1, 0), load(1, -32768), add(1, 8)];
        assert!(!is_scan(&[&[below(2, 9, 2)], &far[..]].concat()), "continues past the arena");
        // Iterations without the step, or without the access.
        assert!(!is_scan(&[load(1, 0), below(2, 9, 1), add(1, 8)]));
        assert!(!is_scan(&[below(2, 9, 1), load(1, 0), add(1, 8)]));
        assert!(is_scan(&[below(2, 9, 1), mov(3, 3), load(1, 0), add(1, 8)]));
    }

    #[test]
    fn the_outer_of_two_loops_is_preferred() {
        let inner = [load(1, 0), add(1, 8), below(1, 99, -3)];
        let of_both = scans(&[&inner[..], &[below(1, 200, -4), EXIT]].concat());
        assert_eq!(of_both, [Some(0), Some(0), Some(0), Some(0), None]);
        // The outer loop is not a scan by itself: in an iteration of it the inner one may not make a step.
        let around = scans(&[&[mov(1, 0)], &inner[..], &[below(2, 200, -5), EXIT]].concat());
        assert_eq!(around, [None, Some(0), Some(0), Some(0), None, None]);
        let two = scans(&[&inner[..], &inner, &[EXIT]].concat());
        assert_eq!(two, [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None]);
    }

    #[test]
    fn code_outside_the_loop_does_not_belong_to_its_scan() {
        // As clang rotates loops: the end of the function is in the middle of the loop.
        let turned = [
            mov(1, abi::DATA as i32),
            slot(0x05, 0, 0, 4, 0),
            add(1, 16),
            below(1, abi::DATA + 64, 2),
            mov(0, 7),
            EXIT,
            load(1, 8),
            slot(0x05, 0, 0, -6, 0),
        ];
        let of = Some(0);
        assert_eq!(scans(&turned), [None, None, of, of, None, None, of, of]);
        // The path through the whole function, an iteration for each time round and one for the entry, and the branch
        // before the entry, which lies behind the exit.
        let (whole, turn) = (1 + 1 + 1 + 6 + 12 + 1, 1 + 6 + 12 + 1);
        let left = 1000 - whole - 5 * turn - 6;
        assert_eq!(run(&program(&turned), 1000), (Ok(Exit::Return(7)), left));
    }

    #[test]
    fn leaving_a_scan_pays_for_its_iterations() {
        for (step, end, turns) in [(1, 100, 100), (3, 100, 34), (512, 512, 1)] {
            let address = abi::DATA as i32;
            let slots = [mov(1, address), load(1, 0), add(1, step), below(1, abi::DATA + end, -3)];
            let program = program(&[&slots[..], &[EXIT]].concat());
            let cost = WHOLE + (turns + 1) * TURN;
            assert_eq!(run(&program, 2000), (Ok(Exit::Return(0)), 2000 - cost));
            assert_eq!(run(&program, cost), (Ok(Exit::Return(0)), 0));
            assert_eq!(run(&program, cost - 1).0, Err(FaultKind::Budget));
        }
    }

    #[test]
    fn descending_loops_are_scans() {
        let last = abi::DATA as i32 + 511;
        let above = slot(0x35, 1, 0, -3, abi::DATA as i32);
        let slots = [mov(1, last), load(1, 0), add(1, -2), above, EXIT];
        assert_eq!(scans(&slots)[1], Some(0));
        let left = 5000 - WHOLE - 257 * TURN;
        assert_eq!(run(&program(&slots), 5000), (Ok(Exit::Return(0)), left));
    }

    #[test]
    fn an_endless_scan_ends_at_the_end_of_the_arena() {
        for step in [1, 100, -1, i32::MAX, i32::MIN] {
            let slots =
                [mov(1, abi::DATA as i32), load(1, 0), add(1, step), slot(0x05, 0, 0, -3, 0)];
            let (outcome, _) = run(&program(&slots), 20);
            assert!(matches!(outcome, Err(FaultKind::Memory { .. })), "{outcome:?}");
        }
    }

    #[test]
    fn a_scan_in_a_loop_without_end_exhausts_the_budget() {
        let inner = [load(1, 0), add(1, 8), below(1, abi::DATA + 8, -3)];
        let outer = [mov(1, abi::DATA as i32)];
        let slots = [&outer[..], &inner, &[slot(0x05, 0, 0, -5, 0)]].concat();
        assert_eq!(scans(&slots)[1], Some(0));
        assert_eq!(run(&program(&slots), 100_000).0, Err(FaultKind::Budget));
    }

    /// A loop around a scan that is entered behind a long path and left before it.
    #[test]
    fn a_way_past_a_scan_is_paid_for_when_it_is_left() {
        let mut slots = vec![slot(0x15, 2, 0, 601, 1)];
        // r3 /= 7
        slots.extend([slot(0x37, 3, 0, 0, 7); 600]);
        slots.extend([slot(0x05, 0, 0, 2, 0), load(1, 0), slot(0x55, 1, 0, 2, 0), add(1, 1)]);
        slots.extend([
            slot(0x05, 0, 0, -4, 0),
            slot(0xbf, 1, 10, 0, 0),
            slot(0x05, 0, 0, -608, 0),
            EXIT,
        ]);
        assert_eq!(scans(&slots)[602..606], [Some(0); 4]);
        let program = program(&slots);
        let mut arena = Arena::new();
        arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let mut budget = 20_000_000;
        let before = budget;
        let observed = crate::observe(&program, &mut arena, limit, &mut budget, &mut Alone);
        assert_eq!(run(&program, before).0, Err(FaultKind::Budget));
        let most = before + crate::cost::scan_slack(abi::GUEST_BASE, limit);
        assert!(observed.executed <= most, "{} units were executed", observed.executed);
    }

    #[test]
    fn scans_after_and_inside_calls_keep_their_start() {
        // Entry: r6 = data; call f; the scan by r6 that follows. f: a scan by r1; exit.
        let scan = |register| {
            let end = below(register, abi::DATA + 80, -3);
            [mov(register, abi::DATA as i32), load(register, 0), add(register, 8), end]
        };
        let call = slot(0x85, 0, 1, 0, 4);
        let main = [scan(6)[0], call, scan(6)[1], scan(6)[2], scan(6)[3], EXIT];
        let slots = [&main[..], &scan(1), &[EXIT]].concat();
        assert_eq!(scans(&slots)[2], Some(0));
        assert_eq!(scans(&slots)[7], Some(1));
        // The entry once, with the call; the path through f; eleven iterations of each scan.
        let left = 1000 - (WHOLE + 8) - WHOLE - 2 * 11 * TURN;
        assert_eq!(run(&program(&slots), 1000), (Ok(Exit::Return(0)), left));
    }

    /// A scan at the start of a function begins with the function. Steps of both signs, in the entry function and in a
    /// function that is called in an endless loop.
    #[test]
    fn a_function_may_begin_with_a_scan() {
        for step in [8, -8] {
            let up = below(1, abi::CONTEXT + 80, -3);
            let down = slot(0x35, 1, 0, -3, abi::CONTEXT as i32 - 80);
            let body = [load(1, 0), add(1, step), if step > 0 { up } else { down }];
            let turns = if step > 0 { 10 } else { 11 };
            let entry = program(&[&body[..], &[EXIT]].concat());
            let cost = TURN + 1 + (turns + 1) * TURN;
            assert_eq!(run(&entry, 1000), (Ok(Exit::Return(0)), 1000 - cost), "step {step}");
            // Entry: call f; go back. f: the same scan, by r1 again. r1 is set to the context each time.
            let call = slot(0x85, 0, 1, 0, 1);
            let main = [mov(1, abi::CONTEXT as i32), call, slot(0x05, 0, 0, -3, 0)];
            let looping = program(&[&main[..], &body, &[EXIT]].concat());
            assert_eq!(run(&looping, 1_000_000).0, Err(FaultKind::Budget), "step {step}");
        }
    }
}
