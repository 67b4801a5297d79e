//! `bpfof config`.

use bpfof_controller::{Server, TargetConfig};
use bpfof_terminal::{Outcome, forbid_core_dumps};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Read a target's configuration file as `bpfof target --config` does, and the keys and functions that it
    /// names. Opens no namespace and listens nowhere.
    Check(Check),
}

#[derive(Args)]
pub(crate) struct Check {
    /// TOML file.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Outcome {
    let Command::Check(options) = command;
    forbid_core_dumps()?;
    let (config, _) = TargetConfig::from_file(&options.file)?;
    let named = |error| format!("{}: {error}", options.file.display());
    Server::check(&config).map_err(named)?;
    let TargetConfig { listen, discovery, nqn, namespaces, rules, functions, .. } = &config;
    if options.json {
        let report = serde_json::json!({
            "listen": listen.0.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "discovery": discovery,
            "nqn": nqn,
            "namespaces": namespaces.len(),
            "rules": rules.len(),
            "functions": functions,
        });
        println!("{report}");
        return Ok(());
    }
    println!("{}: good", options.file.display());
    let listen: Vec<String> = listen.0.iter().map(ToString::to_string).collect();
    println!(
        "  listens on {}{}",
        listen.join(" and "),
        discovery.map_or(String::new(), |at| format!(", discovery on {at}"))
    );
    println!("  {} namespaces, {} rules of hosts", namespaces.len(), rules.len());
    if rules.is_empty() {
        println!("  without [[host]] rules every host may do everything");
    }
    Ok(())
}
