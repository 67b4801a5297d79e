//! Names of duplicates.

/// What a duplicate is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(super) u64);
