//! Keys as text: a prefix, two digits for the hash, base64 of the key and its CRC-32.

use crate::error::{KeyError, KeyKind, KeyProblem};
use crate::secret::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Length of the CRC-32 (IEEE 802.3) that follows the key, little-endian, in bytes.
const CHECKSUM_BYTES: usize = 4;

/// Number of characters of `length_bytes` bytes in base64 with padding.
const fn base64_characters(length_bytes: usize) -> usize {
    length_bytes.div_ceil(3) * 4
}

/// Reads the text of a key: the number of its hash, from 0 to 3, and the key. White space around
/// the text is ignored.
///
/// # Errors
/// The error says what is wrong with the text.
pub(crate) fn parse(kind: KeyKind, text: &str) -> Result<(u8, Secret), KeyError> {
    parse_parts(kind, text.trim()).map_err(|problem| KeyError { kind, problem })
}

fn parse_parts(kind: KeyKind, text: &str) -> Result<(u8, Secret), KeyProblem> {
    let Some(rest) = text.strip_prefix(kind.prefix()) else {
        let others = [KeyKind::TlsPsk, KeyKind::DhChap];
        return Err(match others.into_iter().find(|other| text.starts_with(other.prefix())) {
            Some(other) => KeyProblem::OtherKind(other),
            None => KeyProblem::Prefix,
        });
    };
    let (digits, rest) = rest.split_once(':').ok_or(KeyProblem::HashDigits)?;
    if digits.len() != 2 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(KeyProblem::HashDigits);
    }
    let hash_id = u8::from_str_radix(digits, 16).map_err(|_| KeyProblem::HashDigits)?;
    if hash_id > 3 {
        return Err(KeyProblem::UnknownHash(hash_id));
    }
    let encoded = rest.strip_suffix(':').ok_or(KeyProblem::End)?;
    let length = KeyProblem::Length(text.chars().count());
    let lengths = kind.key_lengths_bytes();
    if !lengths.iter().any(|key| base64_characters(key + CHECKSUM_BYTES) == encoded.len()) {
        return Err(length);
    }
    // With its full capacity from the start, so that no part of the key stays in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(encoded.len()));
    STANDARD.decode_vec(encoded, &mut bytes).map_err(|_| KeyProblem::Base64)?;
    let Some((key, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(length);
    };
    if !lengths.contains(&key.len()) {
        return Err(KeyProblem::Base64);
    }
    if crc32fast::hash(key) != u32::from_le_bytes(*checksum) {
        return Err(KeyProblem::Checksum);
    }
    Ok((hash_id, Secret::new(key.to_vec())))
}

/// Writes the text of a key, in ASCII.
pub(crate) fn format(kind: KeyKind, hash_id: u8, key: &Secret) -> Secret {
    let key = key.expose();
    let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + CHECKSUM_BYTES));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&crc32fast::hash(key).to_le_bytes());
    let start = format!("{}{hash_id:02x}:", kind.prefix());
    let mut text = String::with_capacity(start.len() + base64_characters(bytes.len()) + 1);
    text.push_str(&start);
    STANDARD.encode_string(&*bytes, &mut text);
    text.push(':');
    Secret::new(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeyProblem as P;

    const TLS: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn problem(kind: KeyKind, text: &str) -> KeyProblem {
        let error = parse(kind, text).unwrap_err();
        assert_eq!(error.kind, kind);
        assert!(!error.to_string().contains("AAECA"));
        error.problem
    }

    #[test]
    fn reads_and_writes() {
        let (hash_id, key) = parse(KeyKind::TlsPsk, &format!("  {TLS}\n")).unwrap();
        assert_eq!((hash_id, key.expose()), (1, &*(0..32).collect::<Vec<u8>>()));
        assert_eq!(format(KeyKind::TlsPsk, hash_id, &key).expose(), TLS.as_bytes());
        assert_eq!(TLS.len(), 65);
        for (kind, key_bytes, characters) in [
            (KeyKind::TlsPsk, 48, 89),
            (KeyKind::DhChap, 32, 59),
            (KeyKind::DhChap, 48, 83),
            (KeyKind::DhChap, 64, 103),
        ] {
            let key = Secret::random(key_bytes).unwrap();
            let text = format(kind, 2, &key);
            assert_eq!(text.length_bytes(), characters);
            let text = std::str::from_utf8(text.expose()).unwrap();
            assert_eq!(parse(kind, text), Ok((2, key)));
        }
    }

    #[test]
    fn each_fault_has_its_own_error() {
        let tls = |text: &str| problem(KeyKind::TlsPsk, text);
        assert_eq!(tls("secret"), P::Prefix);
        assert_eq!(tls("NVMeTLSkey-2:01:AAECA:"), P::Prefix);
        assert_eq!(tls("DHHC-1:01:AAECA:"), P::OtherKind(KeyKind::DhChap));
        assert_eq!(problem(KeyKind::DhChap, TLS), P::OtherKind(KeyKind::TlsPsk));
        assert_eq!(tls("NVMeTLSkey-1:"), P::HashDigits);
        assert_eq!(tls(&TLS.replace(":01:", ":1:")), P::HashDigits);
        assert_eq!(tls(&TLS.replace(":01:", ":+1:")), P::HashDigits);
        assert_eq!(tls(&TLS.replace(":01:", ":04:")), P::UnknownHash(4));
        assert_eq!(tls(&TLS[..64]), P::End);
        assert_eq!(tls(&TLS.replace("KfiaR", "KfiaRAAAA")), P::Length(69));
        assert_eq!(tls(&TLS.replace("KfiaR", "Kfia=")), P::Base64);
        assert_eq!(tls(&TLS.replace("KfiaR", "K*iaR")), P::Base64);
        assert_eq!(tls(&TLS.replace("KfiaR", "KfiaS")), P::Checksum);
        assert_eq!(tls(&TLS.replace("AAEC", "AAED")), P::Checksum);
        // Only a DH-HMAC-CHAP secret may have 64 bytes.
        let long = format(KeyKind::TlsPsk, 0, &Secret::new(vec![0; 64]));
        assert_eq!(tls(std::str::from_utf8(long.expose()).unwrap()), P::Length(109));
        for at in 0..TLS.len() {
            let _ = problem(KeyKind::TlsPsk, &TLS[..at]);
        }
    }
}
