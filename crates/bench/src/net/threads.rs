//! Threads that read one block at a time, as databases do: with a connection each, and sharing a lane, with i10's
//! techniques added one after the other (i10 §5.3, figure 10).

use super::load::is_marked;
use crate::machine;
use crate::measurement::{Figures, Run, Samples, median, repetitions, spent};
use crate::steal::undisturbed;
use crate::together::{Users, repeat};
use bpfof_host::{Caravan, Controller, Error, Options as HostOptions, SharedLane, TargetUrl};
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// How threads reach the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// A connection for each thread.
    Private,
    /// One lane, with a send for each request.
    Lane,
    /// One lane; a send includes all queued requests, but no request waits for others.
    Caravan,
    /// One lane; requests wait for others as long as that pays.
    Doorbell,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::Private, Way::Lane, Way::Caravan, Way::Doorbell];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Way::Private => "a connection each",
            Way::Lane => "shared lane",
            Way::Caravan => "+ caravans",
            Way::Doorbell => "+ doorbell",
        }
    }

    /// Threads with a connection each sleep while they wait: spinning would take the processor from threads with work.
    pub(super) fn host(self, threads: usize, poll: bool) -> HostOptions {
        let options = HostOptions { queue_depth: 1023, poll, ..HostOptions::default() };
        if self == Way::Private && threads > 1 {
            HostOptions { spin_us: 0, ..options }
        } else {
            options
        }
    }

    fn caravan(self) -> Caravan {
        match self {
            Way::Private | Way::Lane => Caravan { max_requests: 1, ..Caravan::default() },
            Way::Caravan => Caravan { max_delay_us: 0, ..Caravan::default() },
            Way::Doorbell => Caravan::default(),
        }
    }
}

/// The figures of one way with one number of threads.
#[derive(Serialize)]
pub(super) struct WayFigures {
    pub(super) way: Way,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Requests for each send.
    pub(super) requests_per_send: f64,
}

/// The figures of one number of threads.
#[derive(Serialize)]
pub(super) struct Case {
    bench: &'static str,
    pub(super) threads: usize,
    pub(super) size_bytes: u32,
    pub(super) ways: Vec<WayFigures>,
}

impl Case {
    /// Operations a second of shared lanes with all techniques, divided by those of private connections.
    pub(super) fn shared_over_private(&self) -> Option<f64> {
        let ops = |way| Some(self.ways.iter().find(|found| found.way == way)?.figures.ops_per_s);
        Some(ops(Way::Doorbell)? / ops(Way::Private)?)
    }
}

/// The target to read from.
pub(super) struct Place<'a> {
    pub(super) url: &'a TargetUrl,
    pub(super) size_bytes: u64,
    /// Whether each block contains its place.
    pub(super) is_filled: bool,
    /// Whether hosts never sleep.
    pub(super) poll: bool,
    /// Processor time of the target so far, in ns.
    pub(super) target_cpu_ns: &'a dyn Fn() -> Option<u64>,
}

/// Measures all ways in turn, `count` times.
pub(super) fn measure(
    place: &Place<'_>,
    threads: usize,
    size_bytes: u32,
    count: u32,
    time: Duration,
) -> Result<Case, Box<dyn std::error::Error>> {
    let shared = Controller::connect(place.url, Way::Lane.host(threads, place.poll))?;
    let private = Controller::connect(place.url, Way::Private.host(threads, place.poll))?;
    let mut samples: Vec<_> = Way::ALL.iter().map(|_| (Samples::default(), Vec::new())).collect();
    let mut seed = 0;
    for (_, warm_up, time) in repetitions(count, time) {
        for (way, (samples, per_send)) in Way::ALL.into_iter().zip(&mut samples) {
            let controller = if way == Way::Private { &private } else { &shared };
            let (run, requests_per_send, spent) = undisturbed(warm_up, || {
                let users = open(way, controller, threads)?;
                seed += 1;
                let before = (machine::own_cpu_ns(), (place.target_cpu_ns)());
                let (run, requests_per_send) = read(users, place, (size_bytes, seed), time)?;
                let after = (machine::own_cpu_ns(), (place.target_cpu_ns)());
                Ok::<_, Box<dyn std::error::Error>>((run, requests_per_send, spent(before, after)))
            })?;
            if !warm_up {
                samples.add(&run, spent);
                per_send.push(requests_per_send);
            }
        }
    }
    private.disconnect()?;
    shared.disconnect()?;
    let ways = Way::ALL.into_iter().zip(&samples).map(|(way, (samples, per_send))| WayFigures {
        way,
        figures: samples.figures(),
        requests_per_send: median(per_send),
    });
    Ok(Case { bench: "net-threads", threads, size_bytes, ways: ways.collect() })
}

/// Opens the threads' connections.
pub(super) fn open(way: Way, controller: &Controller, threads: usize) -> Result<Users, Error> {
    if way == Way::Private {
        return Users::private(controller, threads);
    }
    let lane = SharedLane::new(controller.open_lane()?, way.caravan())?;
    Ok(Users::Shared(Box::new(lane), threads))
}

/// Lets every thread read at random places, which the seed chooses, for `time`. Also returns the requests for each
/// send.
pub(super) fn read(
    users: Users,
    place: &Place<'_>,
    (size_bytes, seed): (u32, u64),
    time: Duration,
) -> Result<(Run, f64), Box<dyn std::error::Error>> {
    let (nsid, is_filled) = (place.url.nsid, place.is_filled);
    let places = place.size_bytes / u64::from(size_bytes);
    let reader = |index: usize| {
        let random = Rng::with_seed((index as u64 + 1) << 32 ^ seed);
        Reader { places, size_bytes, random }
    };
    users.run(
        |index, lane| {
            let mut data = vec![0; size_bytes as usize];
            reader(index).run(time, |offset| {
                lane.read(nsid, offset, &mut data)?;
                Ok(!is_filled || is_marked(&data, offset))
            })
        },
        |index, lane| {
            let mut data = Vec::with_capacity(size_bytes as usize);
            reader(index).run(time, |offset| {
                lane.read(nsid, offset, size_bytes, &mut data)?;
                Ok(!is_filled || is_marked(&data, offset))
            })
        },
    )
}

/// One thread's work.
struct Reader {
    places: u64,
    size_bytes: u32,
    random: Rng,
}

impl Reader {
    /// `read` returns whether the data belongs to its place.
    fn run(
        mut self,
        time: Duration,
        mut read: impl FnMut(u64) -> Result<bool, Error>,
    ) -> Result<Histogram<u64>, String> {
        repeat(time, || {
            let offset = self.random.u64(..self.places) * u64::from(self.size_bytes);
            match read(offset) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    Err(format!("the block at {offset} has the contents of another block"))
                }
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
