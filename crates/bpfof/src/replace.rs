//! Files that get another content at once or not at all, and still have it after a crash of the machine.

use bpfof_terminal::folder::sync_folder;
use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::{self, Write};
use std::path::Path;

/// Makes a file at `aside` by `options`, fills it and puts it in the place of `path`. `prepare` gives it
/// owner and mode before anything is in it. After an error there is nothing at `aside`.
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

/// Writes all of a file that has just been made.
pub(crate) fn fill(mut file: &File, content: &[&[u8]]) -> io::Result<()> {
    content.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}
