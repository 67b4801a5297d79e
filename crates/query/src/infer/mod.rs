//! The contents of files: inferred from their names, headers and first rows, or given by the user.
//!
//! [`Found::look`] expands patterns (`files`), finds format and columns of the first file, and checks that the other
//! files have the same. If a column of CSV has no value in the first file, the other files determine its type.
//! `records`: the user's description of records; `npy`: headers of NumPy files; `csv`: header line and first rows, by
//! pyarrow's rules; `arrow`: footers of Arrow files.

mod arrow;
mod beginning;
mod csv;
mod error;
mod files;
mod npy;
mod records;

pub use error::SourceError;

pub(crate) use csv::{OPEN_QUOTE, fields};
pub(crate) use records::number_fields;

use crate::columns::FileError;
use crate::names::shortened;
use crate::parts::{SourceFile, header_bytes};
use crate::plan::{Format, Plan, Schema};
use crate::split::columns_of_plan;
use beginning::Beginning;
use files::expand;
use std::path::Path;

/// The user's information about files.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// `NAME KIND, …`: the fields of records; for CSV the kinds of some columns.
    pub schema: Option<String>,
    /// The format of the files, whatever their names.
    pub format: Option<FormatName>,
    /// The delimiter of CSV; by default a comma, or a tab in files named `.tsv`.
    pub delimiter: Option<u8>,
    /// Whether the first line of CSV is a row, not a header. Columns are then called f0, f1, and so on.
    pub no_header: bool,
}

/// A format by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatName {
    /// Records of one size.
    Records,
    /// NumPy's `.npy`.
    Npy,
    /// Text with a delimiter.
    Csv,
    /// Arrow IPC files, which Feather's second version is, uncompressed.
    Arrow,
}

/// Files with the same format and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The files, in order.
    pub files: Vec<SourceFile>,
    /// The columns.
    pub schema: Schema,
    /// The format.
    pub format: Format,
}

/// Files with the same format and columns, and problems to report once the question is known.
#[derive(Debug)]
pub struct Found {
    /// The files.
    pub source: Source,
    bad_row: Option<SourceError>,
    /// Columns that are treated as text because no value was seen.
    unknown: Vec<usize>,
}

impl Found {
    /// Finds files and their format and columns. Patterns are paths with `*`, `?`, `[…]` and `**`; the files of each
    /// pattern are ordered by name.
    ///
    /// # Errors
    /// There are no such files, they differ, or they cannot be queried.
    pub fn look(patterns: &[String], hints: &Hints) -> Result<Self, SourceError> {
        let mut found: Option<Source> = None;
        let mut columns: Option<csv::Columns> = None;
        let mut block = Vec::new();
        for path in expand(patterns)? {
            let format = format_of(&path, hints)?;
            let metadata = beginning::read(&path, &mut block)
                .map_err(|source| SourceError::Read { path: path.clone(), source })?;
            let beginning = Beginning { bytes: &block, file_bytes: metadata.len() };
            let first = found.as_ref().map(|source| (&source.schema, &source.format));
            let (schema, format) = look(&path, format, &beginning, hints, (first, &mut columns))?;
            let header = &block[..(header_bytes(&format) as usize).min(block.len())];
            let file = SourceFile::of(path, &metadata, header);
            match &mut found {
                None => {
                    found = Some(Source { files: vec![file], schema, format });
                }
                Some(source) if source.schema == schema && source.format == format => {
                    source.files.push(file);
                }
                Some(source) => {
                    let first = source.files[0].path.display();
                    let what = format!(
                        "its columns, header or delimiter differ from {first}; query them separately"
                    );
                    return Err(SourceError::Contents { path: file.path, what });
                }
            }
        }
        let source = found.ok_or_else(|| SourceError::Files("no files are named".to_owned()))?;
        match columns {
            Some(columns) => Self::of_csv(source, columns, hints),
            None => Ok(Self { source, bad_row: None, unknown: Vec::new() }),
        }
    }

    fn of_csv(
        mut source: Source,
        mut columns: csv::Columns,
        hints: &Hints,
    ) -> Result<Self, SourceError> {
        source.schema = columns.schema();
        let mut unknown = columns.unknown();
        if let Some(text) = &hints.schema {
            let told = records::override_kinds(text, &mut source.schema);
            let told = told.map_err(SourceError::Schema)?;
            unknown.retain(|column| !told.contains(column));
        }
        let path = &source.files[0].path;
        let bad_row = columns.bad_row.take();
        let bad_row = bad_row.map(|what| SourceError::Contents { path: path.clone(), what });
        Ok(Self { source, bad_row, unknown })
    }

    /// A bad row that was seen, if any: it may explain a missing column.
    #[must_use]
    pub fn bad_row(self) -> Option<SourceError> {
        self.bad_row
    }

    /// The files for this plan, and warnings about columns that it uses.
    ///
    /// # Errors
    /// A bad row was seen, and the plan uses columns.
    pub fn for_plan(self, plan: &Plan) -> Result<(Source, Vec<String>), SourceError> {
        let columns = columns_of_plan(plan);
        if let Some(error) = self.bad_row.filter(|_| !columns.is_empty()) {
            return Err(error);
        }
        let path = self.source.files[0].path.display();
        let unknown = self.unknown.iter().filter(|column| columns.contains(column));
        let warnings = unknown.map(|column| {
            let name = shortened(&self.source.schema.columns[*column].name);
            format!(
                "{path}: column {name} has no value in the first MiB of each file that was examined, and is read as \
                 text: if it has numbers, declare it by --schema '{name} f64'"
            )
        });
        let warnings = warnings.collect();
        Ok((self.source, warnings))
    }
}

impl Source {
    /// [`Found::look`], for callers that do not know the question yet.
    ///
    /// # Errors
    /// As for [`Found::look`]; or a bad row was seen.
    pub fn find(patterns: &[String], hints: &Hints) -> Result<Self, SourceError> {
        let found = Found::look(patterns, hints)?;
        found.bad_row.map_or(Ok(found.source), Err)
    }

    /// The same files as they are now, for another query: lines and records may have been appended.
    ///
    /// # Errors
    /// A file has been replaced, or its format and columns may have changed.
    pub fn now(&self) -> Result<Self, SourceError> {
        let file = |known: &SourceFile| {
            let path = &known.path;
            let now = SourceFile::at(path, &self.format)
                .map_err(|source| SourceError::Read { path: path.clone(), source })?;
            let what = if now.inode != known.inode {
                "replaced by another file"
            } else if now.bytes < known.bytes {
                "made shorter"
            } else if now.header_hash != known.header_hash {
                "rewritten with another header"
            } else if now.bytes > known.bytes && !self.format.may_grow() {
                "made longer"
            } else {
                return Ok(now);
            };
            let what = format!(
                "it has been {what} since it was examined: run the query again, in Python over a new dataset"
            );
            Err(SourceError::Contents { path: path.clone(), what })
        };
        let files = self.files.iter().map(file).collect::<Result<_, _>>()?;
        Ok(Self { files, schema: self.schema.clone(), format: self.format.clone() })
    }
}

/// Extensions of unsupported files, with advice.
const OTHERS: [(&str, &str); 6] = [
    (
        "parquet",
        "Parquet is compressed and has its own statistics: query it with DuckDB, or write an Arrow file",
    ),
    ("gz", "decompress it first: stages read files as stored on the device"),
    ("zst", "decompress it first: stages read files as stored on the device"),
    ("bz2", "decompress it first: stages read files as stored on the device"),
    ("npz", "unpack it first: it is an archive of .npy files"),
    ("json", "JSON is not supported; write CSV"),
];

fn extension(path: &Path) -> String {
    path.extension().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// The format of a file, from its name and the user's information.
fn format_of(path: &Path, hints: &Hints) -> Result<FormatName, SourceError> {
    let refused = |what: &str| SourceError::Files(format!("{}: {what}", path.display()));
    let format = match (hints.format, &*extension(path)) {
        (Some(format), _) => format,
        (None, "npy") => FormatName::Npy,
        (None, "csv" | "tsv") => FormatName::Csv,
        (None, "arrow" | "feather" | "ipc") => FormatName::Arrow,
        (None, extension) => match OTHERS.iter().find(|(other, _)| *other == extension) {
            Some((_, what)) => return Err(refused(what)),
            None if hints.schema.is_some() => FormatName::Records,
            None => {
                return Err(refused(
                    "its name does not tell its format: give the fields of its records, as in \
                     --schema 'id u64, amount i32', or give --format csv, npy or arrow",
                ));
            }
        },
    };
    if format == FormatName::Records && hints.schema.is_none() {
        return Err(refused("give the fields of its records, as in --schema 'id u64, amount i32'"));
    }
    Ok(format)
}

/// The first file's schema and format, and the columns of CSV.
type Known<'a> = (Option<(&'a Schema, &'a Format)>, &'a mut Option<csv::Columns>);

fn look(
    path: &Path,
    format: FormatName,
    beginning: &Beginning<'_>,
    hints: &Hints,
    known: Known<'_>,
) -> Result<(Schema, Format), SourceError> {
    let contents = |what: String| SourceError::Contents { path: path.to_owned(), what };
    match format {
        FormatName::Csv => look_at_csv(path, beginning, hints, known),
        _ if hints.delimiter.is_some() || hints.no_header => Err(SourceError::Files(format!(
            "{}: only CSV has a delimiter and a header line; leave out the options for them",
            path.display()
        ))),
        FormatName::Records => {
            let text = hints.schema.as_deref().unwrap_or_default();
            let (schema, format) = records::parse(text).map_err(SourceError::Schema)?;
            records::check_size(beginning.file_bytes, &format, "is the schema right?")
                .map_err(contents)?;
            Ok((schema, format))
        }
        FormatName::Npy | FormatName::Arrow if hints.schema.is_some() => Err(SourceError::Schema(
            ".npy and Arrow files contain their schema; leave it out".to_owned(),
        )),
        FormatName::Arrow => {
            arrow::parse(path, beginning.file_bytes).map_err(|error| match error {
                FileError::Read(source) => SourceError::Read { path: path.to_owned(), source },
                FileError::Contents(what) => contents(what),
            })
        }
        FormatName::Npy => npy::parse(beginning).map_err(contents),
    }
}

/// The first file's rows determine the types of columns; the rows of other files do so for columns without a value
/// there. The headers of other files must match.
fn look_at_csv(
    path: &Path,
    beginning: &Beginning<'_>,
    hints: &Hints,
    known: Known<'_>,
) -> Result<(Schema, Format), SourceError> {
    let contents = |what: String| SourceError::Contents { path: path.to_owned(), what };
    let tab = if extension(path) == "tsv" { b'\t' } else { b',' };
    let (delimiter, no_header) = (hints.delimiter.unwrap_or(tab), hints.no_header);
    match known {
        (Some((schema, format)), Some(columns)) => {
            csv::check_alike(beginning, delimiter, no_header, schema).map_err(contents)?;
            columns.add(beginning, delimiter, no_header);
            let header_bytes = csv::header_bytes(beginning, no_header);
            Ok((schema.clone(), csv::with_header(format, delimiter, header_bytes)))
        }
        (_, columns) => {
            let (found, format) = csv::parse(beginning, delimiter, no_header).map_err(contents)?;
            let schema = found.schema();
            *columns = Some(found);
            Ok((schema, format))
        }
    }
}

#[cfg(test)]
mod tests;
