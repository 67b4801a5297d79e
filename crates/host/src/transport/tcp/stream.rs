//! Non-blocking reads and writes.

use crate::LostReason;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Writes as many bytes as the kernel accepts now; returns 0 if it accepts none.
pub(super) fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<usize, LostReason> {
    match stream.write(bytes) {
        Ok(sent) => Ok(sent),
        Err(error) if is_transient(&error) => Ok(0),
        Err(error) => Err(LostReason::Io(error.kind())),
    }
}

/// Reads the bytes that are there; returns 0 if there are none.
pub(super) fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<usize, LostReason> {
    match stream.read(buffer) {
        Ok(0) => Err(LostReason::Closed),
        Ok(received) => Ok(received),
        Err(error) if is_transient(&error) => Ok(0),
        Err(error) => Err(LostReason::Io(error.kind())),
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
