//! Both sides of DH-HMAC-CHAP against each other, and each against messages that it must refuse.

mod both;
mod controller;
mod host;
mod rig;
mod runs;
