//! Arrow IPC files: their footer tells the columns, and the first batch whether they are compressed.

use super::SourceError;
use crate::columns::{ArrowFile, FileError};
use crate::plan::{Format, Schema};
use std::fs::File;
use std::path::Path;

pub(super) fn parse(path: &Path, file_bytes: u64) -> Result<(Schema, Format), SourceError> {
    let failed = |error| match error {
        FileError::Read(source) => SourceError::Read { path: path.to_owned(), source },
        FileError::Contents(what) => SourceError::Contents { path: path.to_owned(), what },
    };
    let file = File::open(path).map_err(|error| failed(error.into()))?;
    let contents = ArrowFile::read(&file, file_bytes).map_err(failed)?;
    contents.check_first_batch(&file).map_err(failed)?;
    let ArrowFile { schema, columns, others, .. } = contents;
    if let (true, Some(other)) = (columns.is_empty(), others.first()) {
        let what = format!("it has no column that can be asked for; {}: {}", other.name, other.why);
        return Err(failed(FileError::Contents(what)));
    }
    Ok((schema, Format::Columns { columns, others }))
}
