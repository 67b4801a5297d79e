//! Structured programs made from bytes: nested loops, strided loops of both signs, endless loops, loops that are
//! entered in the middle, functions that begin with one, local calls, helpers and tail calls. A random stream of
//! instructions rarely has these.

use super::repair::{EXIT, repair_slot};
use crate::abi;
use crate::helper::Helper;

type Slot = [u8; 8];

/// Maximum slots of a program.
const MAX_SLOTS: usize = 300;
/// Maximum functions of a program.
const MAX_FUNCTIONS: u8 = 4;
/// Maximum nesting of loops.
const MAX_DEPTH: u32 = 3;

/// Makes a program from bytes; not all programs pass the checks.
pub(super) fn program(data: &[u8]) -> Vec<u8> {
    let mut generator = Generator { choices: data, functions: 0, slots_left: 0 };
    generator.functions = 1 + generator.byte() % MAX_FUNCTIONS;
    let (mut code, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..generator.functions {
        starts.push(code.len());
        generator.slots_left = MAX_SLOTS / usize::from(MAX_FUNCTIONS);
        code.extend(generator.elements(MAX_DEPTH));
        code.push(EXIT);
    }
    // So far the immediate of a local call is the number of its function.
    for (pc, slot) in code.iter_mut().enumerate() {
        if let [0x85, 0x10, _, _, function, ..] = *slot {
            let distance = starts[usize::from(function)] as i32 - pc as i32 - 1;
            slot[4..].copy_from_slice(&distance.to_le_bytes());
        }
    }
    code.concat()
}

fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Slot {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

/// Whether a slot is arithmetic or a load that writes the register.
fn writes(slot: &Slot, register: u8) -> bool {
    matches!(slot[0] & 0x07, 1 | 4 | 7) && slot[1] & 0x0f == register
}

struct Generator<'a> {
    /// The bytes that make the choices. Zeroes follow when they are used up.
    choices: &'a [u8],
    functions: u8,
    /// Slots left for the current function.
    slots_left: usize,
}

impl Generator<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.choices.split_first() else { return 0 };
        self.choices = rest;
        first
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// A sequence of up to a few elements.
    fn elements(&mut self, depth: u32) -> Vec<Slot> {
        let count = self.byte() % 4;
        (0..count).flat_map(|_| self.element(depth)).collect()
    }

    /// Code that is entered at its first slot and left behind its last, or ends the function.
    fn element(&mut self, depth: u32) -> Vec<Slot> {
        let made = match self.byte() % 12 {
            0 | 1 => self.straight(),
            2 => vec![self.address(self.choices.first().map_or(1, |byte| byte % 10))],
            3 => vec![slot(0x85, 0, 1, 0, i32::from(self.byte() % self.functions))],
            4 => vec![self.helper()],
            5 => vec![self.branch(1), EXIT],
            _ if depth == 0 => self.straight(),
            6 => self.counted(depth),
            7..=10 => self.strided(depth),
            _ => self.entered_in_the_middle(depth),
        };
        match self.slots_left.checked_sub(made.len()) {
            Some(left) => {
                self.slots_left = left;
                made
            }
            None => Vec::new(),
        }
    }

    /// Instructions other than jumps, calls and constants of two slots.
    fn straight(&mut self) -> Vec<Slot> {
        let count = 1 + self.byte() % 4;
        let slots = (0..count).map(|_| {
            let mut slot = std::array::from_fn(|_| self.byte());
            repair_slot(&mut slot, false);
            slot
        });
        slots.filter(|slot| !matches!(slot[0] & 0x07, 5 | 6)).collect()
    }

    /// Sets a register to an address that is accessible, or nearly.
    fn address(&mut self, register: u8) -> Slot {
        let places =
            [abi::GUEST_BASE, abi::CONTEXT, abi::STATICS, abi::SCRATCH, abi::DATA, abi::WORKSPACE];
        let place = self.one_of(&places) as i32 + i32::from(self.byte());
        slot(0xb7, register, 0, 0, place)
    }

    fn helper(&mut self) -> Slot {
        slot(0x85, 0, 0, 0, self.one_of(Helper::ALL) as i32)
    }

    /// A branch over `offset` slots, which is sometimes taken.
    fn branch(&mut self, offset: i16) -> Slot {
        let condition = self.one_of(&[0x15, 0x25, 0x35, 0x45, 0x55, 0x65, 0xa5, 0xc5]);
        slot(condition, self.byte() % 11, 0, offset, self.byte().into())
    }

    /// A jump to the start of `body`, conditional or not.
    fn back(&mut self, body: &[Slot]) -> Slot {
        let offset = -(body.len() as i16) - 1;
        match self.byte() % 4 {
            0 => slot(0x05, 0, 0, offset, 0),
            1 => {
                // Until a register reaches an address.
                let end = self.address(0);
                let end = i32::from_le_bytes([end[4], end[5], end[6], end[7]]);
                let condition = self.one_of(&[0xa5, 0xb5, 0x25, 0x35, 0x55]);
                slot(condition, self.byte() % 10, 0, offset, end)
            }
            _ => self.branch(offset),
        }
    }

    fn counted(&mut self, depth: u32) -> Vec<Slot> {
        let register = 6 + self.byte() % 4;
        let mut body = self.elements(depth - 1);
        body.push(slot(0x07, register, 0, 0, -1));
        let back = slot(0x55, register, 0, -(body.len() as i16) - 1, 0);
        let start = slot(0xb7, register, 0, 0, i32::from(self.byte()));
        [&[start][..], &body, &[back]].concat()
    }

    /// A loop in which a register walks, and through which memory is accessed.
    fn strided(&mut self, depth: u32) -> Vec<Slot> {
        let register = 1 + self.byte() % 9;
        let other = if register == 8 { 7 } else { 8 };
        let offset = i16::from(self.byte() as i8);
        let access = match self.byte() % 4 {
            0 => slot(0x7b, register, other, offset, 0),
            1 => slot(0xdb, register, other, offset, 0),
            _ => slot(0x71, other, register, offset, 0),
        };
        let steps = [1, 2, 4, 7, 8, 16, 64, 512, -1, -2, -4, -7, -8, -16, -64, i32::MAX, i32::MIN];
        let step = slot(0x07, register, 0, 0, self.one_of(&steps));
        let mut body = self.elements(depth - 1);
        for slot in &mut body {
            if writes(slot, register) {
                slot[1] = slot[1] & 0xf0 | other;
            }
        }
        // Either may come first. Other code comes before, between or after them.
        let mut both = [access, step];
        if self.byte() & 1 != 0 {
            both.reverse();
        }
        for slot in both {
            // Not inside of an element: its jumps would lead elsewhere.
            let at = if self.byte() & 1 == 0 { 0 } else { body.len() };
            body.insert(at, slot);
        }
        body.push(self.back(&body));
        if self.byte() & 1 != 0 {
            body.insert(0, self.address(register));
        }
        body
    }

    /// A loop with a jump into its middle.
    fn entered_in_the_middle(&mut self, depth: u32) -> Vec<Slot> {
        let made = self.strided(depth);
        let target = i16::from(self.byte()) % made.len().max(1) as i16;
        let jump = match self.byte() % 2 {
            0 => slot(0x05, 0, 0, target, 0),
            _ => self.branch(target),
        };
        [&[jump][..], &made].concat()
    }
}
