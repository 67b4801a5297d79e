//! TLS below the framing: what a handshake has left behind, and records sealed and opened here where the
//! kernel does not do it.

use super::arrival::Violation;
use crate::limits::{RECORD_BYTES_PER_UNIT, RECORD_UNITS};
use bpfof_tls::{Opener, RECORD_OVERHEAD_BYTES, RecordError, Sealer, Secured};

/// Who a handshake has proved the peer to be: the names that its key was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) host_nqn: String,
    pub(crate) subsystem_nqn: String,
}

/// A connection that TLS protects.
#[derive(Debug)]
pub(crate) struct Secure {
    pub(crate) identity: Identity,
    /// None where the kernel seals and opens.
    records: Option<Records>,
}

/// Keys of both directions, with the records that were sealed and opened.
struct Records {
    sealer: Sealer,
    opener: Opener,
    failed: Option<RecordError>,
    /// The peer has said that it sends no more.
    is_closed: bool,
    /// What opening and sealing has cost since somebody asked, in units.
    spent: u64,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// What records of so many bytes cost, with so many bytes of plaintext in them, in units. Each has some
/// bytes of its own, which tell how many there are.
fn cost(sealed_bytes: usize, plain_bytes: usize) -> u64 {
    let records = sealed_bytes.saturating_sub(plain_bytes) / RECORD_OVERHEAD_BYTES;
    sealed_bytes as u64 / RECORD_BYTES_PER_UNIT + records as u64 * RECORD_UNITS
}

impl Secure {
    /// The kernel seals and opens.
    pub(crate) const fn by_kernel(identity: Identity) -> Secure {
        Secure { identity, records: None }
    }

    /// Records are sealed and opened here.
    ///
    /// # Errors
    /// The cryptographic library refuses a key.
    pub(crate) fn here(identity: Identity, secured: Secured) -> Result<Secure, RecordError> {
        let Secured { side, write, read, .. } = secured;
        let (sealer, opener) = (Sealer::new(write)?, Opener::new(read, side)?);
        let records = Records { sealer, opener, failed: None, is_closed: false, spent: 0 };
        Ok(Secure { identity, records: Some(records) })
    }

    /// Whether the kernel seals and opens: its sockets take no send that waits for all.
    pub(crate) const fn is_by_kernel(&self) -> bool {
        self.records.is_none()
    }

    /// Opens the records in `buffer[plain..filled]`, behind plaintext. Returns where the plaintext ends
    /// now, and the part of a record behind it. An error is told by [`check`](Self::check), once what
    /// came before has been looked at.
    pub(crate) fn open(
        &mut self,
        buffer: &mut [u8],
        (plain, filled): (usize, usize),
    ) -> (usize, usize) {
        let Some(records) = &mut self.records else { return (filled, filled) };
        match records.opener.open(&mut buffer[plain..filled]) {
            Ok(opened) => {
                records.is_closed |= opened.closed;
                records.spent += cost(opened.consumed_bytes, opened.plaintext_bytes);
                let end = plain + opened.plaintext_bytes;
                let rest = plain + opened.consumed_bytes..filled;
                let filled = end + rest.len();
                buffer.copy_within(rest, end);
                (end, filled)
            }
            Err(error) => {
                records.failed = Some(error);
                (plain, plain)
            }
        }
    }

    /// Appends `bytes` to `out`, sealed.
    pub(crate) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(records) = &mut self.records else { return out.extend_from_slice(bytes) };
        let before = out.len();
        if let Err(error) = records.sealer.seal([bytes], out) {
            records.failed = Some(error);
        }
        records.spent += cost(out.len() - before, bytes.len());
    }

    /// What opening and sealing has cost since the last call, in units.
    pub(crate) fn take_spent(&mut self) -> u64 {
        self.records.as_mut().map_or(0, |records| std::mem::take(&mut records.spent))
    }

    /// Whether the connection goes on.
    ///
    /// # Errors
    /// A record that was not the peer's, or the peer's end.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let Some(records) = &self.records else { return Ok(()) };
        match records.failed {
            Some(error) => Err(Violation(format!("TLS: {error}"))),
            None if records.is_closed => {
                Err(Violation("TLS: the peer has closed the connection".to_owned()))
            }
            None => Ok(()),
        }
    }
}
