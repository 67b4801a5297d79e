//! Processes of the user `nobody`, without privileges.

use super::daemon::UID;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Runs an ignored test of this program as a process of [`UID`], with these variables.
pub(crate) fn as_nobody(test: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", test])
        .envs(variables.iter().copied())
        .uid(UID)
        .gid(UID)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// The output of the process, which must end successfully.
pub(crate) fn outcome(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {printed}", output.status);
    printed
}

/// A number that such a process has printed as "NAME=NUMBER".
pub(crate) fn number(printed: &str, name: &str) -> u64 {
    let text =
        printed.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in: {printed}"))
}

/// A variable that the parent has set.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
