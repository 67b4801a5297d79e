//! `libbpfof`: chains over files ([`bpfof_host::files`]), for programs in C.
//!
//! The interface, with all that a caller must know, is `include/bpfof.h`; docs/c-api.md shows it at
//! work. This crate turns it into calls of `bpfof-host` and has no logic of its own beyond that.
//!
//! # How it works
//! - `abi`: the structures of the header.
//! - `exports`: the functions of the header. Each checks its pointers, catches panics, and turns an
//!   error into errno and a text.
//! - `failure`: what can go wrong as an errno value, the numbers that explain it, and words.
//! - `session`: a `struct bpfof`: the files of an association, by their descriptors.
//! - `descriptor`: what is known of a descriptor; opening the same file again.
//!
//! # What it does not do
//! It does not reconnect, cache, or run threads but the keeper of file maps and one that tells the target that the
//! process is there. Plain reads and writes of blocks are not part of it: a program has the kernel for that.

mod abi;
mod descriptor;
mod exports;
mod failure;
mod function;
mod options;
mod session;
