//! Keys as text and in files.

use super::input::Input;
use crate::{ConfiguredPsk, Derivation, DhchapKey, KeyKind, Names, key_file};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Texts of keys, and files with them: an accepted key is written back as the same text, no error and no `Debug` output
/// shows it, a changed character is detected, and a file gives the same result as its text.
///
/// The input is used as a text, then as the description of a key: its kind, hash and length, the error of its checksum,
/// the key, and a character to change.
pub fn keys(data: &[u8]) {
    file(data);
    text(&String::from_utf8_lossy(data));

    let mut input = Input(data);
    let kind = [KeyKind::TlsPsk, KeyKind::DhChap][usize::from(input.byte() & 1)];
    let hash_id = input.byte() % 5;
    let length = [32, 48, 64, usize::from(input.byte() % 80)][usize::from(input.byte() & 3)];
    let wrong = match input.lie(1) {
        0 => 0,
        _ => 1_u32 << (input.byte() & 31),
    };
    let mut key = input.bytes(length).to_vec();
    key.resize(length, 0x3C);
    let checksum = crc32fast::hash(&key) ^ wrong;
    let encoded = STANDARD.encode([&key[..], &checksum.to_le_bytes()].concat());
    let good = format!("{}{hash_id:02x}:{encoded}:", kind.prefix());
    text(&good);
    let fits = match kind {
        KeyKind::TlsPsk => matches!((hash_id, length), (0, 32 | 48) | (1, 32) | (2, 48)),
        KeyKind::DhChap => hash_id <= 3 && matches!(length, 32 | 48 | 64),
    };
    let is_good = fits && wrong == 0;
    assert_eq!(ConfiguredPsk::parse(&good).is_ok(), is_good && kind == KeyKind::TlsPsk);
    assert_eq!(DhchapKey::parse(&good).is_ok(), is_good && kind == KeyKind::DhChap);

    let mut bytes = good.clone().into_bytes();
    let at = usize::from(input.byte()) % bytes.len();
    bytes[at] = input.byte();
    let changed = String::from_utf8_lossy(&bytes).into_owned();
    text(&changed);
    // The digits of the hash are not part of the checksum.
    let digits = kind.prefix().len();
    if is_good && !(digits..digits + 2).contains(&at) && changed.trim() != good {
        assert!(ConfiguredPsk::parse(&changed).is_err());
        assert!(DhchapKey::parse(&changed).is_err());
    }
}

fn text(text: &str) {
    let shown = text.trim();
    match ConfiguredPsk::parse(text) {
        Ok(key) => {
            assert!(key.to_text().expose() == shown.as_bytes());
            assert!(!format!("{key:?}").contains(&shown[16..24]));
            let names = Names::new("nqn.host", "nqn.subsystem").expect("good names");
            let identities = key.identities(&names, Derivation::Standard);
            assert!((2..=3).contains(&identities.len()));
            for (number, identity) in identities.iter().enumerate() {
                assert!(identity.psk.length_bytes() == identity.hash.key_bytes());
                let others = &identities[number + 1..];
                assert!(others.iter().all(|other| other.identity != identity.identity));
            }
        }
        Err(error) => hides(&error.to_string(), text),
    }
    match DhchapKey::parse(text) {
        Ok(key) => {
            assert!(key.to_text().expose() == shown.as_bytes());
            assert!(key.transform("nqn.host").length_bytes() >= 32);
            assert!(!format!("{key:?}").contains(&shown[10..18]));
        }
        Err(error) => hides(&error.to_string(), text),
    }
}

/// Checks that an error contains no long word of the text: its own words are short.
fn hides(error: &str, text: &str) {
    let mut long = text.split_whitespace().filter(|word| word.len() >= 24);
    assert!(!long.any(|word| error.contains(word)), "{error}");
}

/// Reads a pipe as a key file, so that no file stays behind.
fn file(data: &[u8]) {
    let Ok((reader, mut writer)) = std::io::pipe() else { return };
    // More than a key file may have, and less than a pipe holds.
    if writer.write_all(&data[..data.len().min(8192)]).is_err() {
        return;
    }
    drop(writer);
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    let Ok(expected) = std::str::from_utf8(data) else {
        return assert!(data.len() > 4096 || key_file::read(&path).is_err());
    };
    let found = key_file::parse(&path, DhchapKey::parse);
    if data.len() <= 4096 {
        match (found, DhchapKey::parse(expected)) {
            (Ok(found), Ok(expected)) => assert!(found == expected),
            (found, expected) => assert!(found.is_err() && expected.is_err()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Secret, key_text};

    #[test]
    fn a_file_is_its_text() {
        let text = key_text::format(KeyKind::DhChap, 2, &Secret::new(vec![5; 48]));
        file(text.expose());
        file(&[&b" \n"[..], text.expose(), b"\r\n"].concat());
    }
}
