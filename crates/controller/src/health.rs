//! Traffic and errors for log pages.

use bpfof_nvme::Status;
use bpfof_nvme::log_page::{ErrorLogEntry, SmartLog};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Errors that a controller remembers: as many as fit into the 4 KiB that tools read.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// Commands of one connection since they were last published.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

/// Counters of a subsystem since the target started.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    media_errors: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            started: Instant::now(),
            reads: AtomicU64::default(),
            read_bytes: AtomicU64::default(),
            writes: AtomicU64::default(),
            written_bytes: AtomicU64::default(),
            media_errors: AtomicU64::default(),
        }
    }
}

impl Health {
    /// Adds a connection's counters and resets them; called once a turn.
    pub(crate) fn add(&self, traffic: &mut Traffic) {
        let Traffic { reads, read_bytes, writes, written_bytes } = std::mem::take(traffic);
        if reads > 0 {
            self.reads.fetch_add(reads, Ordering::Relaxed);
            self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        }
        if writes > 0 {
            self.writes.fetch_add(writes, Ordering::Relaxed);
            self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn media_error(&self) {
        self.media_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The SMART log (NVMe Base 2.0 §5.16.1.3). A file has no temperature and does not wear.
    pub(crate) fn smart(&self, error_log_entries: u64) -> SmartLog {
        let get = |counter: &AtomicU64| u128::from(counter.load(Ordering::Relaxed));
        let units = |counter| get(counter).div_ceil(512_000);
        SmartLog {
            spare_percent: 100,
            data_units_read: units(&self.read_bytes),
            data_units_written: units(&self.written_bytes),
            host_reads: get(&self.reads),
            host_writes: get(&self.writes),
            power_on_hours: u128::from(self.started.elapsed().as_secs() / 3600),
            media_errors: get(&self.media_errors),
            error_log_entries: error_log_entries.into(),
            ..SmartLog::default()
        }
    }
}

/// The last commands of a controller that ended in an error, newest first.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(Mutex<Errors>);

#[derive(Debug, Default)]
struct Errors {
    entries: VecDeque<ErrorLogEntry>,
    count: u64,
}

impl ErrorLog {
    fn lock(&self) -> MutexGuard<'_, Errors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a command: its queue and identifier, its namespace and first block.
    pub(crate) fn add(&self, (sqid, cid): (u16, u16), status: Status, nsid: u32, lba: u64) {
        let mut errors = self.lock();
        errors.count += 1;
        let entry = ErrorLogEntry {
            error_count: errors.count,
            sqid,
            cid,
            status_field: status.field() << 1,
            // No byte of the command is named.
            parameter_location: u16::MAX,
            lba,
            nsid,
            ..ErrorLogEntry::default()
        };
        errors.entries.truncate(ERROR_ENTRIES - 1);
        errors.entries.push_front(entry);
    }

    /// How many errors there have been.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// The log page (NVMe Base 2.0 §5.16.1.2); unused entries are zero.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut page: Vec<u8> =
            self.lock().entries.iter().flat_map(ErrorLogEntry::to_bytes).collect();
        page.resize(ERROR_ENTRIES * ErrorLogEntry::BYTES, 0);
        page
    }
}
