//! The store against an independent layout generator, a model, and its own storage functions.

mod corrupt;
mod functions;
mod model;
mod original;
mod support;
