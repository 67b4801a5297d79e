//! Values of options: addresses, sizes, names.

use super::tls_mode::TlsMode;
use bpfof_nvme::fabrics::{DISCOVERY_NQN, NQN_MAX_BYTES};
use std::net::SocketAddr;

/// Parses an IP address with a port.
///
/// # Errors
/// What it should look like.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let example = "127.0.0.1:4420 or [::1]:4420";
    text.parse().map_err(|_| {
        format!("{text:?} is no IP address with a port (up to 65535); write it as {example}")
    })
}

/// Parses a size in bytes with an optional suffix: K, M, G, T (or KiB, MiB, …: powers of 1024).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let no_size = || format!("{text:?} is not a size");
    // A number of Rust's may have a sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_size());
    }
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" | "k" => 1u64 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        other => return Err(format!("unknown unit {other:?} in {text:?} (use K, M, G, T)")),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(no_size)
}

/// NVMe Base 2.0 §4.5: at most 223 bytes, and a date after "nqn.". The discovery subsystem's name is
/// taken.
pub(crate) fn is_nqn(nqn: &str) -> bool {
    let date_at = nqn.strip_prefix("nqn.").map(str::as_bytes);
    let dated = date_at.is_some_and(|rest| rest.len() > 8 && rest[4] == b'-' && rest[7] == b'.');
    nqn.len() <= NQN_MAX_BYTES && dated && nqn != DISCOVERY_NQN
}

/// Parses `off`, `allowed` or `required`.
///
/// # Errors
/// What it may be.
pub fn parse_tls_mode(text: &str) -> Result<TlsMode, String> {
    match text {
        "off" => Ok(TlsMode::Off),
        "allowed" => Ok(TlsMode::Allowed),
        "required" => Ok(TlsMode::Required),
        _ => Err(format!("{text:?} is not off, allowed or required")),
    }
}
