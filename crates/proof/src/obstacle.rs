//! Why there is no proof.

use std::fmt;

/// Instructions of a function with those it calls, each counted as often as it is called: the
/// verifier copies a function to each call. Its time grows with the square of this; a thousand
/// take seconds.
pub const MAX_INSTRUCTIONS: u64 = 1024;

/// The first thing that could not be proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The instruction, in 8-byte slots of the program.
    pub pc: u32,
    /// What is missing, in words.
    pub reason: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The deadline passed.
    Time,
    /// More than [`MAX_INSTRUCTIONS`]: this many.
    Size(u64),
    /// Functions that call themselves.
    Recursion,
    /// A call of this helper, which the verifier knows nothing of.
    Helper(&'static str),
    /// The states did not become stable, or were not what they claimed to be.
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
                "{found} instructions, with called functions once for each call, are more than \
                 the {MAX_INSTRUCTIONS} that are tried"
            ),
            GaveUp::Recursion => f.write_str("functions that call themselves cannot be proved"),
            GaveUp::Helper(name) => write!(f, "it does not know what {name} does"),
            GaveUp::Unstable => {
                f.write_str("nothing was found that holds in every round of a loop")
            }
            GaveUp::Verifier(message) => write!(f, "the verifier failed: {message}"),
        }
    }
}
