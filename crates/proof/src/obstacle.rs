//! Reasons for the absence of a proof.

use std::fmt;

/// Maximum instructions of a function and the functions that it calls, each counted for each call,
/// because the verifier copies a function to each call. Its time grows with the square of this; a
/// thousand instructions take seconds.
pub const MAX_INSTRUCTIONS: u64 = 1024;

/// The first thing that could not be proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The instruction, in 8-byte slots of the program.
    pub pc: u32,
    /// A description of what is missing.
    pub reason: String,
}

/// Reasons for giving up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The deadline passed.
    Time,
    /// There are more than [`MAX_INSTRUCTIONS`]: this many.
    Size(u64),
    /// The program has recursive functions.
    Recursion,
    /// The program calls this helper, which the verifier does not know.
    Helper(&'static str),
    /// The states did not become stable, or failed the final check.
    Unstable,
    /// The verifier itself failed, with this message.
    Verifier(String),
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GaveUp::Time => f.write_str("it took too long"),
            GaveUp::Size(found) => write!(
                f,
                "{found} instructions, counting called functions once for each call, exceed the \
                 verifier's limit of {MAX_INSTRUCTIONS}"
            ),
            GaveUp::Recursion => f.write_str("recursive functions cannot be proved"),
            GaveUp::Helper(name) => write!(f, "the verifier does not know the helper {name}"),
            GaveUp::Unstable => f.write_str("no invariant of a loop was found"),
            GaveUp::Verifier(message) => write!(f, "the verifier failed: {message}"),
        }
    }
}
