//! Proved programs do not fault: runs random programs that the verifier accepts on random data.
//!
//! `PROOF_PROGRAMS=20000 cargo test -p bpfof-proof --test soundness` tries more programs.

#[path = "../../function/tests/assembly/mod.rs"]
mod assembly;

use assembly::{EXIT, slot};
use bpfof_function::fuzz::with_statics;
use bpfof_function::{Alone, Arena, FaultKind, Program, abi, interpret};
use bpfof_proof::{Outcome, prove};
use std::time::{Duration, Instant};

/// Number of programs, unless `PROOF_PROGRAMS` is set. About a third of them is proved.
const PROGRAMS: u64 = 400;

/// A random number generator (splitmix64); each program has its own.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Static data of every other program: this many bytes of constants, then as many of variables.
const CONSTANT_BYTES: u64 = 40;

/// A random program. r6 is the context, r7 the data, r8 its end, r9 scratch; r0, r2 and r3 have numbers that depend on
/// data, or one of them static data; some of these are missing. Then random instructions, biased towards those that the
/// verifier accepts: small numbers, bounds, short loops.
fn program(random: &mut Random, has_statics: bool) -> Vec<[u8; 8]> {
    let mut code = vec![
        slot(0xbf, 6, 1, 0, 0),
        slot(0x79, 7, 1, 0, 0),
        slot(0x79, 8, 1, 8, 0),
        slot(0x79, 9, 1, 16, 0),
        slot(0x61, 0, 1, 36, 0),
        slot(0x71, 2, 9, 5, 0),
        slot(0x79, 3, 9, 8, 0),
        slot(0xb7, 4, 0, 0, 7),
        slot(0xb7, 5, 0, 0, 8),
    ];
    code.retain(|_| random.below(32) > 0);
    if has_statics {
        for register in [0, 3] {
            let at = random.of(&[0, 8, CONSTANT_BYTES - 8, CONSTANT_BYTES, 2 * CONSTANT_BYTES - 8]);
            let at = at.wrapping_add(random.of(&[0, 0, 0, 1, 8, 8_u64.wrapping_neg()]));
            let address = abi::STATICS.wrapping_add(at);
            code.push(slot(0x18, register, 0, 0, address as i32));
            code.push(slot(0, 0, 0, 0, (address >> 32) as i32));
        }
    }
    let body = code.len();
    for _ in 0..1 + random.below(10) {
        let at = code.len() - body;
        if random.below(10) == 0 {
            // Arguments that the helper which follows may be able to use.
            for argument in 1..=3 {
                let from = random.of(&[0u8, 2, 3, 4, 5, 6, 7, 9, 10]);
                code.push(slot(0xbf, argument, from, 0, 0));
            }
            code.push(slot(0x07, 2, 0, 0, random.of(&[0, -8, -64, 8])));
            code.push(helper(random));
        } else {
            code.push(instruction(random, at));
        }
    }
    code.push(EXIT);
    code.push(EXIT);
    code
}

fn helper(random: &mut Random) -> [u8; 8] {
    slot(0x85, 0, 0, 0, random.of(&[1, 2, 3, 4, 5, 7]))
}

/// A random instruction with `before` instructions before it, and at least two behind it.
fn instruction(random: &mut Random, before: usize) -> [u8; 8] {
    let (number, pointer) = ([0u8, 2, 3, 4, 5], [6u8, 7, 8, 9, 10]);
    let register = if random.below(3) == 0 { random.of(&pointer) } else { random.of(&number) };
    let small = random.of(&[0, 1, 3, 7, 8, 15, 63, 64, 255, 320, 511, 512, 4096, -1, -8, -64]);
    match random.below(12) {
        // Arithmetic with a constant: add, sub, mul, div, or, and, lsh, rsh, mod, xor, mov, arsh.
        0..3 => {
            let op =
                random.of(&[0x00u8, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0, 0xc0]);
            slot(op | random.of(&[7, 4, 7]), random.of(&number), 0, 0, small)
        }
        // add, sub or mov with a register.
        3 => slot(random.of(&[0x0fu8, 0x1f, 0xbf, 0xbc]), random.of(&number), register, 0, 0),
        // Moves a pointer.
        4 => slot(0x0f, random.of(&pointer[..4]), random.of(&number), 0, 0),
        5 => slot(0x07, random.of(&pointer[..4]), 0, 0, small),
        // Accesses through r0 and r3, which may be static data or anything else.
        6 => match random.below(2) {
            0 => slot(0x7a, random.of(&[0, 3]), 0, small as i16, 1),
            _ => slot(0x79, random.of(&number), random.of(&[0, 3]), small as i16, 0),
        },
        // Loads and stores.
        7..9 => {
            let width = random.of(&[0x00u8, 0x08, 0x10, 0x18]);
            let base = if random.below(8) == 0 { register } else { random.of(&pointer) };
            let offset = if base == 10 { -1 - random.below(520) as i16 } else { small as i16 };
            match random.below(3) {
                0 => slot(0x63 | width, base, random.of(&number), offset, 0),
                _ => slot(0x61 | width, random.of(&number), base, offset, 0),
            }
        }
        // Branches: forward over one instruction, to the exit, or back.
        9 | 10 => {
            let op = random.of(&[0x10u8, 0x20, 0x30, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0]);
            let back = -1 - random.below(before as u64 + 1).min(4) as i16;
            let offset = random.of(&[1, 1, 1, back]);
            let offset = if before == 0 { 1 } else { offset };
            match random.below(3) {
                0 => slot(0x05 | op, random.of(&number), 0, offset, small),
                1 => slot(0x0d | op, random.of(&number), random.of(&number), offset, 0),
                _ => slot(0x0d | op, random.of(&[7, 9, 8]), random.of(&[8, 7]), offset, 0),
            }
        }
        // r1 and r2 have arbitrary values, so this is mostly refused.
        _ => helper(random),
    }
}

/// A memory fault in runs on random data of at least `block_min` bytes, and whether it is a write to a constant.
fn fault(program: &Program, block_min: usize, random: &mut Random) -> Option<(bool, String)> {
    let mut arena = Arena::new();
    for _ in 0..20 {
        let length = block_min + random.of(&[0usize, 1, 2, 8, 15, 64, 512, 4000]);
        // The block need not be the first one of its hop.
        let start = random.of(&[0usize, 512, 4096]);
        let argument: Vec<u8> = (0..64)
            .map(
                |_| if random.below(2) == 0 { random.below(16) as u8 } else { random.next() as u8 },
            )
            .collect();
        arena.begin_chain(&argument, random.of(&[64, 4096, abi::MAX_SCRATCH_BYTES]));
        arena.data_mut(start..start + length).fill_with(|| random.next() as u8);
        arena.begin_hop(random.of(&[0, 1, 7, u32::MAX]));
        let limit = arena.begin_call(start..start + length, random.next(), 0, 0);
        let mut budget = 10_000;
        if let Err(fault) = interpret(program, &mut arena, limit, &mut budget, &mut Alone)
            && matches!(fault.kind, FaultKind::Memory { .. } | FaultKind::ReadOnly { .. })
        {
            let is_constant = matches!(fault.kind, FaultKind::ReadOnly { .. });
            let fault = fault.explain(program);
            return Some((is_constant, format!("{fault} (block of {length} bytes at {start})")));
        }
    }
    None
}

#[test]
fn proved_programs_do_not_fault() {
    let programs = std::env::var("PROOF_PROGRAMS").ok().and_then(|text| text.parse().ok());
    let (mut proved, mut with_static, mut faulting, mut constants) = (0, 0, 0, 0);
    let programs = programs.unwrap_or(PROGRAMS);
    for seed in 0..programs {
        let mut random = Random(seed);
        let has_statics = seed % 2 == 0;
        let code = program(&mut random, has_statics);
        let Ok(mut program) = Program::parse(code.as_flattened()) else { continue };
        if has_statics {
            program = with_statics(
                program,
                vec![3; 2 * CONSTANT_BYTES as usize],
                CONSTANT_BYTES as usize,
            );
        }
        let block_min = random.of(&[0, 0, 64, 512]);
        let outcome = prove(&program, block_min, Instant::now() + Duration::from_secs(60));
        let fault = fault(&program, block_min, &mut random);
        if outcome == Outcome::Proved {
            proved += 1;
            with_static += u64::from(has_statics);
            assert_eq!(fault, None, "seed {seed} is proved, and faults: {program:#?}");
        }
        faulting += u64::from(fault.is_some());
        constants += u64::from(fault.is_some_and(|(is_constant, _)| is_constant));
    }
    let tally = format!(
        "{proved} of {programs} are proved, {with_static} of them with static data; {faulting} fault, {constants} \
         by writing constants"
    );
    println!("{tally}");
    assert!(proved > programs / 10 && with_static > programs / 40, "{tally}");
    assert!(faulting > programs / 10 && constants > programs / 400, "{tally}");
}
