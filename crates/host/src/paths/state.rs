//! The state of each path, and the choice of the best one. Has no connections, and gets the time from the caller.

use crate::{CommandError, Status};
use std::fmt;
use std::time::{Duration, Instant};

/// Pause before a lost path is reconnected. It doubles, up to [`RECONNECT_MAX`], each time the path
/// cannot be connected or is lost within [`STEADY`].
const RECONNECT: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// A path that has been connected for this long counts as working.
const STEADY: Duration = Duration::from_secs(10);
/// A path that has refused a request with a path-related status counts as unusable for this long, unless an event of
/// the target says that its state has changed.
const REFUSED: Duration = Duration::from_secs(1);

/// The state of a path. From [`Optimized`](Self::Optimized) to [`Change`](Self::Change) it is
/// connected, and these are the ANA states of its namespace (NVMe Base 2.0 §8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It has not been connected yet.
    Connecting,
    /// Usable, with the best performance.
    Optimized,
    /// Usable, but only used if there is no optimized path.
    NonOptimized,
    /// Not usable for the time being.
    Inaccessible,
    /// The namespace cannot be reached on this path any more.
    PersistentLoss,
    /// In transition from one of these states to another.
    Change,
    /// Not connected. It is reconnected in the background.
    Lost,
}

impl PathState {
    /// From an ANA group descriptor (NVMe Base 2.0 §5.16.1.13). Unknown states count as inaccessible.
    pub(crate) const fn of_ana(state: u8) -> Self {
        match state & 0xF {
            1 => Self::Optimized,
            2 => Self::NonOptimized,
            4 => Self::PersistentLoss,
            0xF => Self::Change,
            _ => Self::Inaccessible,
        }
    }

    /// Rank among paths that requests may use, the lowest first; None if they may not use it.
    const fn rank(self) -> Option<u8> {
        match self {
            Self::Optimized => Some(0),
            Self::NonOptimized => Some(1),
            _ => None,
        }
    }

    /// Whether requests may use it.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        self.rank().is_some()
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "connecting",
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent loss",
            Self::Change => "change",
            Self::Lost => "lost",
        })
    }
}

/// The state of one path.
#[derive(Debug)]
struct Entry {
    state: PathState,
    /// Why it is not usable.
    reason: Option<String>,
    /// Whether the target rejects this host or its keys.
    is_denied: bool,
    /// The caller's number of its association; 0 if there is none.
    association: u64,
    since: Instant,
    /// Not usable before this time, whatever the ANA log says.
    refused_until: Option<Instant>,
    /// How often in a row it could not be connected, or was soon lost.
    failures: u32,
}

/// All paths of a controller.
#[derive(Debug)]
pub(crate) struct States(Vec<Entry>);

impl States {
    pub(crate) fn new(paths: usize, now: Instant) -> Self {
        let entry = |_| Entry {
            state: PathState::Connecting,
            reason: None,
            is_denied: false,
            association: 0,
            since: now,
            refused_until: None,
            failures: 0,
        };
        Self((0..paths).map(entry).collect())
    }

    fn of_association(&mut self, path: usize, association: u64) -> Option<&mut Entry> {
        self.0.get_mut(path).filter(|entry| entry.association == association)
    }

    /// A path is connected and set up.
    pub(crate) fn came_up(
        &mut self,
        path: usize,
        association: u64,
        state: PathState,
        now: Instant,
    ) {
        let Some(entry) = self.0.get_mut(path) else { return };
        entry.state = state;
        entry.reason = None;
        entry.is_denied = false;
        entry.association = association;
        entry.since = now;
        entry.refused_until = None;
    }

    /// Records a path's state from the ANA log; true if it has changed. `by_event`: the log was
    /// read because of a change event.
    pub(crate) fn learned(
        &mut self,
        (path, association): (usize, u64),
        state: PathState,
        by_event: bool,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.of_association(path, association) else { return false };
        let is_refused = entry.refused_until.is_some_and(|until| now < until);
        if entry.state == state || state.is_usable() && is_refused && !by_event {
            return false;
        }
        entry.state = state;
        entry.refused_until = None;
        entry.reason = (!state.is_usable()).then(|| "reported by the target".to_owned());
        true
    }

    /// A path has failed a request with a path-related status; true if the path was usable before.
    pub(crate) fn refused(
        &mut self,
        (path, association): (usize, u64),
        error: &CommandError,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.of_association(path, association) else { return false };
        let is_news = entry.state.is_usable();
        let is = |code| error.status.same_code(Status::new(CommandError::PATH, code));
        entry.state = match () {
            () if is(1) => PathState::PersistentLoss,
            () if is(3) => PathState::Change,
            () => PathState::Inaccessible,
        };
        entry.refused_until = Some(now + REFUSED);
        entry.reason = Some(error.to_string());
        is_news
    }

    /// The association of a path has ended; false if it is not the path's current one.
    pub(crate) fn lost(
        &mut self,
        (path, association): (usize, u64),
        reason: String,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.of_association(path, association) else { return false };
        let was_steady = now.saturating_duration_since(entry.since) >= STEADY;
        entry.failures = if was_steady { 0 } else { entry.failures.saturating_add(1) };
        entry.association = 0;
        entry.state = PathState::Lost;
        entry.reason = Some(reason);
        true
    }

    /// A path could not be connected; true if its state or the reason has changed.
    pub(crate) fn failed(&mut self, path: usize, reason: String, is_denied: bool) -> bool {
        let Some(entry) = self.0.get_mut(path) else { return false };
        let is_news = entry.state != PathState::Lost || entry.reason.as_ref() != Some(&reason);
        entry.failures = entry.failures.saturating_add(1);
        entry.state = PathState::Lost;
        entry.reason = Some(reason);
        entry.is_denied = is_denied;
        is_news
    }

    /// How long to wait before a path is reconnected.
    pub(crate) fn pause(&self, path: usize) -> Duration {
        let failures = self.0.get(path).map_or(0, |entry| entry.failures);
        RECONNECT_MAX.min(RECONNECT * 2_u32.pow(failures.min(8)))
    }

    /// The path that requests should use: the first one with the best rank.
    pub(crate) fn best(&self) -> Option<usize> {
        let ranked = self.0.iter().enumerate();
        let ranked = ranked.filter_map(|(path, entry)| Some((entry.state.rank()?, path)));
        ranked.min().map(|(_, path)| path)
    }

    /// Paths that are connected, the best first.
    pub(crate) fn connected(&self) -> Vec<usize> {
        let mut ranked: Vec<(u8, usize)> = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.association != 0)
            .map(|(path, entry)| (entry.state.rank().unwrap_or(u8::MAX), path))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, path)| path).collect()
    }

    pub(crate) fn state(&self, path: usize) -> PathState {
        self.0.get(path).map_or(PathState::Lost, |entry| entry.state)
    }

    pub(crate) fn reason(&self, path: usize) -> Option<&str> {
        self.0.get(path)?.reason.as_deref()
    }

    /// Whether a target rejects this host or its keys.
    pub(crate) fn is_denied(&self) -> bool {
        self.0.iter().any(|entry| entry.is_denied)
    }

    /// Whether connecting has been tried on each path.
    pub(crate) fn all_tried(&self) -> bool {
        self.0.iter().all(|entry| entry.state != PathState::Connecting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(code: u8) -> CommandError {
        CommandError { status: Status::new(CommandError::PATH, code), dw0: 0, dw1: 0 }
    }

    #[test]
    fn optimized_paths_come_before_others_and_the_first_before_the_second() {
        let now = Instant::now();
        let mut states = States::new(3, now);
        assert_eq!((states.best(), states.all_tried()), (None, false));
        states.came_up(2, 1, PathState::NonOptimized, now);
        assert_eq!(states.best(), Some(2));
        states.came_up(1, 2, PathState::Optimized, now);
        assert_eq!(states.best(), Some(1));
        states.came_up(0, 3, PathState::Optimized, now);
        assert_eq!((states.best(), states.all_tried()), (Some(0), true));
        assert_eq!(states.connected(), [0, 1, 2]);
        assert!(states.lost((0, 3), "gone".into(), now));
        assert_eq!((states.best(), states.state(0)), (Some(1), PathState::Lost));
        assert_eq!(states.connected(), [1, 2]);
        assert_eq!(states.reason(0), Some("gone"));
    }

    #[test]
    fn reports_about_ended_associations_are_ignored() {
        let now = Instant::now();
        let mut states = States::new(2, now);
        states.came_up(0, 1, PathState::Optimized, now);
        assert!(states.lost((0, 1), "gone".into(), now));
        states.came_up(0, 2, PathState::Optimized, now);
        assert!(!states.lost((0, 1), "gone again".into(), now));
        assert!(!states.refused((0, 1), &refusal(2), now));
        assert!(!states.learned((0, 1), PathState::Inaccessible, true, now));
        assert_eq!(states.best(), Some(0));
    }

    #[test]
    fn a_refusing_path_is_used_again_after_an_event_or_a_pause() {
        let now = Instant::now();
        for by_event in [false, true] {
            let mut states = States::new(2, now);
            states.came_up(0, 1, PathState::Optimized, now);
            states.came_up(1, 2, PathState::NonOptimized, now);
            assert!(states.refused((0, 1), &refusal(2), now));
            assert!(!states.refused((0, 1), &refusal(2), now), "once is news");
            assert_eq!((states.best(), states.state(0)), (Some(1), PathState::Inaccessible));
            // The log may still have the old state.
            let early = states.learned((0, 1), PathState::Optimized, by_event, now);
            assert_eq!(early, by_event);
            let later = now + REFUSED;
            assert_eq!(states.learned((0, 1), PathState::Optimized, false, later), !by_event);
            assert_eq!(states.best(), Some(0));
        }
        let mut states = States::new(1, now);
        for (code, state) in [(1, PathState::PersistentLoss), (3, PathState::Change)] {
            states.came_up(0, 1, PathState::Optimized, now);
            states.refused((0, 1), &refusal(code), now);
            assert_eq!(states.state(0), state);
        }
    }

    #[test]
    fn a_path_that_does_not_stay_is_left_alone_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut states = States::new(1, now);
        let mut before = Duration::ZERO;
        for association in 1..=6 {
            states.came_up(0, association, PathState::Optimized, now);
            assert!(states.lost((0, association), "gone".into(), now));
            assert!(states.pause(0) > before);
            before = states.pause(0);
        }
        for _ in 0..100 {
            states.failed(0, "refused".into(), false);
        }
        assert_eq!(states.pause(0), RECONNECT_MAX);
        states.came_up(0, 7, PathState::Optimized, now);
        now += STEADY;
        assert!(states.lost((0, 7), "gone".into(), now));
        assert_eq!(states.pause(0), RECONNECT);
    }

    proptest! {
        /// After any sequence of events, the best path is a usable one of the lowest rank.
        #[test]
        fn the_best_path_is_usable(events in proptest::collection::vec((0_usize..3, 0_u8..6, 0_u8..16), 0..60)) {
            let mut now = Instant::now();
            let mut states = States::new(3, now);
            let mut associations = [0_u64; 3];
            for (number, (path, event, detail)) in events.into_iter().enumerate() {
                now += Duration::from_millis(300);
                let known = (path, associations[path]);
                match event {
                    0 => {
                        associations[path] = number as u64 + 1;
                        states.came_up(path, associations[path], PathState::of_ana(detail), now);
                    }
                    1 => _ = states.lost(known, "gone".into(), now),
                    2 => _ = states.failed(path, "refused".into(), false),
                    3 => _ = states.refused(known, &refusal(detail), now),
                    _ => _ = states.learned(known, PathState::of_ana(detail), event == 4, now),
                }
                let usable: Vec<u8> = (0..3).filter_map(|path| states.state(path).rank()).collect();
                let best = states.best().map(|path| states.state(path).rank());
                prop_assert_eq!(best, usable.iter().min().map(|rank| Some(*rank)));
                prop_assert!(states.pause(path) <= RECONNECT_MAX);
            }
        }
    }
}
