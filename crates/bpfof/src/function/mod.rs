//! `bpfof function …`.

mod check;
mod connection;
mod dry_run;
mod identity;
mod list;
mod map;
mod object;
mod pace;
mod proof;
mod run;
mod steps;

use bpfof_terminal::Outcome;
use clap::{Args, Subcommand};
use connection::{Target, connect, installed};
use object::Chosen;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check an object file as a target does, without one: size, stack, cost, and whether it can
    /// be proved that no access faults.
    Check(check::Check),
    /// Run a function once, at a target or on this machine: its answer, hops and reads.
    Run(run::Run),
    /// Look for a proof, as the child process of `check`: reads an object, writes the result.
    #[command(hide = true)]
    Prove(proof::Prove),
    /// Install a function for all hosts of a target's subsystem, until it is unloaded or the target
    /// stops.
    Load(Load),
    /// List functions and their statistics: those installed at a target, and those that running programs of this host
    /// have loaded.
    List(Target),
    /// Remove an installed function; only the host that has installed it may do so.
    Unload(Unload),
    /// Read and change the maps of functions.
    #[command(subcommand)]
    Map(map::Command),
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
    /// Name to install the function under, up to 64 bytes [default: that of the entry point].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Args)]
pub(crate) struct Unload {
    #[command(flatten)]
    target: Target,
    /// Name of the function, or the id that `load` and `list` print.
    #[arg(value_name = "NAME|ID")]
    function: String,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Check(options) => check::run(options),
        Command::Run(options) => run::run(options),
        Command::Prove(options) => proof::child(options),
        Command::Load(options) => load(options),
        Command::List(options) => list::list(options),
        Command::Unload(options) => unload(options),
        Command::Map(command) => map::run(command),
    }
}

fn load(options: &Load) -> Outcome {
    let chosen = Chosen::read(&options.file, options.entry.as_deref())?;
    let name = options.name.as_deref().unwrap_or(chosen.name());
    let mut controller = connect(&options.target)?;
    let id = match &options.name {
        Some(name) => controller.install_function_as(name, &chosen.bytes, chosen.index())?,
        None => controller.install_function(&chosen.bytes, chosen.index())?,
    };
    if options.target.json {
        println!("{}", serde_json::json!({ "id": id.0, "name": name }));
    } else {
        println!("{name} is installed as function {}", id.0);
    }
    controller.disconnect()?;
    Ok(())
}

fn unload(options: &Unload) -> Outcome {
    let mut controller = connect(&options.target)?;
    let id = installed(&mut controller, &options.function)?;
    controller.unload_function(id)?;
    controller.disconnect()?;
    if options.target.json {
        println!("{}", serde_json::json!({ "unloaded": id.0 }));
    } else {
        println!("function {id} is removed");
    }
    Ok(())
}
