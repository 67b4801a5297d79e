//! Tests of associations: their limits, removal and lost writes.

use super::*;
use crate::hosts::HostLimits;
use crate::limits::{ANSWER_TIMEOUT_NS, LAST_CONTROLLER_ID, USELESS_AFTER_NS};
use crate::listener::Listener;
use crate::lost_writes::LostWrites;
use bpfof_nvme::fabrics::{ControllerConfig, Shutdown};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

/// Time after which a report of lost writes counts as received, with the keep-alive timer of these tests.
const DOUBT_NS: u64 = KATO_MS as u64 * 1_000_000 + ANSWER_TIMEOUT_NS;
const KATO_MS: u32 = 10_000;

/// Address and id of an association that was removed to make room.
type Gone = Option<(IpAddr, u16)>;

struct Full {
    hosts: Arc<Hosts>,
    subsystem: Subsystem,
    /// Whether hosts must prove their identity.
    has_keys: bool,
    /// Whether TLS has identified them.
    is_identified: Cell<bool>,
}

impl Full {
    fn new() -> Full {
        Full::with_ids(1..=LAST_CONTROLLER_ID)
    }

    fn with_ids(ids: RangeInclusive<u16>) -> Full {
        let limits = HostLimits {
            associations_per_address: MAX_CONTROLLERS as u32,
            associations_per_host: MAX_CONTROLLERS as u32,
            ..HostLimits::default()
        };
        let subsystem = Subsystem::new("nqn".to_owned(), 0, Vec::new(), (ids, 0));
        let hosts = Hosts::new(limits, 1 << 30);
        Full { hosts, subsystem, has_keys: false, is_identified: Cell::new(false) }
    }

    /// Makes an association; also returns address and id of the one that was removed for it, if any.
    fn connect(
        &self,
        last: u8,
        is_stranger: bool,
        now_ns: u64,
    ) -> Result<(Arc<Controller>, Gone), HostFull> {
        let address = IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        let host = self.hosts.host((!self.is_identified.get()).then_some(address), "host");
        let mut access = Access::everything();
        access.needs_tls = self.has_keys;
        let access = Arc::new(access);
        let at = SocketAddr::from((address, 4420));
        let listener = Arc::new(Listener::new(1, at, &at.into()));
        let host_id = [1; 16];
        let host_nqn = host.nqn.clone();
        let newcomer = Newcomer { host, host_nqn, address, host_id, access, listener, is_stranger };
        let times = (KATO_MS, now_ns);
        let added = self.subsystem.add_controller(&newcomer, &self.hosts, times, None);
        added.map(|(new, gone)| (new, gone.map(|gone| (gone.address(), gone.id))))
    }
}

/// If all associations are in use, one of the address with most is removed, as long as that has more than the
/// newcomer's address.
#[test]
fn a_full_subsystem_evicts_from_the_address_with_most() {
    let full = Full::new();
    let connect = |last, now_ns| {
        let (controller, gone) = full.connect(last, false, now_ns)?;
        controller.configure(ControllerConfig::ENABLED);
        controller.add_queue(1).expect("free");
        Ok(gone)
    };
    for number in 0..MAX_CONTROLLERS {
        let last = if number < MAX_CONTROLLERS / 2 { 1 } else { 2 };
        assert_eq!(connect(last, number as u64), Ok(None));
    }
    // No address has more than these would have.
    let busy = Err(HostFull::Controllers(MAX_CONTROLLERS));
    assert_eq!((connect(1, 5000), connect(2, 5000)), (busy, busy));
    // Each time the association goes that was silent longest, of the one address and then of the other.
    let mut gone = [0; 2].map(|_| connect(3, 5000).expect("room is made").expect("one goes"));
    gone.sort_unstable();
    let [one, two] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    assert_eq!(gone, [(one, 1), (two, 1 + MAX_CONTROLLERS as u16 / 2)]);
}

/// The connection of a removed association may end when another one has its id already.
#[test]
fn a_controller_is_not_forgotten_for_another() {
    let full = Full::with_ids(1..=1);
    let (first, _) = full.connect(1, false, 0).expect("room");
    full.subsystem.remove_controller(&first, 0);
    let (second, _) = full.connect(1, false, 0).expect("room");
    assert_eq!(first.id, second.id);
    full.subsystem.remove_controller(&first, 0);
    assert!(full.subsystem.controllers().by_id.contains_key(&second.id));
    full.subsystem.remove_controller(&second, 0);
    assert!(full.subsystem.controllers().by_id.is_empty());
}

/// A host that was cut off is told by its next association of writes lost meanwhile; no other host is, and no stranger
/// that claims to be the host.
#[test]
fn a_host_that_was_cut_off_hears_what_was_lost() {
    let full = Full::new();
    let lost = Arc::new(LostWrites::default());
    let now_ns = Cell::new(0);
    let connect = |is_stranger| full.connect(1, is_stranger, now_ns.get()).expect("room").0;
    let end = |controller: &Arc<Controller>| {
        full.subsystem.remove_controller(controller, now_ns.get());
    };
    let first = connect(false);
    end(&first);
    lost.note();
    let liar = connect(true);
    end(&liar);
    // Removed for a newcomer just before it has authenticated.
    let removed = connect(true);
    end(&removed);
    full.subsystem.recognize(&removed, 0).expect("memory");
    let stranger = connect(true);
    full.subsystem.recognize(&stranger, 0).expect("memory");
    assert!(stranger.told.must_hear(&lost) && !stranger.told.must_hear(&lost));
    // It has been told by one association, and a while later that holds for its others.
    now_ns.set(DOUBT_NS + 1);
    let other = connect(false);
    assert!(!other.told.must_hear(&lost));
    end(&stranger);
    let again = connect(false);
    assert!(!again.told.must_hear(&lost));
    // A new association is also told of losses that one of the old ones has not been told of.
    lost.note();
    assert!(other.told.must_hear(&lost));
    let more = connect(false);
    assert!(!more.told.must_hear(&lost) && again.told.must_hear(&lost));
    // A host that shuts its associations down begins anew.
    let shutdown = Shutdown::Normal;
    for controller in [again, other, more] {
        controller.configure(ControllerConfig { shutdown, ..ControllerConfig::ENABLED });
        end(&controller);
    }
    lost.note();
    assert!(!connect(false).told.must_hear(&lost));
}

/// A target that replaces another tells hosts of losses before they came: they may have written by the other.
#[test]
fn hosts_of_another_process_hear_what_was_lost() {
    let lost = Arc::new(LostWrites::default());
    lost.note();
    let full = Full::new();
    let connect = |now_ns| full.connect(1, false, now_ns).expect("room").0;
    assert!(!connect(0).told.must_hear(&lost), "it is new");
    let full = Full::new();
    full.hosts.moved_until_ns.store(100, Ordering::Relaxed);
    let connect = |now_ns| full.connect(1, false, now_ns).expect("room").0;
    let first = connect(99);
    assert!(first.told.must_hear(&lost) && !first.told.must_hear(&lost));
    let full = Full::new();
    full.hosts.moved_until_ns.store(100, Ordering::Relaxed);
    let late = full.connect(1, false, 100).expect("room").0;
    assert!(!late.told.must_hear(&lost), "the hosts of the other have come or given up");
}

/// The answer that tells a host of a loss may be in a send buffer when its path breaks. So soon after it the next
/// association is told again, whether the target has noticed the end of the old one or not.
#[test]
fn a_report_that_may_not_have_arrived_is_repeated() {
    for (at_ns, is_repeated) in [(1, true), (DOUBT_NS, true), (DOUBT_NS + 1, false)] {
        let full = Full::new();
        let lost = Arc::new(LostWrites::default());
        let connect = |now_ns| full.connect(1, false, now_ns).expect("room").0;
        let first = connect(0);
        lost.note();
        assert!(first.told.must_hear(&lost));
        let second = connect(at_ns);
        assert_eq!(second.told.unheard(&lost).is_some(), is_repeated, "live after {at_ns} ns");
        second.configure(ControllerConfig { shutdown: Shutdown::Normal, ..second.config() });
        full.subsystem.remove_controller(&first, at_ns);
        // However late the host comes back.
        let third = connect(100 * DOUBT_NS);
        assert_eq!(third.told.unheard(&lost).is_some(), is_repeated, "cut off after {at_ns} ns");
    }
}

#[test]
fn strangers_replace_only_strangers() {
    let full = Full { has_keys: true, ..Full::new() };
    let late_ns = 3 * USELESS_AFTER_NS;
    for _ in 0..MAX_CONTROLLERS - 1 {
        full.connect(1, false, 0).expect("room");
    }
    let (stranger, _) = full.connect(1, true, USELESS_AFTER_NS).expect("room");
    let gone = full.connect(2, true, late_ns).expect("the other stranger goes").1;
    assert_eq!(gone.map(|(_, id)| id), Some(stranger.id));
    let busy = HostFull::Controllers(MAX_CONTROLLERS);
    assert_eq!(full.connect(2, true, late_ns).err(), Some(busy), "idle ones stay for strangers");
    assert!(full.connect(2, false, late_ns).expect("and go for others").1.is_some());
    // Others without keys have proved nothing either.
    let full = Full::new();
    for _ in 0..MAX_CONTROLLERS {
        full.connect(1, false, 0).expect("room");
    }
    assert!(full.connect(2, true, late_ns).expect("one of them goes").1.is_some());
    assert!(full.connect(2, true, 1).expect("and one of the address with most").1.is_some());
}

/// Others at its address do not keep out a host that TLS has identified, nor does it keep them out.
#[test]
fn an_identified_host_does_not_count_for_its_address() {
    let limits = HostLimits { associations_per_address: 2, ..HostLimits::default() };
    let full = Full { hosts: Hosts::new(limits, 1 << 30), ..Full::new() };
    let connect = |is_identified| {
        full.is_identified.set(is_identified);
        let (controller, gone) = full.connect(1, false, 0)?;
        controller.configure(ControllerConfig::ENABLED);
        controller.add_queue(1).expect("free");
        Ok(gone)
    };
    let busy = Err(HostFull::Address(2));
    let of_anybody = [(); 3].map(|()| connect(false));
    assert_eq!(of_anybody, [Ok(None), Ok(None), busy]);
    assert_eq!([(); 3].map(|()| connect(true)), [Ok(None); 3]);
    assert_eq!(connect(false), busy);
}

/// Others at its address cannot fill a subsystem so that an identified host finds no room, nor make room with its
/// association.
#[test]
fn a_full_subsystem_has_room_for_an_identified_host() {
    let full = Full::new();
    let connect = |last, is_identified, now_ns| {
        full.is_identified.set(is_identified);
        let (controller, gone) = full.connect(last, false, now_ns)?;
        controller.configure(ControllerConfig::ENABLED);
        controller.add_queue(1).expect("free");
        Ok((controller.id, gone))
    };
    for number in 0..MAX_CONTROLLERS {
        connect(1 + (number % 2) as u8, false, 5).expect("room");
    }
    assert_eq!(connect(1, false, 5), Err(HostFull::Controllers(MAX_CONTROLLERS)));
    let (identified, gone) = connect(1, true, 0).expect("one of an address goes");
    assert!(gone.is_some());
    assert!(
        connect(3, false, 5).is_ok_and(|(_, gone)| gone.is_some_and(|(_, id)| id != identified))
    );
}

#[test]
fn hosts_without_a_proved_identity_replace_only_such_hosts() {
    let full = Full::new();
    let mut identified = Vec::new();
    for number in 0..MAX_CONTROLLERS {
        full.is_identified.set(number % 2 == 0);
        let last = if number % 2 == 0 { 1 } else { 2 + (number % 4) as u8 };
        let (controller, _) = full.connect(last, false, 0).expect("room");
        // They can be of use only with I/O queues.
        if number % 8 != 0 {
            controller.configure(ControllerConfig::ENABLED);
            controller.add_queue(1).expect("free");
        }
        if number % 2 == 0 {
            identified.push(controller.id);
        }
    }
    full.is_identified.set(false);
    // The identified host has the most, and those that have been of no use for longest.
    for now_ns in [1, 2 * USELESS_AFTER_NS] {
        let (_, gone) = full.connect(9, false, now_ns).expect("another goes");
        assert!(gone.is_some_and(|(_, id)| !identified.contains(&id)), "{gone:?}");
    }
    full.is_identified.set(true);
    let (_, gone) = full.connect(9, false, 3 * USELESS_AFTER_NS).expect("one of no use goes");
    assert!(gone.is_some_and(|(_, id)| identified.contains(&id)), "{gone:?}");
}

/// A peer that connects in the names of hosts that authenticate, again and again from several addresses, does not lock
/// out hosts at other addresses.
#[test]
fn strangers_share_their_places_by_address() {
    let full = Full::new();
    for number in 0..MAX_CONTROLLERS {
        full.connect(1 + (number % 8) as u8, true, 0).expect("room");
    }
    let ninth = full.connect(9, true, USELESS_AFTER_NS / 2);
    assert!(ninth.expect("room is made").1.is_some());
    let busy = Some(HostFull::Controllers(MAX_CONTROLLERS));
    assert_eq!(full.connect(1, true, USELESS_AFTER_NS / 2).err(), busy);
}
