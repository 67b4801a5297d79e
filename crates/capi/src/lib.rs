//! `libbpfof`: chains over files ([`bpfof_host::files`]), for programs in C.
//!
//! `include/bpfof.h` is the complete description of the interface; docs/c-api.md shows examples.
//! This crate translates its calls to calls of `bpfof-host`, and has no other logic.
//!
//! # How it works
//! - `abi`: the structures of the header.
//! - `exports`: the functions of the header. Each checks its pointers, catches panics, and turns an
//!   error into errno and a message.
//! - `failure`: errors as an errno value, the numbers that explain it, and a message.
//! - `session`: a `struct bpfof`: the files of an association, by their descriptors.
//! - `descriptor`: identifies the file of a descriptor, and opens it again.
//!
//! # What it does not do
//! It does not cache, and with one portal it reconnects only shared connections. It has no threads but those of
//! `bpfof-host`: the keeper of file maps, and threads that send Keep Alives and connect paths and lanes. It has no
//! plain reads and writes of blocks: programs use the kernel for these.

mod abi;
mod descriptor;
mod exports;
mod failure;
mod function;
mod options;
mod session;
