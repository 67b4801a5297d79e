//! Finds the named files: by paths, and by patterns.

use super::error::SourceError;
use glob::Pattern;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of files of a query: as many as one association keeps maps of.
const FILES_MAX: usize = 4096;

/// The named files, in order. Files that match a pattern are ordered by name.
pub(super) fn expand(patterns: &[String]) -> Result<Vec<PathBuf>, SourceError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        // The name of a file may look like a pattern.
        if Path::new(pattern).exists() {
            paths.push(PathBuf::from(pattern));
            continue;
        }
        let found = matching(pattern)?;
        if found.is_empty() {
            return Err(SourceError::Missing(pattern.clone()));
        }
        paths.extend(found);
    }
    if paths.len() > FILES_MAX {
        let count = paths.len();
        return Err(SourceError::Files(format!(
            "{count} files; a query can read at most {FILES_MAX}"
        )));
    }
    Ok(paths)
}

/// The regular files that match a pattern. Does not use `glob::glob`, which ignores unreadable folders and names that
/// are not UTF-8: an answer would lack their rows.
fn matching(pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    let parts = pattern.split('/').filter(|part| !part.is_empty()).map(|part| {
        Pattern::new(part)
            .map_err(|error| SourceError::Files(format!("{pattern} is not a pattern: {error}")))
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let root = Path::new(if pattern.starts_with('/') { "/" } else { "" });
    let mut found = Vec::new();
    descend(root, &parts, &mut Vec::new(), &mut found)?;
    found.sort();
    // `**` may reach a file on several paths.
    found.dedup();
    Ok(found)
}

/// Finds the files below a folder that match these parts of a pattern, one for each level. `above` has the folders that
/// `**` has passed through.
fn descend(
    folder: &Path,
    parts: &[Pattern],
    above: &mut Vec<(u64, u64)>,
    found: &mut Vec<PathBuf>,
) -> Result<(), SourceError> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let name = part.as_str();
    let is_any_depth = name == "**";
    if !is_any_depth && !name.contains(['*', '?', '[']) {
        return enter(folder.join(name), rest, found);
    }
    if is_any_depth {
        descend(folder, rest, &mut Vec::new(), found)?;
    }
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let unread = |source| SourceError::Read { path: here.to_owned(), source };
    for entry in fs::read_dir(here).map_err(unread)? {
        let name = entry.map_err(unread)?.file_name();
        let path = folder.join(&name);
        if !is_any_depth {
            if part.matches(&name.to_string_lossy()) {
                enter(path, rest, found)?;
            }
        } else if let Some(behind) = look(&path, false)?.filter(Metadata::is_dir) {
            // Links may form cycles.
            let identity = (behind.dev(), behind.ino());
            if !above.contains(&identity) {
                above.push(identity);
                descend(&path, parts, above, found)?;
                above.pop();
            }
        }
    }
    Ok(())
}

/// Continues with the remaining parts, or adds a file.
fn enter(path: PathBuf, rest: &[Pattern], found: &mut Vec<PathBuf>) -> Result<(), SourceError> {
    match look(&path, rest.is_empty())? {
        Some(behind) if behind.is_dir() && !rest.is_empty() => {
            descend(&path, rest, &mut Vec::new(), found)?;
        }
        Some(behind) if behind.is_file() && rest.is_empty() => found.push(path),
        _ => {}
    }
    Ok(())
}

/// The metadata of a path, following symbolic links. None if there is no file; but a dangling link is an error if it
/// `stands_for_rows`.
fn look(path: &Path, stands_for_rows: bool) -> Result<Option<Metadata>, SourceError> {
    let failed = |source| SourceError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(behind) => Ok(Some(behind)),
        Err(error) if !is_not_there(&error) => Err(failed(error)),
        Err(error) if stands_for_rows && fs::symlink_metadata(path).is_ok() => Err(failed(error)),
        Err(_) => Ok(None),
    }
}

fn is_not_there(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn names(folder: &Path, pattern: &str) -> Vec<PathBuf> {
        let found = expand(&[folder.join(pattern).display().to_string()]).expect("files");
        found.iter().map(|path| path.strip_prefix(folder).expect("below").to_owned()).collect()
    }

    #[test]
    fn a_pattern_matches_all_its_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let strange = OsStr::from_bytes(b"b\xe9.csv");
        let strange_folder = OsStr::from_bytes(b"\xff");
        fs::create_dir_all(folder.path().join("x/y")).expect("made");
        fs::create_dir(folder.path().join("x").join(strange_folder)).expect("made");
        for name in ["c.csv", "a.csv", ".d.csv", "e.txt", "x/y/f.csv", "x/g.csv"] {
            fs::write(folder.path().join(name), "a\n1\n").expect("written");
        }
        fs::write(folder.path().join(strange), "a\n2\n").expect("written");
        let below = Path::new("x").join(strange_folder).join("h.csv");
        fs::write(folder.path().join(&below), "a\n2\n").expect("written");
        fs::create_dir(folder.path().join("z.csv")).expect("made");

        let here = names(folder.path(), "*.csv");
        assert_eq!(
            here,
            [".d.csv".as_ref(), "a.csv".as_ref(), Path::new(strange), "c.csv".as_ref()]
        );
        assert_eq!(names(folder.path(), "[ac].?sv"), [Path::new("a.csv"), Path::new("c.csv")]);
        assert_eq!(names(folder.path(), "x/*/*.csv"), [Path::new("x/y/f.csv"), &*below]);
        assert_eq!(names(folder.path(), "*/y/f.csv"), [Path::new("x/y/f.csv")]);
        let deep = names(folder.path(), "x/**/*.csv");
        assert_eq!(deep, [Path::new("x/g.csv"), Path::new("x/y/f.csv"), &*below]);
        // Through links, but not in circles.
        symlink(folder.path().join("x/y"), folder.path().join("x/z")).expect("made");
        symlink(folder.path().join("x"), folder.path().join("x/y/w")).expect("made");
        let linked = names(folder.path(), "x/z/**/f.csv");
        assert_eq!(linked[0], Path::new("x/z/f.csv"));
        assert!(names(folder.path(), "x/**/f.csv").contains(&PathBuf::from("x/z/f.csv")));
    }

    #[test]
    fn unreadable_paths_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let pattern = |name: &str| [folder.path().join(name).display().to_string()];
        fs::write(folder.path().join("a.csv"), "a\n1\n").expect("written");
        assert_eq!(names(folder.path(), "?.csv"), [Path::new("a.csv")]);
        let none = expand(&pattern("*.npy"));
        assert!(matches!(none, Err(SourceError::Missing(_))), "{none:?}");
        let none = expand(&pattern("no/*.csv"));
        assert!(matches!(none, Err(SourceError::Missing(_))), "{none:?}");

        symlink("/nowhere/at/all", folder.path().join("c.csv")).expect("made");
        let refused = expand(&pattern("?.csv")).expect_err("a link that leads nowhere");
        assert!(refused.to_string().contains("c.csv"), "{refused}");
        let folders = ["one", "two"].map(|name| folder.path().join(name));
        folders.iter().for_each(|path| fs::create_dir(path).expect("made"));
        fs::write(folders[0].join("a.csv"), "a\n1\n").expect("written");
        symlink("/nowhere/at/all", folder.path().join("three")).expect("made");
        assert_eq!(names(folder.path(), "t*/../one/a.csv"), [Path::new("two/../one/a.csv")]);
        assert_eq!(names(folder.path(), "*/a.csv"), [Path::new("one/a.csv")]);
        symlink("/nowhere/at/all", folders[1].join("a.csv")).expect("made");
        let refused = expand(&pattern("*/a.csv")).expect_err("a link that leads nowhere");
        assert!(refused.to_string().contains("two/a.csv"), "{refused}");
        assert!(matches!(expand(&pattern("[.csv")), Err(SourceError::Files(_))));
    }
}
