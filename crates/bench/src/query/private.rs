//! Namespaces of the kernel for this process and those that it starts: networks, mounts. They go away with
//! the last process in them, however it ends, so that nothing has to be cleaned up.

use bpfof_terminal::Outcome;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the process that has namespaces of its own.
const MARK: &str = "BPFOF_BENCH_PRIVATE";

/// Starts this program again with networks and mounts of its own, unless it has them; then the loopback device is up.
pub(super) fn enter() -> Outcome {
    if std::env::var_os(MARK).is_some() {
        return tool("ip", &["link", "set", "lo", "up"]);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(
            "the benchmark mounts file systems and throttles networks of its own, which needs root"
                .into(),
        );
    }
    let program = std::env::current_exe()?;
    let error = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
    Err(format!("cannot start unshare: {error}; it is in Debian's util-linux").into())
}

/// Runs a program that must succeed.
pub(super) fn tool(program: &str, arguments: &[&str]) -> Outcome {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), errors.trim()).into())
}
