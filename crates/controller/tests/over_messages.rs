//! Repeats the tests of commands without TCP: capsules arrive whole, data is written and read by key, and completions
//! come later. Hosts and targets are the same except for their ports.

// Each file includes `common`, as it must when it is a test of its own.
#![allow(clippy::duplicate_mod)]

#[path = "end_to_end.rs"]
mod end_to_end;
#[path = "failures.rs"]
mod failures;
#[path = "function_maps.rs"]
mod function_maps;
#[path = "pieces.rs"]
mod pieces;
#[path = "reload.rs"]
mod reload;
#[path = "restricted.rs"]
mod restricted;
#[path = "vectors.rs"]
mod vectors;
