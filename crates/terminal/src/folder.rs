//! Folders of files.

use std::fs::File;
use std::io;
use std::path::Path;

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a file durable, so that it survives a crash of the machine.
///
/// # Errors
/// The folder cannot be opened, or its device fails to write.
pub fn sync_folder(of: &Path) -> io::Result<()> {
    match File::open(folder_of(of)).and_then(|folder| folder.sync_all()) {
        // A folder that may not be read, or whose file system cannot sync folders.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}
