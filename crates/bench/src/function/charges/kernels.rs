//! The charges of functions: each kernel of charges.bpf.c repeats one operation.

use super::charge::{Charge, OBJECT, Problem, ROUND_NS, Random};
use crate::function::arena::{SCRATCH_AT, prepare, succeeded};
use crate::measurement::median;
use bpfof_function::{Arena, Limit, NativeFunction, Object, OwnMaps, Program, abi};
use std::time::Instant;

/// The budget of a call: a target's own limit.
const BUDGET: i64 = 1_000_000;
/// The intended cost of a call, at most: some texts are longer than others.
const CALL_UNITS: u64 = 800_000;
/// More than the first-level cache of a processor holds, and less than the second.
const BLOCK_BYTES: usize = 56 << 10;
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Lengths for bulk helpers.
const LENGTHS: [usize; 4] = [1, 64, 1024, 16_384];
/// Repetitions in one turn of a kernel's loop: for most kernels in assembly, and for most others.
const LONG_TURN: u64 = 64;
const TURN: u64 = 16;
/// The same for `parse_double`: a call cannot pay for two larger turns.
const DOUBLE_TURN: u64 = 8;
/// The offset of the state that a kernel passes from call to call: `state` of its request.
const STATE_AT: usize = SCRATCH_AT + 32;
/// `result` of its request.
const RESULT_AT: usize = SCRATCH_AT + 16;

/// The request to a kernel: `struct request` of charges.bpf.c, which documents the fields, without the count and the
/// result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    pub(super) length: u64,
    pub(super) operand: u64,
    pub(super) state: u64,
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) stride: u64,
    pub(super) step: u64,
    pub(super) span: u64,
    pub(super) room: u64,
}

impl Request {
    /// The request as it is at the start of scratch, for this many repetitions.
    pub(super) fn bytes(&self, count: u64) -> Vec<u8> {
        let Request { length, operand, state, first, second, stride, step, span, room } = *self;
        [count, length, 0, operand, state, first, second, stride, step, span, room]
            .map(u64::to_le_bytes)
            .concat()
    }
}

/// The expected result of a kernel's repetitions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// Any result.
    Any,
    /// This result.
    Is(u64),
    /// This number times the number of repetitions.
    Sum(u64),
}

impl Outcome {
    /// The result of this many repetitions, if it is known.
    fn of(self, count: u64) -> Option<u64> {
        match self {
            Outcome::Any => None,
            Outcome::Is(value) => (count > 0).then_some(value),
            Outcome::Sum(value) => Some(value.wrapping_mul(count)),
        }
    }
}

/// A kernel with its data.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The charged operation.
    pub(super) name: String,
    /// The kernel's name in the object.
    pub(super) entry: &'static str,
    pub(super) request: Request,
    /// Repetitions in one turn of its loop: it makes whole turns.
    pub(super) turn: u64,
    /// Charged operations in one repetition; figures are for one of them.
    pub(super) things: u64,
    pub(super) block: Vec<u8>,
    /// Whether `first` counts from the first page boundary of the machine in the block.
    pub(super) at_page: bool,
    pub(super) outcome: Outcome,
}

impl Case {
    /// A case with a block of zeroes.
    pub(super) fn new(
        name: impl Into<String>,
        entry: &'static str,
        turn: u64,
        request: Request,
    ) -> Case {
        Case {
            name: name.into(),
            entry,
            request,
            turn,
            things: 1,
            block: vec![0; BLOCK_BYTES],
            at_page: false,
            outcome: Outcome::Any,
        }
    }
}

/// The program of a kernel.
pub(super) fn program<'a>(object: &'a Object, entry: &str) -> Result<&'a Program, String> {
    let found = object.entries().iter().find(|known| known.name == entry);
    found.map(|found| &found.program).ok_or_else(|| format!("charges.bpf.c has no {entry}"))
}

/// The environment that gives a subject its maps.
pub(super) struct Surroundings<'a> {
    /// Consecutive calls use the maps in turn.
    pub(super) maps: &'a mut [OwnMaps],
    /// Called after each call, when the clock has stopped.
    pub(super) called: &'a Called<'a>,
}

/// Gets the maps of the call, the state before it, and the number of repetitions.
pub(super) type Called<'a> = dyn Fn(&OwnMaps, u64, u64) -> Result<(), Problem> + 'a;

/// An arena prepared for a call of a case.
fn arena(case: &Case) -> (Arena, Limit) {
    let (mut arena, limit) = prepare(&case.block);
    let mut request = case.request;
    if case.at_page {
        let to_page = PAGE_BYTES - arena.data_ptr().addr() % PAGE_BYTES;
        request.first = request.first.wrapping_add(to_page as u64);
    }
    let bytes = request.bytes(0);
    arena.bytes_mut()[SCRATCH_AT..][..bytes.len()].copy_from_slice(&bytes);
    (arena, limit)
}

/// A word of the request in an arena.
fn word(arena: &Arena, at: usize) -> u64 {
    arena.bytes()[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A case that can be called.
pub(super) struct Subject {
    name: String,
    native: NativeFunction,
    arena: Arena,
    limit: Limit,
    turn: u64,
    things: u64,
    outcome: Outcome,
    /// Calls so far with at least one repetition.
    calls: usize,
}

impl Subject {
    /// Prepares a case to be called.
    pub(super) fn new(case: &Case, object: &Object) -> Result<Subject, Problem> {
        let native = NativeFunction::compile(program(object, case.entry)?)?;
        let (arena, limit) = arena(case);
        let Case { turn, things, outcome, .. } = *case;
        let name = case.name.clone();
        Ok(Subject { name, native, arena, limit, turn, things, outcome, calls: 0 })
    }

    /// Calls the kernel for so many repetitions. Returns the ns that it took and the units that it paid.
    fn call(&mut self, count: u64, around: &mut Surroundings<'_>) -> Result<(f64, u64), Problem> {
        self.arena.bytes_mut()[SCRATCH_AT..][..8].copy_from_slice(&count.to_le_bytes());
        let state = word(&self.arena, STATE_AT);
        let index = self.calls % around.maps.len();
        self.calls += usize::from(count > 0);
        let maps = &mut around.maps[index];
        let mut budget = BUDGET;
        let started = Instant::now();
        let outcome = self.native.call(&mut self.arena, self.limit, &mut budget, maps);
        let ns = started.elapsed().as_nanos() as f64;
        succeeded(outcome, &self.name, self.native.program())?;
        let result = word(&self.arena, RESULT_AT);
        if let Some(right) = self.outcome.of(count).filter(|right| *right != result) {
            return Err(format!("{}: result {result:#x}, not {right:#x}", self.name).into());
        }
        (around.called)(maps, state, count)?;
        Ok((ns, (BUDGET - budget) as u64))
    }

    /// The most repetitions that a call may make.
    fn most(&mut self, around: &mut Surroundings<'_>) -> Result<u64, Problem> {
        let (_, one) = self.call(self.turn, around)?;
        let (_, two) = self.call(2 * self.turn, around)?;
        let turn = two.saturating_sub(one).max(1);
        Ok(self.turn * (1 + CALL_UNITS.saturating_sub(one) / turn))
    }

    /// Makes this many calls; returns ns and units of all together.
    fn round(
        &mut self,
        calls: usize,
        count: u64,
        around: &mut Surroundings<'_>,
    ) -> Result<(f64, f64), Problem> {
        let (mut all_ns, mut all_units) = (0.0, 0);
        for _ in 0..calls {
            let (ns, units) = self.call(count, around)?;
            all_ns += ns;
            all_units += units;
        }
        Ok((all_ns, all_units as f64))
    }

    /// Measures calls with as many repetitions as possible against calls without any.
    pub(super) fn measure(
        &mut self,
        section: &'static str,
        rounds: usize,
        around: &mut Surroundings<'_>,
    ) -> Result<Charge, Problem> {
        let count = self.most(around)?;
        let (ns, _) = self.call(count, around)?;
        let calls = (ROUND_NS / ns.max(1.0)).ceil() as usize;
        let things = calls as f64 * (count * self.things) as f64;
        let (mut clock_ns, mut units) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (full_ns, full_units) = self.round(calls, count, around)?;
            let (empty_ns, empty_units) = self.round(calls, 0, around)?;
            clock_ns.push((full_ns - empty_ns) / things);
            units.push((full_units - empty_units) / things);
        }
        Ok(Charge::new(section, &self.name, median(&clock_ns), median(&units)))
    }
}

/// Measures cases without maps.
pub(super) fn measure(
    section: &'static str,
    cases: &[Case],
    rounds: usize,
) -> Result<Vec<Charge>, Problem> {
    let object = Object::parse(OBJECT)?;
    let measure = |case: &Case| {
        let mut around =
            Surroundings { maps: &mut [OwnMaps::default()], called: &|_, _, _| Ok(()) };
        Subject::new(case, &object)?.measure(section, rounds, &mut around)
    };
    cases.iter().map(measure).collect()
}

/// Arithmetic, branches and calls.
pub(super) fn instructions() -> Vec<Case> {
    let pair = |name: &str, entry, operand, length| Case {
        things: 2,
        ..Case::new(
            name,
            entry,
            LONG_TURN,
            Request { length, operand, state: 1, ..Request::default() },
        )
    };
    // Dividends begin with ones, and so do the results.
    let division =
        |name: &str, entry| Case { things: 1, ..pair(name, entry, 3, 0xf123_4567_89ab_cdef) };
    let calls = Case {
        outcome: Outcome::Sum(1),
        ..Case::new("call of a function that adds", "call", TURN, Request::default())
    };
    vec![
        pair("add, xor", "alu", 0x9e37_79b9_7f4a_7c15, 0x5851_f42d_4c95_7f2d),
        pair("add, xor of 32 bits", "alu32", 0x7f4a_7c15, 0x4c95_7f2d),
        pair("shift by a register, or", "shift", 13, 1),
        pair("swap 8 bytes, add", "swap64", 0, 0x5851_f42d_4c95_7f2d),
        pair("swap 2 bytes, add", "swap16", 0, 0x5851_f42d_4c95_7f2d),
        pair("multiply", "multiply", 0x5851_f42d_4c95_7f2d, 0),
        division("divide, and an or", "divide"),
        division("modulo, and an or", "modulo"),
        division("signed divide, and an or", "signed_divide"),
        division("signed modulo, and an or", "signed_modulo"),
        // Skipped instructions are paid for in any case.
        Case::new(
            "unpredictable branch, shift, add, xor",
            "branch",
            LONG_TURN,
            Request { state: 88_172_645_463_325_252, ..Request::default() },
        ),
        calls,
    ]
}

/// A block of guest addresses that form a ring, `offset` bytes after the beginning of every so many lines; in random
/// order.
fn ring(lines: usize, offset: usize) -> Vec<u8> {
    let mut places: Vec<usize> =
        (0..BLOCK_BYTES / LINE_BYTES / lines).map(|index| index * lines * LINE_BYTES).collect();
    let mut random = Random(1);
    // Shuffles all but the first, where the ring is entered.
    for index in (2..places.len()).rev() {
        places.swap(index, 1 + random.below(index as u64) as usize);
    }
    let mut block = vec![0; BLOCK_BYTES];
    for (index, place) in places.iter().enumerate() {
        let next = places[(index + 1) % places.len()] + offset;
        let address = abi::DATA + next as u64;
        block[place + offset..][..8].copy_from_slice(&address.to_le_bytes());
    }
    block
}

/// Loads, stores and atomics.
pub(super) fn memory() -> Vec<Case> {
    let chase = |name: &str, entry| Case {
        block: ring(1, 0),
        ..Case::new(name, entry, TURN, Request::default())
    };
    let across = LINE_BYTES - 4;
    let across_lines = Case {
        block: ring(2, across),
        ..Case::new(
            "loads across lines that wait for each other",
            "chase",
            TURN,
            Request { first: across as u64, ..Request::default() },
        )
    };
    // One load for each step; small steps get fewer bytes because a call could not pay for more.
    let scan = |name: &str, entry, bytes: usize, step: usize| {
        let block: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        let loads = block.chunks_exact(step).map(|piece| match (step, piece.first_chunk()) {
            (1, _) => u64::from(piece[0]),
            (_, first) => first.map_or(0, |first| u64::from_le_bytes(*first)),
        });
        let outcome = Outcome::Sum(loads.fold(0, u64::wrapping_add));
        let things = (bytes / step) as u64;
        Case { things, block, outcome, ..Case::new(name, entry, 1, Request::default()) }
    };
    let request = Request { state: 7, ..Request::default() };
    let store = |name: &str, entry, request, at_page| Case {
        at_page,
        outcome: Outcome::Is(7),
        ..Case::new(name, entry, TURN, request)
    };
    vec![
        chase("loads that wait for each other", "chase"),
        across_lines,
        scan("load of a byte in a strided loop", "scan_bytes", 16 << 10, 1),
        scan("load of a word in a strided loop", "scan_words", BLOCK_BYTES, 8),
        scan("load of a line in a strided loop", "scan_lines", BLOCK_BYTES, LINE_BYTES),
        store(
            "store to the next line",
            "store",
            Request { span: BLOCK_BYTES as u64, ..request },
            false,
        ),
        store(
            "store of a byte to the next line",
            "store_byte",
            Request { span: BLOCK_BYTES as u64, ..request },
            false,
        ),
        store(
            "store across lines",
            "store_again",
            Request { first: across as u64, ..request },
            false,
        ),
        store(
            "store across pages",
            "store_again",
            Request { first: 4u64.wrapping_neg(), ..request },
            true,
        ),
        Case::new("store of a byte, load of its word", "store_load", TURN, request),
        Case::new("atomic add in one place", "atomic", TURN, request),
        chase("atomic adds that wait for each other", "atomic_chase"),
        chase("compare and exchange that wait for each other", "exchange_chase"),
    ]
}

/// "1 byte", "2 bytes".
fn in_bytes(length: usize) -> String {
    format!("{length} byte{}", if length == 1 { "" } else { "s" })
}

/// Bulk helpers. No range is aligned, and second ranges have another offset in their cache line.
pub(super) fn bytes() -> Vec<Case> {
    const SECOND_AT: usize = BLOCK_BYTES / 2;
    let mut cases = Vec::new();
    for (entry, has_two, outcome) in [
        ("memcmp", true, Outcome::Sum(0)),
        ("memmove", true, Outcome::Sum(0)),
        ("memset", false, Outcome::Sum(0)),
        ("crc32c", false, Outcome::Any),
        ("find", false, Outcome::Any),
        ("find_any", false, Outcome::Any),
        ("xxh3", false, Outcome::Any),
    ] {
        for length in LENGTHS {
            let room = if has_two { SECOND_AT } else { BLOCK_BYTES };
            // One line less because ranges are not aligned.
            let apart = (room - LINE_BYTES - length) / LONG_TURN as usize / LINE_BYTES * LINE_BYTES;
            let (stride, outcome) = match entry {
                // The search continues after the range that it has searched.
                "find" | "find_any" => {
                    ((apart as u64).wrapping_sub(length as u64), Outcome::Sum(length as u64))
                }
                _ => (apart as u64, outcome),
            };
            let is_hash = matches!(entry, "crc32c" | "xxh3");
            let request = Request {
                length: length as u64,
                // With seed 0 hashing takes a shorter path.
                state: u64::from(is_hash),
                first: 1,
                second: SECOND_AT as u64 + 7,
                stride,
                step: LINE_BYTES as u64,
                span: apart as u64,
                ..Request::default()
            };
            let name = format!("{entry}, {}", in_bytes(length));
            cases.push(Case { outcome, ..Case::new(name, entry, LONG_TURN, request) });
        }
    }
    let longest = LENGTHS[LENGTHS.len() - 1];
    let across = PAGE_BYTES as u64 - 4;
    let (one_before, seed) = (1u64.wrapping_neg(), 1);
    for (entry, about, length, at_page, first, second) in [
        // Where string instructions, with which long copies are made, are slow on some processors.
        ("memmove", "by one byte", longest, false, LINE_BYTES as u64, one_before),
        (
            "memmove",
            "from 16 bytes into a page to its begin",
            longest,
            true,
            0,
            SECOND_AT as u64 + 16,
        ),
        // Two stores, which both cross the boundary.
        ("memmove", "across a page boundary", 9, true, across, 512),
        ("memset", "across a page boundary", 9, true, across, 0),
        // Most of the work that is not proportional to the length.
        ("crc32c", "from an odd address", 774, false, 1, 0),
        ("xxh3", "with a secret of their own", 241, false, 1, 0),
    ] {
        let state = if matches!(entry, "crc32c" | "xxh3") { seed } else { 0 };
        let request = Request { length: length as u64, state, first, second, ..Request::default() };
        let name = format!("{entry}, {} {about}", in_bytes(length));
        let outcome = if state == 0 { Outcome::Sum(0) } else { Outcome::Any };
        cases.push(Case { at_page, outcome, ..Case::new(name, entry, LONG_TURN, request) });
    }
    cases
}

/// A little less than half the smallest double, in few bytes and in as many as allowed: whether it rounds to that or to
/// zero is decided by arithmetic with hundreds of digits.
const SLOW_DOUBLES: [&str; 2] = [
    "2.4703282292062327208e-324",
    "2.470328229206232720882843964341106861825299013071623822127928412503377536351043759326499181808\
     1799618989828234772285886546e-324",
];

/// A case of a helper that parses a number; each call gets another copy of the text or another text.
fn number(name: &str, entry: &'static str, turn: u64, texts: &[String], length: usize) -> Case {
    let longest = texts.iter().map(String::len).max().unwrap_or(0);
    // At least one zero byte after each text.
    let apart = (longest + 1).next_multiple_of(LINE_BYTES);
    let mut block = vec![0; BLOCK_BYTES];
    for (place, text) in block.chunks_exact_mut(apart).zip(texts.iter().cycle()) {
        place[..text.len()].copy_from_slice(text.as_bytes());
    }
    let stride = (BLOCK_BYTES / turn as usize / apart * apart) as u64;
    let length = length as u64;
    let request =
        Request { length, stride, step: apart as u64, span: stride, ..Request::default() };
    Case { block, ..Case::new(name, entry, turn, request) }
}

/// Numbers with random digits, of up to this many bytes.
fn random_digits(bytes_max: usize) -> Vec<String> {
    let mut random = Random(2);
    let mut digits = || {
        let length = 1 + random.below(bytes_max as u64);
        (0..length).map(|_| char::from(b'1' + random.below(9) as u8)).collect::<String>()
    };
    (0..BLOCK_BYTES / LINE_BYTES).map(|_| digits()).collect()
}

/// Integers and doubles in text.
pub(super) fn numbers() -> Vec<Case> {
    let integer = |digits: usize| {
        let text = "7".repeat(digits);
        let outcome = text.parse::<u64>().map_or(Outcome::Any, Outcome::Is);
        let name = format!("parse_int, {digits} digit{}", if digits == 1 { "" } else { "s" });
        Case { outcome, ..number(&name, "parse_int", TURN, &[text], digits) }
    };
    let double = |name: &str, text: &str| {
        let bits = text.parse::<f64>().map(f64::to_bits);
        let outcome = bits.map_or(Outcome::Any, Outcome::Is);
        let name = format!("parse_double, {name}");
        let texts = [text.to_owned()];
        Case { outcome, ..number(&name, "parse_double", DOUBLE_TURN, &texts, text.len()) }
    };
    vec![
        integer(1),
        integer(18),
        number("parse_int, 1 to 18 digits at random", "parse_int", TURN, &random_digits(18), 19),
        double("1 digit", "7"),
        double("17 digits", "1.2345678901234567"),
        double("14 digits and an exponent", "12345678901234e-290"),
        number(
            "parse_double, 1 to 19 digits at random",
            "parse_double",
            DOUBLE_TURN,
            &random_digits(19),
            20,
        ),
        double(&in_bytes(SLOW_DOUBLES[0].len()), SLOW_DOUBLES[0]),
        double(&in_bytes(SLOW_DOUBLES[1].len()), SLOW_DOUBLES[1]),
    ]
}

/// Arithmetic on doubles, each on the previous result, and other helpers that are as short.
pub(super) fn doubles() -> Vec<Case> {
    // The number, the other operand, and whether the number is the second operand.
    let double = |name: &str, operation, state: u64, length: u64, is_second, outcome| {
        let entry = if is_second { "double_second" } else { "double" };
        let request = Request { length, operand: operation, state, ..Request::default() };
        Case { outcome, ..Case::new(format!("double, {name}"), entry, TURN, request) }
    };
    let same = |name: &str, operation, number: u64, other: f64| {
        double(name, operation, number, other.to_bits(), false, Outcome::Is(number))
    };
    let subnormal = f64::MIN_POSITIVE.to_bits() - 1;
    let number = 1.1f64.to_bits();
    let workspace = Case {
        outcome: Outcome::Sum(abi::WORKSPACE),
        ..Case::new("workspace", "workspace", TURN, Request::default())
    };
    vec![
        same("add", 0, number, 0.0),
        same("subtract", 1, number, 0.0),
        same("multiply", 2, number, 1.0),
        // Alternates between a third and the number itself.
        double("divide", 3, 3f64.to_bits(), 1f64.to_bits(), true, Outcome::Is(3f64.to_bits())),
        // The result -1, as bits, is a NaN, whose comparison gives 2, which as bits is below 1.
        double("compare", 4, 0, 1f64.to_bits(), false, Outcome::Is(2)),
        double("from a signed integer", 5, 1 << 62, 0, false, Outcome::Any),
        double("from an unsigned integer", 6, 1 << 62, 0, false, Outcome::Any),
        double("to a signed integer", 7, number, 0, false, Outcome::Any),
        double("to an unsigned integer", 8, number, 0, false, Outcome::Any),
        same("add to a subnormal", 0, subnormal, 0.0),
        same("multiply a subnormal", 2, subnormal, 1.0),
        same("divide a subnormal", 3, subnormal, 1.0),
        workspace,
    ]
}

/// Runs a case to its end, with more repetitions, and in the interpreter: the results must be right and equal. `maps`
/// makes maps in their initial state.
#[cfg(test)]
pub(super) fn check(case: &Case, object: &Object, maps: &dyn Fn() -> OwnMaps) {
    let (name, count) = (case.name.as_str(), 2 * case.turn);
    let mut subject = Subject::new(case, object).expect(name);
    let mut call = |count| {
        (subject.arena, subject.limit) = arena(case);
        let mut around = Surroundings { maps: &mut [maps()], called: &|_, _, _| Ok(()) };
        let (_, units) = subject.call(count, &mut around).expect(name);
        (units, word(&subject.arena, RESULT_AT))
    };
    let ((less, _), (units, result)) = (call(case.turn), call(count));
    assert!(units > less, "{name}: {less} units, and {units} for twice as much");

    let program = program(object, case.entry).expect(name);
    let (mut arena, limit) = arena(case);
    arena.bytes_mut()[SCRATCH_AT..][..8].copy_from_slice(&count.to_le_bytes());
    let mut budget = BUDGET;
    let outcome = bpfof_function::interpret(program, &mut arena, limit, &mut budget, &mut maps());
    succeeded(outcome, name, program).expect(name);
    let interpreted = ((BUDGET - budget) as u64, word(&arena, RESULT_AT));
    assert_eq!(interpreted, (units, result), "{name}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_runs_to_its_end_and_pays_for_what_it_does() {
        let object = Object::parse(OBJECT).expect("parses");
        let cases = [instructions(), memory(), bytes(), numbers(), doubles()].concat();
        for case in cases {
            check(&case, &object, &OwnMaps::default);
        }
    }

    #[test]
    fn a_call_makes_as_many_repetitions_as_its_budget_pays() {
        let object = Object::parse(OBJECT).expect("parses");
        for case in [instructions(), numbers()].concat() {
            let mut subject = Subject::new(&case, &object).expect("compiles");
            let mut around =
                Surroundings { maps: &mut [OwnMaps::default()], called: &|_, _, _| Ok(()) };
            let count = subject.most(&mut around).expect("two turns fit");
            assert_eq!(count % case.turn, 0, "{}", case.name);
            let (_, units) = subject.call(count, &mut around).expect("within the budget");
            assert!(units > CALL_UNITS / 2, "{}: {units}", case.name);
        }
    }

    #[test]
    fn a_ring_has_all_its_places() {
        for (lines, offset) in [(1, 0), (2, LINE_BYTES - 4)] {
            let block = ring(lines, offset);
            let (mut at, mut places) = (offset, 0);
            loop {
                let next = u64::from_le_bytes(*block[at..].first_chunk().expect("8 bytes"));
                at = (next - abi::DATA) as usize;
                places += 1;
                if at == offset {
                    break;
                }
            }
            assert_eq!(places, BLOCK_BYTES / LINE_BYTES / lines);
        }
    }
}
