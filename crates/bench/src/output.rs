//! Files for results.

use bpfof_terminal::Outcome;
use std::path::PathBuf;

/// Fails if results cannot be written to one of these files: before minutes are spent on measuring. Existing files are
/// kept, and no new files are left behind.
pub(crate) fn check_writable<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Outcome {
    for path in paths.into_iter().flatten() {
        let is_new = !path.exists();
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        if is_new {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

/// Replaces the results of an earlier run: before they are printed, because the reader of standard output may be gone.
pub(crate) fn write_json(path: Option<&PathBuf>, results: &impl serde::Serialize) -> Outcome {
    if let Some(path) = path {
        std::fs::write(path, serde_json::to_string_pretty(results)? + "\n")?;
    }
    Ok(())
}
