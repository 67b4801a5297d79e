//! Messages of an authentication.

use crate::MessageError;
use crate::dhchap::message::{ControllerMessage, HostMessage};
use std::fmt::Debug;

/// Longest message that is cut at every byte, in bytes: the time grows with the square of its
/// length.
const CUT_MAX_BYTES: usize = 600;

fn message<M: PartialEq + Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<M, MessageError>,
    to_bytes: impl Fn(&M) -> Vec<u8>,
) {
    let Ok(message) = parse(data) else { return };
    let mut bytes = to_bytes(&message);
    if bytes.len() <= CUT_MAX_BYTES {
        for end in 0..bytes.len() {
            // Only zeroes without a meaning may be cut off.
            if let Ok(cut) = parse(&bytes[..end]) {
                assert_eq!(cut, message);
                assert!(bytes[end..].iter().all(|&byte| byte == 0));
            }
        }
    }
    assert_eq!(parse(&bytes).as_ref(), Ok(&message));
    bytes.extend_from_slice(&[0xA5; 9]);
    assert_eq!(parse(&bytes), Ok(message));
}

/// Messages of both sides: a parsed message is written back unchanged, and a truncated one is
/// refused.
pub fn messages(data: &[u8]) {
    message(data, HostMessage::parse, HostMessage::to_bytes);
    message(data, ControllerMessage::parse, ControllerMessage::to_bytes);
}
