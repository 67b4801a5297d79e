//! Storage functions: eBPF programs that a host ships to the target, confined by construction.
//!
//! The modules, in the order of data flow:
//!
//! 1. [`object`]: an ELF object, as clang writes it, becomes one [`Program`] for each
//!    `bpfof/<name>` section, with the functions that it calls and its static data.
//! 2. [`program`]: raw instructions are checked once and become typed ones ([`instruction`]).
//! 3. [`native`] translates them to machine code with Cranelift; [`interpret`] runs the same
//!    instructions and is the oracle that the translation is tested against.
//! 4. Either engine runs on an [`Arena`]: all the memory that a function can address.
//!
//! # Confinement
//!
//! Guest pointers are offsets into the arena, never host addresses. Every access is compared with
//! the bounds of the call's memory; a violation is a [`Fault`] that names the instruction, and its
//! source line if the object was compiled with -g. Every loop and every call pays from a budget, so
//! each call ends. Calls reach only the object's own functions and the [`helper`]s, and these only
//! the arena and the call's [`Environment`].
//!
//! # What this crate does not do
//!
//! No I/O, no file maps, no decisions about reads: see `bpfof-chain`. All of RFC 9669 is
//! implemented except the parts that it leaves to the platform (BTF ids; maps are accessed by
//! helpers, see [`map`]) and the deprecated packet access. Timing side channels are not closed:
//! speculative execution may run past a bounds check.

pub mod abi;
mod arena;
mod btf;
pub mod cost;
mod disassembly;
mod elf;
mod environment;
mod fault;
mod fault_kind;
mod functions;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod helper;
pub mod instruction;
mod interpreter;
pub mod kernel;
mod link;
pub mod map;
pub mod memory;
pub mod native;
pub mod object;
mod own_maps;
pub mod program;
mod source;
mod statics;
mod strided_loop;
mod worst_case;

pub use arena::{Arena, Limit, SavedArena};
pub use environment::{Alone, Environment, Exit};
pub use fault::Fault;
pub use fault_kind::FaultKind;
pub use interpreter::{Observed, interpret, observe};
pub use map::{Map, MapDefinition, MapKind};
pub use native::{CompileError, NativeFunction};
pub use object::{Object, ObjectError};
pub use own_maps::OwnMaps;
pub use program::{Program, ProgramError};
pub use source::{CallSite, Origin, SourceLine, SourceMap};
pub use statics::Statics;
pub use worst_case::Summary;
