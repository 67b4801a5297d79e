//! Files with keys: each has one, as text.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Longer files are none with a key, in bytes.
const MAX_BYTES: u64 = 4096;
/// Where systemd puts the files of LoadCredential=.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a file has no key to be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The kernel refuses it.
    #[error("cannot read the key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Others could read the key.
    #[error("others may read the key file {path} (mode {mode:o}): chmod 600 {path}")]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It has no key of this kind.
    #[error("the key file {path}: {why}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why not, without the key.
        why: String,
    },
}

/// Reads a key file. A relative path is looked for in $CREDENTIALS_DIRECTORY first.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read, others may read it, or it is too long.
pub fn read(path: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    let credential = std::env::var_os(CREDENTIALS).map(|folder| Path::new(&folder).join(path));
    let credential = credential.filter(|found| path.is_relative() && found.exists());
    let path = credential.as_deref().unwrap_or(path);
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let mode = found.permissions().mode() & 0o777;
    // systemd gives the files of a service to it alone, whatever their mode.
    if credential.is_none() && mode & 0o077 != 0 && found.is_file() {
        return Err(KeyFileError::Readable { path: path.to_owned(), mode });
    }
    let refused = |why: String| KeyFileError::Key { path: path.to_owned(), why };
    if found.size() > MAX_BYTES {
        return Err(refused(format!("{} bytes, where a key has fewer than 200", found.size())));
    }
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize));
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Reads a key file, and parses what is in it.
///
/// # Errors
/// Those of [`read`], and what `parse` finds wrong.
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
    fn only_files_that_nobody_else_reads_are_used() {
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
