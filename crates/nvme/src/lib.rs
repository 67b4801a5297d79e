//! The wire format of NVMe/TCP and NVMe/RDMA, and the vendor-specific commands of bpf-of, as plain values.
//!
//! # What it is
//! Every structure that crosses a connection, read and written at its specified offsets: submission
//! and completion queue entries, statuses, fabrics commands, identify structures, log pages, the
//! PDUs of NVMe/TCP and the structures of `docs/protocol.md`. Each field names the section that
//! defines it: "NVMe Base 2.0", "NVM Command Set 1.0", "NVMe/TCP 1.0", or "protocol.md".
//!
//! # How data flows through the crate
//! Receiving: bytes of a TCP stream → [`tcp::PduReceiver`] (lengths, digests, order and direction
//! of PDUs) → an [`Sqe`] or [`Cqe`] → [`AdminCommand`] or [`NvmCommand`], where 0's-based counts
//! and packed bits become plain numbers, once. Payloads pass through as borrowed slices.
//! Sending: a typed value → `encode_into` or `to_bytes`. Nothing allocates but the caller's buffer.
//!
//! # What it does not do
//! No I/O, no queues, no policy: whether a command is allowed, supported or in sequence is for the
//! controller or the host to say. Values that it does not know survive (`Unknown`, raw numbers),
//! so that they can be answered. No bytes make it panic.
#![forbid(unsafe_code)]

mod admin;
mod bytes;
mod cqe;
mod data_pointer;
pub mod fabrics;
pub mod features;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod identify;
pub mod log_page;
mod nvm;
pub mod opcode;
pub mod rdma;
mod sqe;
mod status;
pub mod tcp;
mod text;
pub mod vendor_specific;

pub use admin::{AdminCommand, Installation, ReportContent, Upload};
pub use cqe::Cqe;
pub use data_pointer::DataPointer;
pub use fabrics::FabricsCommand;
pub use nvm::{DsmRange, NvmCommand, Rw};
pub use sqe::{Sgl, Sqe};
pub use status::Status;
pub use text::{NulPadded, SpacePadded, is_unprintable};
