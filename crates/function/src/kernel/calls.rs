//! Calls of functions. A function that is called from one place at its depth is inlined there. A function that is
//! called from several places exists once for all of them, so that the kernel's verifier follows it once. It returns by
//! a number on the kernel's stack, whose value the verifier does not know.

use super::assembler::{JGE, Label, Reg, Source};
use super::contract::{Ended, TranslateError, context};
use super::liveness::{ARGUMENTS, KEPT, Set, bit, index_of};
use super::shared::{Key, Shared};
use super::translator::{DW, FP, Place, Translator, stack};
use crate::abi::{FRAME_BYTES, GUEST_BASE, STACK_TOP};

impl Translator<'_> {
    /// Calls a function of the program.
    pub(super) fn call(
        &mut self,
        pc: u32,
        target: u32,
        place: &Place,
        live: Set,
    ) -> Result<(), TranslateError> {
        let (cost, reads) = (self.program.call_cost(target), self.liveness.before(target));
        // All of them: accesses use registers that the function itself does not use.
        let kept = live & KEPT;
        self.charge(pc, Source::Imm(cost as i32), kept | reads & ARGUMENTS);
        if STACK_TOP - (place.depth + 1) * FRAME_BYTES == GUEST_BASE {
            let stub = self.stub(Ended::StackOverflow, pc, None);
            self.code.jump(stub);
            return Ok(());
        }
        for register in kept_registers(kept) {
            self.code.store(DW, FP, kept_at(place.depth, register), Source::Reg(register));
        }
        let back = self.code.label();
        let key = (place.depth + 1, index_of(self.program, target).unwrap_or(0));
        let shared = self.calls.is_shared.contains(&key);
        let start = shared.then(|| self.announce(key, reads & ARGUMENTS, back));
        self.zero(reads & (KEPT | 1));
        match start {
            Some(start) => self.code.jump(start),
            None => self.function(key, Some(back))?,
        }
        self.code.bind(back);
        for register in kept_registers(kept) {
            self.code.load(DW, register, FP, kept_at(place.depth, register));
        }
        self.zero(live & ARGUMENTS);
        self.cross(pc, pc, pc + 1, live);
        Ok(())
    }

    /// Stores where a shared function must return to. Returns the label of its start. Uses r0.
    fn announce(&mut self, key: Key, arguments: Set, back: Label) -> Label {
        // The verifier would follow the function separately for each value of them that it knows.
        self.forget(arguments, arguments);
        let code = &mut self.code;
        let new = || Shared { start: code.label(), returns: Vec::new() };
        let shared = self.calls.open.entry(key).or_insert_with(new);
        code.load(DW, 0, FP, stack::ZERO);
        code.add(0, Source::Imm(shared.returns.len() as i32));
        code.store(DW, FP, returns_at(key.0), Source::Reg(0));
        shared.returns.push(back);
        shared.start
    }

    /// Emits the shared functions. A function of one depth is called from the depth before only, so when a depth is
    /// emitted, all its calls are known.
    pub(super) fn shared_functions(&mut self) -> Result<(), TranslateError> {
        while let Some((key, Shared { start, returns })) = self.calls.open.pop_first() {
            let end = self.code.label();
            self.code.bind(start);
            // To the verifier, the function may return behind an earlier call. That is a loop, and a loop needs a
            // `may_goto`.
            let stub = self.stub(Ended::Budget, self.program.functions()[key.1].start, None);
            self.code.may_goto(stub);
            self.function(key, Some(end))?;
            self.code.bind(end);
            self.code.load(DW, 1, FP, returns_at(key.0));
            self.go_on(&returns, 0);
        }
        Ok(())
    }

    /// Jumps to one of these labels: r1, which counts from `first`, selects it.
    fn go_on(&mut self, returns: &[Label], first: usize) {
        if let [only] = returns {
            return self.code.jump(*only);
        }
        let (low, high) = returns.split_at(returns.len() / 2);
        let (above, middle) = (self.code.label(), first + low.len());
        self.code.branch(true, JGE, 1, Source::Imm(middle as i32), above);
        self.go_on(low, first);
        self.code.bind(above);
        self.go_on(high, middle);
    }

    /// Returns from a function, or from the program.
    pub(super) fn leave(&mut self, place: &Place) {
        if let Some(back) = place.back {
            return self.code.jump(back);
        }
        self.code.load(DW, 1, FP, stack::CONTEXT);
        self.code.store(DW, 1, context::RESULT, Source::Reg(0));
        self.code.load(DW, 2, FP, stack::BUDGET);
        self.code.store(DW, 1, context::BUDGET, Source::Reg(2));
        self.code.mov(0, Source::Imm(0));
        self.code.exit();
    }
}

fn kept_registers(set: Set) -> impl Iterator<Item = Reg> {
    (6..10).filter(move |register| set & bit(*register) != 0)
}

fn kept_at(depth: u64, register: Reg) -> i16 {
    stack::CALLERS - 32 * depth as i16 + 8 * (i16::from(register) - 6)
}

fn returns_at(depth: u64) -> i16 {
    stack::RETURNS - 8 * depth as i16
}
