//! Ids of functions and maps that outlive the association that made them.

/// Ids of kept functions have this bit set; ids of an association's own functions do not.
pub(crate) const KEPT: u32 = 1 << 31;

/// Whether a function of this id, or a map of one, is kept beyond its association.
pub(crate) fn is_kept(function: u32) -> bool {
    function & KEPT != 0
}
