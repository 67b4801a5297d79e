//! Simulates hosts, network, target and disks in one thread, driven by one seed.
//!
//! The protocol cores of both sides are real: the library's queues, the target's connections with
//! their executors and the chain engine, and the PDUs between them. Everything around them is
//! simulated: time, threads, sockets, disks. A scheduler takes one event after the other and
//! decides at random what it causes and when, so that a seed determines a repeatable history:
//! connections are cut, stall or fall silent, bytes arrive late and in pieces, disks tear writes,
//! fail, and lose their caches with the power, processes die and restart, hosts sleep, reset and
//! leave.
//!
//! A model knows what each block may hold ([`model`]), and which file maps may be in force
//! ([`chains`]). In addition:
//!
//! - each request ends once, with an answer on its connection or with the connection;
//! - nothing takes long unless its connection has trouble;
//! - neither side closes a connection without a reason, or breaks the protocol;
//! - state on both sides is bounded, and when all hosts are gone, nothing of them is left at the
//!   target;
//! - nothing panics;
//! - a host with few requests does not wait for hosts that overload the target.
//!
//! Threads, the ring and the kernel are not covered: they are behind the reactor's `Io`.

mod answers;
pub(super) mod chains;
mod content;
mod disk;
mod faults;
mod hosts;
mod machine;
mod model;
mod network;
mod random;
mod requests;
mod vectors;
mod world;

use bpfof_chain::Function;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use world::{Done, World};

/// The result of a check: an error is a description.
type Checked = Result<(), String>;

/// One in so many seeds has greedy hosts, whose chains take real time.
const GREEDY: u64 = 256;
/// Seeds of the regular test.
const SEEDS: u64 = 25_000;

/// A planted bug, to verify that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    /// A disk whose Flush does nothing.
    IgnoresFlush,
    /// A disk that treats Force Unit Access as an ordinary write.
    IgnoresFua,
    /// A disk whose cache is lost with the target's process.
    CacheDiesWithProcess,
    /// A disk that leaves half-written blocks when the power fails.
    TearsBlocks,
    /// A disk that occasionally reads a neighbouring block.
    ReadsElsewhere,
    /// A disk that occasionally loses a write.
    LosesWrites,
    /// A write that is answered before it has been performed.
    AnswersBeforeWriting,
    /// A disk that occasionally does not report a completion.
    ForgetsCompletions,
    /// A kernel that reports late how much it has taken of lent memory, which changes in the
    /// meantime.
    LentIsSentLate,
    /// A partial send that is treated as complete.
    ForgetsRest,
    /// Connections that never end if their host receives nothing.
    LingersForEver,
    /// Messages between reactors that are lost.
    LosesMessages,
    /// Hosts that are not distinguished by their addresses.
    TakesHostsForOne,
    /// A clock that stands still during a turn, so that the turn does not end.
    ClockStandsStill,
    /// Connections that wait for an arena and are forgotten.
    ForgetsWaiters,
}

impl Plant {
    /// Whether only an overloaded target shows the bug.
    fn starves(self) -> bool {
        matches!(self, Plant::ClockStandsStill | Plant::ForgetsWaiters)
    }
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Whether disks fail occasionally.
    disk_errors: bool,
    /// Whether hosts overload the target; then there are no faults, and modest hosts must not
    /// notice the load.
    greedy: bool,
    plant: Option<Plant>,
    /// Whether to print all events.
    trace: bool,
}

/// Plays a seed.
fn play(seed: u64, plant: Option<Plant>, functions: &[Arc<Function>]) -> Result<Done, String> {
    let trace = std::env::var_os("TRACE").is_some();
    let greedy = seed % GREEDY == GREEDY - 1 || plant.is_some_and(Plant::starves);
    let disk_errors = !greedy && seed % 4 == 3;
    let settings = Settings { disk_errors, greedy, plant, trace };
    let mut world = World::new(settings, seed, functions.to_vec());
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    match outcome {
        Ok(Ok(())) => Ok(world.done),
        Ok(Err(error)) => Err(error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            // A panic leaves the world in an inconsistent state: do not drop it.
            std::mem::forget(world);
            Err(format!("panic: {}", text.unwrap_or("without a message")))
        }
    }
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, but is {text:?}")))
}

/// Plays seeds on all processors while `more` returns true; the first failure is reported with the
/// command that repeats it.
fn play_all(first: u64, more: impl Fn(u64) -> bool + Sync, command: &str) -> Done {
    let functions = [chains::walk(), chains::spin()];
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let work = || {
        let mut sum = Done::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if failed.load(Ordering::Relaxed) || !more(seed - first) {
                return Ok(sum);
            }
            match play(seed, None, &functions) {
                Ok(done) => sum.add(&done),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    return Err(format!(
                        "seed {seed}: {error}\n\nrepeat it, with all that happens, by\n  \
                         TRACE=1 SEED={seed} {command}"
                    ));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = Done::default();
        for thread in running {
            match thread.join().expect("panics are caught") {
                Ok(done) => sum.add(&done),
                Err(error) => panic!("{error}"),
            }
        }
        sum
    })
}

impl Done {
    fn add(&mut self, other: &Done) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.requests += other.requests;
        self.chains += other.chains;
        self.lost += other.lost;
        self.cuts += other.cuts;
        self.crashes += other.crashes;
        self.power_losses += other.power_losses;
    }

    /// Checks that this many seeds covered everything.
    fn has_all(&self) {
        let Done { seeds, chains, lost, cuts, crashes, power_losses, .. } = *self;
        let is_had = [chains, lost, cuts, crashes, power_losses].iter().all(|count| *count > 0);
        assert!(is_had || seeds < SEEDS, "{self}");
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Done { seeds, events, requests, chains, lost, cuts, crashes, power_losses, .. } = self;
        write!(
            f,
            "{seeds} seeds: {events} events, {requests} requests ({chains} chains, {lost} lost), \
             {cuts} links cut or silent, {crashes} crashes, {power_losses} power losses"
        )
    }
}

/// Seeds from 0 on, or the one in SEED; SEEDS changes their number.
#[test]
fn seeds() {
    let command = "cargo test -p bpfof-controller simulation::seeds -- --nocapture";
    let done = match setting("SEED") {
        Some(seed) => play_all(seed, |number| number == 0, command),
        None => {
            let count = setting("SEEDS").unwrap_or(SEEDS);
            play_all(0, |number| number < count, command)
        }
    };
    println!("{done}");
    assert!(done.requests > 0);
    done.has_all();
}

/// The same seed always gives the same history.
#[test]
fn a_seed_repeats_itself() {
    let functions = [chains::walk(), chains::spin()];
    for seed in 0..20 {
        let (first, second) = (play(seed, None, &functions), play(seed, None, &functions));
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(play(0, None, &functions), play(1, None, &functions));
}

/// Each planted bug is found within a number of seeds.
#[test]
fn planted_bugs_are_found() {
    let functions = [chains::walk(), chains::spin()];
    for plant in [
        Plant::IgnoresFlush,
        Plant::IgnoresFua,
        Plant::CacheDiesWithProcess,
        Plant::TearsBlocks,
        Plant::ReadsElsewhere,
        Plant::LosesWrites,
        Plant::AnswersBeforeWriting,
        Plant::ForgetsCompletions,
        Plant::LentIsSentLate,
        Plant::ForgetsRest,
        Plant::LingersForEver,
        Plant::LosesMessages,
        Plant::TakesHostsForOne,
        Plant::ClockStandsStill,
        Plant::ForgetsWaiters,
    ] {
        let found = (0..10_000)
            .find_map(|seed| play(seed, Some(plant), &functions).err().map(|error| (seed, error)));
        let (seed, error) = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        let line = error.lines().next().unwrap_or_default();
        println!("{plant:?}: seed {seed}: {line}");
    }
}

/// `make soak`: fresh seeds for SOAK_SECONDS.
#[test]
#[ignore = "runs as long as SOAK_SECONDS says: make soak"]
fn soak() {
    let seconds = setting("SOAK_SECONDS").unwrap_or(3600);
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let first = since_epoch.map_or(0, |since| since.as_secs()) << 24;
    let (begun, length) = (Instant::now(), Duration::from_secs(seconds));
    println!("simulation: seeds from {first} on, for {seconds} s");
    let command = "cargo test --release -p bpfof-controller simulation::seeds -- --nocapture";
    let minutes = AtomicU64::new(0);
    let done = play_all(
        first,
        |number| {
            let elapsed = begun.elapsed();
            let minute = elapsed.as_secs() / 60;
            if minutes.fetch_max(minute, Ordering::Relaxed) < minute {
                println!("simulation: {number} seeds in {} s", elapsed.as_secs());
            }
            elapsed < length
        },
        command,
    );
    println!("simulation: {done}");
    done.has_all();
}
