//! Helpers that native code leaves to the host, on both engines: results, memory, faults and price.

use bpfof_function::{
    Arena, Environment, Exit, Fault, FaultKind, NativeFunction, Program, abi, interpret,
};

type Slot = [u8; 8];

const EXIT: Slot = [0x95, 0, 0, 0, 0, 0, 0, 0];
const TAIL_CALL: i32 = 6;
const PARSE_INT: i32 = 7;
/// What a call may take from the budget here.
const BUDGET: i64 = 10_000;
const EINVAL: i64 = -22;
const ERANGE: i64 = -34;

fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Slot {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

fn constant(dst: u8, value: u64) -> [Slot; 2] {
    [slot(0x18, dst, 0, 0, value as i32), slot(0, 0, 0, 0, (value >> 32) as i32)]
}

/// A program that calls a helper with these arguments and returns what it gives.
fn calling(helper: i32, arguments: &[u64]) -> Vec<Slot> {
    let mut slots: Vec<Slot> =
        (1..).zip(arguments).flat_map(|(register, value)| constant(register, *value)).collect();
    slots.extend([slot(0x85, 0, 0, 0, helper), EXIT]);
    slots
}

/// Functions with even numbers are installed.
struct Even(Vec<u32>);

impl Environment for Even {
    fn tail_call(&mut self, function: u32) -> bool {
        self.0.push(function);
        function.is_multiple_of(2)
    }
}

struct Run {
    exit: Result<Exit, Fault>,
    /// What it took from the budget; only if it ended well.
    paid: Option<i64>,
    scratch: Vec<u8>,
    asked_for: Vec<u32>,
}

/// Runs a program on both engines with 512 bytes of data and `argument` in scratch; they agree.
fn run(slots: &[Slot], argument: &[u8], budget: i64) -> Run {
    let program = Program::parse(slots.as_flattened()).expect("a valid program");
    let native = NativeFunction::compile(&program).expect("translates");
    let [oracle, run] = [false, true].map(|is_native| {
        let mut arena = Arena::new();
        arena.begin_chain(argument, abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let (mut left, mut environment) = (budget, Even(Vec::new()));
        let exit = if is_native {
            native.call(&mut arena, limit, &mut left, &mut environment)
        } else {
            interpret(&program, &mut arena, limit, &mut left, &mut environment)
        };
        let paid = exit.is_ok().then_some(budget - left);
        let scratch = arena.scratch().to_vec();
        (Run { exit, paid, scratch, asked_for: environment.0 }, arena)
    });
    assert_eq!(oracle.0.exit, run.0.exit);
    assert_eq!(oracle.0.paid, run.0.paid, "budgets differ");
    assert_eq!(oracle.0.asked_for, run.0.asked_for);
    assert!(oracle.1.bytes() == run.1.bytes(), "memory differs");
    run.0
}

/// The result of a helper as a signed number.
fn result(run: &Run) -> i64 {
    match run.exit {
        Ok(Exit::Return(value)) => value as i64,
        other => panic!("no result: {other:?}"),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[test]
fn integers_are_parsed_and_paid_for_by_the_byte() {
    let to = abi::SCRATCH + 64;
    let parse = |text: &[u8], base: u64, budget| {
        let arguments = [abi::SCRATCH, text.len() as u64, base, to];
        run(&calling(PARSE_INT, &arguments), text, budget)
    };
    let number = parse(b"-123,", 10, BUDGET);
    assert_eq!((result(&number), word(&number.scratch, 64) as i64), (4, -123));
    assert_eq!(number.paid, Some(5 * 8));
    let unsigned = parse(b"ffffffffffffffff", 0x100 | 16, BUDGET);
    assert_eq!((result(&unsigned), word(&unsigned.scratch, 64)), (16, u64::MAX));
    for (text, error) in [(&b"x"[..], EINVAL), (b"9223372036854775808", ERANGE)] {
        let refused = parse(text, 10, BUDGET);
        assert_eq!((result(&refused), word(&refused.scratch, 64)), (error, 0));
    }
    // Enough for the digits and what ends them, or not.
    assert_eq!(result(&parse(b"12 ", 10, 24)), 2);
    let fault = |kind| Err(Fault { kind, pc: 8, data_end: abi::DATA + 512 });
    assert_eq!(parse(b"12 ", 10, 23).exit, fault(FaultKind::Budget));
    assert_eq!(parse(&[b'0'; 63], 10, 0).exit, fault(FaultKind::Budget));
    // Ranges, the text before the place for the value.
    let end = abi::DATA + 512;
    let parse = |text, len, to| run(&calling(PARSE_INT, &[text, len, 10, to]), b"7", BUDGET).exit;
    let outside = |address| fault(FaultKind::Memory { address });
    assert_eq!(parse(end - 1, 2, end - 1), outside(end - 1));
    assert_eq!(parse(abi::SCRATCH, 1, end - 7), outside(end - 7));
    assert_eq!(parse(abi::SCRATCH, u64::MAX, end - 8), outside(abi::SCRATCH));
    assert_eq!(parse(abi::SCRATCH, 1, end - 8), Ok(Exit::Return(1)));
}

#[test]
fn tail_calls_end_the_function_if_there_is_another() {
    let call = run(&calling(TAIL_CALL, &[8]), &[], BUDGET);
    assert_eq!((call.exit, call.paid, call.asked_for), (Ok(Exit::TailCall(8)), Some(500), vec![8]));
    let missing = run(&calling(TAIL_CALL, &[7]), &[], BUDGET);
    assert_eq!((result(&missing), missing.paid, missing.asked_for), (-1, Some(500), vec![7]));
    let no_number = run(&calling(TAIL_CALL, &[1 << 32]), &[], BUDGET);
    assert_eq!((result(&no_number), no_number.asked_for), (-1, vec![]));
    let poor = run(&calling(TAIL_CALL, &[8]), &[], 499);
    assert_eq!(poor.exit.map_err(|fault| fault.kind), Err(FaultKind::Budget));
    // From two calls deep, with what was paid until then.
    let call_next = slot(0x85, 0, 1, 0, 2);
    let nested = [
        call_next,
        slot(0xb7, 0, 0, 0, 99),
        EXIT,
        call_next,
        slot(0xb7, 0, 0, 0, 98),
        EXIT,
        slot(0xb7, 1, 0, 0, 6),
        slot(0x85, 0, 0, 0, TAIL_CALL),
        EXIT,
    ];
    let nested = run(&nested, &[], BUDGET);
    assert_eq!((nested.exit, nested.paid), (Ok(Exit::TailCall(6)), Some(3 + 3 + 500)));
}

/// Registers r6 to r9 and the stack outlive a helper, r1 to r5 do not.
#[test]
fn helpers_leave_the_functions_own_registers_alone() {
    let mut program = constant(6, 5).to_vec();
    program.extend(constant(1, 7));
    program.extend([
        slot(0x7a, 10, 0, -8, 30),
        slot(0x85, 0, 0, 0, TAIL_CALL),
        slot(0x0f, 0, 6, 0, 0),
        slot(0x0f, 0, 1, 0, 0),
        slot(0x79, 2, 10, -8, 0),
        slot(0x0f, 0, 2, 0, 0),
        EXIT,
    ]);
    assert_eq!(result(&run(&program, &[], BUDGET)), -1 + 5 + 30);
}
