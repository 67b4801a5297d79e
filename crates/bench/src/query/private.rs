//! Private kernel namespaces for this process and its children: networks, mounts. They disappear with the last process
//! in them, however it ends, so that no cleanup is needed.

use bpfof_terminal::{Outcome, run_tool};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the process that has private namespaces.
const MARK: &str = "BPFOF_BENCH_PRIVATE";

/// Restarts this program with private networks and mounts, unless it has them; then brings the loopback device up.
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
    Ok(run_tool(Command::new(program).args(arguments))?)
}
