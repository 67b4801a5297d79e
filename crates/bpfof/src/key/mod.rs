//! `bpfof key …`: keys for TLS and secrets for DH-HMAC-CHAP.

mod identity;
mod input;
mod new;
mod output;

use bpfof_auth::{ConfiguredPsk, DhchapKey, Hash, KeyKind};
use bpfof_terminal::{Outcome, forbid_core_dumps, output};
use clap::{Args, Subcommand};
use input::{named, read};
use std::io::Write;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a key of random bytes, in the interchange format that nvme-cli and nvmet accept as well.
    #[command(subcommand)]
    New(new::New),
    /// Show the identities by which a host and a target refer to a TLS key, or export the key for a Linux host.
    Identity(identity::Identity),
    /// Check that a file has a usable key, and show its kind.
    Check(Check),
}

#[derive(Args)]
pub(crate) struct Check {
    /// The file with the key; - is standard input.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Outcome {
    forbid_core_dumps()?;
    match command {
        Command::New(options) => new::run(options),
        Command::Identity(options) => identity::run(options),
        Command::Check(options) => check(options),
    }
}

fn check(options: &Check) -> Outcome {
    let text = read(&options.file)?;
    let text = text.trim();
    let (kind, length_bytes, hash) = if text.starts_with(KeyKind::TlsPsk.prefix()) {
        let key = ConfiguredPsk::parse(text).map_err(|why| named(&options.file, why))?;
        ("tls", key.hash().key_bytes(), key.is_derived().then_some(key.hash().hash()))
    } else if text.starts_with(KeyKind::DhChap.prefix()) {
        let key = DhchapKey::parse(text).map_err(|why| named(&options.file, why))?;
        ("dhchap", key.length_bytes(), key.transformation())
    } else {
        let (tls, dhchap) = (KeyKind::TlsPsk.prefix(), KeyKind::DhChap.prefix());
        let why = format!("it begins neither with {tls} (a key for TLS) nor with {dhchap}");
        return Err(named(&options.file, why).into());
    };
    let mut out = output();
    if options.json {
        let hash = hash.map(|hash| hash.to_string());
        let found = serde_json::json!({ "kind": kind, "bytes": length_bytes, "hmac": hash });
        writeln!(out, "{found}")?;
    } else {
        let what = match kind {
            "tls" => KeyKind::TlsPsk,
            _ => KeyKind::DhChap,
        };
        let how = how_used(hash);
        let found = format!("{what} of {length_bytes} bytes, {how}; its checksum is right");
        writeln!(out, "{}", named(&options.file, found))?;
    }
    Ok(())
}

/// How a key is transformed before use.
fn how_used(hash: Option<Hash>) -> String {
    match hash {
        Some(hash) => format!("transformed by {hash}"),
        None => "used as it is (HH 00)".to_owned(),
    }
}
