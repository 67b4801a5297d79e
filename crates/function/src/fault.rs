//! Faults of a call of a storage function.

use crate::abi::{self, GUEST_BASE, MAX_FRAMES, context};
use crate::fault_kind::FaultKind;
use crate::instruction::Instruction;
use crate::program::Program;
use crate::statics::Statics;
use std::fmt;
use std::ops::Range;

/// An address at most this far from a region, in bytes, is reported as a near miss of it.
const NEAR_BYTES: u64 = abi::WORKSPACE / 2;

/// A call that was ended by the confinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The cause.
    pub kind: FaultKind,
    /// Index of the instruction, in 8-byte slots of the program.
    pub pc: u32,
    /// Guest address of the end of the call's data, which is the end of its accessible memory.
    pub data_end: u64,
}

impl Fault {
    /// Describes the cause, as far as that is possible without the program.
    fn problem(&self, statics: &Statics, lowest: u64) -> String {
        match self.kind {
            FaultKind::Memory { address } => {
                format!(
                    "access outside its memory at {address:#x}{}",
                    self.regions(address, statics, lowest)
                )
            }
            FaultKind::ReadOnly { address } => {
                let Range { start, end } = statics.constants();
                format!("write to constant data at {address:#x} (constants {start:#x}..{end:#x})")
            }
            FaultKind::NoMap { handle } => {
                format!("{handle:#x} is not a map of this function; pass &map of a declared map")
            }
            FaultKind::Budget => "instruction budget exhausted".to_owned(),
            FaultKind::StackOverflow => format!("more than {MAX_FRAMES} nested calls"),
            FaultKind::Helper => "the helper panicked, which is a bug in bpf-of".to_owned(),
        }
    }

    /// Describes the accessible memory, and where the address lies relative to it.
    fn regions(&self, address: u64, statics: &Statics, lowest: u64) -> String {
        let regions = [
            ("workspace", lowest..GUEST_BASE),
            ("stack", GUEST_BASE..abi::STACK_TOP),
            ("context", abi::CONTEXT..abi::CONTEXT + context::BYTES as u64),
            ("constants", statics.constants()),
            ("variables", statics.variables()),
            ("scratch", abi::SCRATCH..abi::DATA),
            ("data", abi::DATA..self.data_end),
        ];
        let near = |range: &Range<u64>| {
            // An access that begins inside a region may still end outside.
            let past = address.wrapping_sub(range.end);
            let before = range.start.wrapping_sub(address);
            match (range.contains(&address), past < NEAR_BYTES, before <= NEAR_BYTES) {
                (true, ..) => Some((0, "which runs past the end of".to_owned())),
                (_, true, _) => Some((past + 1, format!("{past} bytes past the end of"))),
                (_, _, true) => Some((before, format!("{before} bytes before"))),
                _ => None,
            }
        };
        let nearest = regions
            .iter()
            .filter(|(_, range)| !range.is_empty())
            .filter_map(|(name, range)| near(range).map(|(far, words)| (far, words, name)))
            .min();
        let nearest = match nearest {
            Some((_, words, name)) => format!(", {words} the {name}"),
            None if address < NEAR_BYTES => ", a null pointer".to_owned(),
            None => String::new(),
        };
        let there = regions.iter().filter(|(_, range)| !range.is_empty());
        let list: Vec<String> = there
            .map(|(name, range)| format!("{name} {:#x}..{:#x}", range.start, range.end))
            .collect();
        format!("{nearest} ({})", list.join(", "))
    }

    /// The register that the address comes from, and its value.
    fn register(&self, program: &Program) -> Option<String> {
        let (FaultKind::Memory { address } | FaultKind::ReadOnly { address }) = self.kind else {
            return None;
        };
        match *program.instructions().get(self.pc as usize)? {
            Instruction::Load { base, offset, .. }
            | Instruction::Store { base, offset, .. }
            | Instruction::Atomic { base, offset, .. } => {
                let value = address.wrapping_sub(i64::from(offset) as u64);
                Some(format!("r{} = {value:#x}, ", base.index()))
            }
            // The address alone does not tell which of two ranges is outside.
            Instruction::CallHelper { helper } if helper.is_bulk() => {
                let may_be_second =
                    helper.reads_second() && matches!(self.kind, FaultKind::Memory { .. });
                let name = if may_be_second { "r1 or r2" } else { "r1" };
                Some(format!("{name} = {address:#x}, "))
            }
            _ => None,
        }
    }

    /// Describes the fault, with the instruction, its source line and the register's value.
    pub fn explain(&self, program: &Program) -> String {
        let instruction = program
            .instructions()
            .get(self.pc as usize)
            .map(|instruction| format!(" `{instruction}`"))
            .unwrap_or_default();
        let (place, text) = match program.sources().find(self.pc) {
            Some(line) if line.text.is_empty() => (format!("{line}: "), String::new()),
            Some(line) => (format!("{line}: "), format!(" in `{}`", line.text)),
            None => Default::default(),
        };
        format!(
            "{place}instruction {}{instruction}{text}: {}{}",
            self.pc,
            self.register(program).unwrap_or_default(),
            self.problem(program.statics(), program.lowest_address())
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.pc, self.problem(&Statics::default(), GUEST_BASE))
    }
}

impl std::error::Error for Fault {}
