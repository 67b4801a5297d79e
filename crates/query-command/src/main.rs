//! The executable `bpfof-query`, which `bpfof query` starts.

use bpfof_host::TargetUrl;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// The first argument with which `bpfof bench query` starts a worker instead of a query.
const BENCH_WORKER: &str = "--bench-worker";

/// The host's side of a benchmark.
#[derive(Parser)]
struct Worker {
    /// Read requests from standard input, in lines of JSON.
    #[arg(long)]
    bench_worker: bool,
    #[arg(long, value_parser = bpfof_terminal::target_url)]
    target: TargetUrl,
    #[arg(long)]
    device: PathBuf,
}

fn serve_benchmark() -> ExitCode {
    let worker = Worker::parse();
    match bpfof_query_bench::serve(&worker.target, &worker.device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bpfof: benchmark worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == BENCH_WORKER) {
        return serve_benchmark();
    }
    ExitCode::from(bpfof_query_command::main(std::env::args_os()))
}
