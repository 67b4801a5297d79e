//! Helpers that native code leaves to the host, on both engines: results, memory, faults and price.

mod assembly;

use assembly::{EXIT, Slot, constant, slot};
use bpfof_function::{
    Arena, Environment, Exit, Fault, FaultKind, NativeFunction, Program, abi, interpret,
};

const TAIL_CALL: i32 = 6;
const PARSE_INT: i32 = 7;
const XXH3_64: i32 = 8;
const PARSE_DOUBLE: i32 = 9;
const DOUBLE: i32 = 10;
const DECOMPRESS: i32 = 11;
const WORKSPACE: i32 = 12;
const TRACE: i32 = 13;
const FIND_ANY: i32 = 14;
const FIND_ALL: i32 = 15;
/// Budget of a call.
const BUDGET: i64 = 10_000;
const EINVAL: i64 = -22;
const ERANGE: i64 = -34;

/// A program that calls a helper with these arguments and returns its result.
fn calling(helper: i32, arguments: &[u64]) -> Vec<Slot> {
    let mut slots: Vec<Slot> =
        (1..).zip(arguments).flat_map(|(register, value)| constant(register, *value)).collect();
    slots.extend([slot(0x85, 0, 0, 0, helper), EXIT]);
    slots
}

/// Functions with even numbers are installed.
#[derive(Default)]
struct Even {
    asked_for: Vec<u32>,
    traced: Vec<(Vec<u8>, u64)>,
}

impl Environment for Even {
    fn tail_call(&mut self, function: u32) -> bool {
        self.asked_for.push(function);
        function.is_multiple_of(2)
    }

    fn trace(&mut self, text: &[u8], value: u64) {
        self.traced.push((text.to_owned(), value));
    }
}

/// Price of the instructions of [`calling`], without the helper, for this many arguments.
fn around(arguments: i64) -> i64 {
    arguments + 2
}

struct Run {
    exit: Result<Exit, Fault>,
    /// Units that it took from the budget.
    paid: i64,
    scratch: Vec<u8>,
    workspace: Vec<u8>,
    asked_for: Vec<u32>,
    traced: Vec<(Vec<u8>, u64)>,
}

/// Runs a program on both engines with 512 bytes of data and `argument` in scratch; both must agree.
fn run(slots: &[Slot], argument: &[u8], budget: i64) -> Run {
    let program = Program::parse(slots.as_flattened()).expect("a valid program");
    let native = NativeFunction::compile(&program).expect("translates");
    let [oracle, run] = [false, true].map(|is_native| {
        let mut arena = Arena::new();
        arena.begin_chain(argument, abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let (mut left, mut environment) = (budget, Even::default());
        let exit = if is_native {
            native.call(&mut arena, limit, &mut left, &mut environment)
        } else {
            interpret(&program, &mut arena, limit, &mut left, &mut environment)
        };
        let paid = budget - left;
        let scratch = arena.scratch().to_vec();
        let workspace = arena.workspace().to_vec();
        let Even { asked_for, traced } = environment;
        (Run { exit, paid, scratch, workspace, asked_for, traced }, arena)
    });
    assert_eq!(oracle.0.exit, run.0.exit);
    assert_eq!(oracle.0.paid, run.0.paid, "budgets differ");
    assert_eq!(oracle.0.asked_for, run.0.asked_for);
    assert_eq!(oracle.0.traced, run.0.traced);
    assert!(oracle.0.workspace == run.0.workspace, "workspaces differ");
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
    assert_eq!(number.paid, around(4) + 25 + 40 + 5 * 8);
    let unsigned = parse(b"ffffffffffffffff", 0x100 | 16, BUDGET);
    assert_eq!((result(&unsigned), word(&unsigned.scratch, 64)), (16, u64::MAX));
    for (text, error) in [(&b"x"[..], EINVAL), (b"9223372036854775808", ERANGE)] {
        let refused = parse(text, 10, BUDGET);
        assert_eq!((result(&refused), word(&refused.scratch, 64)), (error, 0));
    }
    // Enough for the digits and the byte that ends them, or not.
    let fixed = around(4) + 25 + 40;
    assert_eq!(result(&parse(b"12 ", 10, fixed + 24)), 2);
    let fault = |kind| Err(Fault { kind, pc: 8, data_end: abi::DATA + 512 });
    assert_eq!(parse(b"12 ", 10, fixed + 23).exit, fault(FaultKind::Budget));
    assert_eq!(parse(&[b'0'; 63], 10, fixed).exit, fault(FaultKind::Budget));
    // Ranges are checked: the text before the place for the value.
    let end = abi::DATA + 512;
    let parse = |text, len, to| run(&calling(PARSE_INT, &[text, len, 10, to]), b"7", BUDGET).exit;
    let outside = |address| fault(FaultKind::Memory { address });
    assert_eq!(parse(end - 1, 2, end - 1), outside(end - 1));
    assert_eq!(parse(abi::SCRATCH, 1, end - 7), outside(end - 7));
    assert_eq!(parse(abi::SCRATCH, u64::MAX, end - 8), outside(abi::SCRATCH));
    assert_eq!(parse(abi::SCRATCH, 1, end - 8), Ok(Exit::Return(1)));
}

#[test]
fn tail_calls_end_the_function_if_the_callee_exists() {
    let call = run(&calling(TAIL_CALL, &[8]), &[], BUDGET);
    assert_eq!(
        (call.exit, call.paid, call.asked_for),
        (Ok(Exit::TailCall(8)), around(1) + 500, vec![8])
    );
    let missing = run(&calling(TAIL_CALL, &[7]), &[], BUDGET);
    assert_eq!((result(&missing), missing.paid, missing.asked_for), (-1, around(1) + 500, vec![7]));
    let no_number = run(&calling(TAIL_CALL, &[1 << 32]), &[], BUDGET);
    assert_eq!((result(&no_number), no_number.asked_for), (-1, vec![]));
    let poor = run(&calling(TAIL_CALL, &[8]), &[], around(1) + 499);
    assert_eq!(poor.exit.map_err(|fault| fault.kind), Err(FaultKind::Budget));
    // From two calls deep, with the units paid until then.
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
    assert_eq!((nested.exit, nested.paid), (Ok(Exit::TailCall(6)), 2 * (8 + 1 + 1) + 3 + 500));
}

/// Registers r6 to r9 and the stack survive a helper, r1 to r5 do not.
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

/// Hashes of the bytes 0, 1, … 250, 0, …: length, hash without a seed, hash with [`SEED`]. From xxHash 0.8.4.
#[rustfmt::skip]
const XXH3: [(usize, u64, u64); 15] = [
    (0, 0x2d06_8005_38d3_94c2, 0x602b_0e2c_d666_2c8b),
    (1, 0xc44b_dff4_074e_ecdb, 0x062b_185e_4e01_441a),
    (3, 0x5f42_99fc_161c_9cbb, 0xbe1f_d1f5_03b5_d59e),
    (4, 0x60da_b036_a582_11f2, 0x8987_8861_fce0_da55),
    (8, 0x3a1c_2d7c_85af_88f8, 0xb82d_9ef5_fd6b_3172),
    (9, 0xe961_2598_145b_b9dc, 0xfe11_eeff_350b_91ef),
    (16, 0x8355_e3a6_f617_70db, 0x3d39_2960_bfd9_df8a),
    (17, 0x9ef3_41a9_9de3_7328, 0x89e5_f063_c641_de9f),
    (128, 0x85c6_174c_7ff4_c46b, 0x77bf_9668_68f4_b200),
    (129, 0xec76_42b4_31ba_3e5a, 0x747f_159f_dd2d_2177),
    (240, 0x375a_384d_957f_e865, 0xe6e7_66db_0868_c372),
    (241, 0x02e8_cd95_421c_6d02, 0x1721_14de_208c_5a80),
    (512, 0x5c02_1aac_1395_4143, 0xc89c_47dc_f28a_cb44),
    (1024, 0xe5d7_8baf_a45b_2aa5, 0x1924_4dd3_7041_be92),
    (4096, 0x7135_ffa5_04f1_bc71, 0xb4ba_e170_d699_109c),
];
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

#[test]
fn hashes_are_those_of_xxhash() {
    let bytes: Vec<u8> = (0..=250).cycle().take(abi::DEFAULT_SCRATCH_BYTES).collect();
    for (len, plain, seeded) in XXH3 {
        let hash = |seed| run(&calling(XXH3_64, &[abi::SCRATCH, seed, len as u64]), &bytes, BUDGET);
        assert_eq!([hash(0), hash(SEED)].map(|run| result(&run) as u64), [plain, seeded], "{len}");
        assert_eq!(hash(0).paid, around(3) + 40 + len as i64 / 8);
    }
}

#[test]
fn doubles_are_parsed() {
    let to = abi::SCRATCH + 1024;
    let parse = |text: &[u8]| {
        let parsed =
            run(&calling(PARSE_DOUBLE, &[abi::SCRATCH, text.len() as u64, to]), text, 100_000);
        (result(&parsed), f64::from_bits(word(&parsed.scratch, 1024)), parsed.paid)
    };
    let fixed = around(3) + 25 + 120;
    assert_eq!(parse(b"-12.5e3,"), (7, -12500.0, fixed + 8 * 8));
    assert_eq!(parse(b"9007199254740993"), (16, 9_007_199_254_740_992.0, fixed + 16 * 8));
    // More digits than are read at once. Signs, points, exponents and leading zeroes do not count as digits.
    assert_eq!(parse(b"9007199254740993.0010").2, fixed + 21 * 8 + 30_000);
    for number in ["9007199254740993.001", "-0.00012345678901234567", "-1.2345678901234567e-300"] {
        let length = number.len() as i64;
        let parsed = number.parse().expect("a number");
        assert_eq!(parse(number.as_bytes()), (length, parsed, fixed + length * 8), "{number}");
    }
    let zeroes = [&[b'0'; 100][..], b"5"].concat();
    assert_eq!(parse(&zeroes), (101, 5.0, fixed + 101 * 8));
    // Their bytes are paid even if there are too many.
    assert_eq!(parse(&[b'0'; 500]), (ERANGE, 0.0, fixed + 500 * 8));
    assert_eq!(parse(b"2.2250738585072011e-308").1.to_bits(), 0x000f_ffff_ffff_ffff);
    assert_eq!(parse(b"1e-400 "), (6, 0.0, fixed + 7 * 8));
    for text in [&b""[..], b".", b"-", b"e5", b"inf", b"NaN", b" 1"] {
        let (error, value, _) = parse(text);
        assert_eq!((error, value), (EINVAL, 0.0), "{text:?}");
    }
    assert_eq!(parse(b"1e400").0, ERANGE);
    assert_eq!(parse(&[b'1'; 129]).0, ERANGE);
    assert_eq!(parse(&[b'1'; 128]).0, 128);
    let poor = run(&calling(PARSE_DOUBLE, &[abi::SCRATCH, 100, to]), &[b'1'; 100], fixed + 799);
    assert_eq!(poor.exit.map_err(|fault| fault.kind), Err(FaultKind::Budget));
}

#[test]
fn doubles_are_added_and_compared() {
    let (one, three) = (1f64.to_bits(), 3f64.to_bits());
    let operate = |operation, a, b| run(&calling(DOUBLE, &[operation, a, b]), &[], BUDGET);
    let third = operate(3, one, three);
    assert_eq!((result(&third) as u64, third.paid), ((1.0f64 / 3.0).to_bits(), around(3) + 32));
    assert_eq!(result(&operate(4, one, three)), -1);
    assert_eq!(result(&operate(7, (-2.5f64).to_bits(), 0)), -2);
    assert_eq!(result(&operate(99, one, three)), EINVAL);
}

#[test]
fn traces_are_cut_and_paid_for() {
    let text: Vec<u8> = (b'A'..=b'Z').cycle().take(100).collect();
    let trace =
        |address, len, budget| run(&calling(TRACE, &[address, len, u64::MAX]), &text, budget);
    let short = trace(abi::SCRATCH, 5, BUDGET);
    assert_eq!((result(&short), short.paid), (0, around(3) + 1000));
    assert_eq!(short.traced, [(b"ABCDE".to_vec(), u64::MAX)]);
    let long = trace(abi::SCRATCH, 100, BUDGET);
    assert_eq!(long.traced, [(text[..abi::TRACE_BYTES].to_vec(), u64::MAX)]);
    assert_eq!(trace(abi::SCRATCH, 0, BUDGET).traced, [(vec![], u64::MAX)]);
    let end = abi::DATA + 512;
    for run in [trace(end - 4, 5, BUDGET), trace(abi::SCRATCH, 5, around(3) + 999)] {
        assert!(run.exit.is_err() && run.traced.is_empty());
    }
}

#[test]
fn functions_that_call_the_helper_have_a_workspace() {
    // r6 = bpfof_workspace(); write to its first and last bytes; optionally read below it.
    let last = abi::WORKSPACE_BYTES as i32 - 1;
    let program = |touch: &[Slot]| {
        let mut slots = vec![slot(0x85, 0, 0, 0, WORKSPACE), slot(0xbf, 6, 0, 0, 0)];
        slots.push(slot(0x72, 6, 0, 0, 1));
        slots.extend([slot(0xbf, 7, 6, 0, 0), slot(0x07, 7, 0, 0, last), slot(0x72, 7, 0, 0, 2)]);
        slots.extend(touch);
        slots.push(EXIT);
        slots
    };
    let good = run(&program(&[]), &[], BUDGET);
    // Two stores, four moves and the like, a call, the end; the helper.
    let cost = 2 * 2 + 5 + 25;
    assert_eq!((result(&good) as u64, good.paid), (abi::WORKSPACE, cost));
    assert_eq!((good.workspace[0], good.workspace[last as usize]), (1, 2));
    // It ends where the stack begins, and nothing lies before it.
    assert_eq!(abi::WORKSPACE + abi::WORKSPACE_BYTES as u64, abi::GUEST_BASE);
    let before = run(&program(&[slot(0x71, 0, 6, -1, 0)]), &[], BUDGET);
    let kind = FaultKind::Memory { address: abi::WORKSPACE - 1 };
    assert_eq!(before.exit, Err(Fault { kind, pc: 6, data_end: abi::DATA + 512 }));
    // Helpers can access it as well.
    let fill = calling(3, &[abi::WORKSPACE, 7, 16]);
    let with = [&[slot(0x85, 0, 0, 0, WORKSPACE)][..], &fill].concat();
    assert_eq!(run(&with, &[], BUDGET).workspace[..17], [&[7; 16][..], &[0]].concat());
    let kind = FaultKind::Memory { address: abi::WORKSPACE };
    assert_eq!(run(&fill, &[], BUDGET).exit.map_err(|fault| fault.kind), Err(kind));
}

#[test]
fn the_next_owner_finds_nothing_in_the_workspace() {
    let program = Program::parse(
        [
            slot(0x85, 0, 0, 0, WORKSPACE),
            slot(0x71, 1, 0, 100, 0),
            slot(0x72, 0, 0, 100, 9),
            slot(0xbf, 0, 1, 0, 0),
            EXIT,
        ]
        .as_flattened(),
    )
    .expect("valid");
    let native = NativeFunction::compile(&program).expect("translates");
    let mut arena = Arena::new();
    let call = |arena: &mut Arena| {
        arena.begin_chain(&[], 64);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        native.call(arena, limit, &mut 100, &mut Even::default())
    };
    assert_eq!([call(&mut arena), call(&mut arena)], [0, 9].map(|was| Ok(Exit::Return(was))));
    arena.wipe();
    assert!(arena.workspace().iter().all(|byte| *byte == 0));
    assert_eq!(call(&mut arena), Ok(Exit::Return(0)));
}

/// The contents of [`SNAPPY`], [`LZ4`] and [`ZSTD`], which the formats' own tools made: 334 bytes.
fn records() -> Vec<u8> {
    (0..12).flat_map(|i| format!("key-{i:04}=value of number {};", i * 7).into_bytes()).collect()
}

const SNAPPY: &str = "ce02686b65792d303030303d76616c7565206f66206e756d62657220303b0d1b0031421b000037\
    111b0032421b00043134111c0033421c00043231111c0034461c000038111c0035421c00043335111c0036421c0004\
    3432111c0037461c000039111c0038421c00043536111c0039421c000436330d1c00314616010037311700314a1701\
    04373b";
const LZ4: &str = "f30c6b65792d303030303d76616c7565206f66206e756d62657220303b1b001d311b0014371b001d321b\
    002431341c001d331c002432311c001e341c0014381c001d351c002433351c001d361c002434321c001e371c001439\
    1c001d381c002435361c001d391c002336331c001e311601143717011c31170150722037373b";
const ZSTD: &str = "28b52ffd644e00550300a4036b65792d303030303d76616c7565206f66206e756d62657220303b31373231343332\
    31343835333536343237393835363936333130373031373b1600c00b4060303170114c06de06a680f78067806860\
    0af022980cbc02fcfd4920984cabb78129e03d30d9ee4e3cdc1d7f05";

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().as_chunks::<2>().0;
    digits
        .iter()
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Price of [`decompress`] without the bytes and blocks: the workspace, the program, both helpers.
const DECOMPRESSION: i64 = 1 + 25 + 7 + 25 + 100;

/// Decompresses the data at the start of scratch into `room` bytes of the workspace.
fn decompress(format: u64, compressed: &[u8], room: usize, budget: i64) -> Run {
    let arguments = [format, abi::WORKSPACE, room as u64, abi::SCRATCH, compressed.len() as u64];
    let ask = [slot(0x85, 0, 0, 0, WORKSPACE)];
    run(&[&ask[..], &calling(DECOMPRESS, &arguments)].concat(), compressed, budget)
}

#[test]
fn blocks_of_the_formats_own_tools_are_decompressed() {
    let plenty = 1_000_000;
    let records = records();
    let formats =
        [(1, SNAPPY, (16, 3), 0), (4, LZ4, (6, 4), 0), (5, LZ4, (6, 4), 0), (7, ZSTD, (8, 8), 1)];
    for (format, hex, (of_input, of_room), blocks) in formats {
        let compressed = bytes(hex);
        let good = decompress(format, &compressed, records.len(), plenty);
        assert_eq!(result(&good), records.len() as i64, "format {format}");
        assert!(good.workspace.starts_with(&records), "format {format}");
        let (input, room) = (compressed.len() as i64, records.len() as i64);
        let cost = DECOMPRESSION + of_input * input + of_room * room + 30_000 * blocks;
        assert_eq!(good.paid, cost, "format {format}");
        let poor = decompress(format, &compressed, records.len(), cost - 1);
        assert_eq!(poor.exit.map_err(|fault| fault.kind), Err(FaultKind::Budget));
        // With room to spare, with too little room, and cut off at every byte.
        let spare = decompress(format, &compressed, 400, plenty);
        assert_eq!(result(&spare), records.len() as i64, "format {format}");
        let little = decompress(format, &compressed, records.len() - 1, plenty);
        assert_eq!(result(&little), EINVAL, "format {format}");
        assert!(little.workspace[records.len() - 1..].iter().all(|byte| *byte == 0));
        for length in 0..compressed.len() {
            let cut = decompress(format, &compressed[..length], records.len(), plenty);
            assert_ne!(result(&cut), records.len() as i64, "format {format}, {length} bytes");
        }
    }
    assert_eq!(result(&decompress(2, &bytes(SNAPPY), 400, plenty)), EINVAL);
}

/// Checks the price of a Zstandard frame: 4 empty blocks, 1 of 3 bytes.
#[test]
fn frames_pay_for_each_block() {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, 3];
    frame.extend([0; 4 * 3]);
    frame.extend([3 << 3 | 1, 0, 0, b'a', b'b', b'c']);
    let run = decompress(7, &frame, 3, 1_000_000);
    assert_eq!((result(&run), &run.workspace[..4]), (3, &b"abc\0"[..]));
    assert_eq!(run.paid, DECOMPRESSION + 8 * (frame.len() as i64 + 3) + 5 * 30_000);
}

#[test]
fn a_whole_hop_of_data_fits_and_no_bomb_exceeds_its_room() {
    let room = abi::WORKSPACE_BYTES;
    let zeroes = vec![0; 1 << 20];
    let plenty = 10_000_000;
    let fits = [
        (1, snap::raw::Encoder::new().compress_vec(&zeroes[..room]).expect("compresses")),
        (4, lz4_flex::block::compress(&zeroes[..room])),
        (7, zstd(&zeroes[..room])),
    ];
    for (format, compressed) in fits {
        assert!(compressed.len() < abi::DEFAULT_SCRATCH_BYTES);
        let run = decompress(format, &compressed, room, plenty);
        assert_eq!(result(&run), room as i64, "format {format}");
    }
    for (format, compressed) in [(4, lz4_flex::block::compress(&zeroes)), (7, zstd(&zeroes))] {
        let compressed = &compressed[..compressed.len().min(abi::DEFAULT_SCRATCH_BYTES)];
        assert_eq!(result(&decompress(format, compressed, room, plenty)), EINVAL);
    }
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut compressed = vec![0; zstd_safe::compress_bound(bytes.len())];
    let size = zstd_safe::compress(&mut compressed[..], bytes, 3).expect("compresses");
    compressed.truncate(size);
    compressed
}

/// A frame of 33 equal literals, and a match that begins before them. The library copies literals in larger pieces,
/// from a buffer that still has literals of the previous frame.
#[test]
fn a_frame_that_fails_shows_nothing_of_another() {
    let secret: Vec<u8> =
        (0..4096u32).map(|at| b'a' + (at.wrapping_mul(2_654_435_761) >> 28) as u8).collect();
    let other = decompress(7, &zstd(&secret), secret.len(), 1_000_000);
    assert_eq!(result(&other), secret.len() as i64);
    let frame = bytes("28b52ffd00385500001502410154160a000120");
    let run = decompress(7, &frame, 128, 1_000_000);
    assert_eq!(result(&run), EINVAL);
    assert!(run.workspace[..128].iter().all(|byte| *byte == 0));
}

#[test]
fn decompression_stays_in_its_ranges() {
    let end = abi::DATA + 512;
    let call = |to, to_size, from, from_size| {
        let arguments = [1, to, to_size, from, from_size];
        run(&calling(DECOMPRESS, &arguments), &bytes(SNAPPY), 100_000).exit
    };
    let fault = |address| {
        let kind = FaultKind::Memory { address };
        Err(Fault { kind, pc: 10, data_end: end })
    };
    assert_eq!(call(abi::DATA, 400, abi::SCRATCH, 136), Ok(Exit::Return(334)));
    assert_eq!(call(abi::DATA, 513, abi::SCRATCH, 136), fault(abi::DATA));
    assert_eq!(call(abi::DATA, 400, end - 1, 2), fault(end - 1));
    assert_eq!(call(abi::DATA, u64::MAX, abi::SCRATCH, u64::MAX), fault(abi::SCRATCH));
    // The workspace is not mapped without its helper.
    assert_eq!(call(abi::WORKSPACE, 400, abi::SCRATCH, 136), fault(abi::WORKSPACE));
    // Onto itself.
    assert_eq!(call(abi::SCRATCH + 135, 400, abi::SCRATCH, 136), Ok(Exit::Return(EINVAL as u64)));
    assert_eq!(call(abi::SCRATCH + 136, 400, abi::SCRATCH, 136), Ok(Exit::Return(334)));
}

/// Position of the first of four bytes, as a loop over the bytes finds it; repeating a byte searches for fewer.
#[test]
fn any_of_four_bytes_is_found() {
    let text = *b"field one,\"field\ttwo\"\nfield three\0";
    let at = abi::SCRATCH;
    let wanted = |set: [u8; 4]| u64::from(u32::from_le_bytes(set));
    for set in [*b",\n\"\"", *b"\n\n\n\n", *b"\0xyz", *b"xyz\0", *b"zqkj", *b"\t\",\n", [0; 4]] {
        for start in 0..text.len() {
            for len in [0, 1, 7, text.len() - start] {
                let len = len.min(text.len() - start);
                let arguments = [at + start as u64, wanted(set) | 0xff << 32, len as u64];
                let run = run(&calling(FIND_ANY, &arguments), &text, BUDGET);
                let bytes = &text[start..start + len];
                let expected = bytes.iter().position(|byte| set.contains(byte)).unwrap_or(len);
                assert_eq!(result(&run), expected as i64, "{set:?} in {bytes:?}");
                assert_eq!(run.paid, around(3) + 60 + len as i64 / 4);
            }
        }
    }
    let outside = [at, wanted(*b"abcd"), 1 << 40];
    assert!(run(&calling(FIND_ANY, &outside), &text, BUDGET).exit.is_err());
}

#[test]
fn all_places_of_four_bytes_are_listed() {
    let bytes = u64::from(u32::from_le_bytes(*b",;\n\n"));
    for len in [0, 1, 63, 64, 65, 128, 200] {
        for stride in [1, 3, 7, 64, 500] {
            let mut data = vec![b'x'; len];
            for (at, byte) in data.iter_mut().step_by(stride).enumerate() {
                *byte = b",;\n"[at % 3];
            }
            let expected: Vec<u16> =
                (0..len as u16).filter(|at| data[usize::from(*at)] != b'x').collect();
            for most in [0, 1, 5, expected.len(), expected.len() + 1, 1000] {
                let arguments = [abi::SCRATCH, len as u64, bytes, abi::SCRATCH + 512, most as u64];
                let run = run(&calling(FIND_ALL, &arguments), &data, BUDGET);
                let count = most.min(expected.len());
                assert_eq!(result(&run), count as i64, "{len} bytes, every {stride}, {most}");
                let written = run.scratch[512..][..2 * count].chunks(2);
                let listed: Vec<u16> =
                    written.map(|place| u16::from_le_bytes([place[0], place[1]])).collect();
                assert_eq!(listed, expected[..count]);
                let behind = 512 + 2 * most.min(len);
                assert!(run.scratch[behind..].iter().all(|byte| *byte == 0), "nothing behind it");
                // The search stops with the part that has the last position.
                let looked_at = match (most, count == most) {
                    (0, _) => 0,
                    (_, true) => usize::from(expected[count - 1]) / 64 + 1,
                    _ => len.div_ceil(64),
                };
                let price = 40 + 32 * looked_at + 4 * count;
                assert_eq!(run.paid, around(5) + price as i64, "{len}, {stride}, {most}");
            }
        }
    }
}

#[test]
fn a_list_of_places_stays_in_its_range() {
    let bytes = u64::from_le_bytes([0; 8]);
    let data = abi::DATA;
    let run_with = |arguments: [u64; 5], budget| run(&calling(FIND_ALL, &arguments), &[], budget);
    for (arguments, address) in [
        ([data, 513, bytes, abi::SCRATCH, 1], data),
        ([data + 512, 1, bytes, abi::SCRATCH, 1], data + 512),
        ([data, u64::MAX, bytes, abi::SCRATCH, 1], data),
        ([abi::SCRATCH, 100, bytes, data + 500, 7], data + 500),
        ([abi::SCRATCH, 100, bytes, data + 400, u64::MAX], data + 400),
    ] {
        let fault = run_with(arguments, BUDGET).exit.expect_err("outside");
        assert_eq!(fault.kind, FaultKind::Memory { address }, "{arguments:?}");
    }
    // Room for the maximum number is enough.
    let fits = [abi::SCRATCH, 256, bytes, data, u64::MAX];
    assert_eq!(result(&run_with(fits, BUDGET)), 256);
    let overlap = [data, 512, bytes, data + 256, 4];
    assert_eq!(result(&run_with(overlap, BUDGET)), EINVAL);
    let whole = 5 + 2 + 40 + 4 * 32 + 4 * 256;
    assert_eq!(run_with(fits, whole).paid, whole);
    let fault = run_with(fits, whole - 1).exit.expect_err("too little");
    assert_eq!(fault.kind, FaultKind::Budget);
}

/// An environment that panics.
struct Failing;

impl Environment for Failing {
    fn tail_call(&mut self, _function: u32) -> bool {
        panic!("asked whether the call goes on elsewhere")
    }

    fn trace(&mut self, _text: &[u8], _value: u64) {
        panic!("told a line")
    }
}

#[test]
fn a_helper_that_panics_faults_and_costs_the_whole_budget() {
    for (helper, arguments) in [(TRACE, &[abi::SCRATCH, 4, 0][..]), (TAIL_CALL, &[2])] {
        let slots = calling(helper, arguments);
        let program = Program::parse(slots.as_flattened()).expect("a valid program");
        let native = NativeFunction::compile(&program).expect("translates");
        let mut arena = Arena::new();
        arena.begin_chain(b"text", abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let mut budget = BUDGET;
        let outcome = native.call(&mut arena, limit, &mut budget, &mut Failing);
        let fault = outcome.expect_err("it panics");
        assert_eq!((fault.kind, budget), (FaultKind::Helper, 0));
        assert!(fault.explain(&program).contains("the helper panicked"), "{fault}");
    }
}
