//! Reads keys from files and standard input.

use bpfof_auth::{KeyFileError, key_file};
use std::io;
use std::path::Path;
use zeroize::Zeroizing;

/// The name of standard input.
const STDIN: &str = "-";

/// The text of a key, from a file that other users may not read, or from standard input.
pub(super) fn read(path: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    match path.to_str() {
        Some(STDIN) => key_file::read_from(io::stdin().lock(), Path::new("standard input")),
        _ => key_file::read(path),
    }
}

/// An error message with the name of the file.
pub(super) fn named(path: &Path, why: impl std::fmt::Display) -> String {
    match path.to_str() {
        Some(STDIN) => format!("standard input: {why}"),
        _ => format!("{}: {why}", path.display()),
    }
}
