//! Storage functions of tests, compiled as the documentation says.

use std::path::Path;
use std::process::Command;

/// Compiles `source`, a path from this crate's folder, to the file `object`.
pub(crate) fn compile(source: &str, object: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .args("-O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3 -I".split(' '))
        .arg(here.join("../../functions/include"))
        .arg("-c")
        .arg(here.join(source))
        .arg("-o")
        .arg(object)
        .status();
    let compiled = status.is_ok_and(|status| status.success());
    assert!(compiled, "{clang}, which make setup installs, fails on {source}");
}
