//! Instructions in their 8-byte form (RFC 9669 §3), with labels.

use super::contract::{MAX_SLOTS, TranslateError};

/// A register's number.
pub(super) type Reg = u8;

/// A position in the code, which may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: [u8; 8],
    target: Option<Label>,
}

/// Code under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    items: Vec<Item>,
    /// By label, the index of the item that it precedes.
    labels: Vec<Option<usize>>,
}

/// Operations of 64-bit arithmetic: the upper half of the opcode.
pub(super) const ADD: u8 = 0x00;
pub(super) const SUB: u8 = 0x10;
pub(super) const MUL: u8 = 0x20;
pub(super) const DIV: u8 = 0x30;
pub(super) const OR: u8 = 0x40;
pub(super) const AND: u8 = 0x50;
pub(super) const LSH: u8 = 0x60;
pub(super) const RSH: u8 = 0x70;
pub(super) const NEG: u8 = 0x80;
pub(super) const MOD: u8 = 0x90;
pub(super) const XOR: u8 = 0xa0;
pub(super) const MOV: u8 = 0xb0;
pub(super) const ARSH: u8 = 0xc0;
pub(super) const END: u8 = 0xd0;

/// Conditions of jumps: the upper half of the opcode.
pub(super) const JA: u8 = 0x00;
pub(super) const JEQ: u8 = 0x10;
pub(super) const JGT: u8 = 0x20;
pub(super) const JGE: u8 = 0x30;
pub(super) const JSET: u8 = 0x40;
pub(super) const JNE: u8 = 0x50;
pub(super) const JSGT: u8 = 0x60;
pub(super) const JSGE: u8 = 0x70;
pub(super) const JLT: u8 = 0xa0;
pub(super) const JLE: u8 = 0xb0;
pub(super) const JSLT: u8 = 0xc0;
pub(super) const JSLE: u8 = 0xd0;
/// `may_goto`: jumps after too many iterations.
pub(super) const MAY_GOTO: u8 = 0xe5;

const EXIT: u8 = 0x95;
const FROM_REGISTER: u8 = 0x08;
const WIDE: u8 = 0x07;
const NARROW: u8 = 0x04;
const JUMP: u8 = 0x05;
const JUMP32: u8 = 0x06;

/// A second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Reg(Reg),
    Imm(i32),
}

impl Source {
    /// The source bit of the opcode, the register and the immediate.
    fn parts(self) -> (u8, Reg, i32) {
        match self {
            Source::Reg(register) => (FROM_REGISTER, register, 0),
            Source::Imm(value) => (0, 0, value),
        }
    }
}

impl Assembler {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn raw(&mut self, opcode: u8, dst: Reg, src: Reg, offset: i16, immediate: i32) {
        let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_le_bytes(), immediate.to_le_bytes());
        let bytes = [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3];
        self.items.push(Item { bytes, target: None });
    }

    /// Arithmetic; `offset` selects signed division or sign extension.
    pub(super) fn alu(&mut self, wide: bool, op: u8, dst: Reg, src: Source, offset: i16) {
        let (bit, register, immediate) = src.parts();
        let class = if wide { WIDE } else { NARROW };
        self.raw(op | bit | class, dst, register, offset, immediate);
    }

    pub(super) fn mov(&mut self, dst: Reg, src: Source) {
        if src != Source::Reg(dst) {
            self.alu(true, MOV, dst, src, 0);
        }
    }

    pub(super) fn add(&mut self, dst: Reg, src: Source) {
        if src != Source::Imm(0) {
            self.alu(true, ADD, dst, src, 0);
        }
    }

    pub(super) fn constant(&mut self, dst: Reg, src: u8, value: u64) {
        self.raw(0x18, dst, src, 0, value as i32);
        self.raw(0, 0, 0, 0, (value >> 32) as i32);
    }

    /// `dst = *(base + offset)`; `size` is the size field of the opcode, BPF_DW and so on.
    pub(super) fn load(&mut self, size: u8, dst: Reg, base: Reg, offset: i16) {
        self.raw(0x61 | size, dst, base, offset, 0);
    }

    pub(super) fn store(&mut self, size: u8, base: Reg, offset: i16, src: Source) {
        match src {
            Source::Reg(register) => self.raw(0x63 | size, base, register, offset, 0),
            Source::Imm(value) => self.raw(0x62 | size, base, 0, offset, value),
        }
    }

    /// `dst` becomes a pointer into the arena.
    pub(super) fn cast(&mut self, dst: Reg) {
        self.raw(MOV | FROM_REGISTER | WIDE, dst, dst, 1, 1);
    }

    pub(super) fn exit(&mut self) {
        self.raw(EXIT, 0, 0, 0, 0);
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds the label to the current position.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = Some(self.items.len());
    }

    pub(super) fn jump(&mut self, target: Label) {
        self.raw(JUMP | JA, 0, 0, 0, 0);
        self.aim(target);
    }

    pub(super) fn may_goto(&mut self, target: Label) {
        self.raw(MAY_GOTO, 0, 0, 0, 0);
        self.aim(target);
    }

    pub(super) fn branch(
        &mut self,
        wide: bool,
        condition: u8,
        dst: Reg,
        src: Source,
        target: Label,
    ) {
        let (bit, register, immediate) = src.parts();
        let class = if wide { JUMP } else { JUMP32 };
        self.raw(condition | bit | class, dst, register, 0, immediate);
        self.aim(target);
    }

    /// A branch to an exit with a fault, as a jump over the inverse condition, so that the verifier follows the exit at
    /// once. The verifier must remember a branch that it follows later, and too many of them exceed its limit.
    pub(super) fn branch_out(&mut self, condition: u8, dst: Reg, src: Source, target: Label) {
        let stays = self.label();
        let inverse = match condition {
            JGT => JLE,
            JLE => JGT,
            JGE => JLT,
            JLT => JGE,
            other => unreachable!("a way out by condition {other:#x}"),
        };
        self.branch(true, inverse, dst, src, stays);
        self.jump(target);
        self.bind(stays);
    }

    fn aim(&mut self, target: Label) {
        if let Some(item) = self.items.last_mut() {
            item.target = Some(target);
        }
    }

    /// The successors of an item: a jump target and the next item.
    fn successors(&self, at: usize) -> [Option<usize>; 2] {
        let Item { bytes: [opcode, ..], target } = self.items[at];
        let target = target.and_then(|label| self.labels[label.0 as usize]);
        let next = match opcode {
            EXIT | JUMP => None,
            0x18 => Some(at + 2),
            _ => Some(at + 1),
        };
        [target, next]
    }

    /// The items that can be reached: the verifier refuses unreachable ones.
    fn reachable(&self) -> Vec<bool> {
        let mut reached = vec![false; self.items.len()];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            if self.items[at].bytes[0] == 0x18 {
                reached[at + 1] = true;
            }
            open.extend(self.successors(at).into_iter().flatten());
        }
        reached
    }

    /// The code with its jumps resolved and without unreachable items.
    pub(super) fn finish(self) -> Result<Vec<[u8; 8]>, TranslateError> {
        let reached = self.reachable();
        let mut places = Vec::with_capacity(self.items.len());
        let mut count = 0usize;
        for is_reached in &reached {
            places.push(count);
            count += usize::from(*is_reached);
        }
        if count > MAX_SLOTS {
            return Err(TranslateError::TooLong);
        }
        let mut slots = Vec::with_capacity(count);
        for (at, item) in self.items.iter().enumerate().filter(|(at, _)| reached[*at]) {
            let mut bytes = item.bytes;
            if let Some(target) = item.target.and_then(|label| self.labels[label.0 as usize]) {
                let distance = places[target] as i64 - places[at] as i64 - 1;
                let distance = i16::try_from(distance).map_err(|_| TranslateError::TooLong)?;
                bytes[2..4].copy_from_slice(&distance.to_le_bytes());
            }
            slots.push(bytes);
        }
        Ok(slots)
    }
}
