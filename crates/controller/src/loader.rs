//! Function Load outside the reactors: objects are parsed, checked and translated on a thread of their own, one at a
//! time, however many hosts load functions.
//!
//! Groups of hosts take turns by the compile time spent for each, and the hosts of a group likewise: all hosts without
//! keys at an address are one group, and each other host is a group of its own. If two have had as much, the one with
//! the smaller object comes first: so a small function is compiled soon, whatever others load. Each load brings all
//! waiting loads closer, so that small loads of hosts that are new each time do not keep a large one waiting. When a
//! connection ends, its loads are cancelled.

use crate::hosts::Host;
use crate::limits::{MAX_NAME_BYTES, MAX_REASON_BYTES};
use crate::operation::CommandId;
use crate::worker::{Queue, Waiting, Worker};
use bpfof_chain::Function;
use bpfof_function::memory::Charge;
use bpfof_function::{NativeFunction, Object};
use bpfof_nvme::{Installation, is_unprintable};
use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Estimated compile time of a byte of an object, in ns: an instruction has 8 bytes and takes some 8 µs.
const NS_PER_BYTE: u64 = 1000;
/// Upper limit of the estimated compile time of an object, in ns. The slowest known program takes this long: 4096
/// stores and atomic operations in turn.
const MAX_ESTIMATE_NS: u64 = 600_000_000;

/// A function to be compiled outside the reactor.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) command: CommandId,
    /// The connection's serial number, which is never reused, unlike its index.
    pub(crate) serial: u64,
    pub(crate) function: u32,
    pub(crate) installation: Installation,
    pub(crate) object: Vec<u8>,
    pub(crate) host: Arc<Host>,
    /// Charge to the host for the object.
    pub(crate) _memory: Charge,
}

impl Load {
    /// The result of the load.
    pub(crate) fn ended(self, outcome: Result<Function, String>) -> Loaded {
        let Load { command, serial, installation, .. } = self;
        Loaded { command, serial, installation, outcome }
    }

    /// Parses, checks and translates the object. The error is for the host to read.
    pub(crate) fn run(&self) -> Result<Function, String> {
        let (name, object) = match self.installation.named {
            true => split_name(&self.object)?,
            false => (None, &self.object[..]),
        };
        let mut function = compile(object, self.installation.entry as usize, self.function)?;
        function.name = name.unwrap_or(function.name);
        Ok(function)
    }
}

/// The name before an object, and the object.
fn split_name(upload: &[u8]) -> Result<(Option<String>, &[u8]), String> {
    let (field, object) = upload
        .split_first_chunk::<{ Installation::NAME_BYTES }>()
        .ok_or("the name before the object is cut short")?;
    let name = field.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = str::from_utf8(name).ok();
    let printable = name.filter(|name| !name.is_empty() && !name.contains(is_unprintable));
    let name = printable.ok_or("the name before the object is empty or not printable UTF-8")?;
    Ok((Some(name.to_owned()), object))
}

/// Parses, checks and translates one entry point of an object. The error is printable text.
pub(crate) fn compile(object: &[u8], entry: usize, id: u32) -> Result<Function, String> {
    let entry = Object::parse_entry(object, entry).map_err(reason)?;
    let native = NativeFunction::compile(&entry.program).map_err(reason)?;
    let instructions = entry.program.instructions().len() as u32;
    let name = cut(entry.name.replace(is_unprintable, "\u{fffd}"), MAX_NAME_BYTES);
    Ok(Function {
        id,
        name,
        instructions,
        native,
        trace: Default::default(),
        peers: None,
        maps: Default::default(),
        memory: None,
    })
}

/// An error as printable text, because it is logged as well.
fn reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    cut(text.replace(is_unprintable, "\u{fffd}"), MAX_REASON_BYTES)
}

fn cut(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

/// The result of compiling a function.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) command: CommandId,
    /// The connection's serial number.
    pub(crate) serial: u64,
    pub(crate) installation: Installation,
    /// The error is for the host to read.
    pub(crate) outcome: Result<Function, String>,
}

/// The callback that gets the result.
type Reply = Box<dyn FnOnce(Loaded) + Send>;

/// Handle to the compiler thread, which ends with the last clone.
#[derive(Clone)]
pub(crate) struct Loader(Worker<Turns>);

/// A waiting load.
struct Waits {
    load: Load,
    reply: Reply,
    /// Virtual time at which it came.
    came_ns: u64,
    /// The same in its group's virtual time.
    came_in_group_ns: u64,
}

/// The waiting loads.
#[derive(Default)]
struct Turns {
    waiting: Vec<Waits>,
    /// Virtual time: the time that each waiting group has had.
    now_ns: u64,
}

impl Waits {
    /// When it begins in its group, in virtual time.
    fn begins_in_group_ns(&self) -> u64 {
        self.load.host.compile_time_ns.load(Ordering::Relaxed).max(self.came_in_group_ns)
    }
}

/// A waiting group: its next load, by the load's end in the group's virtual time and its position among all, and when
/// its first load came.
struct Candidate {
    next: (u64, usize),
    came_ns: u64,
}

impl Waiting for Turns {
    type Work = (Load, Reply);

    fn take(&mut self) -> Option<(Load, Reply)> {
        let mut groups: HashMap<u64, Candidate> = HashMap::new();
        for (at, waits) in self.waiting.iter().enumerate() {
            let next = (waits.begins_in_group_ns() + waits.load.estimate_ns(), at);
            let host = &waits.load.host;
            let candidate =
                groups.entry(host.group.serial).or_insert(Candidate { next, came_ns: u64::MAX });
            candidate.next = candidate.next.min(next);
            // Loads that come later do not move the group's place.
            candidate.came_ns = candidate.came_ns.min(waits.came_ns);
        }
        let begins_ns = |Candidate { next: (_, at), came_ns }: &Candidate| {
            let had_ns = &self.waiting[*at].load.host.group.compile_time_ns;
            had_ns.load(Ordering::Relaxed).max(*came_ns)
        };
        // Of equal candidates, the one that came first.
        let ends_ns = |candidate: &Candidate| {
            let at = candidate.next.1;
            (begins_ns(candidate) + self.waiting[at].load.estimate_ns(), at)
        };
        let candidate = groups.into_values().min_by_key(ends_ns)?;
        let begins_ns = begins_ns(&candidate);
        let taken = self.waiting.remove(candidate.next.1);
        let in_group_ns = taken.begins_in_group_ns();
        let host = &taken.load.host;
        self.now_ns = self.now_ns.max(begins_ns);
        host.group.compile_now_ns.fetch_max(in_group_ns, Ordering::Relaxed);
        host.group.compile_time_ns.store(begins_ns, Ordering::Relaxed);
        host.compile_time_ns.store(in_group_ns, Ordering::Relaxed);
        Some((taken.load, taken.reply))
    }
}

impl Turns {
    /// Adds a load. Its place in line follows from the virtual time at which it came: a host that comes back begins
    /// where the others are.
    fn add(&mut self, load: Load, reply: Reply) {
        let came_ns = self.now_ns;
        let came_in_group_ns = load.host.group.compile_now_ns.load(Ordering::Relaxed);
        self.waiting.push(Waits { load, reply, came_ns, came_in_group_ns });
    }

    /// Records how long the load that was taken last has taken.
    fn ended(&mut self, host: &Host, took_ns: u64) {
        let waiting = || self.waiting.iter().map(|waits| &*waits.load.host).chain([host]);
        let groups = waiting().map(|host| host.group.serial).collect::<HashSet<_>>().len();
        let same = waiting().filter(|other| other.group.serial == host.group.serial);
        let hosts = same.map(|other| other.serial).collect::<HashSet<_>>().len();
        self.now_ns += took_ns / groups as u64;
        host.group.compile_now_ns.fetch_add(took_ns / hosts as u64, Ordering::Relaxed);
        host.group.compile_time_ns.fetch_add(took_ns, Ordering::Relaxed);
        host.compile_time_ns.fetch_add(took_ns, Ordering::Relaxed);
    }
}

impl Load {
    fn estimate_ns(&self) -> u64 {
        (self.object.len() as u64 * NS_PER_BYTE).min(MAX_ESTIMATE_NS)
    }
}

impl Loader {
    /// Starts the thread, on other processors than `reactors` if possible.
    pub(crate) fn start(reactors: &[usize]) -> io::Result<Loader> {
        Ok(Loader(Worker::start("load", reactors, serve)?))
    }

    /// Compiles a function in its turn; `reply` is called with the result on the loader's thread.
    pub(crate) fn load(&self, load: Load, reply: impl FnOnce(Loaded) + Send + 'static) {
        self.0.add(|turns| turns.add(load, Box::new(reply)));
    }

    /// Cancels the loads of the connection with this serial number.
    pub(crate) fn cancel(&self, serial: u64) {
        self.0.cancel(|turns| turns.waiting.retain(|waits| waits.load.serial != serial));
    }
}

fn serve((load, reply): (Load, Reply), queue: &Queue<Turns>) {
    let begun = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| load.run()))
        .unwrap_or_else(|_| Err("the compiler panicked, which is a defect of the target".into()));
    let took_ns = begun.elapsed().as_nanos() as u64;
    queue.with(|turns| turns.ended(&load.host, took_ns));
    reply(load.ended(outcome));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{HostLimits, Hosts};
    use std::net::Ipv4Addr;

    /// A load of an object of `bytes` bytes for a host.
    fn load(host: &Arc<Host>, serial: u64, bytes: usize) -> (Load, Reply) {
        let load = Load {
            command: CommandId { connection: 0, slot: 0 },
            serial,
            function: 1,
            installation: Installation::default(),
            object: vec![0; bytes],
            host: Arc::clone(host),
            _memory: host.memory.charge(bytes).expect("room"),
        };
        (load, Box::new(|_| ()))
    }

    #[test]
    fn hosts_take_turns_and_small_objects_come_first() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let [greedy, other] =
            ["a", "b"].map(|nqn| hosts.host(Some(Ipv4Addr::LOCALHOST.into()), nqn));
        let mut state = Turns::default();
        let add = |state: &mut Turns, (load, reply)| state.add(load, reply);
        (0..3).for_each(|serial| add(&mut state, load(&greedy, serial, 100_000)));
        add(&mut state, load(&other, 10, 1000));
        let take = |state: &mut Turns| {
            let (load, _) = state.take().expect("one waits");
            state.ended(&load.host, load.estimate_ns());
            load.serial
        };
        assert_eq!([take(&mut state), take(&mut state)], [10, 0]);
        // The host that has had less comes first, though the other has waited longer.
        add(&mut state, load(&other, 11, 90_000));
        assert_eq!([take(&mut state), take(&mut state)], [11, 1]);
        // A host that was away does not catch up with time that others had meanwhile.
        let late = hosts.host(Some(Ipv4Addr::LOCALHOST.into()), "c");
        add(&mut state, load(&late, 20, 50_000));
        add(&mut state, load(&late, 21, 50_000));
        assert_eq!([take(&mut state), take(&mut state), take(&mut state)], [20, 2, 21]);
        assert!(state.take().is_none());
    }

    /// A large load gets its turn while others go on with objects that are smaller and cost more than their size says.
    #[test]
    fn a_large_object_is_not_starved_by_small_ones() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let [busy, other] = ["a", "b"].map(|nqn| hosts.host(Some(Ipv4Addr::LOCALHOST.into()), nqn));
        let mut state = Turns::default();
        let (large, reply) = load(&other, 1000, 60_000);
        state.add(large, reply);
        let before = (0..1000).find(|serial| {
            let (small, reply) = load(&busy, *serial, 2000);
            state.add(small, reply);
            let (taken, _) = state.take().expect("two wait");
            state.ended(&taken.host, 3_000_000);
            taken.serial == 1000
        });
        assert_eq!(before, Some(20));
    }

    /// The same if each small load comes by a connection and a name of its own, which are gone when it has ended.
    #[test]
    fn a_large_object_is_not_starved_by_new_hosts() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let host = |nqn: &str| hosts.host(Some(Ipv4Addr::LOCALHOST.into()), nqn);
        let mut state = Turns::default();
        let (large, reply) = load(&host("large"), 1000, 60_000);
        state.add(large, reply);
        let before = (0..1000).find(|serial| {
            let (small, reply) = load(&host(&serial.to_string()), *serial, 2000);
            state.add(small, reply);
            let (taken, _) = state.take().expect("two wait");
            state.ended(&taken.host, 3_000_000);
            taken.serial == 1000
        });
        let before = before.expect("its turn comes");
        assert!(before < 60, "{before} came before it");
    }

    /// However many names an address has, and however small and slow to compile their objects are, a host elsewhere has
    /// half of the time.
    #[test]
    fn names_at_an_address_have_the_time_of_one() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let host =
            |last: u8, nqn: &str| hosts.host(Some(Ipv4Addr::new(127, 0, 0, last).into()), nqn);
        let mut state = Turns::default();
        let add = |state: &mut Turns, (load, reply)| state.add(load, reply);
        let attack = |state: &mut Turns, serial: u64| {
            add(state, load(&host(1, &serial.to_string()), serial, 15_000));
        };
        (0..150).for_each(|serial| attack(&mut state, serial));
        let other = host(2, "other");
        for round in 0..5 {
            add(&mut state, load(&other, 1000, 66_000));
            let before = (0..1000).find(|number| {
                let (taken, _) = state.take().expect("many wait");
                state.ended(
                    &taken.host,
                    if taken.serial == 1000 { 10_000_000 } else { 300_000_000 },
                );
                attack(&mut state, 2000 + round * 1000 + number);
                taken.serial == 1000
            });
            assert!(before.is_some_and(|before| before <= 2), "{before:?} in round {round}");
        }
    }

    /// Loads that come later at the same address, and may be dropped, do not move the place of a waiting load.
    #[test]
    fn smaller_loads_at_its_address_do_not_keep_a_load_waiting() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let host =
            |last: u8, nqn: &str| hosts.host(Some(Ipv4Addr::new(127, 0, 0, last).into()), nqn);
        let mut state = Turns::default();
        let add = |state: &mut Turns, (load, reply)| state.add(load, reply);
        add(&mut state, load(&host(1, "waits"), 1_000_000, 500_000));
        let (busy, mut smaller) = (host(2, "busy"), 499_999);
        let before = (0..1000).find(|number| {
            state.waiting.retain(|waits| waits.load.host.nqn != "drops");
            add(&mut state, load(&host(1, "drops"), 2 * number, smaller));
            add(&mut state, load(&busy, 2 * number + 1, 15_000));
            smaller -= 1;
            let (taken, _) = state.take().expect("three wait");
            state.ended(&taken.host, 300_000_000);
            taken.serial == 1_000_000
        });
        assert!(before.is_some_and(|before| before < 50), "{before:?}");
    }

    /// A host that reconnects for each load keeps its account of compile time.
    #[test]
    fn compile_time_of_a_host_outlives_its_connections() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let host = || hosts.host(Some(Ipv4Addr::LOCALHOST.into()), "a");
        host().compile_time_ns.store(7, Ordering::Relaxed);
        host().group.compile_time_ns.store(9, Ordering::Relaxed);
        assert_eq!(host().compile_time_ns.load(Ordering::Relaxed), 7);
        assert_eq!(host().group.compile_time_ns.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn names_come_before_objects() {
        let mut upload = vec![0; Installation::NAME_BYTES];
        assert!(split_name(&upload).is_err());
        upload[..3].copy_from_slice("nä".as_bytes());
        upload.extend(b"object");
        assert_eq!(split_name(&upload), Ok((Some("nä".to_owned()), &b"object"[..])));
        for wrong in [b"a\n", b"\xff\x00"] {
            upload[..3].fill(0);
            upload[..2].copy_from_slice(wrong);
            assert!(split_name(&upload).is_err());
        }
        assert!(split_name(&upload[..63]).is_err());
    }

    #[test]
    fn reasons_are_printable_and_short() {
        assert_eq!(reason("a\nb\u{1b}[2J"), "a\u{fffd}b\u{fffd}[2J");
        let long = reason("ä".repeat(2000));
        assert!(long.len() <= MAX_REASON_BYTES && long.ends_with('ä'));
    }
}
