//! A log of the hops of one chain.

use super::record::{HopRecord, ReadRecord};
use bpfof_chain::FileRead;

/// Hops of a chain that are kept: more than lookups take.
pub(super) const MAX_HOPS: usize = 32;
/// Reads of a chain that are kept.
const MAX_READS: usize = 64;

/// A hop, on the reactor's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Hop {
    /// When its reads were requested.
    asked_ns: u64,
    /// When the last of them arrived.
    came_ns: u64,
    /// When its first call began; 0 before that.
    called_ns: u64,
    /// Time of its calls.
    function_ns: u64,
    units: u64,
    /// Index of its first read among the reads of the log.
    first_read: u32,
    reads: u32,
}

/// See the module. Hops that do not fit are only in the sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopLog {
    hops: Vec<Hop>,
    reads: Vec<FileRead>,
    now: Hop,
    /// Units of all calls.
    units: u64,
    /// Time in devices, and in calls.
    device_ns: u64,
    function_ns: u64,
    /// Time without an arena.
    pub(super) arena_ns: u64,
    /// The chain has given up its arena.
    pub(super) has_rested: bool,
    /// Hops that have begun.
    pub(super) count: u32,
    /// Bits of traces that may want the chain; if there are any, the clock is read at each step.
    pub(super) traces: u8,
}

impl HopLog {
    /// Most bytes of memory that it takes.
    pub(crate) const BYTES: usize =
        size_of::<HopLog>() + MAX_HOPS * size_of::<Hop>() + MAX_READS * size_of::<FileRead>();

    /// Bytes of memory that it takes now.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<HopLog>()
            + self.hops.capacity() * size_of::<Hop>()
            + self.reads.capacity() * size_of::<FileRead>()
    }

    /// A chain begins.
    pub(super) fn begin(&mut self, traces: u8) {
        let HopLog { hops, reads, .. } = std::mem::take(self);
        *self = HopLog { hops, reads, traces, ..HopLog::default() };
        self.hops.clear();
        self.reads.clear();
    }

    /// It asks for the reads of its next hop.
    pub(super) fn ask(&mut self, now_ns: u64, reads: impl Iterator<Item = FileRead>) {
        self.keep();
        self.count += 1;
        let first = self.reads.len();
        if self.hops.len() < MAX_HOPS {
            self.reads.extend(reads.take(MAX_READS - first));
        }
        self.now = Hop {
            asked_ns: now_ns,
            first_read: first as u32,
            reads: (self.reads.len() - first) as u32,
            ..Hop::default()
        };
    }

    /// A read of this hop has arrived.
    pub(super) fn came(&mut self, now_ns: u64) {
        self.now.came_ns = now_ns;
    }

    /// Calls of this hop were made; the chain has paid `units` in all.
    pub(super) fn called(&mut self, (begun_ns, ended_ns): (u64, u64), units: u64) {
        let hop = &mut self.now;
        if hop.called_ns == 0 {
            hop.called_ns = begun_ns;
            self.device_ns += hop.came_ns.saturating_sub(hop.asked_ns);
        }
        let function_ns = ended_ns.saturating_sub(begun_ns);
        hop.function_ns += function_ns;
        hop.units += units.saturating_sub(self.units);
        self.function_ns += function_ns;
        self.units = units;
    }

    fn keep(&mut self) {
        if self.count > 0 && self.hops.len() < MAX_HOPS {
            self.hops.push(self.now);
        }
    }

    /// The chain has ended.
    pub(super) fn end(&mut self) {
        self.keep();
    }

    /// Whether the clock is read at each step.
    pub(super) fn is_exact(&self) -> bool {
        self.traces != 0
    }

    /// The time in devices.
    pub(super) fn device_ns(&self) -> u64 {
        self.device_ns
    }

    /// The time in functions, if it was measured.
    pub(super) fn function_ns(&self) -> Option<u64> {
        self.is_exact().then_some(self.function_ns)
    }

    /// Copies another log, reusing the memory of this one.
    pub(super) fn copy(&mut self, other: &HopLog) {
        self.hops.clone_from(&other.hops);
        self.reads.clone_from(&other.reads);
        let (hops, reads) = (std::mem::take(&mut self.hops), std::mem::take(&mut self.reads));
        let HopLog { now, units, device_ns, function_ns, arena_ns, .. } = *other;
        let HopLog { has_rested, count, traces, .. } = *other;
        *self = HopLog {
            hops,
            reads,
            now,
            units,
            device_ns,
            function_ns,
            arena_ns,
            has_rested,
            count,
            traces,
        };
    }

    /// The kept hops, with times since `begun_ns`.
    pub(super) fn records(&self, begun_ns: u64) -> Vec<HopRecord> {
        let record = |hop: &Hop| {
            let reads = self.reads.iter().skip(hop.first_read as usize).take(hop.reads as usize);
            HopRecord {
                since_start_ns: hop.asked_ns.saturating_sub(begun_ns),
                device_ns: hop.came_ns.saturating_sub(hop.asked_ns),
                queued_ns: hop.called_ns.saturating_sub(hop.came_ns),
                function_ns: self.is_exact().then_some(hop.function_ns),
                units: hop.units,
                reads: reads.map(ReadRecord::from).collect(),
            }
        };
        self.hops.iter().map(record).collect()
    }
}

/// The time that units pay for, in ns: most code takes less.
pub(super) fn price_ns(units: u64) -> u64 {
    units.saturating_mul(bpfof_function::cost::UNIT_PS) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(offset_bytes: u64) -> FileRead {
        FileRead { file: 1, offset_bytes, size_bytes: 512 }
    }

    /// Hops of a long chain that are not kept are in the sums.
    #[test]
    fn long_chains_are_kept_in_part() {
        let mut log = HopLog::default();
        log.begin(1);
        for hop in 0..40u64 {
            log.ask(1000 * hop, [read(hop), read(hop)].into_iter());
            log.came(1000 * hop + 100);
            log.called((1000 * hop + 150, 1000 * hop + 200), 7 * (hop + 1));
            // The calls of a hop may be interrupted.
            log.called((1000 * hop + 300, 1000 * hop + 310), 7 * (hop + 1));
        }
        log.end();
        assert_eq!((log.device_ns(), log.function_ns()), (4000, Some(40 * 60)));
        let records = log.records(0);
        assert_eq!(records.len(), MAX_HOPS);
        let last = &records[MAX_HOPS - 1];
        assert_eq!((last.since_start_ns, last.device_ns, last.queued_ns), (31_000, 100, 50));
        assert_eq!((last.function_ns, last.units, last.reads.len()), (Some(60), 7, 2));
        let mut copy = HopLog::default();
        copy.copy(&log);
        assert_eq!(copy.records(0), records);
        log.begin(0);
        log.ask(0, [read(0)].into_iter());
        log.end();
        assert_eq!((log.records(0).len(), log.function_ns()), (1, None));
    }
}
