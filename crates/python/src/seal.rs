//! Serialised values that are sent to other processes.

use sha2::{Digest, Sha256};

/// Size of a hash in bytes.
pub(crate) const HASH_BYTES: usize = 16;

/// Serialised values behind a name of their format, with its version, and their hash.
pub(crate) fn sealed(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    [&magic[..], &hash_of(body), body].concat()
}

/// The values in `sealed` bytes; None if they have another format, or are damaged.
pub(crate) fn unsealed<'b>(magic: &[u8; 8], bytes: &'b [u8]) -> Option<&'b [u8]> {
    let (hash, body) = bytes.strip_prefix(magic)?.split_first_chunk::<HASH_BYTES>()?;
    (*hash == hash_of(body)).then_some(body)
}

/// The hash of serialised values.
pub(crate) fn hash_of(body: &[u8]) -> [u8; HASH_BYTES] {
    let hash = Sha256::digest(body);
    let mut beginning = [0; HASH_BYTES];
    beginning.copy_from_slice(&hash[..HASH_BYTES]);
    beginning
}
