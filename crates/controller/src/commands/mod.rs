//! Commands: each is a function of the [`Command`] and the [`Context`] in which it is executed.
//!
//! - [`connect`], [`authentication`], [`fabrics`]: fabrics commands (NVMe Base 2.0 §6).
//! - [`admin`]: dispatches admin commands; [`identify`], [`features`], [`logs`], [`discovery`], [`events`] execute
//!   those of NVMe; [`functions`], [`file_maps`], [`function_maps`] the vendor-specific ones, whose data [`upload`]
//!   collects.
//! - [`io`]: dispatches I/O commands; [`nvm`], [`nvm_optional`] execute those of the NVM command set, [`pushdown`] and
//!   [`pushdown_vector`] chains; [`device_done`]: completes them; [`observed`]: records slow or observed ones.
//! - [`receive`]: takes commands from a port.

pub(crate) mod admin;
pub(crate) mod authentication;
pub(crate) mod connect;
pub(crate) mod device_done;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod fabrics;
pub(crate) mod features;
pub(crate) mod file_maps;
pub(crate) mod function_maps;
pub(crate) mod functions;
pub(crate) mod identify;
pub(crate) mod io;
pub(crate) mod logs;
pub(crate) mod nvm;
pub(crate) mod nvm_optional;
mod observed;
pub(crate) mod pushdown;
pub(crate) mod pushdown_vector;
pub(crate) mod receive;
pub(crate) mod upload;

mod context;

pub(crate) use context::{Close, Context};
