//! Native code: translation by Cranelift (`translate`), its memory and its calls.
//!
//! The machine code works on a `Machine`, the host's own state of one call, and on the arena it
//! points to. Code memory is never writable and executable at once (Cranelift maps it writable,
//! then read-execute) and is freed with the function.
#![allow(unsafe_code)]

mod translate;

use crate::arena::{Arena, Limit};
use crate::fault::{Fault, FaultKind};
use crate::helper::Helper;
use crate::program::Program;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;
use std::time::{Duration, Instant};

/// Why a checked program could not be translated: a defect of ours or of Cranelift's.
#[derive(Debug, thiserror::Error)]
#[error("translation to native code failed: {0}")]
pub struct CompileError(String);

/// The host's state of one call. The translated code reads and writes its fields by offset.
#[repr(C)]
struct Machine {
    /// Host address of guest address `GUEST_BASE`.
    base: *mut u8,
    /// What the call may access, in bytes from `base`.
    limit: u64,
    /// Instructions left.
    budget: i64,
    /// 0, or a `FAULT_*` code.
    fault: u32,
    /// The instruction at fault.
    fault_pc: u32,
    /// The guest address at fault.
    fault_address: u64,
}

const FAULT_MEMORY: u32 = 1;
const FAULT_BUDGET: u32 = 2;
const FAULT_STACK: u32 = 3;

/// A program as machine code.
pub struct NativeFunction {
    entry: extern "C" fn(*mut Machine) -> u64,
    module: Option<JITModule>,
    code_bytes: usize,
    compile_time: Duration,
}

impl std::fmt::Debug for NativeFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NativeFunction({} bytes)", self.code_bytes)
    }
}

// SAFETY: the code is immutable once translated, and `module` is only touched to free it.
unsafe impl Send for NativeFunction {}
// SAFETY: as above; calls share nothing but read-only code.
unsafe impl Sync for NativeFunction {}

impl NativeFunction {
    /// Translates a checked program for this machine.
    pub fn compile(program: &Program) -> Result<NativeFunction, CompileError> {
        let started = Instant::now();
        let mut builder = JITBuilder::with_isa(isa()?, default_libcall_names());
        builder.symbol(translate::HELPER_SYMBOL, helper_entry as *const u8);
        let mut module = JITModule::new(builder);
        let translated = translate::translate(&mut module, program);
        let (entry, code_bytes) = match translated {
            Ok(translated) => translated,
            Err(error) => {
                // SAFETY: nothing of the module has been handed out.
                unsafe { module.free_memory() };
                return Err(error);
            }
        };
        let code = module.get_finalized_function(entry);
        // SAFETY: the entry function was defined with exactly this signature, in the C convention.
        let entry: extern "C" fn(*mut Machine) -> u64 = unsafe { std::mem::transmute(code) };
        let compile_time = started.elapsed();
        Ok(NativeFunction { entry, module: Some(module), code_bytes, compile_time })
    }

    /// Size of the machine code in bytes.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// How long the translation took.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// Runs the function on `arena` up to `limit`, which
    /// [`Arena::begin_call`] gives. `budget` is in instructions. Returns r0.
    #[inline]
    pub fn call(&self, arena: &mut Arena, limit: Limit, budget: &mut i64) -> Result<u64, Fault> {
        let mut machine = Machine {
            base: arena.bytes_mut().as_mut_ptr(),
            limit: limit.bytes() as u64,
            budget: *budget,
            fault: 0,
            fault_pc: 0,
            fault_address: 0,
        };
        let result = (self.entry)(&mut machine);
        *budget = machine.budget;
        let kind = match machine.fault {
            0 => return Ok(result),
            FAULT_BUDGET => FaultKind::Budget,
            FAULT_STACK => FaultKind::StackOverflow,
            _ => FaultKind::Memory { address: machine.fault_address },
        };
        Err(Fault { kind, pc: machine.fault_pc })
    }
}

impl Drop for NativeFunction {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: `entry` is private and only called through `&self`, so no call is running
            // and none can come.
            unsafe { module.free_memory() }
        }
    }
}

fn isa() -> Result<OwnedTargetIsa, CompileError> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("unwind_info", "false"),
    ] {
        flags.set(name, value).map_err(|error| CompileError(error.to_string()))?;
    }
    cranelift_native::builder()
        .map_err(|error| CompileError(error.to_owned()))?
        .finish(settings::Flags::new(flags))
        .map_err(|error| CompileError(error.to_string()))
}

/// What translated code calls for every helper: number, program counter and r1–r3. The budget and
/// any fault go through the machine.
extern "C" fn helper_entry(
    machine: *mut Machine,
    number: u32,
    pc: u32,
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    // SAFETY: translated code passes on the pointer it was called with by `call`, where the
    // machine lives on the stack and is not otherwise borrowed while the code runs.
    let machine = unsafe { &mut *machine };
    // SAFETY: base and limit describe the arena that `call` borrows mutably for its duration.
    let memory = unsafe { std::slice::from_raw_parts_mut(machine.base, machine.limit as usize) };
    let outcome = Helper::from_number(number as i32)
        .map_or(Ok(0), |helper| helper.run(memory, &mut machine.budget, [a, b, c]));
    outcome.unwrap_or_else(|kind| {
        machine.fault_pc = pc;
        machine.fault = match kind {
            FaultKind::Memory { address } => {
                machine.fault_address = address;
                FAULT_MEMORY
            }
            FaultKind::Budget => FAULT_BUDGET,
            FaultKind::StackOverflow => FAULT_STACK,
        };
        0
    })
}
