//! The part of the surroundings that a call of a storage function can reach, besides its arena.

use crate::map::Map;

/// Services that helpers need from the caller. The chain engine knows the functions of the association; [`Alone`] is
/// for a function with nothing else installed.
pub trait Environment {
    /// Whether the call may continue in the installed function with this id: the function exists, and the call has not
    /// made too many tail calls. If so, the running function ends, and [`Exit::TailCall`] asks the caller to call the
    /// other one.
    fn tail_call(&mut self, function: u32) -> bool;

    /// Records a line of at most [`TRACE_BYTES`](crate::abi::TRACE_BYTES) and a number, for the author of the function.
    /// The text is not trusted: do not print it to a terminal as it is.
    fn trace(&mut self, text: &[u8], value: u64);

    /// The map number `index` of the running function, in the order of
    /// [`Program::maps`](crate::Program::maps); None if there is none.
    fn map(&self, _index: usize) -> Option<&Map> {
        None
    }
}

/// The environment of a function with nothing else installed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Environment for Alone {
    fn tail_call(&mut self, _function: u32) -> bool {
        false
    }

    fn trace(&mut self, _text: &[u8], _value: u64) {}
}

/// The end of a call that does not end with a [`Fault`](crate::Fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The function returned this value of r0.
    Return(u64),
    /// The function continues in the function with this id, on the same arena and limit and with the rest of the
    /// budget. [`Environment::tail_call`] has agreed.
    TailCall(u32),
}
