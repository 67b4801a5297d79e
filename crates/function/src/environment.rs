//! What a call of a storage function reaches beside its arena.

use crate::map::Map;

/// What helpers ask of whoever makes the call. The engine of chains knows the functions of the
/// association; [`Alone`] serves where there is nothing beside the function.
pub trait Environment {
    /// Whether the call may go on in the installed function with this id: there is one, and the
    /// call has not gone through too many. If so, the running function ends, and
    /// [`Exit::TailCall`] asks the caller to call that one.
    fn tail_call(&mut self, function: u32) -> bool;

    /// Notes a line of at most [`TRACE_BYTES`](crate::abi::TRACE_BYTES) and a number, for the author
    /// of the function. The text is whatever the function says: not for a terminal as it is.
    fn trace(&mut self, text: &[u8], value: u64);

    /// The map number `index` of the running function, in the order of
    /// [`Program::maps`](crate::Program::maps); None if there is none.
    fn map(&self, _index: usize) -> Option<&Map> {
        None
    }
}

/// The environment of a function that nothing else is installed beside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Environment for Alone {
    fn tail_call(&mut self, _function: u32) -> bool {
        false
    }

    fn trace(&mut self, _text: &[u8], _value: u64) {}
}

/// How a call of a function ends that no [`Fault`](crate::Fault) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this, its r0.
    Return(u64),
    /// It wants the function with this id to go on in its place, on the same arena and limit and
    /// with what is left of the budget. [`Environment::tail_call`] has agreed.
    TailCall(u32),
}
