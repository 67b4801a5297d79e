//! Values that several tests use.

use crate::Names;

/// The host of the known answers.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
/// The subsystem of the known answers.
pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.io.bpf-of:target";

/// Both names.
pub(crate) fn names() -> Names {
    Names::new(HOST, SUBSYSTEM).unwrap()
}

/// The bytes of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}
