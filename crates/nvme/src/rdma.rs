//! Parameters that the two ends of an NVMe over RDMA queue exchange while they connect: private data of the connection
//! manager's messages (NVMe RDMA Transport 1.0 §3.2).
//!
//! Connection managers deliver the whole private data area of a message, which is larger than the structure and padded
//! with zeroes. Commands, completions and data need no structures of their own: a capsule is a message, and
//! [`DataPointer::Keyed`](crate::DataPointer::Keyed) locates the data.

use crate::bytes::{get, put};
use std::fmt;

/// The only record format (NVMe RDMA Transport 1.0 §3.2: RECFMT).
const RECFMT: u16 = 0;

/// Requests a queue (NVMe RDMA Transport 1.0 §3.2: RDMA_CM_REQUEST private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// QID: 0 for the admin queue (bytes 3:2).
    pub qid: u16,
    /// HRQSIZE: number of receives that the host has posted for responses (bytes 5:4).
    pub host_receives: u16,
    /// HSQSIZE: maximum number of commands that the host has outstanding, sent minus one (bytes 7:6).
    pub host_sends: u32,
    /// CNTLID: the controller of an I/O queue; hosts of older versions leave it 0 (bytes 9:8).
    pub cntlid: u16,
}

impl ConnectRequest {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 32;

    /// Reads a request.
    ///
    /// # Errors
    /// The reason to refuse it, for [`ConnectReject`].
    pub fn from_private_data(bytes: &[u8]) -> Result<ConnectRequest, RejectStatus> {
        if bytes.len() < ConnectRequest::BYTES {
            return Err(RejectStatus::INVALID_LENGTH);
        }
        if get::<u16>(bytes, 0) != RECFMT {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        let host_sends = u32::from(get::<u16>(bytes, 6)) + 1;
        let host_receives = get(bytes, 4);
        if host_receives == 0 {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        Ok(ConnectRequest { qid: get(bytes, 2), host_receives, host_sends, cntlid: get(bytes, 8) })
    }

    /// Writes a request. `host_sends` is from 1 to 65536.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ConnectRequest::BYTES] {
        debug_assert!((1..=1 << 16).contains(&self.host_sends), "the field holds the value less 1");
        let mut bytes = [0; ConnectRequest::BYTES];
        put(&mut bytes, 0, RECFMT);
        put(&mut bytes, 2, self.qid);
        put(&mut bytes, 4, self.host_receives);
        put(&mut bytes, 6, (self.host_sends.saturating_sub(1)) as u16);
        put(&mut bytes, 8, self.cntlid);
        bytes
    }
}

/// Grants a queue (NVMe RDMA Transport 1.0 §3.2: RDMA_CM_ACCEPT private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectAccept {
    /// CRQSIZE: number of receives that the controller has posted for commands (bytes 3:2).
    pub controller_receives: u16,
}

impl ConnectAccept {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 32;

    /// Reads an answer; `None` if it is too short or of another format.
    #[must_use]
    pub fn from_private_data(bytes: &[u8]) -> Option<ConnectAccept> {
        let is_known = bytes.len() >= ConnectAccept::BYTES && get::<u16>(bytes, 0) == RECFMT;
        is_known.then(|| ConnectAccept { controller_receives: get(bytes, 2) })
    }

    /// Writes an answer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ConnectAccept::BYTES] {
        let mut bytes = [0; ConnectAccept::BYTES];
        put(&mut bytes, 0, RECFMT);
        put(&mut bytes, 2, self.controller_receives);
        bytes
    }
}

/// Refuses a queue (NVMe RDMA Transport 1.0 §3.2: RDMA_CM_REJECT private data).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectReject {
    /// STS: the reason (bytes 3:2).
    pub status: RejectStatus,
}

impl ConnectReject {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 4;

    /// Reads a refusal; `None` if it is too short or of another format.
    #[must_use]
    pub fn from_private_data(bytes: &[u8]) -> Option<ConnectReject> {
        let is_known = bytes.len() >= ConnectReject::BYTES && get::<u16>(bytes, 0) == RECFMT;
        is_known.then(|| ConnectReject { status: RejectStatus(get(bytes, 2)) })
    }

    /// Writes a refusal.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ConnectReject::BYTES] {
        let mut bytes = [0; ConnectReject::BYTES];
        put(&mut bytes, 0, RECFMT);
        put(&mut bytes, 2, self.status.0);
        bytes
    }
}

/// Why a queue is refused (NVMe RDMA Transport 1.0 §3.2: error statuses). Its `Display` is a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectStatus(pub u16);

impl RejectStatus {
    /// The private data is too short.
    pub const INVALID_LENGTH: RejectStatus = RejectStatus(1);
    /// Its format is unknown.
    pub const INVALID_RECFMT: RejectStatus = RejectStatus(2);
    /// QID is not a valid queue identifier.
    pub const INVALID_QID: RejectStatus = RejectStatus(3);
    /// HSQSIZE is above the controller's limit.
    pub const INVALID_HSQSIZE: RejectStatus = RejectStatus(4);
    /// HRQSIZE is too small.
    pub const INVALID_HRQSIZE: RejectStatus = RejectStatus(5);
    /// No memory or no room for another queue.
    pub const NO_RESOURCES: RejectStatus = RejectStatus(6);
    /// The peer accepts no RDMA Reads.
    pub const INVALID_IRD: RejectStatus = RejectStatus(7);
    /// The peer requests more RDMA Reads than are possible.
    pub const INVALID_ORD: RejectStatus = RejectStatus(8);
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            RejectStatus::INVALID_LENGTH => "the private data has a wrong length",
            RejectStatus::INVALID_RECFMT => "the private data has an unknown format (RECFMT)",
            RejectStatus::INVALID_QID => "the queue does not exist (QID)",
            RejectStatus::INVALID_HSQSIZE => "the queue has too many entries (HSQSIZE)",
            RejectStatus::INVALID_HRQSIZE => "the host posts too few receives (HRQSIZE)",
            RejectStatus::NO_RESOURCES => "there are no resources for one more queue",
            RejectStatus::INVALID_IRD => "the host takes no RDMA Reads (IRD)",
            RejectStatus::INVALID_ORD => "the host asks for too many RDMA Reads (ORD)",
            RejectStatus(other) => return write!(f, "status {other}"),
        };
        f.write_str(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_admin_queue_of_linux() {
        // What Linux 6.12 sends for an admin queue of 32 entries, in a message of RoCE.
        let mut private_data = [0; 56];
        private_data[4] = 32;
        private_data[6] = 31;
        let request = ConnectRequest { qid: 0, host_receives: 32, host_sends: 32, cntlid: 0 };
        assert_eq!(ConnectRequest::from_private_data(&private_data), Ok(request));
        assert_eq!(request.to_bytes(), private_data[..32]);
    }

    #[test]
    fn known_answers() {
        let request =
            ConnectRequest { qid: 0x102, host_receives: 0x304, host_sends: 0x507, cntlid: 0x708 };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..10], [0, 0, 2, 1, 4, 3, 6, 5, 8, 7]);
        assert!(bytes[10..].iter().all(|byte| *byte == 0));
        let accept = ConnectAccept { controller_receives: 0x102 };
        assert_eq!(accept.to_bytes()[..4], [0, 0, 2, 1]);
        assert_eq!(ConnectReject { status: RejectStatus::NO_RESOURCES }.to_bytes(), [0, 0, 6, 0]);
    }

    #[test]
    fn each_error_has_its_status() {
        let good = ConnectRequest { qid: 1, host_receives: 1, host_sends: 1, cntlid: 0 }.to_bytes();
        let status = |bytes: &[u8]| ConnectRequest::from_private_data(bytes).expect_err("bad");
        assert_eq!(status(&good[..31]), RejectStatus::INVALID_LENGTH);
        let mut bad = good;
        bad[1] = 1;
        assert_eq!(status(&bad), RejectStatus::INVALID_RECFMT);
        bad = good;
        bad[4] = 0;
        assert_eq!(status(&bad), RejectStatus::INVALID_HRQSIZE);
        assert_eq!(ConnectAccept::from_private_data(&good[..31]), None);
        assert_eq!(ConnectReject::from_private_data(&[0, 1, 1, 0]), None);
        assert_eq!(RejectStatus(99).to_string(), "status 99");
    }

    proptest! {
        #[test]
        fn all_messages_round_trip(
            qid: u16, host_receives in 1u16.., host_sends in 1u32..=65536, cntlid: u16, number: u16,
            padding in 0usize..200,
        ) {
            let padded = |bytes: &[u8]| [bytes, &vec![0; padding]].concat();
            let request = ConnectRequest { qid, host_receives, host_sends, cntlid };
            let bytes = padded(&request.to_bytes());
            prop_assert_eq!(ConnectRequest::from_private_data(&bytes), Ok(request));
            let accept = ConnectAccept { controller_receives: number };
            let bytes = padded(&accept.to_bytes());
            prop_assert_eq!(ConnectAccept::from_private_data(&bytes), Some(accept));
            let reject = ConnectReject { status: RejectStatus(number) };
            let bytes = padded(&reject.to_bytes());
            prop_assert_eq!(ConnectReject::from_private_data(&bytes), Some(reject));
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            if let Ok(request) = ConnectRequest::from_private_data(&bytes) {
                prop_assert_eq!(&request.to_bytes()[..10], &bytes[..10]);
            }
        }
    }
}
