//! Tests of the protocol core, without sockets except in `scripted`.

mod card;
mod endings;
mod fuzzing;
mod instructions;
mod limits;
mod peer;
mod restriction;
mod scripted;
mod shares;
mod simulation;
mod strangers;
mod timers;
mod turns;
mod vectors;
