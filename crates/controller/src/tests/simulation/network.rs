//! Connections: two byte streams that arrive in order, in pieces, late, in part or not at all.

use super::random::Random;

/// Time of the simulation, in nanoseconds.
pub(super) type Time = u64;

pub(super) const MICROSECOND: Time = 1_000;
pub(super) const MILLISECOND: Time = 1_000_000;
pub(super) const SECOND: Time = 1_000_000_000;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    bytes: Vec<u8>,
    /// No more bytes follow.
    finished: bool,
    /// The receiver has been told of the end, or is gone.
    pub(super) ended: bool,
    /// A delivery is scheduled.
    pub(super) scheduled: bool,
}

impl Pipe {
    /// Takes bytes from the sender, unless it has closed its end.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if !self.finished {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The sender closes its end.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Breaks the connection: some of the bytes in transit still arrive.
    pub(super) fn cut(&mut self, random: &mut Random) {
        self.bytes.truncate(random.index(self.bytes.len() + 1));
        self.finished = true;
    }

    /// The receiver is gone.
    pub(super) fn drop_all(&mut self) {
        self.bytes.clear();
        (self.finished, self.ended) = (true, true);
    }

    /// Silently loses the bytes in transit.
    pub(super) fn lose(&mut self) {
        self.bytes.clear();
    }

    /// Whether there are bytes to deliver, or the end.
    pub(super) fn has_news(&self) -> bool {
        !self.bytes.is_empty() || self.finished && !self.ended
    }

    /// Takes a piece of the bytes in transit.
    pub(super) fn piece(&mut self, random: &mut Random) -> Vec<u8> {
        let length = match random.below(16) {
            0 => random.index(self.bytes.len() + 1),
            1 => random.index(self.bytes.len().min(128) + 1),
            _ => self.bytes.len(),
        };
        let rest = self.bytes.split_off(length);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// True once, when everything has been delivered and no more follows.
    pub(super) fn ends_now(&mut self) -> bool {
        let ends = self.finished && self.bytes.is_empty() && !self.ended;
        self.ended |= ends;
        ends
    }
}

/// The trouble of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Nothing arrives before this time.
    Stalled(Time),
    /// Nothing arrives any more, and neither end is told.
    Dead,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) to_target: Pipe,
    pub(super) to_host: Pipe,
    pub(super) trouble: Trouble,
    /// When its last trouble ended; later timeouts are errors. `None` if it is permanently broken.
    pub(super) healthy_since: Option<Time>,
    /// Whether the target has a reason to close it.
    pub(super) excused: bool,
    /// The target has a reason, a silence, until this time.
    pub(super) excused_until: Time,
    /// The core of the target that serves it.
    pub(super) server: Option<usize>,
    /// The last byte of its source address.
    pub(super) address: u8,
    /// When the target got the host's latest message, and when it answered.
    pub(super) asked_at: Time,
    pub(super) told_at: Time,
    /// Whether the host's end exists.
    pub(super) client: bool,
    /// Whether the model has been told that nothing of it is left.
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

    /// Marks the link as permanently broken.
    pub(super) fn breaks(&mut self) {
        (self.healthy_since, self.excused) = (None, true);
    }

    /// One end gets no messages of the other, or does not answer, until this time. The target may close the connection
    /// for that; the host notices at most `late` after that.
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

    /// Whether bytes of the host may still reach a controller, or its commands still be in progress.
    pub(super) fn may_act(&self) -> bool {
        self.server.is_some() || self.client || !self.to_target.ended
    }
}
