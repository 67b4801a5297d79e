//! Values of options: addresses, sizes, names.

use super::tls_mode::TlsMode;
use crate::limits::{LAST_CONTROLLER_ID, MIN_CONTROLLER_IDS};
use bpfof_nvme::fabrics::{DISCOVERY_NQN, NQN_MAX_BYTES};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Parses an IP address with a port.
///
/// # Errors
/// A description of the expected form.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let example = "127.0.0.1:4420 or [::1]:4420";
    text.parse().map_err(|_| {
        format!("{text:?} is not an IP address with a port (up to 65535); write it as {example}")
    })
}

/// Parses a size in bytes with an optional suffix: K, M, G, T (or KiB, MiB, …: powers of 1024).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let no_size = || format!("{text:?} is not a size");
    // Rust's parser would accept a sign.
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

/// Whether this is an NQN (NVMe Base 2.0 §4.5): at most 223 bytes, with a date after "nqn.". The discovery subsystem's
/// name is reserved.
pub(crate) fn is_nqn(nqn: &str) -> bool {
    let date_at = nqn.strip_prefix("nqn.").map(str::as_bytes);
    let dated = date_at.is_some_and(|rest| rest.len() > 8 && rest[4] == b'-' && rest[7] == b'.');
    nqn.len() <= NQN_MAX_BYTES && dated && nqn != DISCOVERY_NQN
}

/// Parses `off`, `allowed` or `required`.
///
/// # Errors
/// The allowed values.
pub fn parse_tls_mode(text: &str) -> Result<TlsMode, String> {
    match text {
        "off" => Ok(TlsMode::Off),
        "allowed" => Ok(TlsMode::Allowed),
        "required" => Ok(TlsMode::Required),
        _ => Err(format!("{text:?} is not off, allowed or required")),
    }
}

/// Parses a range of controller ids, `FIRST-LAST`.
///
/// # Errors
/// A description of the expected form.
pub fn parse_cntlids(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| {
        let number = |text: &str| text.trim().parse::<u16>().ok();
        Some((number(first)?, number(last)?))
    });
    let range = ends.filter(|(first, last)| {
        let is_wide = last.saturating_sub(*first) >= MIN_CONTROLLER_IDS - 1;
        *first >= 1 && *last <= LAST_CONTROLLER_ID && is_wide
    });
    range.map(|(first, last)| first..=last).ok_or_else(|| {
        format!(
            "cntlid {text:?} is not a range of at least {MIN_CONTROLLER_IDS} ids from 1 to \
             {LAST_CONTROLLER_ID}; write it as 1-32000"
        )
    })
}

/// Parses a UUID (RFC 9562 §4), which is not all zero.
pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let bad = || {
        let example = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
        format!("uuid={text} is not a UUID; write it as {example} (uuidgen makes one)")
    };
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let digits = groups.concat();
    let are_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if lengths != [8, 4, 4, 4, 12] || !are_hex {
        return Err(bad());
    }
    let number = u128::from_str_radix(&digits, 16).map_err(|_| bad())?;
    if number == 0 { Err(bad()) } else { Ok(number.to_be_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_controller_ids() {
        assert_eq!(parse_cntlids("1-32000"), Ok(1..=32000));
        assert_eq!(parse_cntlids("32001-65519"), Ok(32001..=65519));
        for bad in ["", "1", "0-32000", "1-65520", "1-1023", "2000-1", "a-b", "-1-2000"] {
            assert!(parse_cntlids(bad).is_err_and(|why| why.contains("1-32000")), "{bad}");
        }
    }

    #[test]
    fn uuids() {
        let bytes = parse_uuid("00112233-4455-6677-8899-AABBCCDDEEFF").expect("good");
        assert_eq!(bytes[..3], [0, 0x11, 0x22]);
        for bad in
            ["", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeef", "x"]
        {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
        assert!(parse_uuid("00000000-0000-0000-0000-000000000000").is_err());
        assert!(parse_uuid("+0112233-4455-6677-8899-aabbccddeeff").is_err());
    }
}
