//! Key files: each contains one key as text.

use crate::KeyKind;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use zeroize::Zeroizing;

/// Longest accepted key file, in bytes.
const MAX_BYTES: u64 = 4096;
/// The variable with the folder in which systemd puts the files of LoadCredential=.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Other users may read it.
    #[error("others may read {path} (mode {mode:o}): chmod 600 {path}")]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The name is a key itself. It is not repeated, because errors are logged.
    #[error("a key is given instead of the name of a file with it: write it to a file (chmod 600)")]
    NotAFile,
    /// It does not contain such a key, or is not text.
    #[error("{path}: {why}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason, without the key.
        why: String,
    },
}

/// Reads a key file. A relative path is first looked up in $CREDENTIALS_DIRECTORY.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read, other users may read it, or it is too long.
pub fn read(path: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    if is_key(path) {
        return Err(KeyFileError::NotAFile);
    }
    let Some(credential) = credential(path) else {
        return Ok(read_private(path, MAX_BYTES)?.0);
    };
    let failed = |source| KeyFileError::Io { path: credential.clone(), source };
    let file = File::open(&credential).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(KeyFileError::Readable { path: credential, mode });
    }
    read_from(file, &credential)
}

/// Whether the name of a file, perhaps in a folder, is a key itself, which must not be repeated in errors.
#[must_use]
pub fn is_key(path: &Path) -> bool {
    let mut names = path.components().filter_map(|name| name.as_os_str().to_str());
    names.any(|name| KeyKind::ALL.iter().any(|kind| name.starts_with(kind.prefix())))
}

/// The path of a service's credential, if systemd has provided it. Only the service can read such a file, although its
/// mode may permit the group: systemd gives access by an access control list, whose mask appears there.
fn credential(path: &Path) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(CREDENTIALS)?);
    // An empty path would match any file.
    if !folder.is_absolute() {
        return None;
    }
    // An absolute path stays unchanged.
    let found = folder.join(path);
    let is_inside =
        found.starts_with(&folder) && !path.components().any(|c| c == Component::ParentDir);
    (is_inside && found.exists()).then_some(found)
}

/// Reads a text file that only its owner may read. Also returns the owner's user id.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read, other users may read it, or it has more than `max_bytes`.
pub fn read_private(path: &Path, max_bytes: u64) -> Result<(Zeroizing<String>, u32), KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 && found.is_file() {
        return Err(KeyFileError::Readable { path: path.to_owned(), mode });
    }
    Ok((read_text(file, path, max_bytes)?, found.uid()))
}

/// Reads the text of a key from an open source, such as standard input. `name` is for errors.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read, or it is too long.
pub fn read_from(source: impl Read, name: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    read_text(source, name, MAX_BYTES)
}

fn read_text(
    source: impl Read,
    name: &Path,
    max_bytes: u64,
) -> Result<Zeroizing<String>, KeyFileError> {
    let failed = |source| KeyFileError::Io { path: name.to_owned(), source };
    // With its full capacity from the start, so that no part of a key stays in freed memory.
    let mut text = Zeroizing::new(String::with_capacity(max_bytes as usize + 1));
    source.take(max_bytes + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > max_bytes {
        let why = format!("it has more than {max_bytes} bytes");
        return Err(KeyFileError::Key { path: name.to_owned(), why });
    }
    Ok(text)
}

/// Reads a key file, and parses its text.
///
/// # Errors
/// Those of [`read`], and those of `parse`.
pub fn parse<T, E: std::fmt::Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, KeyFileError> {
    let text = read(path)?;
    parse(text.trim())
        .map_err(|error| KeyFileError::Key { path: path.to_owned(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};

    #[test]
    fn a_key_in_place_of_a_name_is_not_repeated() {
        for key in
            ["NVMeTLSkey-1:01:c2VjcmV0:", "DHHC-1:00:c2VjcmV0:", "/etc/x/DHHC-1:00:c2Vj/cmV0:"]
        {
            let error = read(Path::new(key)).expect_err("no file").to_string();
            assert!(error.contains("instead of the name") && !error.contains("c2Vj"), "{error}");
        }
    }

    #[test]
    fn only_files_without_other_readers_are_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let mode = |mode| set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        write(&path, "  text\n").expect("written");
        mode(0o600);
        assert_eq!(parse(&path, |text| Ok::<_, String>(text.to_owned())).expect("read"), "text");
        for bits in [0o644, 0o640, 0o604, 0o620] {
            mode(bits);
            let error = read(&path).expect_err("others may read it").to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        mode(0o600);
        write(&path, vec![b'x'; 5000]).expect("written");
        assert!(matches!(read(&path), Err(KeyFileError::Key { .. })));
        let missing = read(Path::new("/nowhere/key")).expect_err("missing").to_string();
        assert!(missing.contains("/nowhere/key"), "{missing}");
        let refused = parse(&path, |_| Err::<(), _>("no"));
        assert!(refused.is_err());
    }
}
