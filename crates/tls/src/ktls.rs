//! Records sealed by the kernel (Documentation/networking/tls.rst of Linux).
//!
//! The socket then takes plaintext to send as without TLS, with these differences:
//!
//! - A send with MSG_WAITALL fails with EOPNOTSUPP.
//! - Any process with the descriptor can use the key.
//!
//! Received records are not opened by the kernel: a single receive opens empty records as long as they arrive fast
//! enough, so that the peer could keep a thread busy indefinitely.

// setsockopt reads memory by a pointer.
#![allow(unsafe_code)]

use crate::keys::{IV_BYTES, Suite, TrafficKey};
use libc::{SOL_TCP, SOL_TLS, TCP_ULP, TLS_TX, c_int};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use zeroize::Zeroizing;

const NAME: &str = "tls";
/// TLS_1_3_VERSION of linux/tls.h.
const VERSION: u16 = 0x0304;
/// The first bytes of an initialization vector, which the kernel calls salt for AES-GCM.
const SALT_BYTES: usize = 4;

/// Lets the kernel seal the data that `socket` sends, with the key of that direction. On success drop the key: the
/// kernel counts the records from now on.
///
/// The socket must be connected.
///
/// # Errors
/// A kernel that lacks TLS (see [`is_available`]), or does not know this suite. The socket is as before.
pub fn enable(socket: BorrowedFd<'_>, write: &TrafficKey) -> io::Result<()> {
    let write = CryptoInfo::new(write);
    // This option alone does not change sending or receiving.
    set_option(socket, SOL_TCP, TCP_ULP, NAME.as_bytes())?;
    set_option(socket, SOL_TLS, TLS_TX, write.bytes())
}

/// Whether the kernel supports TLS now. The kernel loads its module if this process has the right to cause that
/// (CAP_NET_ADMIN).
///
/// # Errors
/// A text that says what is missing, and what to do about it.
pub fn is_available() -> Result<(), String> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .map_err(|error| format!("cannot open a socket: {error}"))?;
    match set_option(socket.as_fd(), SOL_TCP, TCP_ULP, NAME.as_bytes()) {
        // The module is there, and accepts connected sockets only.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Ok(()) => Ok(()),
        Err(error) => Err(format!(
            "the kernel has no `{NAME}` for sockets ({error}): run `modprobe {NAME}`, and name it in a \
             file in /etc/modules-load.d; a kernel built without CONFIG_TLS has no such module"
        )),
    }
}

/// `struct tls12_crypto_info_*` of linux/tls.h: version (2) and cipher (2) in the machine's order, then initialization
/// vector, key, salt and record number in network order. Overwritten on drop.
struct CryptoInfo {
    bytes: Zeroizing<Vec<u8>>,
}

impl CryptoInfo {
    /// Length of the longest, in bytes.
    const MAX_BYTES: usize = 56;

    fn new(key: &TrafficKey) -> Self {
        let cipher = match key.suite() {
            Suite::Aes128GcmSha256 => libc::TLS_CIPHER_AES_GCM_128,
            Suite::Aes256GcmSha384 => libc::TLS_CIPHER_AES_GCM_256,
            Suite::Chacha20Poly1305Sha256 => libc::TLS_CIPHER_CHACHA20_POLY1305,
        };
        let salt_bytes = match key.suite() {
            Suite::Aes128GcmSha256 | Suite::Aes256GcmSha384 => SALT_BYTES,
            Suite::Chacha20Poly1305Sha256 => 0,
        };
        const { assert!(SALT_BYTES <= IV_BYTES) };
        let (salt, iv) = key.iv().split_at(salt_bytes);
        // The full capacity from the start, so that growing leaves no copy of the key behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(Self::MAX_BYTES));
        bytes.extend_from_slice(&VERSION.to_ne_bytes());
        bytes.extend_from_slice(&cipher.to_ne_bytes());
        bytes.extend_from_slice(iv);
        bytes.extend_from_slice(key.key());
        bytes.extend_from_slice(salt);
        bytes.extend_from_slice(&key.sequence().to_be_bytes());
        Self { bytes }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn set_option(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &[u8]) -> io::Result<()> {
    // At most CryptoInfo::MAX_BYTES.
    let length = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `length` bytes of `value`, which is that
    // long.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), length)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    fn info(suite: Suite) -> (TrafficKey, CryptoInfo) {
        let secret: Vec<u8> = (0..suite.secret_bytes()).map(|at| at as u8).collect();
        let key = TrafficKey::derive(suite, &secret, 0x0102_0304_0506_0708).unwrap();
        let info = CryptoInfo::new(&key);
        (key, info)
    }

    const SEQUENCE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    /// Against the structures of the C library, field by field.
    macro_rules! layout {
        ($name:ident, $suite:expr, $cipher:expr, $kind:ty, $salt:expr) => {
            #[test]
            fn $name() {
                let (key, info) = info($suite);
                let bytes = info.bytes();
                assert_eq!(bytes.len(), size_of::<$kind>());
                assert!(bytes.len() <= CryptoInfo::MAX_BYTES);
                assert_eq!(bytes[..2], 0x0304_u16.to_ne_bytes());
                assert_eq!(bytes[2..4], u16::to_ne_bytes($cipher));
                let at = |offset: usize, value: &[u8]| {
                    assert_eq!(&bytes[offset..offset + value.len()], value);
                };
                at(offset_of!($kind, iv), &key.iv()[$salt..]);
                at(offset_of!($kind, key), key.key());
                at(offset_of!($kind, salt), &key.iv()[..$salt]);
                at(offset_of!($kind, rec_seq), &SEQUENCE);
            }
        };
    }

    layout!(aes_128, Suite::Aes128GcmSha256, 51, libc::tls12_crypto_info_aes_gcm_128, 4);
    layout!(aes_256, Suite::Aes256GcmSha384, 52, libc::tls12_crypto_info_aes_gcm_256, 4);
    layout!(
        chacha20,
        Suite::Chacha20Poly1305Sha256,
        54,
        libc::tls12_crypto_info_chacha20_poly1305,
        0
    );

    #[test]
    fn a_missing_kernel_module_is_named() {
        if let Err(missing) = is_available() {
            assert!(missing.contains("modprobe tls"), "{missing}");
        }
    }
}
