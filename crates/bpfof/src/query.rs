//! `bpfof query …`: starts `bpfof-query`, as git starts its commands.
//!
//! The options have been parsed here already, for help, errors and completions.

use bpfof_terminal::Outcome;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "bpfof-query";
/// Words of the command line before the options: `bpfof query`.
const WORDS: usize = 2;

/// Replaces this process by [`PROGRAM`], with the same options; returns only if that fails.
pub(crate) fn run() -> Outcome {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(std::env::args_os().skip(WORDS)).exec();
    let what = match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{PROGRAM} is neither beside this program nor in PATH: make install puts it there, and so does cargo \
             build --release -p bpfof-query-command"
        ),
        _ => format!("cannot start {}: {error}", program.display()),
    };
    Err(what.into())
}
