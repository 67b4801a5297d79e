//! PDUs of NVMe/TCP (NVMe/TCP 1.0 §3.6).
//!
//! Sending: `encode_into` appends a whole PDU; data PDUs and long capsules have
//! `encode_header_into`, after which the caller appends the data and, with data digests, its
//! [`data_digest`]. Receiving: [`PduReceiver`].

mod capsule;
mod common;
mod data;
mod digest;
mod error;
mod header;
mod init;
mod receiver;
mod term;
mod types;

pub use capsule::{CapsuleCmd, CapsuleResp};
pub use common::{CommonHeader, Sender};
pub use data::{C2hData, H2cData, R2t};
pub use digest::{DIGEST_BYTES, Digests, crc32c, data_digest, header_digest_ok};
pub use error::{Fes, PduError};
pub use init::{IcReq, IcResp, MAXH2CDATA_MIN_BYTES, PFV_1_0};
pub use receiver::{DataPdu, Pdu, PduEvent, PduReceiver};
pub use term::TermReq;
pub use types::{PDA_MAX, flags, pdu_type};

/// TCP port assigned to NVMe/TCP controllers (IANA, service nvme).
pub const DEFAULT_PORT: u16 = 4420;
/// In-capsule data that every controller accepts on its admin queue, and for fabrics commands, in
/// bytes (NVMe/TCP 1.0 §3.6.2.6).
pub const ADMIN_IN_CAPSULE_BYTES: usize = 8192;
