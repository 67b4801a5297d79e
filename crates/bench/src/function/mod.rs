//! `bpfof bench function`: the costs of storage functions. Calls against the same C compiled natively, loading against
//! the size of the program, helpers against the number of bytes, tail calls: the measurements of the e2BPF thesis,
//! section 6.2, with its figures beside ours. And the charges of all operations against the time that they take.

mod arena;
mod c_process;
mod calls;
mod cases;
mod charges;
mod helpers;
mod loading;
mod plot;
mod report;
mod tail_call;

use crate::machine;
use crate::output::{check_writable, write_json};
use crate::plot::use_font;
use bpfof_terminal::{Outcome, progress};
use c_process::Compiler;
use charges::charge::Undercharged;
use clap::{Args, ValueEnum};
use report::Report;
use std::path::PathBuf;

/// The parts that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Calls of functions: interpreted, checked native code, and the same C.
    Calls,
    /// Loading: reading the object, checking, translating.
    Loading,
    /// Helpers, including tail calls.
    Helpers,
    /// Charges of instructions, helpers and chains, against the clock. Takes 1 GiB of memory.
    Charges,
}

/// The options of `bpfof bench function`.
#[derive(Args)]
pub struct FunctionOptions {
    /// Measure only these parts.
    #[arg(long, value_delimiter = ',', default_value = "calls,loading,helpers")]
    parts: Vec<Part>,
    /// Of the calls measure only functions with this in their names: node, filter, block.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures to this PNG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(options: &FunctionOptions) -> Outcome {
    check_writable([&options.json, &options.plot])?;
    if options.plot.is_some() {
        use_font()?;
    }
    let report = measure(options)?;
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &report));
    print!("{}", report.tables());
    written.and(drawn)
}

fn measure(options: &FunctionOptions) -> Result<Report, Box<dyn std::error::Error>> {
    let wants = |part| options.parts.contains(&part);
    if options.only.is_some() && !wants(Part::Calls) {
        return Err("--only selects calls, but --parts leaves them out".into());
    }
    let rounds = usize::from(options.rounds);
    let mut cases = if wants(Part::Calls) { cases::all() } else { Vec::new() };
    if let Some(only) = &options.only {
        cases.retain(|case| case.name.contains(only.as_str()));
        if cases.is_empty() {
            let names = cases::all().into_iter().map(|case| case.name);
            let names: Vec<_> = names.collect();
            return Err(
                format!("there is no function {only}; choose from {}", names.join(", ")).into()
            );
        }
    }
    let compiler = match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(why) => {
            if !cases.is_empty() {
                eprintln!("{why}; continuing without the same C");
            }
            None
        }
    };
    machine::pin(machine::processors().0)?;
    let mut report = Report::new(compiler.as_ref().map(|compiler| compiler.version.clone()));
    let sizes = if wants(Part::Loading) { loading::SIZES.as_slice() } else { &[] };
    let sections = if wants(Part::Charges) { charges::SECTIONS.as_slice() } else { &[] };
    let steps = cases.len() + sizes.len() + usize::from(wants(Part::Helpers)) + sections.len();
    let bar = progress::steps("measuring", steps as u64);
    for case in &cases {
        bar.set_message(format!("calls of {}", case.name));
        report.calls.push(calls::measure(case, compiler.as_ref(), rounds)?);
        bar.inc(1);
    }
    for size in sizes {
        bar.set_message(format!("loading {size} instructions"));
        report.loading.push(loading::measure(*size, rounds)?);
        bar.inc(1);
    }
    if wants(Part::Helpers) {
        bar.set_message("helpers and a tail call");
        report.helpers = helpers::measure(rounds)?;
        report.tail_call = Some(tail_call::measure(rounds)?);
        bar.inc(1);
    }
    for section in sections {
        bar.set_message(format!("charges against the clock: {}", section.name()));
        report.charges.extend(section.measure(rounds)?);
        bar.inc(1);
    }
    report.undercharged_most = Undercharged::most(&report.charges);
    bar.finish_and_clear();
    Ok(report)
}
