//! Entry points for fuzzing, also run by unit tests so that they stay green.

use crate::abi;
use crate::{Arena, Fault, NativeFunction, Object, Program, interpret};

/// Instructions a fuzzed program may execute.
const BUDGET: i64 = 10_000;

/// Any bytes are an object or an error, never a panic.
pub fn object(data: &[u8]) {
    if let Ok(object) = Object::parse(data) {
        assert!(!object.entries().is_empty());
    }
}

/// Any instruction stream that passes the checks runs on both engines, which agree on the result,
/// the fault, the budget and every byte of memory, and touch nothing beyond the limit of the call.
///
/// The first byte selects how much of the data area the call may see; the rest is code.
pub fn differential(data: &[u8]) {
    let Some((&visible, code)) = data.split_first() else { return };
    let code = repair(code);
    let Ok(program) = Program::parse(&code) else { return };
    let native = NativeFunction::compile(&program).expect("a checked program can be translated");
    let expected =
        run(usize::from(visible), |arena, limit, budget| interpret(&program, arena, limit, budget));
    let actual =
        run(usize::from(visible), |arena, limit, budget| native.call(arena, limit, budget));
    assert_eq!(expected.0, actual.0, "the engines disagree on the outcome: {program:?}");
    let differs = expected.1.bytes().iter().zip(actual.1.bytes()).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the engines disagree on memory: {program:?}");
}

type Outcome = Result<(u64, i64), Fault>;

fn run(
    visible: usize,
    call: impl FnOnce(&mut Arena, crate::Limit, &mut i64) -> Result<u64, Fault>,
) -> (Outcome, Arena) {
    let mut arena = Arena::new();
    let canary = |index: usize| (index as u8).wrapping_mul(31) ^ 0x5a;
    let data = arena.data_mut(0..abi::MAX_HOP_BYTES);
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = canary(index);
    }
    arena.begin_hop(0);
    let limit = arena.begin_call(0..visible, 0, 0, 0);
    let mut budget = BUDGET;
    let outcome = call(&mut arena, limit, &mut budget).map(|result| (result, budget));
    let beyond = arena.data_mut(visible..abi::MAX_HOP_BYTES);
    let touched = beyond.iter().enumerate().any(|(at, byte)| *byte != canary(visible + at));
    assert!(!touched, "bytes beyond the limit of the call were written");
    (outcome, arena)
}

/// Bends random bytes towards programs that pass the checks, without hiding the ones that do
/// not: registers into range, jumps kept near, an exit at the end.
fn repair(code: &[u8]) -> Vec<u8> {
    let mut slots: Vec<[u8; 8]> = code.as_chunks::<8>().0.iter().take(64).copied().collect();
    let len = slots.len() as i64;
    for (pc, slot) in slots.iter_mut().enumerate() {
        let class = slot[0] & 0x07;
        slot[1] = ((slot[1] & 0x0f) % 11) | (((slot[1] >> 4) % 11) << 4);
        let is_jump = matches!(class, 5 | 6) && !matches!(slot[0], 0x85 | 0x95);
        if is_jump {
            let offset = i64::from(i16::from_le_bytes([slot[2], slot[3]]));
            let target = offset.rem_euclid(len + 1) - pc as i64 - 1;
            slot[2..4].copy_from_slice(&(target as i16).to_le_bytes());
        }
        let register_source = matches!(class, 4..=7) && slot[0] & 0x08 != 0;
        if matches!(class, 4 | 7) {
            slot[2..4].fill(0);
        }
        if register_source || matches!(class, 1 | 3) && slot[0] & 0xe0 == 0x60 {
            slot[4..].fill(0);
        } else if matches!(class, 2) || matches!(class, 4..=7) && slot[0] != 0x85 {
            slot[1] &= 0x0f;
        }
        if slot[0] == 0x95 {
            *slot = [0x95, 0, 0, 0, 0, 0, 0, 0];
        }
    }
    slots.push([0x95, 0, 0, 0, 0, 0, 0, 0]);
    slots.concat()
}
