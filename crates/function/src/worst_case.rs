//! Static properties of a program, for messages.

use crate::abi::{FRAME_BYTES, MAX_FRAMES};
use crate::helper::Helper;
use crate::instruction::{AluOp, Instruction, Operand, Register};
use crate::program::Program;
use std::collections::BTreeSet;
use std::ops::Range;

/// See [`Program::summary`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The helpers that are called somewhere, by name, sorted.
    pub helpers: Vec<&'static str>,
    /// Stack frames of the deepest chain of calls, the entry's included; each has
    /// [`FRAME_BYTES`]. `None` if functions call themselves: then calls fail beyond
    /// [`MAX_FRAMES`].
    pub frames: Option<u64>,
    /// Bytes that the largest frame uses, as far as addresses are computed from r10 directly.
    pub frame_bytes: u64,
    /// Maximum that a call takes from the budget, in [units](crate::cost). `None` if it depends on data: there is a
    /// loop, a helper whose length is not a constant, or one whose work depends on data.
    pub budget: Option<i64>,
    /// Maximum instructions that a call executes in its own functions. `None` if there is a loop.
    pub steps: Option<i64>,
}

impl Program {
    /// Helpers, stack and budget of the program.
    pub fn summary(&self) -> Summary {
        let helpers: BTreeSet<&str> = self
            .instructions()
            .iter()
            .filter_map(|instruction| match instruction {
                Instruction::CallHelper { helper } => Some(helper.name()),
                _ => None,
            })
            .collect();
        let functions = self.functions();
        let landings = self.instructions().iter().filter_map(|instruction| match *instruction {
            Instruction::Jump { target } | Instruction::Branch { target, .. } => Some(target),
            _ => None,
        });
        let known = vec![None; functions.len()];
        let mut walk = Walk { program: self, known, landings: landings.collect() };
        let entry = walk.function(0, 1);
        Summary {
            helpers: helpers.into_iter().collect(),
            frames: entry.frames,
            frame_bytes: functions.iter().map(|range| self.frame_bytes(range)).max().unwrap_or(0),
            budget: entry.budget.and_then(|budget| budget.checked_add(self.call_cost(0))),
            steps: entry.steps,
        }
    }

    /// The lowest offset from r10 that is accessed, or that a pointer is made from, as a number of bytes.
    fn frame_bytes(&self, range: &Range<u32>) -> u64 {
        let code = &self.instructions()[range.start as usize..range.end as usize];
        let mut lowest = 0;
        // Registers that are copies of r10 plus an offset.
        let mut copies = [None; 11];
        for instruction in code {
            let access = match *instruction {
                Instruction::Load { base, offset, .. }
                | Instruction::Store { base, offset, .. }
                | Instruction::Atomic { base, offset, .. } => Some((base, i64::from(offset))),
                _ => None,
            };
            if let Some((base, offset)) = access {
                let from = if base == Register::FRAME { Some(0) } else { copies[base.index()] };
                lowest = lowest.min(from.map_or(0, |from: i64| from + offset));
            }
            let (register, copy) = match *instruction {
                Instruction::Alu {
                    wide: true,
                    op: AluOp::Mov,
                    dst,
                    src: Operand::Register(src),
                } => (dst, if src == Register::FRAME { Some(0) } else { copies[src.index()] }),
                Instruction::Alu {
                    wide: true,
                    op: AluOp::Add,
                    dst,
                    src: Operand::Immediate(add),
                } => (dst, copies[dst.index()].map(|from| from + i64::from(add))),
                Instruction::Alu { dst, .. }
                | Instruction::Load { dst, .. }
                | Instruction::LoadConstant { dst, .. }
                | Instruction::Negate { dst, .. }
                | Instruction::SignExtend { dst, .. }
                | Instruction::Endian { dst, .. } => (dst, None),
                _ => continue,
            };
            copies[register.index()] = copy;
            lowest = lowest.min(copy.unwrap_or(0));
        }
        lowest.unsigned_abs().min(FRAME_BYTES)
    }
}

/// Properties of one function, including its callees.
#[derive(Clone, Copy)]
struct Cost {
    frames: Option<u64>,
    budget: Option<i64>,
    steps: Option<i64>,
}

/// The unit in which a path is measured.
#[derive(Clone, Copy, PartialEq)]
enum Measure {
    Budget,
    Steps,
}

struct Walk<'a> {
    program: &'a Program,
    /// By function; the inner `None`s also mark functions in progress.
    known: Vec<Option<Cost>>,
    /// Targets of jumps.
    landings: BTreeSet<u32>,
}

impl Walk<'_> {
    fn function(&mut self, index: usize, depth: u64) -> Cost {
        let unknown = Cost { frames: None, budget: None, steps: None };
        if let Some(known) = self.known[index] {
            return known;
        }
        // If this function is found again while it is in progress, it is recursive.
        self.known[index] = Some(unknown);
        let range = self.program.functions()[index].clone();
        let mut frames = Some(1);
        let mut callees = Vec::new();
        for pc in range.clone() {
            let Instruction::CallLocal { target } = self.program.instructions()[pc as usize] else {
                continue;
            };
            let callee = self.program.functions().binary_search_by_key(&target, |f| f.start);
            // Deeper than any call can succeed: there is nothing more to learn, and the recursion here stays bounded.
            let cost = match callee {
                Ok(callee) if depth <= MAX_FRAMES => self.function(callee, depth + 1),
                _ => unknown,
            };
            frames = frames.zip(cost.frames).map(|(most, below)| most.max(below + 1));
            callees.push((pc, cost));
        }
        let budget = self.dearest(&range, &callees, Measure::Budget);
        let steps = self.dearest(&range, &callees, Measure::Steps);
        let cost = Cost { frames, budget, steps };
        self.known[index] = Some(cost);
        cost
    }

    /// The most expensive path from a function's start, unless there is a loop.
    fn dearest(
        &self,
        range: &Range<u32>,
        callees: &[(u32, Cost)],
        measure: Measure,
    ) -> Option<i64> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            /// On the current path: an edge to it closes a loop.
            Open,
            Done(i64),
        }
        let mut states = vec![State::New; range.len()];
        let mut path = vec![range.start];
        while let Some(&pc) = path.last() {
            let at = |pc: u32| (pc - range.start) as usize;
            let edges = self.edges(pc);
            match states[at(pc)] {
                State::New => {
                    states[at(pc)] = State::Open;
                    for (next, _) in edges {
                        match states[at(next)] {
                            State::New => path.push(next),
                            State::Open => return None,
                            State::Done(_) => {}
                        }
                    }
                }
                State::Open => {
                    let mut cost = 0;
                    for (next, toll) in edges {
                        let toll = if measure == Measure::Budget { toll } else { 0 };
                        let State::Done(rest) = states[at(next)] else { return None };
                        cost = cost.max(rest.checked_add(toll)?);
                    }
                    let own = match measure {
                        Measure::Budget => self.own_cost(pc, range, callees)?,
                        Measure::Steps => self.own_steps(pc, callees)?,
                    };
                    states[at(pc)] = State::Done(cost.checked_add(own)?);
                    path.pop();
                }
                State::Done(_) => {
                    path.pop();
                }
            }
        }
        match states.first() {
            Some(State::Done(cost)) => Some(*cost),
            _ => None,
        }
    }

    /// The successors of an instruction, and the price of going there.
    fn edges(&self, pc: u32) -> Vec<(u32, i64)> {
        let jump = |target| (target, self.program.jump_cost(pc, target).unwrap_or(0));
        match self.program.instructions()[pc as usize] {
            Instruction::Exit => vec![],
            Instruction::Jump { target } => vec![jump(target)],
            Instruction::Branch { target, .. } => vec![jump(target), (pc + 1, 0)],
            _ => vec![(pc + 1, 0)],
        }
    }

    fn own_steps(&self, pc: u32, callees: &[(u32, Cost)]) -> Option<i64> {
        match self.program.instructions()[pc as usize] {
            Instruction::CallLocal { .. } => {
                let (_, callee) = callees.iter().find(|(call, _)| *call == pc)?;
                callee.steps?.checked_add(1)
            }
            Instruction::ConstantTail => Some(0),
            _ => Some(1),
        }
    }

    fn own_cost(&self, pc: u32, range: &Range<u32>, callees: &[(u32, Cost)]) -> Option<i64> {
        match self.program.instructions()[pc as usize] {
            Instruction::CallLocal { target } => {
                let (_, callee) = callees.iter().find(|(call, _)| *call == pc)?;
                self.program.call_cost(target).checked_add(callee.budget?)
            }
            Instruction::CallHelper { helper } if helper.is_bulk() => {
                let length = self.constant_length(pc, range.start)?;
                helper.bulk_cost(length).try_into().ok()
            }
            // A tail call continues in another function, whose price is unknown here.
            Instruction::CallHelper { helper: Helper::TailCall } => None,
            Instruction::CallHelper { helper } => helper.fixed_cost()?.try_into().ok(),
            _ => Some(0),
        }
    }

    /// The constant in r3, the length, if it is set in straight code before the call.
    fn constant_length(&self, call: u32, start: u32) -> Option<u64> {
        for pc in (start..call).rev() {
            // Another path may lead to the instruction behind this one.
            if self.landings.contains(&(pc + 1)) {
                return None;
            }
            match self.program.instructions()[pc as usize] {
                Instruction::Alu { wide, op: AluOp::Mov, dst, src: Operand::Immediate(value) }
                    if dst.index() == 3 =>
                {
                    let value = i64::from(value) as u64;
                    return Some(if wide { value } else { u64::from(value as u32) });
                }
                Instruction::Alu { dst, .. }
                | Instruction::Load { dst, .. }
                | Instruction::LoadConstant { dst, .. }
                | Instruction::Negate { dst, .. }
                | Instruction::SignExtend { dst, .. }
                | Instruction::Endian { dst, .. }
                    if dst.index() != 3 => {}
                Instruction::Store { .. } | Instruction::ConstantTail => {}
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    const MEMSET: [u8; 8] = [0x85, 0, 0, 0, 3, 0, 0, 0];

    fn length(bytes: u8) -> [u8; 8] {
        [0xb7, 3, 0, 0, bytes, 0, 0, 0]
    }

    fn summary(slots: &[[u8; 8]]) -> Summary {
        Program::parse(slots.as_flattened()).expect("valid").summary()
    }

    #[test]
    fn the_dearest_path_counts() {
        // if r1 == 0 goto L; memset(…, 64); exit; L: memset(…, 160); exit
        let branch = [0x15, 1, 3, 0, 0, 0, 0, 0];
        let two = [branch, length(64), MEMSET, EXIT, length(160), MEMSET, EXIT];
        let found = summary(&two);
        // The most expensive path through the function, and that helper.
        let cost = (6 + 3) + Helper::Memset.bulk_cost(160) as i64;
        assert_eq!((found.budget, found.steps, found.frames), (Some(cost), Some(4), Some(1)));
        assert_eq!(found.helpers, ["bpfof_memset"]);
        // The branch leads behind the length: there it may be another.
        let around = [[0x15, 1, 1, 0, 0, 0, 0, 0], length(64), MEMSET, EXIT];
        assert_eq!(summary(&around).budget, None);
        // A jump backwards without a loop: over an exit, and back to it.
        let back = [[0x05, 0, 1, 0, 0, 0, 0, 0], EXIT, [0x05, 0, 0xfe, 0xff, 0, 0, 0, 0]];
        assert_eq!(summary(&back).budget, Some(3));
        let looping = [length(64), [0x15, 1, 0xfe, 0xff, 0, 0, 0, 0], EXIT];
        assert_eq!((summary(&looping).budget, summary(&looping).steps), (None, None));
    }

    #[test]
    fn calls_count_with_what_they_call() {
        // entry: call f; exit. f: r2 = r10; r2 += -24; call g; exit. g: *(u8 *)(r10 - 40) = 0; exit
        let slots = [
            [0x85, 0x10, 0, 0, 1, 0, 0, 0],
            EXIT,
            [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
            [0x07, 2, 0, 0, 0xe8, 0xff, 0xff, 0xff],
            [0x85, 0x10, 0, 0, 1, 0, 0, 0],
            EXIT,
            [0x72, 10, 0xd8, 0xff, 0, 0, 0, 0],
            EXIT,
        ];
        let found = summary(&slots);
        let cost = (8 + 1) + (1 + 1 + 8 + 1) + (2 + 1);
        assert_eq!((found.budget, found.frames, found.frame_bytes), (Some(cost), Some(3), 40));
        assert_eq!(found.steps, Some(8));
        let recursive = [[0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff], EXIT];
        let found = summary(&recursive);
        assert_eq!((found.budget, found.steps, found.frames), (None, None, None));
    }
}
