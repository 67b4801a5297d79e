//! Messages of tests that leave something out.
#![allow(dead_code)] // Each test uses a part.

use std::io::Write as _;

/// If this variable is set, nothing may be left out: `make test` as root sets it.
const NO_SKIP: &str = "BPFOF_NO_SKIP";
/// Parts that may be left out even then, as words: features of the kernel, which cannot be installed.
const MAY_SKIP: &str = "BPFOF_MAY_SKIP";

/// Says why something is left out, past the capture of test output. Fails if nothing may be left out.
#[track_caller]
pub(crate) fn skip(why: &str) {
    skip_part("", why);
}

/// The same for a part that `BPFOF_MAY_SKIP` may name.
#[track_caller]
pub(crate) fn skip_part(part: &str, why: &str) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let may = std::env::var(MAY_SKIP).unwrap_or_default();
    let may = !is_set(NO_SKIP) || may.split_whitespace().any(|word| word == part);
    assert!(may, "SKIPPED, and must not be: {why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
