//! `bpfof key identity`: the identities of a TLS key, and its export for a Linux host.

use super::input::{named, read};
use super::output::Output;
use bpfof_auth::{ConfiguredPsk, Derivation, IdentityVersion, Names, TlsIdentity};
use bpfof_terminal::{Outcome, output};
use clap::{Args, ValueEnum};
use std::io::Write;
use std::path::PathBuf;
use zeroize::Zeroizing;

#[derive(Args)]
pub(crate) struct Identity {
    /// The file with the key; - is standard input.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// NQN of the host.
    #[arg(long, alias = "hostnqn", value_name = "NQN")]
    host_nqn: String,
    /// NQN of the subsystem.
    #[arg(long, alias = "subsysnqn", value_name = "NQN")]
    subsystem: String,
    /// Write one identity, a space, and the key that belongs to it, which is SECRET: a line for
    /// `nvme tls-key --import`, which puts it where tlshd looks for it.
    #[arg(long, value_enum, value_name = "VERSION")]
    export: Option<Version>,
    #[command(flatten)]
    output: Output,
    /// Print JSON.
    #[arg(long, conflicts_with = "export")]
    json: bool,
}

/// The ways in which keys are named and derived.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Version {
    /// NVMe1R…, as in libnvme 1.16 and later, and in this project's hosts.
    V1,
    /// NVMe1R…, as in libnvme before 1.16.
    V1Compat,
    /// NVMe0R….
    V0,
    /// NVMe0R…, as in libnvme before 1.16.
    V0Compat,
}

impl Version {
    const ALL: [Self; 4] = [Self::V1, Self::V1Compat, Self::V0, Self::V0Compat];

    fn parts(self) -> (IdentityVersion, Derivation) {
        match self {
            Self::V1 => (IdentityVersion::V1, Derivation::Standard),
            Self::V1Compat => (IdentityVersion::V1, Derivation::Compat),
            Self::V0 => (IdentityVersion::V0, Derivation::Standard),
            Self::V0Compat => (IdentityVersion::V0, Derivation::Compat),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Compat => "v1-compat",
            Self::V0 => "v0",
            Self::V0Compat => "v0-compat",
        }
    }
}

/// Both names, each an NQN.
pub(super) fn names(host: &str, subsystem: &str) -> Result<Names, Box<dyn std::error::Error>> {
    if let Some(wrong) = [host, subsystem].into_iter().find(|nqn| !nqn.starts_with("nqn.")) {
        return Err(format!("{wrong:?} is not an NVMe qualified name: it begins with nqn.").into());
    }
    Ok(Names::new(host, subsystem)?)
}

pub(super) fn run(options: &Identity) -> Outcome {
    let names = names(&options.host_nqn, &options.subsystem)?;
    let key = ConfiguredPsk::parse(read(&options.key)?.trim());
    let key = key.map_err(|why| named(&options.key, why))?;
    if let Some(version) = options.export {
        let (version, derivation) = version.parts();
        let found = key.identity(&names, version, derivation)?;
        let (name, secret) = (found.identity.as_bytes(), found.psk_text());
        let line = Zeroizing::new([name, b" ", secret.expose()].concat());
        return options.output.write(&line);
    }
    if options.output.is_file() {
        return Err("--output is for secrets: it needs --export".into());
    }
    let mut out = output();
    if !options.json {
        return print_all(&mut out, &key, &names);
    }
    let all: Vec<_> = all(&key, &names)
        .map(|(called, found)| {
            let hash = found.hash.hash().to_string();
            serde_json::json!({ "version": called, "hash": hash, "identity": found.identity })
        })
        .collect();
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?)
}

/// All identities that a host may present for a key, each once, with the names of its versions.
fn all(key: &ConfiguredPsk, names: &Names) -> impl Iterator<Item = (String, TlsIdentity)> {
    let mut found: Vec<(String, TlsIdentity)> = Vec::new();
    for called in Version::ALL {
        let (version, derivation) = called.parts();
        // An identity of version 0 may be too long, and then no host can use it.
        let Ok(identity) = key.identity(names, version, derivation) else { continue };
        match found.iter_mut().find(|(_, known)| known.identity == identity.identity) {
            Some((names, _)) => *names = format!("{names}, {}", called.name()),
            None => found.push((called.name().to_owned(), identity)),
        }
    }
    found.into_iter()
}

/// Writes a line for each identity, without secrets.
pub(super) fn print_all(out: &mut impl Write, key: &ConfiguredPsk, names: &Names) -> Outcome {
    for (called, found) in all(key, names) {
        writeln!(out, "{called:<14} {}", found.identity)?;
    }
    Ok(())
}
