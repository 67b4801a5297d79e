//! The slowest commands of a reactor in the last ten minutes.

use super::observed::Observed;

/// Number of commands that are kept.
pub(crate) const KEPT: usize = 100;
/// How long a command is kept, in ns.
const REMEMBERED_NS: u64 = 600_000_000_000;

/// A command whose answer has yet to leave.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    connection: u32,
    /// The number of the connection's send with which it leaves; 0 while that is not known.
    send: u64,
    /// Its place in `kept`, and its number.
    place: usize,
    number: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    /// Each command with a unique number.
    kept: Vec<(u64, Observed)>,
    numbers: u64,
    leaving: Vec<Leaving>,
}

impl Slowest {
    /// A command is slow if it takes longer than this, in ns: the fastest kept command, if enough are kept.
    pub(super) fn threshold_ns(&self) -> Option<u64> {
        let fastest = self.kept.iter().map(|(_, of)| of.duration_ns()).min();
        fastest.filter(|_| self.kept.len() >= KEPT)
    }

    /// A place for one more command of this connection, if necessary that of the fastest. The caller fills it.
    pub(super) fn take_place(&mut self, connection: u32) -> &mut Observed {
        self.numbers += 1;
        let number = self.numbers;
        let place = if self.kept.len() < KEPT {
            self.kept.push((number, Observed::new()));
            self.kept.len() - 1
        } else {
            let fastest = self.kept.iter().enumerate().min_by_key(|(_, (_, of))| of.duration_ns());
            fastest.map_or(0, |(place, _)| place)
        };
        // At most one for each place: earlier ones may have lost their places.
        self.leaving.retain(|of| self.kept[of.place].0 == of.number && of.place != place);
        self.leaving.push(Leaving { connection, send: 0, place, number });
        let (known, observed) = &mut self.kept[place];
        *known = number;
        observed.output_ns = None;
        observed
    }

    /// Whether an answer has yet to leave.
    #[inline]
    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Answers of a connection whose send is not known yet leave with this send.
    #[cold]
    pub(crate) fn leaves_with(&mut self, connection: u32, send: u64) {
        let its = |of: &&mut Leaving| of.connection == connection && of.send == 0;
        self.leaving.iter_mut().filter(its).for_each(|of| of.send = send);
    }

    /// This many sends of a connection have ended.
    #[cold]
    pub(crate) fn sent(&mut self, connection: u32, sends: u64, now_ns: u64) {
        let kept = &mut self.kept;
        self.leaving.retain(|of| {
            let has_left = of.connection == connection && of.send != 0 && of.send <= sends;
            let (number, observed) = &mut kept[of.place];
            if has_left && *number == of.number {
                observed.output_ns = Some(now_ns.saturating_sub(observed.ended_ns));
            }
            !has_left
        });
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: u32) {
        self.leaving.retain(|of| of.connection != connection);
    }

    /// Drops commands that ended long ago.
    pub(super) fn expire(&mut self, now_ns: u64) {
        let is_old = |(_, of): &(u64, Observed)| now_ns.saturating_sub(of.ended_ns) > REMEMBERED_NS;
        if self.kept.iter().any(is_old) {
            // Places change.
            self.leaving.clear();
            self.kept.retain(|of| !is_old(of));
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Observed> {
        self.kept.iter().map(|(_, observed)| observed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(slowest: &mut Slowest, connection: u32, (begun_ns, ended_ns): (u64, u64)) {
        let place = slowest.take_place(connection);
        (place.begun_ns, place.ended_ns) = (begun_ns, ended_ns);
    }

    #[test]
    fn the_slowest_stay() {
        let mut slowest = Slowest::default();
        for ns in 0..1000u64 {
            if slowest.threshold_ns().is_none_or(|threshold| ns > threshold) {
                add(&mut slowest, 0, (1, 1 + ns));
            }
        }
        let mut kept: Vec<u64> = slowest.all().map(Observed::duration_ns).collect();
        kept.sort_unstable();
        assert_eq!(kept, (900..1000).collect::<Vec<_>>());
        assert_eq!(slowest.threshold_ns(), Some(900));
        assert!(slowest.leaving.len() <= KEPT);
        slowest.expire(950 + REMEMBERED_NS);
        assert_eq!(slowest.all().count(), 51);
        assert_eq!(slowest.threshold_ns(), None);
    }

    #[test]
    fn an_answer_leaves_with_its_send() {
        let mut slowest = Slowest::default();
        add(&mut slowest, 7, (0, 100));
        slowest.sent(7, 3, 150);
        assert!(slowest.has_leaving(), "the send of the answer is not known yet");
        slowest.leaves_with(7, 4);
        add(&mut slowest, 7, (0, 120));
        slowest.leaves_with(7, 5);
        slowest.sent(8, 9, 170);
        slowest.sent(7, 4, 180);
        let output = |slowest: &Slowest| -> Vec<_> {
            slowest.all().map(|observed| observed.output_ns).collect()
        };
        assert_eq!(output(&slowest), [Some(80), None]);
        slowest.forget(7);
        slowest.sent(7, 5, 190);
        assert_eq!(output(&slowest), [Some(80), None]);
        assert!(!slowest.has_leaving());
    }
}
