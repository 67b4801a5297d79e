//! Reads with and without TLS, in turn (`bpfof bench net --tls`).

use super::bench::{Failure, NAMESPACE_BYTES, check, fill};
use super::load::{Load, Place, Source};
use super::options::NetOptions;
use super::table;
use crate::machine;
use crate::measurement::spent;
use crate::output::write_json;
use crate::tls::{self, Targets, Way, WayFigures};
use bpfof_host::{Controller, Lane};
use bpfof_kv::connect;
use bpfof_terminal::{Outcome, progress};
use serde::Serialize;

/// One size at one depth.
#[derive(Serialize)]
struct Case {
    bench: &'static str,
    size_bytes: u32,
    queue_depth: u16,
    ways: Vec<WayFigures>,
}

/// A connection for one way. Dropped before the targets.
struct Connection {
    way: Way,
    controller: Controller,
    lane: Lane,
}

pub(super) fn run(options: &NetOptions) -> Outcome {
    machine::pin(machine::processors().0)?;
    let targets = Targets::start(&format!("mem:size={NAMESPACE_BYTES}"), options.poll)?;
    let mut connections = Vec::new();
    for way in targets.ways() {
        let (mut controller, mut lane) = connect(&targets.url(way), options.host())?;
        let info = controller.identify_namespace(place().nsid)?;
        check(options, info.size_bytes(), info.block_bytes, &lane)?;
        // The first target serves two ways: fill it only once.
        if way != Way::Plain {
            targets.unless_stopped(fill(&targets.stop, &mut lane, place()))?;
        }
        connections.push(Connection { way, controller, lane });
    }
    let cases = measure(options, &targets, &mut connections)?;
    for Connection { controller, lane, .. } in connections {
        drop(lane);
        controller.disconnect()?;
    }
    let written = write_json(options.json.as_ref(), &cases);
    fn row(case: &Case) -> tls::Row<'_> {
        let label = format!("{} B, QD {}", case.size_bytes, case.queue_depth);
        tls::Row { label, ways: &case.ways }
    }
    let rows: Vec<_> = cases.iter().map(row).collect();
    print!("{}", tls::table("Random reads", &[table::QUEUE_DEPTH], &rows));
    written
}

fn place() -> Place {
    Place { nsid: 1, size_bytes: NAMESPACE_BYTES, is_filled: true }
}

fn measure(
    options: &NetOptions,
    targets: &Targets,
    connections: &mut [Connection],
) -> Result<Vec<Case>, Failure> {
    let bar = progress::steps("measuring", (options.sizes.len() * options.depths.len()) as u64);
    let (mut cases, mut seed) = (Vec::new(), 0);
    for &size_bytes in &options.sizes {
        for &queue_depth in &options.depths {
            bar.set_message(format!(
                "reads of {size_bytes} B, QD {queue_depth}, without TLS and with it"
            ));
            let depth = usize::from(queue_depth);
            let load = Load { size_bytes, depth, writes: 0, is_single: false };
            let ways = targets.in_turn(options.repetitions, options.time(), |way, time| {
                let found = connections.iter_mut().find(|connection| connection.way == way);
                let lane = &mut found.ok_or("no such connection")?.lane;
                seed += 1;
                let used = || (machine::own_cpu_ns(), targets.child(way).cpu_ns());
                let before = used();
                let run = Source::new(place(), load, seed).closed_loop(lane, time)?;
                Ok((run, spent(before, used())))
            })?;
            cases.push(Case { bench: "net-tls", size_bytes, queue_depth, ways });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cases)
}
