//! TLS below the framing, after the handshake. Records are opened here, and sealed here unless the kernel does it.

use super::arrival::Violation;
use crate::access::{HandshakeKey, Identity, Rules};
use crate::limits::{RECORD_BYTES_PER_UNIT, RECORD_UNITS, RECORDS_AT_A_TIME};
use bpfof_tls::{Opener, RECORD_OVERHEAD_BYTES, RecordError, Sealer, Secured};

/// A connection that TLS protects.
pub(crate) struct Secure {
    pub(crate) identity: Identity,
    /// Until Connect, which checks that the rules still have it.
    key: Option<HandshakeKey>,
    /// None where the kernel seals.
    sealer: Option<Sealer>,
    opener: Opener,
    failed: Option<RecordError>,
    /// There may be more whole records behind those that were opened.
    pub(crate) has_more: bool,
    /// The peer has said that it sends no more.
    is_closed: bool,
    /// Cost of opening and sealing since it was last taken, in units.
    spent: u64,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secure")
            .field("identity", &self.identity)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The cost of records of `sealed_bytes` with `plain_bytes` of plaintext in them, in units. The overhead bytes show how
/// many records there are.
fn cost(sealed_bytes: usize, plain_bytes: usize) -> u64 {
    let records = sealed_bytes.saturating_sub(plain_bytes) / RECORD_OVERHEAD_BYTES;
    sealed_bytes as u64 / RECORD_BYTES_PER_UNIT + records as u64 * RECORD_UNITS
}

impl Secure {
    /// Takes over from a handshake; records are sealed here unless the kernel does it.
    ///
    /// # Errors
    /// The cryptographic library refuses a key.
    pub(crate) fn new(
        identity: Identity,
        key: HandshakeKey,
        secured: Secured,
        by_kernel: bool,
    ) -> Result<Secure, RecordError> {
        let Secured { side, write, read, .. } = secured;
        let sealer = if by_kernel { None } else { Some(Sealer::new(write)?) };
        let opener = Opener::new(read, side)?;
        Ok(Secure {
            identity,
            key: Some(key),
            sealer,
            opener,
            failed: None,
            has_more: false,
            is_closed: false,
            spent: 0,
        })
    }

    /// Whether `rules` still have the key of the handshake. Always true once Connect has succeeded.
    pub(crate) fn is_key_valid(&self, rules: &Rules) -> bool {
        self.key.as_ref().is_none_or(|key| key.identity(rules).is_some())
    }

    /// Connect has succeeded: the key is not checked again.
    pub(crate) fn connected(&mut self) {
        self.key = None;
    }

    /// Whether the kernel seals: such sockets do not support sends that wait until all bytes are taken.
    pub(crate) const fn is_sealed_by_kernel(&self) -> bool {
        self.sealer.is_none()
    }

    /// Opens some records in `buffer[plain..filled]`, behind plaintext. Returns where the plaintext and the sealed
    /// bytes behind it end now. [`check`](Self::check) reports an error, once the plaintext before it has been
    /// processed.
    pub(crate) fn open(
        &mut self,
        buffer: &mut [u8],
        (plain, filled): (usize, usize),
    ) -> (usize, usize) {
        self.has_more = false;
        match self.opener.open_some(&mut buffer[plain..filled], RECORDS_AT_A_TIME) {
            Ok(opened) => {
                self.has_more = opened.has_more;
                self.is_closed |= opened.closed;
                self.spent += cost(opened.consumed_bytes, opened.plaintext_bytes);
                let end = plain + opened.plaintext_bytes;
                let rest = plain + opened.consumed_bytes..filled;
                let filled = end + rest.len();
                buffer.copy_within(rest, end);
                (end, filled)
            }
            Err(error) => {
                self.failed = Some(error);
                (plain, plain)
            }
        }
    }

    /// Appends `bytes` to `out`, sealed.
    pub(crate) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(sealer) = &mut self.sealer else { return out.extend_from_slice(bytes) };
        let before = out.len();
        if let Err(error) = sealer.seal([bytes], out) {
            self.failed = Some(error);
        }
        self.spent += cost(out.len() - before, bytes.len());
    }

    /// Cost of opening and sealing since the last call, in units.
    pub(crate) fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent)
    }

    /// Whether the connection goes on.
    ///
    /// # Errors
    /// A record was not the peer's, or the peer has closed the connection.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        match self.failed {
            Some(error) => Err(Violation(format!("TLS: {error}"))),
            None if self.is_closed => {
                Err(Violation("TLS: the peer has closed the connection".to_owned()))
            }
            None => Ok(()),
        }
    }
}
