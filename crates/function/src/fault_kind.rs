//! Causes that end a call of a storage function.

/// The cause of a [`Fault`](crate::Fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside the memory of the call, at this guest address.
    Memory {
        /// First byte of the access, as the function computed it.
        address: u64,
    },
    /// A write to the constants of the function (see [`Statics`](crate::Statics)), at this guest address.
    ReadOnly {
        /// First byte of the access.
        address: u64,
    },
    /// An argument of a helper is not the handle of one of the function's maps.
    NoMap {
        /// The argument.
        handle: u64,
    },
    /// The instruction budget of the call is used up.
    Budget,
    /// More than [`MAX_FRAMES`](crate::abi::MAX_FRAMES) nested calls.
    StackOverflow,
    /// A helper panicked, which is a defect of this crate.
    Helper,
}
