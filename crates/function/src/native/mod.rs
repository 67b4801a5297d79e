//! Native code: translation by Cranelift (`translate`), its memory and its calls.
//!
//! The machine code works on a `Machine`, the host's own state of one call, and on the arena that it points to. It is
//! assembled in memory of its own (`staging`) and then placed together with the code of all other functions (`code`),
//! which is never mapped writable.
#![allow(unsafe_code)]

mod code;
mod machine;
mod staging;
mod translate;

pub use machine::CompileError;

use crate::abi::GUEST_BASE;
use crate::arena::{Arena, Limit};
use crate::cost;
use crate::environment::{Environment, Exit};
use crate::fault::Fault;
use crate::fault_kind::FaultKind;
use crate::helper::{self, Call, Helper, Stop};
use crate::program::Program;
use code::CodeBlock;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;
use machine::{
    CALL_HELPER, FAULT_BUDGET, FAULT_HELPER, FAULT_MEMORY, FAULT_NO_MAP, FAULT_READ_ONLY,
    FAULT_STACK, Machine, NEAR_END_BYTES, TAIL_CALL,
};
use staging::Staging;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

type Entry = extern "C" fn(*mut Machine<'_>) -> u64;

/// A program as machine code.
pub struct NativeFunction {
    /// In the memory of `code`.
    entry: Entry,
    code: CodeBlock,
    /// For error messages.
    program: Program,
    compile_time: Duration,
}

impl std::fmt::Debug for NativeFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NativeFunction({} bytes)", self.code_bytes())
    }
}

impl NativeFunction {
    /// Translates a checked program for this machine.
    pub fn compile(program: &Program) -> Result<NativeFunction, CompileError> {
        let started = Instant::now();
        let failed = |error: &dyn std::fmt::Display| CompileError(error.to_string());
        let mut builder = JITBuilder::with_isa(isa()?, default_libcall_names());
        let staging = Staging::new().map_err(|error| failed(&error))?;
        builder.memory_provider(staging.provider());
        let bulk: [(Helper, extern "C" fn(*mut u8, u64, u64) -> u64); 7] = [
            (Helper::Memcmp, compare_bytes),
            (Helper::Memmove, copy_bytes),
            (Helper::Memset, fill_bytes),
            (Helper::Crc32c, sum_bytes),
            (Helper::Find, find_byte),
            (Helper::FindAny, find_any_byte),
            (Helper::Xxh3, hash_bytes),
        ];
        for (helper, function) in bulk {
            builder.symbol(helper.name(), function as *const u8);
        }
        builder.symbol(CALL_HELPER, call_helper as *const u8);
        let mut module = JITModule::new(builder);
        let entry = translate::translate(&mut module, program)?;
        let (code, entry_at) = staging.code(module.get_finalized_function(entry));
        let code = CodeBlock::new(code).map_err(|error| failed(&error))?;
        // SAFETY: the entry is a part of the code, which is placed as it was assembled: its functions call each
        // other by relative addresses, everything else by absolute addresses. It was defined with exactly this
        // signature, in the C convention.
        let entry: Entry = unsafe { std::mem::transmute(code.address().add(entry_at)) };
        let compile_time = started.elapsed();
        Ok(NativeFunction { entry, code, program: program.clone(), compile_time })
    }

    /// Size of the machine code in bytes.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes()
    }

    /// Bytes of memory that it takes: machine code and the program.
    pub fn memory_bytes(&self) -> usize {
        size_of::<NativeFunction>() + self.code_bytes() + self.program.memory_bytes()
    }

    /// Duration of the translation.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// Runs the function on `arena` up to `limit`, which comes from [`Arena::begin_call`]. `budget` is in
    /// [units](crate::cost). Helpers use `environment`.
    #[inline]
    pub fn call(
        &self,
        arena: &mut Arena,
        limit: Limit,
        budget: &mut i64,
        environment: &mut dyn Environment,
    ) -> Result<Exit, Fault> {
        self.program.statics().begin_call(arena);
        let memory = arena.accessible_mut(self.program.lowest_address(), limit);
        let mut machine = Machine {
            base: memory.as_mut_ptr(),
            near_end: memory.len() as u64 - NEAR_END_BYTES,
            budget: *budget,
            fault: 0,
            fault_pc: 0,
            fault_address: 0,
            program: &self.program,
            environment,
        };
        let result = (self.entry)(&mut machine);
        *budget = machine.budget;
        let kind = match machine.fault {
            0 => return Ok(Exit::Return(result)),
            TAIL_CALL => return Ok(Exit::TailCall(machine.fault_address as u32)),
            FAULT_BUDGET => FaultKind::Budget,
            FAULT_STACK => FaultKind::StackOverflow,
            FAULT_READ_ONLY => FaultKind::ReadOnly { address: machine.fault_address },
            FAULT_NO_MAP => FaultKind::NoMap { handle: machine.fault_address },
            FAULT_HELPER => FaultKind::Helper,
            _ => FaultKind::Memory { address: machine.fault_address },
        };
        Err(Fault { kind, pc: machine.fault_pc, data_end: GUEST_BASE + limit.bytes() as u64 })
    }

    /// Units that a call up to `limit` that ended in a fault may have executed without paying for them: a strided loop
    /// pays when it is left.
    #[must_use]
    pub fn unpaid_after_fault(&self, limit: Limit) -> u64 {
        if self.program.has_scans() {
            cost::scan_slack(self.program.lowest_address(), limit) as u64
        } else {
            0
        }
    }

    /// The program it was translated from.
    pub fn program(&self) -> &Program {
        &self.program
    }
}

fn isa() -> Result<OwnedTargetIsa, CompileError> {
    let mut flags = settings::builder();
    for (name, value) in [
        // Without optimisations that could move code to where it is executed more often than it pays for, or that could
        // duplicate it.
        ("opt_level", "none"),
        // The other algorithm is not meant for untrusted code.
        ("regalloc_algorithm", "backtracking"),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("unwind_info", "false"),
        // A frame of several pages touches each of them, so that none skips the guard page of a stack.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ] {
        flags.set(name, value).map_err(|error| CompileError(error.to_string()))?;
    }
    cranelift_native::builder()
        .map_err(|error| CompileError(error.to_owned()))?
        .finish(settings::Flags::new(flags))
        .map_err(|error| CompileError(error.to_string()))
}

/// Translated code calls this for helpers that are not bulk helpers. It has stored the pc and the budget in the
/// machine, continues with the budget stored there afterwards, and ends if there is a fault.
///
/// A panic of the helper becomes a fault, because it cannot unwind through translated code. Data written before it
/// stays. It costs the whole budget, because reporting it takes long.
///
/// `helper` is the helper's number, `a` to `e` are r1 to r5.
extern "C" fn call_helper(
    machine: *mut Machine<'_>,
    helper: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
) -> u64 {
    // SAFETY: translated code passes the machine that `call` has made on its stack. `call` does not touch it while
    // translated code runs, and that waits for this function.
    let machine = unsafe { &mut *machine };
    let limit = machine.near_end + NEAR_END_BYTES;
    // SAFETY: `base` and `limit` belong to an arena that `call` borrows mutably.
    let memory = unsafe { std::slice::from_raw_parts_mut(machine.base, limit as usize) };
    let mut call = Call {
        memory,
        lowest: machine.program.lowest_address(),
        statics: machine.program.statics(),
        budget: &mut machine.budget,
        environment: machine.environment,
    };
    let helper = Helper::from_number(helper as i32).expect("translated code names a helper");
    let mut run = || helper.run(&mut call, [a, b, c, d, e]);
    let outcome = match helper {
        // These take hardly longer than `catch_unwind` itself.
        Helper::Workspace | Helper::Double => run(),
        _ => catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            machine.budget = 0;
            Err(Stop::Fault(FaultKind::Helper))
        }),
    };
    let (fault, address) = match outcome {
        Ok(result) => return result,
        Err(Stop::TailCall(function)) => (TAIL_CALL, function.into()),
        Err(Stop::Fault(FaultKind::Memory { address })) => (FAULT_MEMORY, address),
        Err(Stop::Fault(FaultKind::ReadOnly { address })) => (FAULT_READ_ONLY, address),
        Err(Stop::Fault(FaultKind::NoMap { handle })) => (FAULT_NO_MAP, handle),
        Err(Stop::Fault(FaultKind::Budget)) => (FAULT_BUDGET, 0),
        Err(Stop::Fault(FaultKind::StackOverflow)) => (FAULT_STACK, 0),
        Err(Stop::Fault(FaultKind::Helper)) => (FAULT_HELPER, 0),
    };
    machine.fault = fault;
    machine.fault_address = address;
    0
}

/// Translated code calls this for long or variable lengths, after it has charged and checked both ranges: `to` and
/// `from` are host addresses inside the arena.
extern "C" fn copy_bytes(to: *mut u8, from: u64, len: u64) -> u64 {
    // SAFETY: translated code has compared both ranges with the limit of the call, and the arena
    // is borrowed mutably while it runs.
    unsafe { std::ptr::copy(from as *const u8, to, len as usize) };
    0
}

/// As [`copy_bytes`], for filling with the low byte of `value`.
extern "C" fn fill_bytes(to: *mut u8, value: u64, len: u64) -> u64 {
    // SAFETY: as in `copy_bytes`, for one range.
    unsafe { std::ptr::write_bytes(to, value as u8, len as usize) };
    0
}

/// As [`copy_bytes`], for comparing: -1, 0 or 1.
extern "C" fn compare_bytes(a: *mut u8, b: u64, len: u64) -> u64 {
    // SAFETY: as in `copy_bytes`; no other code writes while the slices live.
    let (a, b) = unsafe {
        let len = len as usize;
        (std::slice::from_raw_parts(a, len), std::slice::from_raw_parts(b as *const u8, len))
    };
    a.cmp(b) as i64 as u64
}

/// As [`copy_bytes`], for [`Helper::Crc32c`] over one range.
extern "C" fn sum_bytes(data: *mut u8, crc: u64, len: u64) -> u64 {
    // SAFETY: as in `compare_bytes`, for one range.
    helper::crc32c(unsafe { std::slice::from_raw_parts(data, len as usize) }, crc)
}

/// As [`copy_bytes`], for [`Helper::Xxh3`] over one range.
extern "C" fn hash_bytes(data: *mut u8, seed: u64, len: u64) -> u64 {
    // SAFETY: as in `compare_bytes`, for one range.
    helper::xxh3(unsafe { std::slice::from_raw_parts(data, len as usize) }, seed)
}

/// As [`copy_bytes`], for [`Helper::Find`] in one range.
extern "C" fn find_byte(data: *mut u8, byte: u64, len: u64) -> u64 {
    // SAFETY: as in `compare_bytes`, for one range.
    helper::find(unsafe { std::slice::from_raw_parts(data, len as usize) }, byte)
}

/// As [`copy_bytes`], for [`Helper::FindAny`] in one range.
extern "C" fn find_any_byte(data: *mut u8, bytes: u64, len: u64) -> u64 {
    // SAFETY: as in `compare_bytes`, for one range.
    helper::find_any(unsafe { std::slice::from_raw_parts(data, len as usize) }, bytes)
}
