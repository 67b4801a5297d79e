//! `bpfof-query`, which `bpfof query` starts.

use bpfof_host::TargetUrl;
use clap::Parser;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Ask files in SQL: filtered and reduced at the storage target.
#[derive(Parser)]
#[command(name = "bpfof-query", bin_name = "bpfof query", version)]
struct Cli {
    #[command(flatten)]
    options: bpfof_query_command::Options,
}

/// What `bpfof bench query` starts in place of a query: it is first of all arguments.
const BENCH_WORKER: &str = "--bench-worker";

/// The host's side of a benchmark.
#[derive(Parser)]
struct Worker {
    /// Standard input has what is to be done, in lines of JSON.
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
            eprintln!("bpfof: the worker of the benchmark: {error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(BENCH_WORKER) {
        return serve_benchmark();
    }
    let cli = Cli::parse();
    let mut logger = env_logger::Builder::new();
    logger.filter_level(log::LevelFilter::Warn);
    logger.format(|out, record| writeln!(out, "bpfof: {}", record.args())).init();
    match bpfof_query_command::run(&cli.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("bpfof: {message}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
