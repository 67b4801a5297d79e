//! Both engines on hand-written programs, hostile ones and random ones.

mod assembly;

use assembly::{EXIT, constant, slot};
use bpfof_function::{
    Alone, Arena, Exit, Fault, FaultKind, NativeFunction, Object, Program, abi, fuzz, interpret,
};
use proptest::prelude::*;

fn mov(dst: u8, immediate: i32) -> [u8; 8] {
    slot(0xb7, dst, 0, 0, immediate)
}

/// A fault of a call with 512 bytes of data.
fn fault(kind: FaultKind, pc: u32) -> Fault {
    Fault { kind, pc, data_end: abi::DATA + 512 }
}

/// Budget of a call that ends on its own.
const ENOUGH: i64 = 10_000;

/// Runs a program on both engines with 512 bytes of data and a numbered scratch, requires agreement about result and
/// memory, and returns the result.
fn run(slots: &[[u8; 8]], budget: i64) -> Result<u64, Fault> {
    let program = Program::parse(slots.as_flattened()).expect("a valid program");
    let native = NativeFunction::compile(&program).expect("translates");
    let outcomes = [true, false].map(|native_code| {
        let mut arena = Arena::new();
        let numbered: Vec<u8> = (0..abi::DEFAULT_SCRATCH_BYTES).map(|i| (i % 251) as u8).collect();
        arena.begin_chain(&numbered, numbered.len());
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let mut budget = budget;
        let result = if native_code {
            native.call(&mut arena, limit, &mut budget, &mut Alone)
        } else {
            interpret(&program, &mut arena, limit, &mut budget, &mut Alone)
        };
        (result, budget, arena.bytes().to_vec())
    });
    assert_eq!(outcomes[0].0, outcomes[1].0);
    assert_eq!(outcomes[0].1, outcomes[1].1, "budgets differ");
    assert!(outcomes[0].2 == outcomes[1].2, "memory differs");
    outcomes[0].0.map(|exit| match exit {
        Exit::Return(result) => result,
        Exit::TailCall(function) => panic!("goes on in function {function}"),
    })
}

/// Loads `width` bytes at an absolute address.
fn load_at(address: u64, opcode: u8) -> Result<u64, Fault> {
    let [first, second] = constant(2, address);
    run(&[first, second, slot(opcode, 0, 2, 0, 0), EXIT], ENOUGH)
}

#[test]
fn accesses_are_bounded_to_the_byte() {
    let end = abi::DATA + 512;
    for (opcode, width) in [(0x71, 1), (0x69, 2), (0x61, 4), (0x79, 8)] {
        for address in [abi::GUEST_BASE, end - width] {
            assert!(load_at(address, opcode).is_ok(), "{address:#x} is inside");
        }
        let outside = [
            0,
            abi::GUEST_BASE - 1,
            end - width + 1,
            end,
            u64::MAX,
            u64::MAX - width + 1,
            1 << 63,
            1 << 32 | abi::DATA,
            abi::GUEST_BASE + abi::ARENA_BYTES as u64,
        ];
        for address in outside {
            let outside = fault(FaultKind::Memory { address }, 2);
            assert_eq!(load_at(address, opcode), Err(outside), "{address:#x} is outside");
        }
    }
}

#[test]
fn a_check_on_one_path_is_not_trusted_on_another() {
    // if (r2 == 0) goto L; r0 = *(u8 *)(r3 + 0); L: r0 = *(u8 *)(r3 + 0)
    let [first, second] = constant(3, abi::DATA + 512);
    let program = [
        first,
        second,
        slot(0x15, 2, 0, 1, 0),
        slot(0x71, 0, 3, 0, 0),
        slot(0x71, 0, 3, 0, 0),
        EXIT,
    ];
    let kind = FaultKind::Memory { address: abi::DATA + 512 };
    assert_eq!(run(&program, ENOUGH), Err(fault(kind, 4)));
}

#[test]
fn a_check_of_a_wide_range_does_not_cover_what_lies_past_it() {
    let base = constant(3, abi::DATA + 504);
    let mut program = base.to_vec();
    program.extend([slot(0x79, 0, 3, 0, 0), slot(0x71, 0, 3, -8, 0), slot(0x71, 0, 3, 7, 0)]);
    program.extend([slot(0x71, 0, 3, 8, 0), EXIT]);
    let kind = FaultKind::Memory { address: abi::DATA + 512 };
    assert_eq!(run(&program, ENOUGH), Err(fault(kind, 5)));
}

/// Accesses through one register are checked together. `run` compares memory: accesses before the fault must be done,
/// accesses after it must not.
#[test]
fn accesses_checked_together_fault_one_by_one() {
    let store = |offset, value| slot(0x7a, 3, 0, offset, value);
    let at = |address: u64, accesses: &[[u8; 8]]| {
        let mut program = constant(3, address).to_vec();
        program.extend(accesses);
        program.push(EXIT);
        run(&program, ENOUGH)
    };
    let (end, start) = (abi::DATA + 512, abi::GUEST_BASE);
    let copy = [store(0, 1), store(8, 2), slot(0x79, 5, 3, 16, 0), store(-8, 4)];
    assert!(at(end - 24, &copy).is_ok());
    assert!(at(start + 8, &copy).is_ok());
    let outside = |address| FaultKind::Memory { address };
    assert_eq!(at(end - 23, &copy), Err(fault(outside(end - 7), 4)));
    assert_eq!(at(end - 8, &copy), Err(fault(outside(end), 3)));
    assert_eq!(at(end, &copy), Err(fault(outside(end), 2)));
    assert_eq!(at(start + 7, &copy), Err(fault(outside(start - 1), 5)));
    assert_eq!(at(u64::MAX, &copy), Err(fault(outside(u64::MAX), 2)));
    // Another register faults first, between two accesses of the group.
    let other = [store(0, 1), slot(0x79, 5, 4, 0, 0), store(8, 2)];
    assert_eq!(at(end - 8, &other), Err(fault(outside(0), 3)));
    // The register changes between them, so they are not a group.
    let moved = [store(0, 1), slot(0x07, 3, 0, 0, -100), store(8, 2)];
    assert!(at(end - 8, &moved).is_ok());
    let loaded = [store(0, 0), slot(0x79, 3, 3, 0, 0), slot(0x79, 5, 3, 0, 0)];
    assert_eq!(at(end - 8, &loaded), Err(fault(outside(0), 4)));
}

#[test]
fn endless_loops_run_out_of_budget() {
    assert_eq!(run(&[slot(0x05, 0, 0, -1, 0), EXIT], 1000), Err(fault(FaultKind::Budget, 0)));
    let counting = [mov(0, 0), slot(0x07, 0, 0, 0, 1), slot(0x25, 0, 0, -2, -1), EXIT];
    assert!(run(&counting, 1000).is_ok());
    let forever = [mov(0, 0), slot(0x07, 0, 0, 0, 1), slot(0x55, 0, 0, -2, 0), EXIT];
    assert_eq!(run(&forever, 1000), Err(fault(FaultKind::Budget, 2)));
}

#[test]
fn recursion_ends_at_the_eighth_frame() {
    let recursive = [slot(0x85, 0, 1, 0, -1), EXIT];
    assert_eq!(run(&recursive, 1000), Err(fault(FaultKind::StackOverflow, 0)));
    assert_eq!(run(&recursive, 3), Err(fault(FaultKind::Budget, 0)));
}

/// A large namespace in memory may fill the address space, so that only single free pages are near each other.
#[test]
fn functions_that_call_each_other_are_near_in_a_full_address_space() {
    let reserve = |bytes| region::alloc(bytes, region::Protection::NONE).expect("address space");
    let far: Vec<_> = (0..16).map(|_| reserve(3 << 30)).collect();
    // Fill the free space between the reservations; then free single pages of it again.
    let mut pages: Vec<_> = (0..20_000).map(|_| reserve(4096)).collect();
    pages.sort_by_key(|page| page.as_ptr::<u8>().addr());
    let mut last = 0;
    pages.retain(|page| {
        let address = page.as_ptr::<u8>().addr();
        let is_near = address - last < 3 << 30;
        last = if is_near { last } else { address };
        is_near
    });
    // More than half a page of code each: the caller's code comes before the call and its results are used after it.
    let long: Vec<_> = [slot(0x0f, 3, 1, 0, 0), slot(0x2f, 3, 1, 0, 0)].repeat(400);
    let mut program = vec![slot(0x79, 1, 1, 0, 0), mov(3, 5)];
    program.extend(&long);
    program.extend([slot(0xbf, 6, 3, 0, 0), slot(0x85, 0, 1, 0, 2)]);
    program.extend([slot(0x0f, 0, 6, 0, 0), EXIT, mov(3, 1)]);
    program.extend(&long);
    program.extend([slot(0xbf, 0, 3, 0, 0), EXIT]);
    assert!(run(&program, 10_000).is_ok());
    drop((far, pages));
}

#[test]
fn local_calls_keep_the_callers_registers_and_frame() {
    let program = [
        mov(6, 5),
        slot(0x7a, 10, 0, -8, 7),
        mov(1, 30),
        slot(0x85, 0, 1, 0, 4),
        slot(0x0f, 0, 6, 0, 0),
        slot(0x79, 2, 10, -8, 0),
        slot(0x0f, 0, 2, 0, 0),
        EXIT,
        mov(6, 1),
        slot(0x7a, 10, 0, -8, 100),
        slot(0xbf, 0, 1, 0, 0),
        EXIT,
    ];
    assert_eq!(run(&program, ENOUGH), Ok(42));
}

#[test]
fn helpers_are_bounded_and_pay() {
    let call = |number| slot(0x85, 0, 0, 0, number);
    let fill = |len| [slot(0x79, 1, 1, 0, 0), mov(2, 0x41), mov(3, len), call(3), EXIT];
    assert_eq!(run(&fill(512), ENOUGH), Ok(0));
    let kind = FaultKind::Memory { address: abi::DATA };
    assert_eq!(run(&fill(513), ENOUGH), Err(fault(kind, 3)));
    assert_eq!(run(&fill(-1), ENOUGH), Err(fault(FaultKind::Budget, 3)));
    // A load, two moves, the call, the end; then the helper.
    let cost = 12 + 1 + 1 + 1 + 1 + (46 + 512 / 8);
    assert_eq!(run(&fill(512), cost), Ok(0));
    assert_eq!(run(&fill(512), cost - 1), Err(fault(FaultKind::Budget, 3)));
    let compare = [
        slot(0x79, 2, 1, 0, 0),
        slot(0x72, 2, 0, 3, 9),
        slot(0xbf, 1, 2, 0, 0),
        slot(0x07, 2, 0, 0, 8),
        mov(3, 4),
        call(1),
        EXIT,
    ];
    assert_eq!(run(&compare, ENOUGH), Ok(1));
}

/// Helpers with constant lengths, and the same lengths from memory: the former may be translated without a call, the
/// latter never are.
#[test]
fn helpers_do_the_same_for_constant_and_variable_lengths() {
    let scratch = abi::SCRATCH as i32;
    let end = abi::DATA as i32 + 512;
    let lengths = (0..=20).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 251, 512, 513]);
    for len in lengths {
        // Apart, overlapping both ways, equal for a whole period of the pattern, up to the end of
        // the data, past it.
        let places = [
            (scratch, scratch + 1000),
            (scratch + 3, scratch),
            (scratch, scratch + 9),
            (scratch, scratch + 251),
            (end - len, scratch),
            (scratch, end - len),
            (end - len + 1, scratch),
            (scratch, end - len + 1),
            (abi::GUEST_BASE as i32 - 1, scratch),
            (scratch, -1),
        ];
        for (a, b) in places {
            for helper in [1, 2, 3, 4, 5, 8] {
                let program = |length: [u8; 8]| {
                    let keep = slot(0x7a, 10, 0, -8, len);
                    let call = slot(0x85, 0, 0, 0, helper);
                    run(&[keep, mov(1, a), mov(2, b), length, call, EXIT], ENOUGH)
                };
                let constant = program(mov(3, len));
                let narrow = program(slot(0xb4, 3, 0, 0, len));
                let loaded = program(slot(0x79, 3, 10, -8, 0));
                assert_eq!(constant, loaded, "helper {helper}, {len} bytes, {a:#x} {b:#x}");
                assert_eq!(constant, narrow, "helper {helper}, {len} bytes, {a:#x} {b:#x}");
            }
        }
    }
}

#[test]
fn sums_and_finds() {
    // The check value of CRC-32C, whole and in two parts; scratch is 0, 1, 2, …
    let (digits, rest) =
        (constant(4, u64::from_le_bytes(*b"12345678")), slot(0x72, 10, 0, -8, 0x39));
    let text = [digits[0], digits[1], slot(0x7b, 10, 4, -16, 0), rest];
    let to_text = [slot(0xbf, 1, 10, 0, 0), slot(0x07, 1, 0, 0, -16)];
    let call = |number| slot(0x85, 0, 0, 0, number);
    let whole = [&text[..], &to_text, &[mov(2, 0), mov(3, 9), call(4), EXIT]].concat();
    assert_eq!(run(&whole, ENOUGH), Ok(0xe306_9283));
    let first = [&to_text[..], &[mov(2, 0), mov(3, 5), call(4), slot(0xbf, 2, 0, 0, 0)]].concat();
    let second = [&to_text[..], &[slot(0x07, 1, 0, 0, 5), mov(3, 4), call(4), EXIT]].concat();
    assert_eq!(run(&[&text[..], &first, &second].concat(), ENOUGH), Ok(0xe306_9283));
    let find = |byte, len| {
        run(&[mov(1, abi::SCRATCH as i32), mov(2, byte), mov(3, len), call(5), EXIT], ENOUGH)
    };
    assert_eq!((find(77, 100), find(0x100 + 77, 100)), (Ok(77), Ok(77)));
    assert_eq!((find(77, 77), find(0, 0)), (Ok(77), Ok(0)));
}

#[test]
fn comparing_finds_the_first_difference() {
    for len in 1..=40 {
        for at in 0..len {
            // scratch[0..] against scratch[251..]: equal, but for the byte that is changed.
            let compare = |change: i32| {
                let bytes = slot(0x72, 1, 0, at as i16, change);
                let length = mov(3, len);
                let (a, b) = (abi::SCRATCH as i32, abi::SCRATCH as i32 + 251);
                run(&[mov(1, a), bytes, mov(2, b), length, slot(0x85, 0, 0, 0, 1), EXIT], ENOUGH)
            };
            assert_eq!(compare(at), Ok(0));
            assert_eq!(compare(at - 1), Ok(if at == 0 { 1 } else { -1i64 as u64 }));
            assert_eq!(compare(at + 1), Ok(1));
        }
    }
}

#[test]
fn division_and_shifts_at_the_edges() {
    let alu =
        |opcode: u8, a: i32, b: i32| run(&[mov(0, a), slot(opcode, 0, 0, 0, b), EXIT], ENOUGH);
    assert_eq!(alu(0x37, 7, 0), Ok(0));
    assert_eq!(alu(0x97, 7, 0), Ok(7));
    assert_eq!(alu(0x34, -1, 0), Ok(0));
    assert_eq!(alu(0x94, -1, 0), Ok(0xffff_ffff));
    assert_eq!(alu(0x67, 1, 65), Ok(2));
    assert_eq!(alu(0x64, 1, 33), Ok(2));
    assert_eq!(alu(0xc4, -8, 1), Ok(0xffff_fffc));
    assert_eq!(alu(0xc7, -8, 1), Ok(-4i64 as u64));
    assert_eq!(alu(0xdc, 0x0102_0304, 16), Ok(0x0403));
    assert_eq!(alu(0xdc, 0x0102_0304, 64), Ok(0x0403_0201_0000_0000));
    assert_eq!(alu(0xd4, -1, 32), Ok(0xffff_ffff));
}

#[test]
fn atomics_on_memory() {
    let program = |immediate, opcode| {
        [
            slot(0x7a, 10, 0, -8, 5),
            mov(0, 5),
            mov(2, 3),
            slot(opcode, 10, 2, -8, immediate),
            slot(0x79, 3, 10, -8, 0),
            slot(0x67, 3, 0, 0, 8),
            slot(0x4f, 3, 2, 0, 0),
            slot(0xbf, 0, 3, 0, 0),
            EXIT,
        ]
    };
    for opcode in [0xdb, 0xc3] {
        assert_eq!(run(&program(0x00, opcode), ENOUGH), Ok(8 << 8 | 3));
        assert_eq!(run(&program(0x01, opcode), ENOUGH), Ok(8 << 8 | 5));
        assert_eq!(run(&program(0xe1, opcode), ENOUGH), Ok(3 << 8 | 5));
        assert_eq!(run(&program(0xf1, opcode), ENOUGH), Ok(3 << 8 | 3));
    }
}

/// Arithmetic whose result is used in many separate places: machine code computes it once, as the program does.
#[test]
fn code_is_not_multiplied() {
    const STEPS: usize = 1000;
    const PLACES: i32 = 690;
    let mut slots = vec![mov(0, 0), slot(0x79, 2, 1, 0, 0), slot(0x79, 3, 1, 24, 0)];
    for _ in 0..STEPS {
        slots.extend([slot(0x2f, 2, 3, 0, 0), slot(0xaf, 2, 3, 0, 0)]);
    }
    for place in 0..PLACES {
        slots.extend([slot(0x55, 3, 0, 2, place), slot(0x7b, 10, 2, -8, 0), EXIT]);
    }
    slots.push(EXIT);
    let program = Program::parse(slots.as_flattened()).expect("a valid program");
    let native = NativeFunction::compile(&program).expect("translates");
    assert!(native.code_bytes() < 64 * slots.len(), "{native:?} of {} slots", slots.len());
}

/// Minimum time that a loop with two entries takes until its budget is used up, behind this much arithmetic.
fn time_of_turns(steps: usize) -> std::time::Duration {
    let mut slots = vec![mov(0, 0), mov(6, 0), slot(0x79, 2, 1, 0, 0), slot(0x79, 3, 1, 24, 0)];
    for _ in 0..steps {
        slots.extend([slot(0x2f, 2, 3, 0, 0), slot(0xaf, 2, 3, 0, 0)]);
    }
    slots.extend([
        slot(0x15, 3, 0, 2, 77), // if r3 == 77 goto B
        slot(0x07, 0, 0, 0, 1),  // A: r0 += 1
        slot(0x1d, 2, 0, 2, 0),  // if r2 == r0 goto out
        slot(0x07, 6, 0, 0, 1),  // B: r6 += 1
        slot(0x05, 0, 0, -4, 0), // goto A
        EXIT,
    ]);
    let program = Program::parse(slots.as_flattened()).expect("a valid program");
    let native = NativeFunction::compile(&program).expect("translates");
    let run = |_| {
        let mut arena = Arena::new();
        arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let (begun, mut left) = (std::time::Instant::now(), 1_000_000);
        let end = native.call(&mut arena, limit, &mut left, &mut Alone);
        assert!(end.is_err_and(|fault| fault.kind == FaultKind::Budget));
        begun.elapsed()
    };
    (0..5).map(run).min().expect("a run")
}

/// Arithmetic in front of a loop is executed once, and not in each of 100,000 iterations, which would take hundreds of
/// times as long.
#[test]
fn arithmetic_stays_in_front_of_a_loop_with_two_entries() {
    let (little, much) = (time_of_turns(1), time_of_turns(1000));
    assert!(much < 30 * little, "{much:?} instead of {little:?}");
}

#[test]
fn damaged_objects_are_errors() {
    for bytes in [&b""[..], b"\x7fELF", &[0; 64], &[0xff; 4096]] {
        assert!(Object::parse(bytes).is_err());
        fuzz::object(bytes);
    }
}

/// `depth` loops, each within the one before.
fn nested(depth: i16) -> Program {
    let headers = (0..depth).map(|_| slot(0x07, 2, 0, 0, 1));
    // if r2 < 5 goto the header
    let ends = (0..depth).map(|end| slot(0xa5, 2, 0, -2 * end - 2, 5));
    let slots: Vec<[u8; 8]> = headers.chain(ends).chain([mov(0, 0), EXIT]).collect();
    Program::parse(slots.as_flattened()).expect("a valid program")
}

/// Each rung jumps back to the one before it, so each is a loop within all loops before it.
fn ladder(rungs: usize) -> Program {
    // if r5 != 70 goto the one before
    let rung = slot(0x55, 5, 0, -2, 70);
    let slots = [vec![mov(2, 0)], vec![rung; rungs], vec![mov(0, 0), EXIT]].concat();
    Program::parse(slots.as_flattened()).expect("a valid program")
}

#[test]
fn loops_are_nested_up_to_a_limit() {
    assert!(NativeFunction::compile(&nested(64)).is_ok());
    assert!(NativeFunction::compile(&ladder(60)).is_ok());
    for program in [nested(65), nested(250), ladder(70), ladder(250)] {
        let refusal = NativeFunction::compile(&program).expect_err("refused").to_string();
        assert!(refusal.contains("it nests loops more than 64 deep"), "{refusal}");
    }
}

/// A ladder that is entered at its last rung, so that no rung is passed by all paths to the others: none begins a loop.
/// Atomic operations follow, up to this number of slots.
fn ladder_from_its_end(rungs: usize, slots: usize) -> Program {
    // if r1 == 0 goto the last rung
    let enter = slot(0x15, 1, 0, rungs as i16, 0);
    // if r1 == 1 goto the one before
    let rung = slot(0x15, 1, 0, -2, 1);
    let mut code = [vec![enter, mov(0, 0)], vec![rung; rungs]].concat();
    // Each access is to an address that the one before it has loaded.
    let atomics = [slot(0xdb, 1, 2, 0, 1), slot(0xdb, 2, 1, 0, 1)].into_iter().cycle();
    code.extend(atomics.take(slots - code.len() - 1).chain([EXIT]));
    Program::parse(code.as_flattened()).expect("a valid program")
}

/// Each takes the register allocator another pass over the whole program.
#[test]
fn long_programs_enter_few_loops_in_the_middle() {
    for (rungs, slots) in [(250, 300), (8, 4096)] {
        assert!(NativeFunction::compile(&ladder_from_its_end(rungs, slots)).is_ok());
    }
    for (rungs, slots) in [(250, 2048), (30, 4096), (250, 4096)] {
        let compiled = NativeFunction::compile(&ladder_from_its_end(rungs, slots));
        let refusal = compiled.expect_err("refused").to_string();
        assert!(refusal.contains("it jumps back into the middle of loops"), "{refusal}");
    }
}

/// The limit is for all functions of a program together.
#[test]
fn functions_share_the_limit_of_entries_in_the_middle() {
    let part = |rungs: usize, slots: usize| {
        let enter = slot(0x15, 1, 0, rungs as i16, 0);
        let rungs = vec![slot(0x15, 1, 0, -2, 1); rungs];
        let mut code = [vec![enter, mov(0, 0)], rungs].concat();
        let atomics = [slot(0xdb, 1, 2, 0, 1), slot(0xdb, 2, 1, 0, 1)].into_iter().cycle();
        code.extend(atomics.take(slots - code.len() - 1));
        code.push(EXIT);
        code
    };
    let compiled = |functions: usize| {
        let mut code = part(0, 8);
        code.pop();
        for function in 0..functions {
            let ahead = (functions - function - 1) + 1 + 1900 * function;
            code.push([0x85, 0x10, 0, 0, 0, 0, 0, 0]);
            let [.., o0, o1, o2, o3] = code.last_mut().expect("a call");
            [*o0, *o1, *o2, *o3] = (ahead as i32).to_le_bytes();
        }
        code.push(EXIT);
        (0..functions).for_each(|_| code.extend(part(60, 1900)));
        NativeFunction::compile(&Program::parse(code.as_flattened()).expect("a valid program"))
    };
    assert!(compiled(1).is_ok());
    let refusal = compiled(2).expect_err("refused").to_string();
    assert!(refusal.contains("it jumps back into the middle of loops"), "{refusal}");
}

/// Two loops side by side in a third, and unreachable code that jumps into both. A loop analysis that includes such
/// code may never end.
#[test]
fn unreachable_code_is_not_part_of_loops() {
    let slots = [
        slot(0x07, 2, 0, 0, 1),  // 0: r2 += 1
        slot(0x15, 5, 0, 3, 0),  // 1: if r5 == 0 goto 5
        slot(0x07, 3, 0, 0, 1),  // 2: r3 += 1
        slot(0x25, 3, 0, 4, 5),  // 3: if r3 > 5 goto 8
        slot(0x05, 0, 0, -3, 0), // 4: goto 2
        slot(0x07, 4, 0, 0, 1),  // 5: r4 += 1
        slot(0x25, 4, 0, 1, 5),  // 6: if r4 > 5 goto 8
        slot(0x05, 0, 0, -3, 0), // 7: goto 5
        slot(0xa5, 2, 0, -9, 5), // 8: if r2 < 5 goto 0
        slot(0xbf, 0, 4, 0, 0),  // 9: r0 = r4
        EXIT,
        slot(0x15, 6, 0, -8, 0), // 11: if r6 == 0 goto 4
        slot(0x05, 0, 0, -6, 0), // 12: goto 7
    ];
    assert_eq!(run(&slots, 1000), Ok(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Random instruction streams: the engines agree, and no memory beyond the limit is accessed.
    #[test]
    fn random_streams_stay_confined(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz::differential(&data);
        fuzz::hostile(&data);
        fuzz::kernel(&data);
    }

    /// Random streams made of plausible opcodes and pointers, which get much further.
    #[test]
    fn plausible_streams_stay_confined(
        visible in any::<u8>(),
        slots in proptest::collection::vec(plausible_slot(), 1..48),
    ) {
        let mut data = vec![visible];
        data.extend(slots.concat());
        fuzz::differential(&data);
        fuzz::hostile(&data);
        fuzz::kernel(&data);
    }
}

fn plausible_slot() -> impl Strategy<Value = [u8; 8]> {
    let opcode = prop_oneof![
        proptest::sample::select(vec![0x61, 0x69, 0x71, 0x79, 0x62, 0x6a, 0x72, 0x7a]),
        proptest::sample::select(vec![0x63, 0x6b, 0x73, 0x7b, 0xc3, 0xdb, 0x85, 0x05]),
        proptest::sample::select(vec![0x07, 0x0f, 0x17, 0x1f, 0xbf, 0xb7, 0xb4, 0xbc, 0x3f, 0x9c]),
        proptest::sample::select(vec![0x15, 0x1d, 0x25, 0x2d, 0x55, 0x5d, 0x6d, 0xc5, 0x46, 0xa6]),
        any::<u8>(),
    ];
    let offset = prop_oneof![-16i16..16, any::<i16>()];
    let immediate = prop_oneof![
        -16i32..16,
        Just(abi::DATA as i32),
        Just(abi::DATA as i32 + 255),
        Just(abi::CONTEXT as i32),
        Just(abi::MAPS as i32),
        Just(abi::STATICS as i32 + 145),
        Just(0x50),
        Just(0xf1),
        any::<i32>()
    ];
    (opcode, 0u8..11, prop_oneof![Just(0u8), Just(1), 0u8..11], offset, immediate)
        .prop_map(|(opcode, dst, src, offset, immediate)| slot(opcode, dst, src, offset, immediate))
}

/// Programs of the maximum length, of branches into each other's arms with all registers in use, stay within the frame
/// size that the host's stack has room for, at the maximum depth.
#[test]
fn frames_have_a_limit() {
    let branches = |count: usize| {
        let mut program = vec![slot(0x85, 0, 1, 0, 1), EXIT];
        for register in 0..10 {
            program.push(slot(0x07, register, 0, 0, 1));
        }
        // Calls that are never made, and one that goes deeper.
        program.extend([slot(0x15, 9, 0, 401, -1), slot(0x85, 0, 1, 0, -12)]);
        for index in 0..400 {
            program.push(slot(0x85, 0, 1, 0, -13 - index));
        }
        for index in 0..count {
            let further = 1 + (index * 7919) % (count - index).min(1000);
            let (one, other) = (index % 10, (index / 10) % 10);
            program.push(slot(0x07, one as u8, 0, 0, 1));
            program.push(slot(0x1d, one as u8, other as u8, 2 * further as i16 - 2, 0));
        }
        for register in 0..10 {
            program.push(slot(0x0f, 0, register, 0, 0));
        }
        program.push(EXIT);
        program
    };
    for count in [100, 1740] {
        let program = Program::parse(branches(count).as_flattened()).expect("a valid program");
        let native = NativeFunction::compile(&program).expect("translates");
        // On a stack as small as that of a thread of the target.
        let run = move || {
            let mut arena = Arena::new();
            arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
            arena.begin_hop(0);
            let limit = arena.begin_call(0..512, 0, 0, 0);
            native.call(&mut arena, limit, &mut 1_000_000, &mut Alone)
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run).expect("starts");
        let fault = thread.join().expect("it returns").expect_err("it goes too deep");
        assert_eq!((fault.kind, fault.pc), (FaultKind::StackOverflow, 13));
    }
}
