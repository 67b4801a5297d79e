//! Tests of the protocol core, without sockets but for the scripted peer's.

mod fuzzing;
mod limits;
mod peer;
mod scripted;
mod timers;
