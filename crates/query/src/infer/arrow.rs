//! Arrow IPC files: their footer gives the columns, and the first batch shows whether they are compressed.

use crate::columns::{ArrowFile, FileError};
use crate::plan::{Format, Schema};
use std::fs::File;
use std::path::Path;

pub(super) fn parse(path: &Path, file_bytes: u64) -> Result<(Schema, Format), FileError> {
    let file = File::open(path)?;
    let contents = ArrowFile::read(&file, file_bytes)?;
    contents.check_first_batch(&file)?;
    let ArrowFile { schema, columns, others, .. } = contents;
    if let (true, Some(other)) = (columns.is_empty(), others.first()) {
        let what = format!("it has no column that can be queried; {}: {}", other.name, other.why);
        return Err(FileError::Contents(what));
    }
    Ok((schema, Format::Columns { columns, others }))
}
