//! `bpfof function list`.

use super::connection::{Target, connect};
use bpfof_host::{Controller, ForeignFunction, FunctionId, FunctionReportEntry};
use bpfof_terminal::Outcome;
use serde_json::{Value, json};

/// A function as it is listed.
struct Listed {
    /// Controller id of the association that has loaded it; none if it is installed for all hosts.
    controller: Option<u16>,
    report: FunctionReportEntry,
    last_fault: Option<String>,
    trace: Vec<String>,
}

pub(super) fn list(options: &Target) -> Outcome {
    let mut controller = connect(options)?;
    let all = all(&mut controller)?;
    controller.disconnect()?;
    if options.json {
        let all: Vec<Value> = all.iter().map(Listed::to_json).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    if all.is_empty() {
        println!("no function is installed; see `bpfof function load --help`");
        return Ok(());
    }
    println!(
        "{:>10} {:<20} {:<9} {:>8} {:>12} {:>12} {:>14} {:>7} {:>7}",
        "id", "name", "of", "insns", "chains", "hops", "bytes read", "faults", "aborts"
    );
    for listed in &all {
        listed.print();
    }
    Ok(())
}

/// The installed functions, and those of other programs of this host.
fn all(controller: &mut Controller) -> Result<Vec<Listed>, bpfof_host::Error> {
    let mut all = Vec::new();
    for report in controller.function_report()? {
        let id = FunctionId(report.function);
        let last_fault = match report.faults {
            0 => None,
            _ => controller.last_fault(id)?,
        };
        let trace = controller.trace(id)?;
        all.push(Listed { controller: None, report, last_fault, trace });
    }
    let foreign = controller.foreign_functions()?.into_iter();
    all.extend(foreign.map(|ForeignFunction { controller, report, last_fault, trace }| Listed {
        controller: Some(controller),
        report,
        last_fault,
        trace,
    }));
    Ok(all)
}

impl Listed {
    fn to_json(&self) -> Value {
        let Listed { controller, report, last_fault, trace } = self;
        json!({
            "id": report.function,
            "name": report.name.to_string(),
            "controller": controller,
            "instructions": report.instructions,
            "native_bytes": report.native_bytes,
            "compile_us": report.compile_us,
            "chains": report.chains,
            "hops": report.hops,
            "read_bytes": report.read_bytes,
            "faults": report.faults,
            "aborts": report.aborts,
            "last_fault": last_fault,
            "trace": trace,
        })
    }

    fn print(&self) {
        let report = &self.report;
        println!(
            "{:>10} {:<20} {:<9} {:>8} {:>12} {:>12} {:>14} {:>7} {:>7}",
            report.function,
            report.name.to_string(),
            self.controller.map_or("all".to_owned(), |id| format!("host:{id}")),
            report.instructions,
            report.chains,
            report.hops,
            report.read_bytes,
            report.faults,
            report.aborts
        );
        if let Some(fault) = &self.last_fault {
            println!("{:>10} last fault: {fault}", "");
        }
        for line in &self.trace {
            println!("{:>10} trace: {line}", "");
        }
    }
}
