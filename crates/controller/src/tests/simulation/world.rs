//! The scheduler: one queue of timed events, which decides everything.

use super::content::Contents;
use super::disk::{Disk, Operation};
use super::hosts::{Client, Host};
use super::machine::{Build, Effect, Machine, Shape, Turned};
use super::model::Model;
use super::network::{Link, MICROSECOND, MILLISECOND, SECOND, Time, Trouble};
use super::random::{Random, mix};
use super::requests::Pending;
use super::{Checked, Plant, Settings};
use crate::loader::Load;
use crate::operation::CommandId;
use crate::reactor::Message;
use bpfof_chain::Function;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// Number of events after which a seed is given up: many times the maximum needed.
const EVENTS_MAX: u64 = 400_000;

/// Memory of all hosts in bytes, if it is sufficient.
const MEMORY_BYTES: usize = 256 << 20;

/// Blocks read by one request of the final verification.
const VERIFIED_BLOCKS: usize = 8;

/// A scheduled event.
pub(super) enum Event {
    /// A new connection reaches the target.
    Accept {
        link: usize,
    },
    /// Bytes arrive.
    Deliver {
        link: usize,
        to_target: bool,
    },
    /// The target's kernel has taken everything it was given to send.
    Sent {
        core: usize,
        link: usize,
    },
    /// A core takes a turn.
    Turn {
        core: usize,
    },
    /// A disk continues an operation.
    Disk {
        operation: u64,
    },
    /// The load of a function has ended.
    Loaded {
        core: usize,
        load: Box<Load>,
    },
    /// A message reaches a core.
    Message {
        core: usize,
        message: Box<Message>,
    },
    /// An intruder connects and sends nothing.
    Intrude,
    /// A host acts.
    Act {
        host: usize,
    },
    /// A host sends a Keep Alive, if it still has the same connection.
    KeepAlive {
        link: usize,
    },
    /// A host sends queued bytes.
    Send {
        link: usize,
    },
    Fault,
    /// The target restarts.
    Restart,
    /// Once a second: checks for timeouts.
    Tick,
}

struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl Ord for Scheduled {
    /// The earliest event is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

/// The phase of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Random requests, and faults.
    Run,
    /// No more faults: every block is read.
    Verify,
    /// The hosts disconnect.
    Close,
    Finished,
}

/// An operation on a disk, and the command that waits for it.
pub(super) struct OnDisk {
    pub(super) core: usize,
    /// `None` for a read of a chain, or after the target has been told of the completion.
    pub(super) command: Option<CommandId>,
    /// The disk's error, if the operation fails.
    pub(super) failure: Option<i32>,
    pub(super) operation: Operation,
}

/// Statistics of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) seeds: u64,
    pub(super) events: u64,
    pub(super) requests: u64,
    pub(super) chains: u64,
    pub(super) lost: u64,
    pub(super) cuts: u64,
    pub(super) crashes: u64,
    pub(super) power_losses: u64,
    /// A hash of all events in order.
    pub(super) fingerprint: u64,
}

/// The simulated world.
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) random: Random,
    pub(super) now: Time,
    events: BinaryHeap<Scheduled>,
    next_number: u64,
    pub(super) machine: Option<Machine>,
    /// When each core takes its next turn.
    turns: Vec<Option<Time>>,
    /// The end of its current turn.
    busy_until: Vec<Time>,
    /// Delay added to events scheduled now, because they happen at the end of a turn.
    lag: Time,
    /// The configuration of the target's process.
    build: Build,
    intruders_left: u32,
    pub(super) shapes: Vec<Shape>,
    /// `None` for namespaces in the target's memory.
    pub(super) disks: Vec<Option<Disk>>,
    pub(super) on_disk: BTreeMap<u64, OnDisk>,
    pub(super) next_operation: u64,
    pub(super) links: Vec<Link>,
    /// The host's end of each link.
    pub(super) clients: Vec<Option<Client>>,
    pub(super) hosts: Vec<Host>,
    pub(super) model: Model,
    pub(super) contents: Contents,
    /// Requests in flight, by their tags.
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) next_tag: u64,
    pub(super) phase: Phase,
    pub(super) faults_left: u32,
    /// Blocks still to be verified at the end: namespace, first block, and count.
    pub(super) unread: Vec<(usize, usize, usize)>,
    functions: Vec<Arc<Function>>,
    pub(super) done: Done,
    closing_since: Time,
}

impl World {
    pub(super) fn new(settings: Settings, seed: u64, functions: Vec<Arc<Function>>) -> World {
        let mut random = Random::new(seed);
        let shapes = shapes(settings, &mut random);
        let disk = |shape: &Shape| {
            shape.memory_latency_us.is_none().then(|| {
                Disk::new(shape.block_bytes as usize, shape.blocks as usize, settings.plant)
            })
        };
        let spaces: Vec<_> = shapes
            .iter()
            .map(|shape| (shape.blocks as usize, shape.memory_latency_us.is_some()))
            .collect();
        let cores = if settings.greedy { 1 } else { random.within(1, 2) as usize };
        let build = Build {
            cores,
            slowness: if settings.greedy { 1 } else { random.pick(&[1, 10, 100]) },
            send_buffer_bytes: random.pick(&[1 << 10, 8 << 10, 1 << 20]),
            memory_bytes: if settings.greedy {
                MEMORY_BYTES
            } else {
                random.pick(&[MEMORY_BYTES, 8 << 20])
            },
            plant: settings.plant,
            seed,
        };
        let mut world = World {
            settings,
            now: 0,
            events: BinaryHeap::new(),
            next_number: 0,
            machine: Some(Machine::start(build, &shapes, functions.clone())),
            turns: vec![None; cores],
            busy_until: vec![0; cores],
            lag: 0,
            build,
            intruders_left: if random.one_in(4) { 30 } else { 0 },
            disks: shapes.iter().map(disk).collect(),
            on_disk: BTreeMap::new(),
            next_operation: 0,
            links: Vec::new(),
            clients: Vec::new(),
            hosts: Vec::new(),
            model: Model::new(&spaces),
            contents: Contents::default(),
            pending: BTreeMap::new(),
            next_tag: 1,
            phase: Phase::Run,
            faults_left: if settings.greedy { 0 } else { random.below(5) as u32 },
            unread: Vec::new(),
            functions,
            done: Done { seeds: 1, ..Done::default() },
            closing_since: 0,
            shapes,
            random,
        };
        let hosts = if settings.greedy { 5 } else { world.random.within(1, 3) as usize };
        // Hosts from this index on share one address.
        let together = world.random.within(1, 5) as usize;
        for host in 0..hosts {
            let made = match settings.greedy {
                true => Host::of_crowd(host, host >= together, &mut world.random),
                false => Host::new(host, &mut world.random),
            };
            world.hosts.push(made);
            world.after(0, Event::Act { host });
        }
        let first_fault = world.random.below(5 * MILLISECOND);
        world.after(first_fault, Event::Fault);
        let first_intruder = world.random.below(100 * MILLISECOND);
        world.after(first_intruder, Event::Intrude);
        world.after(SECOND, Event::Tick);
        world
    }

    /// Plays the seed to its end.
    pub(super) fn run(&mut self) -> Checked {
        while self.phase != Phase::Finished {
            let Some(next) = self.events.pop() else {
                return Err("nothing is scheduled, not even a look at the clock".to_owned());
            };
            self.now = next.at;
            self.done.events += 1;
            if self.done.events > EVENTS_MAX {
                return Err(format!("no end in sight after {EVENTS_MAX} events"));
            }
            let what = next.event.fingerprint();
            self.done.fingerprint = mix(self.done.fingerprint ^ next.at ^ what << 48);
            self.happen(next.event)?;
            self.settle();
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Checked {
        match event {
            Event::Accept { link } => self.accept(link),
            Event::Deliver { link, to_target } => return self.deliver(link, to_target),
            Event::Sent { core, link } => {
                self.machine().sent(core, link);
                self.turn_soon(core);
            }
            Event::Turn { core } => self.turn(core),
            Event::Disk { operation } => self.disk_works(operation),
            Event::Loaded { core, load } => {
                self.machine().loaded(core, *load);
                self.turn_soon(core);
            }
            Event::Message { core, message } => {
                self.machine().message(core, *message);
                self.turn_soon(core);
            }
            Event::Intrude => self.intrude(),
            Event::Act { host } => return self.act(host),
            Event::KeepAlive { link } => return self.keep_alive(link),
            Event::Send { link } => self.host_sends(link),
            Event::Fault => self.fault()?,
            Event::Restart => self.restart(),
            Event::Tick => return self.tick(),
        }
        Ok(())
    }

    /// Schedules an event.
    pub(super) fn after(&mut self, delay: Time, event: Event) {
        let (at, number) = (self.now + self.lag + delay, self.next_number);
        self.next_number += 1;
        self.events.push(Scheduled { at, number, event });
    }

    /// Drops the events of the target's process, which has died.
    pub(super) fn forget_process(&mut self) {
        self.events.retain(|scheduled| !scheduled.event.belongs_to_process());
    }

    /// The target's process; its events only exist while it runs.
    pub(super) fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("an event of the target's process without a process")
    }

    /// Prints a line of the trace, if enabled.
    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if self.settings.trace {
            eprintln!("{:>12} ns  {}", self.now, line());
        }
    }

    /// A random short time, as a network, a disk or a thread may take.
    pub(super) fn delay(&mut self) -> Time {
        match self.random.below(64) {
            0 => self.random.within(1, 200) * MILLISECOND,
            1..=4 => self.random.within(1, 3_000) * MICROSECOND,
            _ => self.random.within(1, 100_000),
        }
    }

    /// Schedules a turn of a core.
    pub(super) fn turn_soon(&mut self, core: usize) {
        let delay = self.random.below(20 * MICROSECOND);
        self.turn_at(core, self.now + delay);
    }

    fn turn_at(&mut self, core: usize, at: Time) {
        let at = at.max(self.busy_until[core]);
        if self.turns[core].is_none_or(|planned| planned > at) {
            self.turns[core] = Some(at);
            self.after(at.saturating_sub(self.now), Event::Turn { core });
        }
    }

    fn turn(&mut self, core: usize) {
        let now = self.now;
        if self.turns[core].is_some_and(|planned| planned <= now) {
            self.turns[core] = None;
        }
        if now < self.busy_until[core] {
            return self.turn_at(core, now);
        }
        let Turned { due, ended } = self.machine().turn(core, now);
        self.busy_until[core] = ended;
        self.turn_at(core, due);
        self.lag = ended - now;
    }

    fn accept(&mut self, link: usize) {
        let core = self.random.index(self.turns.len());
        let address = self.links[link].address;
        if let Some(machine) = &mut self.machine {
            machine.accept(core, link, address);
            self.links[link].server = Some(core);
            self.turn_soon(core);
            self.deliver_soon(link, true);
        } else {
            self.links[link].excused = true;
            self.server_gone(link);
        }
    }

    /// An intruder connects and sends nothing, or only a little.
    fn intrude(&mut self) {
        if self.intruders_left == 0 || self.phase != Phase::Run {
            return;
        }
        self.intruders_left -= 1;
        let link = self.links.len();
        let mut new = Link::new(self.random.pick(&[201, 202]));
        new.client = false;
        let said = self.random.pick(&[&b""[..], &[0, 0, 128], &[7; 64]]);
        new.to_target.send(said);
        self.links.push(new);
        self.clients.push(None);
        self.after(0, Event::Accept { link });
        let pause = self.random.below(MILLISECOND);
        self.after(pause, Event::Intrude);
    }

    /// Schedules the delivery of the bytes in transit.
    pub(super) fn deliver_soon(&mut self, link: usize, to_target: bool) {
        let delay = self.delay();
        let is_dead = self.links[link].trouble == Trouble::Dead;
        let pipe = self.links[link].pipe(to_target);
        if is_dead {
            pipe.lose();
        } else if pipe.has_news() && !pipe.scheduled {
            pipe.scheduled = true;
            self.after(delay, Event::Deliver { link, to_target });
        }
    }

    fn deliver(&mut self, index: usize, to_target: bool) -> Checked {
        let (now, link) = (self.now, &mut self.links[index]);
        link.pipe(to_target).scheduled = false;
        match link.trouble {
            Trouble::Stalled(until) if now < until => {
                link.pipe(to_target).scheduled = true;
                self.after(until - now, Event::Deliver { link: index, to_target });
                return Ok(());
            }
            Trouble::Stalled(_) => link.trouble = Trouble::None,
            Trouble::Dead => {
                link.pipe(to_target).lose();
                return Ok(());
            }
            Trouble::None => {}
        }
        if to_target && link.server.is_none() {
            // Not accepted yet, or closed.
            return Ok(());
        }
        let server = link.server;
        if let Some(core) = server.filter(|_| to_target)
            && self.machine().room(core, index) == 0
        {
            self.deliver_soon(index, true);
            return Ok(());
        }
        let pipe = self.links[index].pipe(to_target);
        let piece = pipe.piece(&mut self.random);
        let ends = pipe.ends_now();
        self.trace(|| {
            let to = if to_target { "target" } else { "host" };
            let end = if ends { " and the end" } else { "" };
            format!("link {index}: {} bytes{end} reach the {to}", piece.len())
        });
        if to_target {
            self.target_receives(index, &piece, ends);
        } else {
            if let Some(core) = server {
                self.machine().acked(core, index, piece.len());
            }
            self.host_receives(index, &piece, ends)?;
        }
        self.deliver_soon(index, to_target);
        Ok(())
    }

    fn target_receives(&mut self, link: usize, bytes: &[u8], ends: bool) {
        let Some(core) = self.links[link].server else { return };
        self.links[link].asked_at = self.now;
        self.machine().arrived(core, link, bytes, ends);
        self.turn_soon(core);
    }

    /// Carries out the effects of the target's process.
    fn settle(&mut self) {
        while let Some(machine) = &mut self.machine
            && !machine.effects.is_empty()
        {
            for effect in std::mem::take(&mut machine.effects) {
                self.perform(effect);
            }
        }
        self.lag = 0;
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send { link, bytes } => {
                self.links[link].told_at = self.now + self.lag;
                self.links[link].to_host.send(&bytes);
                self.deliver_soon(link, false);
            }
            Effect::Taken { core, link } => {
                let delay = self.random.below(50 * MICROSECOND);
                self.after(delay, Event::Sent { core, link });
            }
            Effect::Close { link } => self.server_gone(link),
            Effect::File { core, operation } => self.submit_to_disk(core, operation),
            Effect::Load { core, load } => {
                let delay = self.delay();
                self.after(delay, Event::Loaded { core, load: Box::new(load) });
            }
            Effect::Message { core, message } => {
                let delay = self.delay();
                self.after(delay, Event::Message { core, message: Box::new(message) });
            }
        }
    }

    /// The target has closed its end of a connection.
    pub(super) fn server_gone(&mut self, index: usize) {
        let (now, link) = (self.now, &mut self.links[index]);
        link.server = None;
        // If it was closed for its silence, the excuse stays valid until the host notices.
        link.excused |= link.is_excused(now);
        link.to_target.drop_all();
        match self.random.one_in(8) {
            // Unread bytes reset the connection, and answers in transit are lost.
            true if link.excused => link.to_host.cut(&mut self.random),
            _ => link.to_host.finish(),
        }
        self.deliver_soon(index, false);
        self.report_if_gone(index);
    }

    /// Tells the model if nothing is left of a link.
    pub(super) fn report_if_gone(&mut self, index: usize) {
        let link = &mut self.links[index];
        if !link.may_act() && !link.reported {
            link.reported = true;
            self.model.link_gone(index);
            self.trace(|| format!("link {index}: nothing is left"));
        }
    }

    /// Starts a new process of the target.
    fn restart(&mut self) {
        self.trace(|| "the target starts".to_owned());
        let cores = self.turns.len();
        self.turns = vec![None; cores];
        self.busy_until = vec![0; cores];
        self.machine = Some(Machine::start(self.build, &self.shapes, self.functions.clone()));
    }

    fn tick(&mut self) -> Checked {
        self.after(SECOND, Event::Tick);
        if self.machine.is_some() {
            for core in 0..self.turns.len() {
                self.turn_at(core, self.now);
            }
        }
        for link in 0..self.clients.len() {
            self.check_timeout(link)?;
        }
        self.advance()
    }

    /// Enters the next phase once the hosts have finished this one.
    pub(super) fn advance(&mut self) -> Checked {
        match self.phase {
            _ if !self.pending.is_empty() && self.phase != Phase::Close => {}
            Phase::Run if self.hosts.iter().all(|host| host.requests_left == 0) => {
                self.begin_verification()?;
            }
            Phase::Verify if self.unread.is_empty() => {
                self.phase = Phase::Close;
                self.closing_since = self.now;
                self.trace(|| "the hosts go away".to_owned());
                for host in 0..self.hosts.len() {
                    self.leave(host)?;
                }
            }
            Phase::Close => {
                let Some(machine) = &mut self.machine else { return Ok(()) };
                let links = machine.links();
                // A message in transit to a core may keep an association alive until it arrives.
                let left = machine.check_empty();
                if links.is_empty() && left.is_ok() {
                    self.phase = Phase::Finished;
                } else if links.is_empty() && self.now - self.closing_since > 100 * SECOND {
                    return left;
                } else if self.now - self.closing_since > 100 * SECOND {
                    return Err(format!("the target keeps the connections of links {links:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts reading all namespaces once more, after a last fault.
    fn begin_verification(&mut self) -> Checked {
        self.phase = Phase::Verify;
        self.trace(|| "all is read once more".to_owned());
        match self.random.below(4) {
            0 => self.target_dies(false),
            1 => self.target_dies(true),
            _ => {}
        }
        for (space, shape) in self.shapes.iter().enumerate() {
            let parts = (0..shape.blocks as usize).step_by(VERIFIED_BLOCKS);
            let part = |first| (space, first, VERIFIED_BLOCKS.min(shape.blocks as usize - first));
            self.unread.extend(parts.map(part));
        }
        Ok(())
    }

    /// Whether hosts may be refused for lack of memory.
    pub(super) fn lacks_memory(&self) -> bool {
        self.build.memory_bytes < MEMORY_BYTES
    }

    /// Whether a bug of this kind is planted.
    pub(super) fn has(&self, plant: Plant) -> bool {
        self.settings.plant == Some(plant)
    }
}

impl Event {
    /// Whether the event has no meaning without the target's process.
    fn belongs_to_process(&self) -> bool {
        use Event::{Disk, Loaded, Message, Sent, Turn};
        matches!(self, Sent { .. } | Turn { .. } | Disk { .. } | Loaded { .. } | Message { .. })
    }

    fn fingerprint(&self) -> u64 {
        match self {
            Event::Accept { link } => *link as u64,
            Event::Deliver { link, to_target } => 256 + 2 * *link as u64 + u64::from(*to_target),
            Event::Sent { link, .. } => 1024 + *link as u64,
            Event::Turn { core } => 2048 + *core as u64,
            Event::Disk { operation } => 4096 + *operation,
            Event::Act { host } => 2056 + *host as u64,
            _ => 2064,
        }
    }
}

/// Two disks with blocks of different sizes, and memory.
fn shapes(settings: Settings, random: &mut Random) -> Vec<Shape> {
    let latency_us = if settings.greedy || random.one_in(2) { 0 } else { random.within(1, 300) };
    // In some seeds, enough room for transfers that fill a connection's allowance.
    let large = !settings.greedy && random.one_in(8);
    vec![
        Shape { block_bytes: 512, blocks: 32, memory_latency_us: None },
        Shape { block_bytes: 4096, blocks: if large { 32 } else { 6 }, memory_latency_us: None },
        Shape { block_bytes: 512, blocks: 24, memory_latency_us: Some(latency_us) },
    ]
}
