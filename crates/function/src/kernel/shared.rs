//! The functions of a program that exist once for all of their calls ([`calls`](super::calls)).

use super::assembler::Label;
use super::liveness::index_of;
use crate::abi::MAX_FRAMES;
use crate::instruction::Instruction;
use crate::program::Program;
use std::collections::{BTreeMap, BTreeSet};

/// Functions of at most this many slots that call nothing are copied to each call rather than
/// shared.
const SHORT: usize = 16;

/// Depth and index of a function. At each depth it has another frame.
pub(super) type Key = (u64, usize);

/// A function that is called from several places.
pub(super) struct Shared {
    pub(super) start: Label,
    /// The label behind each of the calls, by number.
    pub(super) returns: Vec<Label>,
}

/// The functions of a program that are shared.
pub(super) struct Calls {
    pub(super) is_shared: BTreeSet<Key>,
    /// Functions that have been called, and must still be emitted.
    pub(super) open: BTreeMap<Key, Shared>,
}

impl Calls {
    pub(super) fn of(program: &Program) -> Calls {
        let functions = program.functions();
        let calls = |index: usize| {
            let slots = functions[index].start as usize..functions[index].end as usize;
            program.instructions()[slots].iter().filter_map(|instruction| match instruction {
                Instruction::CallLocal { target } => index_of(program, *target),
                _ => None,
            })
        };
        let is_long = |index: usize| functions[index].len() > SHORT || calls(index).count() > 0;
        let mut is_shared = BTreeSet::new();
        let mut there = BTreeSet::from([0]);
        for depth in 1..MAX_FRAMES {
            let mut called = BTreeMap::<usize, usize>::new();
            for index in there.iter().flat_map(|index| calls(*index)) {
                *called.entry(index).or_default() += 1;
            }
            let several = called.iter().filter(|(index, times)| **times > 1 && is_long(**index));
            is_shared.extend(several.map(|(index, _)| (depth, *index)));
            there = called.into_keys().collect();
        }
        Calls { is_shared, open: BTreeMap::new() }
    }
}
