//! The cost of loading a function, by its size: reading the object, checking, translating.

use crate::assembly;
use crate::measurement::{median, tenths};
use bpfof_function::{NativeFunction, Object, Program};
use serde::Serialize;
use std::time::Instant;

/// Sizes in instructions, up to the largest that a target takes.
pub(super) const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];

/// Medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Loading {
    pub(super) instructions: usize,
    /// Reading the ELF object: sections, relocations, source lines.
    pub(super) parse_us: f64,
    /// Decoding and checking the instructions.
    pub(super) check_us: f64,
    /// Translating them to machine code.
    pub(super) translate_us: f64,
    /// The sum of the three: the tenth and the ninetieth percentile of the rounds.
    pub(super) total_us_range: Option<[f64; 2]>,
    pub(super) native_bytes: usize,
}

impl Loading {
    pub(super) fn total_us(&self) -> f64 {
        self.parse_us + self.check_us + self.translate_us
    }
}

/// Loads a generated program repeatedly.
pub(super) fn measure(
    instructions: usize,
    rounds: usize,
) -> Result<Loading, Box<dyn std::error::Error>> {
    let code = assembly::program(instructions);
    let object = assembly::object(&code);
    let (mut parse_us, mut check_us, mut translate_us) = (Vec::new(), Vec::new(), Vec::new());
    let (mut native_bytes, mut total_us) = (0, Vec::new());
    let us = |since: Instant| since.elapsed().as_nanos() as f64 / 1000.0;
    for _ in 0..rounds {
        let started = Instant::now();
        let program = Program::parse(&code)?;
        let check = us(started);
        let started = Instant::now();
        let parsed = Object::parse(&object)?;
        // Parsing includes checking.
        let parse = (us(started) - check).max(0.0);
        parse_us.push(parse);
        check_us.push(check);
        let started = Instant::now();
        let native = NativeFunction::compile(&program)?;
        let translate = us(started);
        translate_us.push(translate);
        total_us.push(parse + check + translate);
        native_bytes = native.code_bytes();
        drop(parsed);
    }
    Ok(Loading {
        instructions,
        parse_us: median(&parse_us),
        check_us: median(&check_us),
        translate_us: median(&translate_us),
        total_us_range: tenths(&total_us),
        native_bytes,
    })
}
