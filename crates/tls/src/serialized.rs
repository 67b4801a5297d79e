//! The keys of a finished handshake as s2n-tls exports them: its "serialized connection", version
//! 1.
//!
//! The layout is s2n-tls's own (`s2n_connection_serialize.c`), big-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | version, 1 |
//! | 8 | 2 | protocol, major and minor: 3, 4 |
//! | 10 | 2 | cipher suite |
//! | 12 | 8 | number of the client's next record |
//! | 20 | 8 | number of the server's next record |
//! | 28 | 2 | size of the records it would send |
//! | 30 | 32 or 48 | client_application_traffic_secret_0 |
//! | 62 or 78 | 32 or 48 | server_application_traffic_secret_0 |
//! | 94 or 126 | 32 or 48 | resumption_master_secret |

use crate::keys::{Suite, TrafficKey};
use thiserror::Error;

/// Room for a serialized connection, in bytes: with TLS 1.3 it has 126 or 174.
pub(crate) const SERIALIZED_MAX_BYTES: usize = 256;

const VERSION: [u8; 8] = 1_u64.to_be_bytes();
const TLS_1_3: [u8; 2] = [3, 4];
const SECRETS_AT: usize = 30;

/// Why a serialized connection cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum SerializedError {
    #[error("s2n-tls serialized the connection in a layout that is not known here")]
    Layout,
    #[error("the handshake did not end in TLS 1.3")]
    Protocol,
    #[error("the handshake ended in cipher suite {0:04X}h, which is not known here")]
    Suite(u16),
}

/// The keys of both directions.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) suite: Suite,
    pub(crate) client: TrafficKey,
    pub(crate) server: TrafficKey,
}

impl Traffic {
    /// Reads a serialized connection.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, SerializedError> {
        let layout = SerializedError::Layout;
        let (head, secrets) = bytes.split_at_checked(SECRETS_AT).ok_or(layout)?;
        if field::<8>(head, 0) != VERSION {
            return Err(layout);
        }
        if field::<2>(head, 8) != TLS_1_3 {
            return Err(SerializedError::Protocol);
        }
        let number = u16::from_be_bytes(field(head, 10));
        let suite = Suite::from_number(number).ok_or(SerializedError::Suite(number))?;
        if secrets.len() != 3 * suite.secret_bytes() {
            return Err(layout);
        }
        let mut secrets = secrets.chunks_exact(suite.secret_bytes());
        let mut next = |sequence_at| {
            let sequence = u64::from_be_bytes(field(head, sequence_at));
            let secret = secrets.next().ok_or(layout)?;
            TrafficKey::derive(suite, secret, sequence).map_err(|_| layout)
        };
        Ok(Self { suite, client: next(12)?, server: next(20)? })
    }
}

/// The `N` bytes at `at`; zeroes if there are fewer.
fn field<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serialized(suite: u16, secret_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 1, 3, 4];
        bytes.extend(suite.to_be_bytes());
        bytes.extend(5_u64.to_be_bytes());
        bytes.extend(6_u64.to_be_bytes());
        bytes.extend(16_384_u16.to_be_bytes());
        bytes.extend((0..secret_bytes).map(|at| at as u8));
        bytes.extend(vec![0x5E; secret_bytes]);
        bytes.extend(vec![0xE5; secret_bytes]);
        bytes
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The keys were computed by other code (Python's hmac) from the secrets 00, 01, 02 and so on.
    #[test]
    fn known_answers() {
        let answers = [
            (0x1301, 126, "9c9783cf77ea32d44f369da41f19f3cc", "2f41c846a431a163814bcd71"),
            (
                0x1302,
                174,
                "6877d022f1c61d24ebb7487c16752d9a4798e40431c75b39320e537c90e23225",
                "42822531a0fe88648fc09e9f",
            ),
            (
                0x1303,
                126,
                "2ffbc449e87844051c7768f61ffd8ad070830f01ec2c520ef65f08e8296dffa0",
                "2f41c846a431a163814bcd71",
            ),
        ];
        for (number, length_bytes, key, iv) in answers {
            let bytes = serialized(number, if number == 0x1302 { 48 } else { 32 });
            assert_eq!(bytes.len(), length_bytes);
            let Traffic { suite, client, server } = Traffic::parse(&bytes).unwrap();
            assert_eq!(suite.number(), number);
            assert_eq!((hex(client.key()), hex(client.iv())), (key.to_owned(), iv.to_owned()));
            assert_eq!((client.sequence(), server.sequence()), (5, 6));
            assert_ne!(client.key(), server.key());
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let good = serialized(0x1301, 32);
        for length in 0..good.len() {
            assert_eq!(Traffic::parse(&good[..length]).unwrap_err(), SerializedError::Layout);
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Traffic::parse(&bytes).unwrap_err()
        };
        assert_eq!(with(7, 2), SerializedError::Layout);
        assert_eq!(with(9, 3), SerializedError::Protocol);
        assert_eq!(with(11, 4), SerializedError::Suite(0x1304));
        // The secrets do not have the suite's length.
        assert_eq!(with(11, 2), SerializedError::Layout);
        let longer = [&good[..], &[0]].concat();
        assert_eq!(Traffic::parse(&longer).unwrap_err(), SerializedError::Layout);
    }
}
