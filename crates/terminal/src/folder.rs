//! Names of files.

use std::fs::File;
use std::io;
use std::path::Path;

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a file last, so that it is there after a crash of the machine.
///
/// # Errors
/// The folder cannot be opened, or its device does not write.
pub fn sync_folder(of: &Path) -> io::Result<()> {
    match File::open(folder_of(of)).and_then(|folder| folder.sync_all()) {
        // A folder that only takes files, or of a file system that does not sync folders.
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
