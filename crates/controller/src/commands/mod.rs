//! Commands: each is a function of the [`Command`] and the [`Context`] that it is carried out in.
//!
//! - [`connect`], [`authentication`], [`fabrics`]: fabrics commands (NVMe Base 2.0 §6).
//! - [`admin`]: which function carries out which admin command; [`identify`], [`features`], [`logs`],
//!   [`discovery`], [`events`] those of NVMe; [`functions`], [`file_maps`], [`function_maps`] ours, whose
//!   data [`upload`] collects.
//! - [`io`]: which function carries out which I/O command; [`nvm`], [`nvm_optional`] those of the NVM
//!   command set, [`pushdown`] and [`pushdown_vector`] chains; [`device_done`]: how they end.
//! - [`receive`]: commands as they come from a port.

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
pub(crate) mod pushdown;
pub(crate) mod pushdown_vector;
pub(crate) mod receive;
pub(crate) mod upload;

mod context;

pub(crate) use context::{Close, Context};
