//! Which functions of a program are there once for all of their calls ([`calls`](super::calls)).

use super::assembler::Label;
use super::liveness::index_of;
use crate::abi::MAX_FRAMES;
use crate::instruction::Instruction;
use crate::program::Program;
use std::collections::{BTreeMap, BTreeSet};

/// Slots of functions that are copied to each call rather than shared, if they call nothing.
const SHORT: usize = 16;

/// Depth and index of a function. Its frame is another one at another depth.
pub(super) type Key = (u64, usize);

/// A function that is called from several places.
pub(super) struct Shared {
    pub(super) start: Label,
    /// Behind each of the calls, by number.
    pub(super) returns: Vec<Label>,
}

/// The functions of a program that are shared.
pub(super) struct Calls {
    pub(super) is_shared: BTreeSet<Key>,
    /// Those that were called, and are yet to be put somewhere.
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
