//! `bpfof-query`, which `bpfof query` starts.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

/// Ask files in SQL: filtered and reduced at the storage target.
#[derive(Parser)]
#[command(name = "bpfof-query", bin_name = "bpfof query", version)]
struct Cli {
    #[command(flatten)]
    options: bpfof_query_command::Options,
}

fn main() -> ExitCode {
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
