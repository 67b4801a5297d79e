//! Cuts files into parts, and parts into the ranges of chains.

use crate::plan::{Format, Plan};
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Maximum number of a header's bytes that are hashed: headers of CSV and `.npy` are not longer.
const HEADER_MAX_BYTES: u64 = 1 << 20;
/// How often, and how soon, to look again whether a file of which only the time has changed becomes longer.
const LENGTH_LOOKS: u32 = 20;
const LENGTH_LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The work of one call of [`Runner::run`](crate::Runner::run): the rows of a file that begin in a range of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, when the part was made.
    pub file_bytes: u64,
    /// Its inode number then: another file at this path is refused.
    pub inode: u64,
    /// The hash of its header then: a file that has been rewritten with another header is refused.
    pub header_hash: u64,
    /// The time of its last modification then, in nanoseconds since 1970: a file of the same size that has been written
    /// since is refused.
    pub modified_ns: i64,
    /// File offset of the range in bytes.
    pub start_bytes: u64,
    /// The end of the range.
    pub end_bytes: u64,
}

/// A file to query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its inode number.
    pub inode: u64,
    /// The hash of its header: of the bytes before the first row.
    pub header_hash: u64,
    /// The time of its last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl SourceFile {
    /// The file of this format at a path, as it is now.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn at(path: &Path, format: &Format) -> io::Result<Self> {
        let metadata = path.metadata()?;
        // Opening a FIFO blocks until a writer opens it.
        if !metadata.is_file() {
            return Ok(Self::of(path.to_owned(), &metadata, &[]));
        }
        // NFS asks the server for the metadata when the file is opened; before that they may be old.
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let header = header(&file, &metadata, format)?;
        Ok(Self::of(path.to_owned(), &metadata, &header))
    }

    pub(crate) fn of(path: PathBuf, metadata: &Metadata, header: &[u8]) -> Self {
        let (bytes, inode) = (metadata.len(), metadata.ino());
        let (header_hash, modified_ns) = (hash_of(header), modified_ns(metadata));
        Self { path, bytes, inode, header_hash, modified_ns }
    }
}

impl Part {
    /// What has been done to the file since the part was made, if its rows may be others. Lines and records may have
    /// been appended: a longer file with the same header is accepted.
    pub(crate) fn change(&self, file: &File, format: &Format) -> io::Result<Option<&'static str>> {
        let metadata = self.settled(|| file.metadata())?;
        Ok(if metadata.ino() != self.inode {
            Some("replaced by another")
        } else if metadata.len() < self.file_bytes {
            Some("made shorter")
        } else if self.differs_in_time_only(&metadata) {
            Some("written")
        } else if metadata.len() > self.file_bytes && !format.may_grow() {
            Some("made longer")
        } else if metadata.len() > self.file_bytes && self.ends_within_a_row(file, format)? {
            Some("made longer within its last row")
        } else if hash_of(&header(file, &metadata, format)?) != self.header_hash {
            Some("rewritten with another header")
        } else {
            None
        })
    }

    /// Whether a longer file of lines shows that its end was within a row when the part was made: a writer had written
    /// only a part of its last line.
    fn ends_within_a_row(&self, file: &File, format: &Format) -> io::Result<bool> {
        let is_text = matches!(format, Format::Csv { .. });
        let Some(last) = self.file_bytes.checked_sub(1).filter(|_| is_text) else {
            return Ok(false);
        };
        let mut around = [0; 2];
        file.read_exact_at(&mut around, last)?;
        Ok(!matches!(around, [b'\n', _] | [_, b'\n' | b'\r']))
    }

    /// Looks at the file, again for a while if it differs in its time only: when bytes are appended, the kernel sets the
    /// time before the length.
    fn settled(&self, mut look: impl FnMut() -> io::Result<Metadata>) -> io::Result<Metadata> {
        let mut metadata = look()?;
        for _ in 0..LENGTH_LOOKS {
            if !self.differs_in_time_only(&metadata) {
                break;
            }
            thread::sleep(LENGTH_LOOK_AGAIN);
            metadata = look()?;
        }
        Ok(metadata)
    }

    fn differs_in_time_only(&self, metadata: &Metadata) -> bool {
        metadata.ino() == self.inode
            && metadata.len() == self.file_bytes
            && modified_ns(metadata) != self.modified_ns
    }
}

/// The time of the last modification. Times that 64 bits cannot represent wrap: they are only compared for equality.
fn modified_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().wrapping_mul(1_000_000_000).wrapping_add(metadata.mtime_nsec())
}

/// Size of the part of a file before the first row, as far as it is hashed.
pub(crate) fn header_bytes(format: &Format) -> u64 {
    units(format).0.min(HEADER_MAX_BYTES)
}

/// The header of a file; the whole file, if that is shorter.
fn header(file: &File, metadata: &Metadata, format: &Format) -> io::Result<Vec<u8>> {
    let mut header = vec![0; header_bytes(format).min(metadata.len()) as usize];
    file.read_exact_at(&mut header, 0)?;
    Ok(header)
}

fn hash_of(header: &[u8]) -> u64 {
    let mut beginning = [0; 8];
    beginning.copy_from_slice(&Sha256::digest(header)[..8]);
    u64::from_le_bytes(beginning)
}

/// A range of rows of a file, for a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// File offset in bytes: of a row, or, if `skips`, anywhere behind the first row; in Arrow files the number of a
    /// row.
    pub(crate) start: u64,
    /// The end: only rows that begin before it belong to the range.
    pub(crate) end: u64,
    pub(crate) file_end: u64,
    /// Whether the first row begins behind the next end of a line.
    pub(crate) skips: bool,
}

/// Cuts files into parts of about `part_max_bytes`, in order. A file without rows has no parts.
#[must_use]
pub fn parts(plan: &Plan, files: &[SourceFile], part_max_bytes: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    for file in files {
        let (header, unit) = units(&plan.format);
        for (start_bytes, end_bytes) in cut(header, header, file.bytes, part_max_bytes, unit) {
            parts.push(Part {
                path: file.path.clone(),
                file_bytes: file.bytes,
                inode: file.inode,
                header_hash: file.header_hash,
                modified_ns: file.modified_ns,
                start_bytes,
                end_bytes,
            });
        }
    }
    parts
}

/// The offset of the first row in a file, and the size of records.
fn units(format: &Format) -> (u64, u64) {
    match format {
        Format::Fixed { header_bytes, record_bytes, .. } => {
            (*header_bytes, u64::from(*record_bytes).max(1))
        }
        Format::Csv { header_bytes, .. } => (*header_bytes, 1),
        // Rows of their batches are assigned to parts in proportion to bytes.
        Format::Columns { .. } => (0, 1),
    }
}

/// The least size of a row in a file, in bits.
pub(crate) fn row_min_bits(plan: &Plan) -> u64 {
    match &plan.format {
        Format::Fixed { record_bytes, .. } => 8 * u64::from(*record_bytes),
        // Delimiters, and the end of the line.
        Format::Csv { .. } => 8 * plan.file_columns() as u64,
        Format::Columns { columns, .. } => {
            columns.iter().map(|column| bits_of(&column.data_type)).sum()
        }
    }
    .max(1)
}

/// Bits of a value of a column in a batch; of a text those that say where it is.
fn bits_of(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Boolean => 1,
        other => other.primitive_width().map_or(32, |bytes| 8 * bytes as u64),
    }
}

/// Cuts the range from `start` to `end` into pieces of at most `piece` bytes, or of one unit. Pieces begin whole units
/// behind `header`.
fn cut(header: u64, start: u64, end: u64, piece: u64, unit: u64) -> Vec<(u64, u64)> {
    let piece = (piece / unit).max(1) * unit;
    let start = header + (start.max(header) - header).next_multiple_of(unit);
    let mut pieces = Vec::new();
    let mut at = start;
    while at < end {
        let next = at.saturating_add(piece).min(end);
        pieces.push((at, next));
        at = next;
    }
    pieces
}

/// The ranges of a part of records or lines, of at most `range_max_bytes` or one record.
pub(crate) fn ranges(plan: &Plan, part: &Part, range_max_bytes: u64) -> Vec<Range> {
    let (header, unit) = units(&plan.format);
    let is_csv = matches!(plan.format, Format::Csv { .. });
    let file_end = part.file_bytes;
    let end = part.end_bytes.min(file_end);
    let pieces = cut(header, part.start_bytes, end, range_max_bytes, unit);
    let range = |(start, end)| {
        // Begins one byte earlier: that byte tells whether a line ends just before the range.
        let skips = is_csv && start > header;
        Range { start: start - u64::from(skips), end, file_end, skips }
    };
    pieces.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OwnStages;
    use crate::plan::{Predicate, Reduction, Schema};
    use std::time::SystemTime;

    fn plan(format: Format) -> Plan {
        Plan {
            schema: Schema::default(),
            format,
            filter: Predicate::Constant(true),
            reduction: Reduction::Rows { columns: Vec::new(), limit: None },
            own: OwnStages::default(),
        }
    }

    fn file(bytes: u64) -> SourceFile {
        SourceFile { path: PathBuf::from("f"), bytes, inode: 1, header_hash: 0, modified_ns: 0 }
    }

    #[test]
    fn records_are_in_one_part_each() {
        let plan = plan(Format::Fixed { header_bytes: 5, record_bytes: 12, fields: Vec::new() });
        let parts = parts(&plan, &[file(5), file(5 + 12 * 7)], 30);
        let ends: Vec<_> = parts.iter().map(|part| (part.start_bytes, part.end_bytes)).collect();
        assert_eq!(ends, [(5, 29), (29, 53), (53, 77), (77, 89)]);
        let ranges = ranges(&plan, &parts[1], 1);
        let ends: Vec<_> = ranges.iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(ends, [(29, 41), (41, 53)]);
    }

    #[test]
    fn lines_belong_to_where_they_begin() {
        let format = Format::Csv { delimiter: b',', header_bytes: 4, nulls: Vec::new() };
        let plan = plan(format);
        let part = &parts(&plan, &[file(10)], 100)[0];
        let ranges = ranges(&plan, part, 4);
        let all: Vec<_> =
            ranges.iter().map(|range| (range.start, range.end, range.skips)).collect();
        assert_eq!(all, [(4, 8, false), (7, 10, true)]);
    }

    #[test]
    fn only_whole_rows_may_be_appended() {
        let csv = Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() };
        let records = Format::Fixed { header_bytes: 0, record_bytes: 1, fields: Vec::new() };
        let columns = Format::Columns { columns: Vec::new(), others: Vec::new() };
        let within = Some("made longer within its last row");
        for (format, before, after, expected) in [
            (&csv, "1\n2\n", "3\n", None),
            (&csv, "1\n2", "\n3\n", None),
            (&csv, "1\n2", "\r\n3\n", None),
            (&csv, "1\n2", "3\n", within),
            (&csv, "1\n2\r", "\n", None),
            (&csv, "", "1\n", None),
            (&records, "1", "2", None),
            (&columns, "ARROW1", "2", Some("made longer")),
        ] {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(before.as_bytes(), 0).expect("room");
            let metadata = file.metadata().expect("an open file");
            let source = SourceFile::of(PathBuf::from("f"), &metadata, &[]);
            let mut part = parts(&plan(format.clone()), &[source], u64::MAX).pop();
            let part = part.get_or_insert_with(|| Part {
                path: PathBuf::from("f"),
                file_bytes: 0,
                inode: metadata.ino(),
                header_hash: hash_of(&[]),
                modified_ns: modified_ns(&metadata),
                start_bytes: 0,
                end_bytes: 0,
            });
            file.write_all_at(after.as_bytes(), before.len() as u64).expect("room");
            let change = part.change(&file, format).expect("an open file");
            assert_eq!(change, expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn the_length_may_follow_the_time() {
        let plan = plan(Format::Fixed { header_bytes: 0, record_bytes: 8, fields: Vec::new() });
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8).expect("room");
        let metadata = file.metadata().expect("an open file");
        let source = SourceFile::of(PathBuf::from("f"), &metadata, &[]);
        let part = parts(&plan, &[source], u64::MAX).remove(0);
        let change = || part.change(&file, &plan.format).expect("an open file");
        assert_eq!(change(), None);
        file.set_modified(SystemTime::UNIX_EPOCH).expect("an own file");
        assert_eq!(change(), Some("written"));
        let mut looks = 0;
        let settled = part.settled(|| {
            looks += 1;
            if looks == 3 {
                file.set_len(16)?;
            }
            file.metadata()
        });
        assert_eq!((settled.expect("an open file").len(), looks), (16, 3));
        assert_eq!(change(), None, "a record has been appended");
    }
}
