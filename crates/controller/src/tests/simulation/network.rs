//! Connections: two streams of bytes that arrive in order, in pieces, late, in part or not at all.

use super::random::Random;

/// Time of the simulation, in nanoseconds.
pub(super) type Time = u64;

pub(super) const MICROSECOND: Time = 1_000;
pub(super) const MILLISECOND: Time = 1_000_000;
pub(super) const SECOND: Time = 1_000_000_000;

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    bytes: Vec<u8>,
    /// Nothing follows.
    finished: bool,
    /// The receiver has been told that, or is gone.
    pub(super) ended: bool,
    /// A delivery is scheduled.
    pub(super) scheduled: bool,
}

impl Pipe {
    /// Takes what a sender hands over; nothing follows what it finished with.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if !self.finished {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The sender closes its end.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// The connection breaks: some of what is on its way still arrives.
    pub(super) fn cut(&mut self, random: &mut Random) {
        self.bytes.truncate(random.index(self.bytes.len() + 1));
        self.finished = true;
    }

    /// Nobody is there to receive any more.
    pub(super) fn drop_all(&mut self) {
        self.bytes.clear();
        (self.finished, self.ended) = (true, true);
    }

    /// What is on its way is lost, and nobody is told.
    pub(super) fn lose(&mut self) {
        self.bytes.clear();
    }

    /// Whether there is something to deliver: bytes, or the end.
    pub(super) fn has_news(&self) -> bool {
        !self.bytes.is_empty() || self.finished && !self.ended
    }

    /// A piece of what is on its way.
    pub(super) fn piece(&mut self, random: &mut Random) -> Vec<u8> {
        let length = match random.below(16) {
            0 => random.index(self.bytes.len() + 1),
            1 => random.index(self.bytes.len().min(128) + 1),
            _ => self.bytes.len(),
        };
        let rest = self.bytes.split_off(length);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// True once, when all has been delivered and nothing follows.
    pub(super) fn ends_now(&mut self) -> bool {
        let ends = self.finished && self.bytes.is_empty() && !self.ended;
        self.ended |= ends;
        ends
    }
}

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Nothing arrives before this time.
    Stalled(Time),
    /// Nothing arrives any more, and nobody is told.
    Dead,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) to_target: Pipe,
    pub(super) to_host: Pipe,
    pub(super) trouble: Trouble,
    /// Since when nothing is wrong with it, after which timeouts are no longer in order; None if it will
    /// never be well again.
    pub(super) healthy_since: Option<Time>,
    /// There is a reason for the target to close it.
    pub(super) excused: bool,
    /// There was one, a silence, until this time.
    pub(super) excused_until: Time,
    /// The core that serves it at the target.
    pub(super) server: Option<usize>,
    /// The last byte of the address that it comes from.
    pub(super) address: u8,
    /// When the target got what the host said last, and when it answered.
    pub(super) asked_at: Time,
    pub(super) told_at: Time,
    /// Whether the host still has it.
    pub(super) client: bool,
    /// The model knows that nothing of it is left.
    pub(super) reported: bool,
}

impl Link {
    pub(super) fn new(address: u8) -> Link {
        Link {
            to_target: Pipe::default(),
            to_host: Pipe::default(),
            trouble: Trouble::None,
            healthy_since: Some(0),
            excused: false,
            excused_until: 0,
            server: None,
            address,
            asked_at: 0,
            told_at: 0,
            client: true,
            reported: false,
        }
    }

    /// It will never be well again.
    pub(super) fn breaks(&mut self) {
        (self.healthy_since, self.excused) = (None, true);
    }

    /// One of its ends does not hear of the other, or does not answer, until this time. The target may give it up for
    /// that, of which the host hears `late` after it has happened at the most.
    pub(super) fn is_silent_until(&mut self, until: Time, late: Time) {
        self.healthy_since = self.healthy_since.map(|since| since.max(until));
        self.excused_until = self.excused_until.max(until + late);
    }

    pub(super) fn is_excused(&self, now: Time) -> bool {
        self.excused || now <= self.excused_until
    }

    pub(super) fn pipe(&mut self, to_target: bool) -> &mut Pipe {
        if to_target { &mut self.to_target } else { &mut self.to_host }
    }

    /// Whether bytes that the host sent may still reach a controller, or commands be with one.
    pub(super) fn may_act(&self) -> bool {
        self.server.is_some() || self.client || !self.to_target.ended
    }
}
