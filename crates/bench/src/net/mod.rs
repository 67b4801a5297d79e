//! `bpfof bench net`: reads and writes over NVMe/TCP, against the limits of TCP itself.

mod bench;
mod cases;
mod connections;
mod cpu_profile;
mod curve;
mod load;
mod options;
mod plot;
mod report;
mod table;
mod threads;
mod tls;

pub(crate) use options::NetOptions;

use crate::output::{check_writable, write_json};
use crate::plot::prepare;
use bench::{Bench, Failure};
use bpfof_terminal::{Outcome, progress};
use report::Report;

pub(crate) fn run(options: &NetOptions) -> Outcome {
    check_writable([&options.json])?;
    if options.tls {
        return tls::run(options);
    }
    prepare(options.plots.as_deref())?;
    if options.perf {
        if options.threads.iter().all(|count| *count == 0) {
            return Err(
                "--perf measures the cases of --threads: give --threads a number, or leave out --perf".into()
            );
        }
        cpu_profile::check()?;
    }
    let mut bench = Bench::open(options)?;
    let report = measure(&mut bench, options)?;
    bench.close()?;
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plots.as_ref().map_or(Ok(()), |folder| plot::draw(folder, &report));
    table::print(&report);
    written.and(drawn)
}

fn measure(bench: &mut Bench, options: &NetOptions) -> Result<Report, Failure> {
    let (mixes, spreads) = (options.mixes(), options.spreads());
    let threads: Vec<usize> = options.threads.iter().copied().filter(|count| *count > 0).collect();
    let cases = options.sizes.len() * options.depths.len();
    let others = mixes.len() + spreads.len() + threads.len() + usize::from(!options.no_curve);
    let bar = progress::steps("measuring", (cases + others) as u64);
    // A polling target started by the benchmark takes the processor of the baseline's peer.
    let has_baselines = bench.has_floor() && !options.poll;
    let mut report = Report { has_baselines, ..Report::default() };
    for &size in &options.sizes {
        for &depth in &options.depths {
            bar.set_message(format!("reads of {size} B, QD {depth}, and TCP alone"));
            report.cases.push(cases::case(bench, options, size, depth)?);
            bar.inc(1);
        }
    }
    for writes in mixes {
        bar.set_message(format!("{writes} % writes"));
        report.mixes.push(cases::mix(bench, options, writes)?);
        bar.inc(1);
    }
    if !options.no_curve {
        bar.set_message("reads that are due at random times");
        let most = report
            .cases
            .iter()
            .filter(|case| case.size_bytes == options.smallest())
            .map(|case| case.lane.ops_per_s);
        report.curves = curve::measure(bench, options, most.fold(1.0, f64::max))?;
        bar.inc(1);
    }
    for (connections, own_targets) in spreads {
        bar.set_message(format!("{connections} connections"));
        report.spreads.push(connections::measure(bench, options, connections, own_targets)?);
        bar.inc(1);
    }
    for &count in &threads {
        bar.set_message(format!("{count} threads, a connection each and one for all"));
        report.threads.push(bench.threads(options, count)?);
        bar.inc(1);
    }
    if let Some(count) = threads.into_iter().max().filter(|_| options.perf) {
        report.shares = bench.shares(options, count)?;
    }
    bar.finish_and_clear();
    report.summary = report.summarize();
    Ok(report)
}
