//! `bpfof function …`.

mod check;
mod dry_run;
mod identity;
mod map;
mod object;
mod pace;
mod proof;
mod run;
mod steps;

use bpfof_host::{Controller, FunctionId, TargetUrl};
use bpfof_terminal::{Outcome, target_url};
use clap::{Args, Subcommand};
use object::Chosen;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check an object file as a target does, without one: size, stack, cost, and whether it can
    /// be proved that no access faults.
    Check(check::Check),
    /// Run a function once, at a target or on this machine: its answer, hops and reads.
    Run(run::Run),
    /// What `check` runs to look for a proof: an object comes in, the result goes out.
    #[command(hide = true)]
    Prove(proof::Prove),
    /// Install a function for all hosts of a target's subsystem, until it is unloaded or the target
    /// stops.
    Load(Load),
    /// List the functions installed on a target and what they have done.
    List(Target),
    /// Remove an installed function, which the host that has installed it may do.
    Unload(Unload),
    /// See and change what functions remember in their maps.
    #[command(subcommand)]
    Map(map::Command),
}

#[derive(Args)]
pub(crate) struct Target {
    /// The target: nvme-tcp://HOST:PORT/NQN.
    #[arg(long, env = "BPFOF_TARGET", value_parser = target_url)]
    target: TargetUrl,
    #[command(flatten)]
    identity: identity::Identity,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Load {
    #[command(flatten)]
    target: Target,
    /// Object file.
    file: PathBuf,
    /// Name of the entry point, the section name after `bpfof/` [default: the only one].
    #[arg(long)]
    entry: Option<String>,
}

#[derive(Args)]
pub(crate) struct Unload {
    #[command(flatten)]
    target: Target,
    /// The id that `load` and `list` print.
    id: u32,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Check(options) => check::run(options),
        Command::Run(options) => run::run(options),
        Command::Prove(options) => proof::child(options),
        Command::Load(options) => load(options),
        Command::List(options) => list(options),
        Command::Unload(options) => unload(options),
        Command::Map(command) => map::run(command),
    }
}

fn load(options: &Load) -> Outcome {
    let chosen = Chosen::read(&options.file, options.entry.as_deref())?;
    let name = chosen.name();
    let mut controller = connect(&options.target)?;
    let id = controller.install_function(&chosen.bytes, chosen.index())?;
    if options.target.json {
        println!("{}", serde_json::json!({ "id": id.0, "name": name }));
    } else {
        println!("{name} is installed as function {}", id.0);
    }
    controller.disconnect()?;
    Ok(())
}

fn list(options: &Target) -> Outcome {
    let mut controller = connect(options)?;
    let report = controller.function_report()?;
    let mut said = Vec::new();
    for entry in &report {
        let faulted = entry.faults != 0;
        let fault = faulted.then(|| controller.last_fault(FunctionId(entry.function)));
        let trace = controller.trace(FunctionId(entry.function))?;
        said.push((fault.transpose()?.flatten(), trace));
    }
    controller.disconnect()?;
    if options.json {
        let entries: Vec<_> = report
            .iter()
            .zip(&said)
            .map(|(entry, (last_fault, trace))| {
                serde_json::json!({
                    "id": entry.function,
                    "name": entry.name.to_string(),
                    "instructions": entry.instructions,
                    "native_bytes": entry.native_bytes,
                    "compile_us": entry.compile_us,
                    "chains": entry.chains,
                    "hops": entry.hops,
                    "read_bytes": entry.read_bytes,
                    "faults": entry.faults,
                    "aborts": entry.aborts,
                    "last_fault": last_fault,
                    "trace": trace,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&entries)?);
        return Ok(());
    }
    if report.is_empty() {
        println!("no function is installed; see `bpfof function load --help`");
        return Ok(());
    }
    println!(
        "{:>10} {:<20} {:>8} {:>12} {:>12} {:>14} {:>7} {:>7}",
        "id", "name", "insns", "chains", "hops", "bytes read", "faults", "aborts"
    );
    for (entry, (last_fault, trace)) in report.iter().zip(&said) {
        println!(
            "{:>10} {:<20} {:>8} {:>12} {:>12} {:>14} {:>7} {:>7}",
            entry.function,
            entry.name.to_string(),
            entry.instructions,
            entry.chains,
            entry.hops,
            entry.read_bytes,
            entry.faults,
            entry.aborts
        );
        if let Some(fault) = last_fault {
            println!("{:>10} last fault: {fault}", "");
        }
        for line in trace {
            println!("{:>10} trace: {line}", "");
        }
    }
    Ok(())
}

fn unload(options: &Unload) -> Outcome {
    let mut controller = connect(&options.target)?;
    controller.unload_function(FunctionId(options.id))?;
    controller.disconnect()?;
    if options.target.json {
        println!("{}", serde_json::json!({ "unloaded": options.id }));
    } else {
        println!("function {} is removed", options.id);
    }
    Ok(())
}

fn connect(options: &Target) -> Result<Controller, Box<dyn std::error::Error>> {
    let mut url = options.target.clone();
    url.host_nqn = options.identity.host_nqn.clone().or(url.host_nqn);
    let mut controller = Controller::connect(&url, options.identity.options())?;
    controller.pushdown_limits()?;
    Ok(controller)
}
