//! Replaces the contents of files, atomically and durably across a crash of the machine.

use bpfof_terminal::folder::sync_folder;
use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::{self, Write};
use std::path::Path;

/// Makes a file at `aside` with `options`, fills it and renames it to `path`. `prepare` sets its owner and mode while
/// it is empty. After an error the file at `aside` is removed, unless it could not even be opened.
pub(crate) fn replace(
    (path, aside): (&Path, &Path),
    options: &OpenOptions,
    prepare: impl FnOnce(&File) -> io::Result<()>,
    content: &[&[u8]],
) -> io::Result<()> {
    let file = options.open(aside)?;
    let replaced =
        prepare(&file).and_then(|()| fill(&file, content)).and_then(|()| rename(aside, path));
    if replaced.is_err() {
        let _ = remove_file(aside);
    }
    replaced?;
    sync_folder(path)
}

/// Writes the contents of a new file, and syncs it.
pub(crate) fn fill(mut file: &File, content: &[&[u8]]) -> io::Result<()> {
    content.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}
