//! Reads that cursors request.

/// A read of the database file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// File offset in bytes, a multiple of 512.
    pub offset_bytes: u64,
    /// Length in bytes, a multiple of 512.
    pub length_bytes: u32,
}
