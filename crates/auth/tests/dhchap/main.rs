//! Both sides of DH-HMAC-CHAP against each other, and each against what it must refuse.

mod both;
mod controller;
mod host;
mod rig;
mod runs;
