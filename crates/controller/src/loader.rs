//! Function Load beside the reactors: objects are read, checked and translated on a thread of their own,
//! one at a time, however many hosts load functions.
//!
//! Hosts take turns by the time that was spent for each, and of two that had as much the one with the
//! smaller object comes first: so a small function is not long in coming whatever others load. What a
//! connection has asked for is forgotten with it.

use crate::hosts::Host;
use crate::limits::{MAX_NAME_BYTES, MAX_REASON_BYTES};
use crate::operation::CommandId;
use crate::worker::{Queue, Waiting, Worker};
use bpfof_chain::Function;
use bpfof_function::memory::Charge;
use bpfof_function::{NativeFunction, Object};
use bpfof_nvme::{Installation, is_unprintable};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Time that a byte of an object is believed to cost, in ns: an instruction has 8, and takes some 8 µs.
const NS_PER_BYTE: u64 = 1000;
/// The most that an object is believed to cost, in µs: no program takes longer.
const MAX_ESTIMATE_US: u64 = 300_000;

/// A function to be compiled beside the reactor.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) command: CommandId,
    /// The connection's number, unlike its index never used again.
    pub(crate) serial: u64,
    pub(crate) function: u32,
    pub(crate) installation: Installation,
    pub(crate) object: Vec<u8>,
    pub(crate) host: Arc<Host>,
    /// What the object takes, of the host's memory.
    pub(crate) _memory: Charge,
}

impl Load {
    /// What has become of it.
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

/// Parses, checks and translates one entry point of an object. The error is in printable words.
pub(crate) fn compile(object: &[u8], entry: usize, id: u32) -> Result<Function, String> {
    let entry = Object::parse_entry(object, entry).map_err(reason)?;
    let native = NativeFunction::compile(&entry.program).map_err(reason)?;
    let instructions = entry.program.instructions().len() as u32;
    let name = cut(entry.name, MAX_NAME_BYTES);
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

/// An error in printable words: it is logged as well.
fn reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    cut(text.replace(is_unprintable, "\u{fffd}"), MAX_REASON_BYTES)
}

fn cut(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

/// A function that has been compiled, or not.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) command: CommandId,
    /// Of the connection.
    pub(crate) serial: u64,
    pub(crate) installation: Installation,
    /// The error is for the host to read.
    pub(crate) outcome: Result<Function, String>,
}

/// Whom to tell.
type Reply = Box<dyn FnOnce(Loaded) + Send>;

/// Takes functions to be compiled. The thread ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct Loader(Worker<Turns>);

/// Loads that wait.
#[derive(Default)]
struct Turns {
    /// Each with the virtual time at which it came.
    waiting: Vec<(Load, Reply, u64)>,
    /// Virtual time: that of the load that was begun last.
    now_us: u64,
}

impl Waiting for Turns {
    type Work = (Load, Reply);

    fn take(&mut self) -> Option<(Load, Reply)> {
        // The first of those that are equal.
        let begins_us = |at: usize| {
            let (load, _, came_us) = &self.waiting[at];
            load.host.compile_time_us.load(Ordering::Relaxed).max(*came_us)
        };
        let key = |at: &usize| begins_us(*at) + self.waiting[*at].0.estimate_us();
        let next = (0..self.waiting.len()).min_by_key(key)?;
        self.now_us = self.now_us.max(begins_us(next));
        let (load, reply, _) = self.waiting.remove(next);
        Some((load, reply))
    }
}

impl Turns {
    /// A load's place in line is that of the time when it came, however long others take.
    fn add(&mut self, load: Load, reply: Reply) {
        let came_us = self.now_us;
        self.waiting.push((load, reply, came_us));
    }

    /// Where the virtual time of a host stands: one that comes back begins where the others are.
    fn begins_us(&self, host: &Host) -> u64 {
        host.compile_time_us.load(Ordering::Relaxed).max(self.now_us)
    }
}

impl Load {
    fn estimate_us(&self) -> u64 {
        (self.object.len() as u64 * NS_PER_BYTE / 1000).min(MAX_ESTIMATE_US)
    }
}

impl Loader {
    /// Starts the thread, beside `reactors`.
    pub(crate) fn start(reactors: &[usize]) -> io::Result<Loader> {
        Ok(Loader(Worker::start("load", reactors, serve)?))
    }

    /// Compiles a function in its turn; `reply` is told on the loader's thread.
    pub(crate) fn load(&self, load: Load, reply: impl FnOnce(Loaded) + Send + 'static) {
        self.0.add(|turns| turns.add(load, Box::new(reply)));
    }

    /// Forgets what the connection with this number has asked for.
    pub(crate) fn cancel(&self, serial: u64) {
        self.0.cancel(|turns| turns.waiting.retain(|(load, ..)| load.serial != serial));
    }
}

fn serve((load, reply): (Load, Reply), queue: &Queue<Turns>) {
    let begun = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| load.run())).unwrap_or_else(|_| {
        Err("the compiler gave up on it, which is a defect of the target".into())
    });
    let took_us = begun.elapsed().as_micros() as u64;
    let now_us = queue.with(|turns| turns.begins_us(&load.host)) + took_us;
    load.host.compile_time_us.store(now_us, Ordering::Relaxed);
    reply(load.ended(outcome));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{HostLimits, Hosts};
    use std::net::Ipv4Addr;

    /// A load of an object of so many bytes for a host.
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
            let spent = state.begins_us(&load.host) + load.estimate_us();
            load.host.compile_time_us.store(spent, Ordering::Relaxed);
            load.serial
        };
        assert_eq!([take(&mut state), take(&mut state)], [10, 0]);
        // Whoever had less comes first, though the other has waited longer.
        add(&mut state, load(&other, 11, 90_000));
        assert_eq!([take(&mut state), take(&mut state)], [11, 1]);
        // What others have had while it was away does not count for it.
        let late = hosts.host(Some(Ipv4Addr::LOCALHOST.into()), "c");
        add(&mut state, load(&late, 20, 100_000));
        add(&mut state, load(&late, 21, 100_000));
        assert_eq!([take(&mut state), take(&mut state), take(&mut state)], [20, 2, 21]);
        assert!(state.take().is_none());
    }

    /// However long others go on, with objects that are smaller and cost more than their size says.
    #[test]
    fn small_objects_without_end_let_a_large_one_in() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 30);
        let [busy, other] = ["a", "b"].map(|nqn| hosts.host(Some(Ipv4Addr::LOCALHOST.into()), nqn));
        let mut state = Turns::default();
        let (large, reply) = load(&other, 1000, 60_000);
        state.add(large, reply);
        let before = (0..1000).find(|serial| {
            let (small, reply) = load(&busy, *serial, 2000);
            state.add(small, reply);
            let (taken, _) = state.take().expect("two wait");
            let spent = state.begins_us(&taken.host) + 3000;
            taken.host.compile_time_us.store(spent, Ordering::Relaxed);
            taken.serial == 1000
        });
        assert_eq!(before, Some(20));
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
