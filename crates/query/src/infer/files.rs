//! Which files are named: by paths, and by patterns.

use super::SourceError;
use glob::Pattern;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Most files of a query, as many as one association keeps maps of.
const FILES_MAX: usize = 4096;

/// The files that are named, in order. Those of a pattern are in the order of their names.
pub(super) fn expand(patterns: &[String]) -> Result<Vec<PathBuf>, SourceError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        // A file may have a name that is a pattern.
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
            "{count} files; at most {FILES_MAX} are asked at once"
        )));
    }
    Ok(paths)
}

/// The regular files that a pattern matches. Not by `glob::glob`, which leaves out what it cannot look at, and names
/// that are not UTF-8: an answer would lack their rows.
fn matching(pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    let parts = pattern.split('/').filter(|part| !part.is_empty()).map(|part| {
        Pattern::new(part)
            .map_err(|error| SourceError::Files(format!("{pattern} is no pattern: {error}")))
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let root = Path::new(if pattern.starts_with('/') { "/" } else { "" });
    let mut found = Vec::new();
    descend(root, &parts, &mut found)?;
    found.sort();
    // `**` may come to a file in several ways.
    found.dedup();
    Ok(found)
}

/// The files below a folder that match these parts of a pattern, one for each level.
fn descend(folder: &Path, parts: &[Pattern], found: &mut Vec<PathBuf>) -> Result<(), SourceError> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let name = part.as_str();
    let is_any_depth = name == "**";
    if !is_any_depth && !name.contains(['*', '?', '[']) {
        let path = folder.join(name);
        return match kind(&path) {
            Ok(kind) => enter(path, kind, rest, found),
            Err(error) if is_not_there(&error) => Ok(()),
            Err(source) => Err(SourceError::Read { path, source }),
        };
    }
    if is_any_depth {
        descend(folder, rest, found)?;
    }
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let unread = |source| SourceError::Read { path: here.to_owned(), source };
    for entry in fs::read_dir(here).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let path = folder.join(entry.file_name());
        if is_any_depth {
            // Not through symbolic links, which may lead in circles.
            if entry.file_type().map_err(unread)?.is_dir() {
                descend(&path, parts, found)?;
            }
        } else if part.matches(&entry.file_name().to_string_lossy()) {
            let kind =
                kind(&path).map_err(|source| SourceError::Read { path: path.clone(), source })?;
            enter(path, kind, rest, found)?;
        }
    }
    Ok(())
}

/// Goes on with the parts that are left, or has found a file.
fn enter(
    path: PathBuf,
    kind: fs::FileType,
    rest: &[Pattern],
    found: &mut Vec<PathBuf>,
) -> Result<(), SourceError> {
    if !rest.is_empty() && kind.is_dir() {
        return descend(&path, rest, found);
    }
    if rest.is_empty() && kind.is_file() {
        found.push(path);
    }
    Ok(())
}

/// What is behind a path, through symbolic links.
fn kind(path: &Path) -> io::Result<fs::FileType> {
    fs::metadata(path).map(|metadata| metadata.file_type())
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
    fn a_pattern_leaves_no_file_out() {
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
    }

    #[test]
    fn what_cannot_be_looked_at_is_an_error() {
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
        assert!(matches!(expand(&pattern("[.csv")), Err(SourceError::Files(_))));
    }
}
