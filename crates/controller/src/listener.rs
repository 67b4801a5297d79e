//! Listeners: the addresses that hosts connect to, and the ANA states of namespaces there.
//!
//! A listener is a port of the NVM subsystem in terms of the specification: the controllers of all hosts that came to
//! it report the same states of asymmetric namespace access (ANA, NVMe Base 2.0 §8.1.1). An operator changes these at
//! any time. Each connection has a bit for each group, which reactors update when a message tells of changes, so that
//! commands do not access the listener.

use crate::config::{Advertised, AnaState, AnaStates, ListenConfig, Transport};
use crate::limits::MAX_ANA_GROUPS;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its number in the discovery log (PORTID).
    pub(crate) id: u16,
    /// The address that it listens on, with the actual port if the configuration left it to the kernel.
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
    /// Whether hosts can connect: not while the network card of an RDMA listener is absent.
    pub(crate) is_up: AtomicBool,
    state: Mutex<State>,
    /// The inaccessible groups, as bits of [`ana_bit`].
    inaccessible: AtomicU32,
    /// The number of state changes of groups, plus 1.
    changes: AtomicU64,
}

#[derive(Debug)]
struct State {
    advertised: Option<Advertised>,
    /// As configured, or as an operator has set them.
    states: AnaStates,
    /// All groups are inaccessible, whatever they are configured as.
    is_drained: bool,
    /// The listener's change count when each group last changed its state.
    changed: [u64; MAX_ANA_GROUPS as usize],
}

impl State {
    fn of(&self, group: u32) -> AnaState {
        if self.is_drained { AnaState::Inaccessible } else { self.states.of(group) }
    }
}

/// The bit of a group.
#[inline]
pub(crate) fn ana_bit(group: u32) -> u32 {
    1 << (group - 1)
}

impl Listener {
    /// A listener at `address`.
    pub(crate) fn new(id: u16, address: SocketAddr, config: &ListenConfig) -> Listener {
        let listener = Listener {
            id,
            address,
            transport: config.transport,
            is_up: AtomicBool::new(true),
            state: Mutex::new(State {
                advertised: config.advertise.clone(),
                states: config.ana,
                is_drained: false,
                changed: [1; MAX_ANA_GROUPS as usize],
            }),
            inaccessible: AtomicU32::default(),
            changes: AtomicU64::new(1),
        };
        listener.publish(&listener.lock());
        listener
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &State) {
        let groups = (1..=MAX_ANA_GROUPS).filter(|g| state.of(*g) == AnaState::Inaccessible);
        self.inaccessible.store(groups.map(ana_bit).sum(), Ordering::Release);
    }

    /// Changes states; returns whether any group's state has changed.
    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        let before: Vec<AnaState> = (1..=MAX_ANA_GROUPS).map(|group| state.of(group)).collect();
        change(&mut state);
        let number = self.changes() + 1;
        let mut has_changed = false;
        for (group, before) in (1..).zip(before) {
            if state.of(group) != before {
                state.changed[group as usize - 1] = number;
                has_changed = true;
            }
        }
        if has_changed {
            self.publish(&state);
            self.changes.store(number, Ordering::Release);
        }
        has_changed
    }

    /// Makes all groups inaccessible, or restores their states.
    pub(crate) fn set_drained(&self, is_drained: bool) -> bool {
        self.change(|state| state.is_drained = is_drained)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.lock().is_drained
    }

    /// Sets states of groups. A drained listener shows them only when it is no longer drained.
    pub(crate) fn set_states(&self, change: impl FnOnce(&mut AnaStates)) -> bool {
        self.change(|state| change(&mut state.states))
    }

    /// The state of a group, and its change count.
    pub(crate) fn group(&self, group: u32) -> (AnaState, u64) {
        let state = self.lock();
        (state.of(group), state.changed[group as usize - 1])
    }

    /// The inaccessible groups, a bit for each.
    #[inline]
    pub(crate) fn inaccessible(&self) -> u32 {
        self.inaccessible.load(Ordering::Acquire)
    }

    /// The count of changes, which begins with 1.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The address that the discovery log shows instead of the listener's own.
    pub(crate) fn advertised(&self) -> Option<Advertised> {
        self.lock().advertised.clone()
    }

    /// Sets the advertised address; true if it has changed.
    pub(crate) fn advertise(&self, advertised: Option<&Advertised>) -> bool {
        let mut state = self.lock();
        let has_changed = state.advertised.as_ref() != advertised;
        state.advertised = advertised.cloned();
        has_changed
    }

    /// Whether an operator's `name` means this listener: its number, its address, or its advertised address.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let advertised = || self.advertised().map(|advertised| advertised.to_string());
        name == self.id.to_string()
            || name == self.address.to_string()
            || advertised().as_deref() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_set_on_a_drained_listener_show_after_undrain() {
        let config = ListenConfig::from(SocketAddr::from(([127, 0, 0, 1], 4420)));
        let listener = Listener::new(1, config.address, &config);
        assert_eq!((listener.inaccessible(), listener.changes()), (0, 1));
        let set =
            |group, state| listener.set_states(|states| states.set(group, state).expect("a group"));
        assert!(set(2, AnaState::Inaccessible));
        assert!(!set(2, AnaState::Inaccessible), "it was");
        assert_eq!((listener.inaccessible(), listener.changes()), (ana_bit(2), 2));
        assert_eq!(listener.group(1), (AnaState::Optimized, 1));
        assert_eq!(listener.group(2), (AnaState::Inaccessible, 2));
        assert!(listener.set_drained(true));
        assert_eq!((listener.inaccessible(), listener.changes()), (u32::MAX, 3));
        // Group 2 was inaccessible before, so its change count stays.
        assert_eq!(listener.group(2), (AnaState::Inaccessible, 2));
        assert!(!set(1, AnaState::NonOptimized));
        assert_eq!(listener.group(1), (AnaState::Inaccessible, 3));
        assert!(listener.set_drained(false));
        assert_eq!(listener.group(1), (AnaState::NonOptimized, 4));
        assert_eq!(listener.inaccessible(), ana_bit(2));
    }
}
