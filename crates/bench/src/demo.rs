//! `bpfof demo`: everything once, on this machine.

use crate::kv::options::KvOptions;
use crate::kv::remote::Bench;
use crate::kv::{plot, report};
use crate::output::write_json;
use crate::plot::use_font;
use bpfkv::Layout;
use bpfof_terminal::Outcome;
use clap::Args;
use std::path::PathBuf;

/// Number of answers that are compared with the plain path's before the measurements.
const CHECKED_KEYS: u64 = 1000;

/// Options of `bpfof demo`.
#[derive(Args)]
pub struct Options {
    /// Levels of the tree.
    #[arg(long, default_value_t = 5)]
    levels: u32,
    /// Folder for the figures (JSON) and the plot (PNG).
    #[arg(long, default_value = "demo-output")]
    output: PathBuf,
}

/// Runs the demonstration.
///
/// # Errors
/// A message for the user: two answers differ, a target does not start, or a file cannot be written.
pub fn run(options: &Options) -> Outcome {
    let create = |e| format!("cannot create {}: {e}", options.output.display());
    std::fs::create_dir_all(&options.output).map_err(create)?;
    let bench = KvOptions {
        levels: options.levels,
        target: None,
        latency_us: 0,
        network_us: 0,
        iops: 0,
        depths: vec![1, 32],
        batch: Vec::new(),
        threads: Vec::new(),
        cached: None,
        ranges: vec![64],
        sums: vec![1000],
        repetitions: 5,
        milliseconds: 500,
        poll: false,
        tls: false,
        json: None,
        plot: None,
    };
    // Report missing fonts before measuring.
    use_font()?;
    println!("starting a target on loopback with a BPF-KV database of {} levels", options.levels);
    let mut running = Bench::open(&bench)?;
    let keys = running.keys;
    check(&mut running)?;
    println!("{CHECKED_KEYS} of {keys} keys: pushed down and plain answers agree");
    println!("measuring, plain and pushed down in turn");
    let cases = running.measure(&bench)?;
    running.close()?;
    println!("\n{}", report::table(&cases));
    let json = options.output.join("demo.json");
    let picture = options.output.join("demo.png");
    write_json(Some(&json), &cases)?;
    let title = format!("BPF-KV, {} levels, over NVMe/TCP on loopback", options.levels);
    plot::draw(&picture, &title, &cases)?;
    println!("figures: {}\nplot:    {}", json.display(), picture.display());
    Ok(())
}

/// Checks keys of the whole database and beyond it, both ways.
fn check(bench: &mut Bench) -> Outcome {
    let beyond = Layout::new(bench.session.levels)?.keys();
    for number in 0..CHECKED_KEYS {
        let key = match number {
            0 => beyond,
            1 => u64::MAX,
            _ => number * (bench.keys - 1) / (CHECKED_KEYS - 1),
        };
        let (plain, pushed) = (bench.session.get(key, true)?, bench.session.get(key, false)?);
        let expected = (key < beyond).then(|| bpfkv::format::value_text(key));
        if plain != pushed || plain != expected {
            return Err(format!("key {key}: plain {plain:?}, pushed down {pushed:?}").into());
        }
    }
    Ok(())
}
