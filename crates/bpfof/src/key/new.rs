//! `bpfof key new …`.

use super::identity::{names, print_all};
use super::output::Output;
use bpfof_auth::{ConfiguredPsk, DhchapKey, Hash, PskHash};
use bpfof_terminal::Outcome;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub(crate) enum New {
    /// A key for TLS (NVMeTLSkey-1:…), for both the host and the target.
    Tls(Tls),
    /// A secret for DH-HMAC-CHAP (DHHC-1:…): for a host, or for a target that authenticates itself.
    Dhchap(Dhchap),
}

#[derive(Args)]
pub(crate) struct Tls {
    /// Hash for all values derived from the key. SHA-256 goes with a key of 32 bytes and AES-128,
    /// SHA-384 with 48 bytes and AES-256. For Linux hosts take SHA-256: the TLS library of many of
    /// them handles SHA-384 wrongly.
    #[arg(long, value_enum, default_value = "sha256")]
    hmac: TlsHmac,
    /// NQN of a host, for which the identities of the key are shown on standard error.
    #[arg(long, alias = "hostnqn", value_name = "NQN", requires = "subsystem")]
    host_nqn: Option<String>,
    /// NQN of the subsystem for these identities.
    #[arg(long, alias = "subsysnqn", value_name = "NQN", requires = "host_nqn")]
    subsystem: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum TlsHmac {
    #[value(alias = "1")]
    Sha256,
    #[value(alias = "2")]
    Sha384,
}

#[derive(Args)]
pub(crate) struct Dhchap {
    /// Hash that transforms the secret, together with the NQN of its owner, before use.
    #[arg(long, value_enum, default_value = "sha256")]
    hmac: DhchapHmac,
    /// Bytes of the secret: 32, 48 or 64. With a hash it is the length of the hash [default: that
    /// length; 32 without a hash].
    #[arg(long, alias = "secret-length", value_name = "BYTES")]
    length: Option<usize>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum DhchapHmac {
    #[value(alias = "0")]
    None,
    #[value(alias = "1")]
    Sha256,
    #[value(alias = "2")]
    Sha384,
    #[value(alias = "3")]
    Sha512,
}

pub(super) fn run(command: &New) -> Outcome {
    match command {
        New::Tls(options) => tls(options),
        New::Dhchap(options) => dhchap(options),
    }
}

fn tls(options: &Tls) -> Outcome {
    let both = options.host_nqn.as_deref().zip(options.subsystem.as_deref());
    let names = both.map(|(host, subsystem)| names(host, subsystem)).transpose()?;
    let key = ConfiguredPsk::generate(match options.hmac {
        TlsHmac::Sha256 => PskHash::Sha256,
        TlsHmac::Sha384 => PskHash::Sha384,
    })?;
    options.output.write(key.to_text().expose())?;
    if let Some(names) = names {
        print_all(&mut std::io::stderr().lock(), &key, &names)?;
    }
    Ok(())
}

fn dhchap(options: &Dhchap) -> Outcome {
    let hash = match options.hmac {
        DhchapHmac::None => None,
        DhchapHmac::Sha256 => Some(Hash::Sha256),
        DhchapHmac::Sha384 => Some(Hash::Sha384),
        DhchapHmac::Sha512 => Some(Hash::Sha512),
    };
    let key = match (hash, options.length) {
        (Some(hash), length) if length.is_none_or(|length| length == hash.length_bytes()) => {
            DhchapKey::generate(hash)?
        }
        (Some(hash), _) => {
            let bytes = hash.length_bytes();
            return Err(
                format!("{hash} goes with a secret of {bytes} bytes: leave --length out").into()
            );
        }
        (None, length) => match length.unwrap_or(32) {
            length @ (32 | 48 | 64) => DhchapKey::generate_plain(length)?,
            length => {
                return Err(format!("--length {length}: a secret has 32, 48 or 64 bytes").into());
            }
        },
    };
    options.output.write(key.to_text().expose())
}
