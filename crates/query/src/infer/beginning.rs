//! The first bytes of files.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Size of a file's beginning that is examined, in bytes: as much as pyarrow's first block.
pub(super) const FIRST_BLOCK_BYTES: usize = 1 << 20;

/// The beginning of a file.
pub(super) struct Beginning<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) file_bytes: u64,
}

/// Reads the beginning of a file.
pub(super) fn read(path: &Path, block: &mut Vec<u8>) -> io::Result<Metadata> {
    // Check the file type before opening: opening a FIFO blocks until a writer opens it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    block.clear();
    file.take(FIRST_BLOCK_BYTES as u64).read_to_end(block)?;
    Ok(metadata)
}
