//! Parses footers and batches of files.

use super::types::Walk;
use crate::plan::{ColumnBuffers, OtherColumn, Schema};
use arrow_ipc::{
    CompressionType, Endianness, MessageHeader, MetadataVersion, RecordBatch, root_as_footer,
    root_as_message,
};
use arrow_schema::DataType;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 6] = b"ARROW1";
/// Size of the magic and padding at the beginning.
const HEADER_BYTES: u64 = 8;
/// Size of the footer's length and the magic at the end.
const TAIL_BYTES: u64 = 10;
const FOOTER_MAX_BYTES: u64 = 64 << 20;
/// Maximum size of the metadata before the buffers of a batch.
const METADATA_MAX_BYTES: u64 = 16 << 20;
/// Precedes a message's length, since version 0.15.
const CONTINUES: [u8; 4] = [0xff; 4];

/// The reason why a file cannot be queried.
#[derive(Debug)]
pub(crate) enum FileError {
    /// It cannot be read.
    Read(io::Error),
    /// Its contents are invalid or cannot be queried; with advice.
    Contents(String),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

fn contents<T>(what: impl Into<String>) -> Result<T, FileError> {
    Err(FileError::Contents(what.into()))
}

fn damaged<T>(what: &str) -> Result<T, FileError> {
    contents(format!("{what}: it is damaged, or was not written to its end"))
}

/// The place of a batch: its metadata, and behind it its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    metadata_bytes: u64,
    body_bytes: u64,
}

impl Block {
    fn body_at(&self) -> u64 {
        self.offset + self.metadata_bytes
    }

    pub(crate) fn end(&self) -> u64 {
        self.body_at() + self.body_bytes
    }
}

/// The contents of a footer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ArrowFile {
    pub(crate) schema: Schema,
    pub(crate) columns: Vec<ColumnBuffers>,
    pub(crate) others: Vec<OtherColumn>,
    /// The batches, in the order of the file; they do not overlap, but there may be gaps between them.
    pub(crate) blocks: Vec<Block>,
}

impl ArrowFile {
    /// Reads the footer.
    pub(crate) fn read(file: &File, file_bytes: u64) -> Result<Self, FileError> {
        let mut magic = [0; HEADER_BYTES as usize];
        if file_bytes < HEADER_BYTES + TAIL_BYTES {
            return damaged("it is too short for an Arrow file");
        }
        file.read_exact_at(&mut magic, 0)?;
        if magic.starts_with(b"FEA1") {
            return contents("Feather version 1 is not supported: write version 2, uncompressed");
        }
        if magic.starts_with(&CONTINUES) {
            return contents(
                "it is an Arrow stream, which has no footer: write a file (pyarrow.ipc.new_file)",
            );
        }
        let mut tail = [0; TAIL_BYTES as usize];
        file.read_exact_at(&mut tail, file_bytes - TAIL_BYTES)?;
        let (length, end) = tail.split_at(4);
        if !magic.starts_with(MAGIC) || end != MAGIC {
            return damaged("it lacks the magic of an Arrow file at its start or end");
        }
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let room = file_bytes - HEADER_BYTES - TAIL_BYTES;
        let length = u64::from(length);
        if length > room || length > FOOTER_MAX_BYTES {
            return damaged("the length of its footer is invalid");
        }
        let footer_at = file_bytes - TAIL_BYTES - length;
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, footer_at)?;
        Self::of_footer(&bytes, footer_at)
    }

    /// Checks whether the first batch can be queried.
    pub(crate) fn check_first_batch(&self, file: &File) -> Result<(), FileError> {
        let columns: Vec<_> = self.columns.iter().collect();
        match self.blocks.first() {
            Some(block) => read_batch(file, block, &columns, &mut Vec::new(), &mut |_| {}),
            None => Ok(0),
        }
        .map(|_| ())
    }

    fn of_footer(bytes: &[u8], footer_at: u64) -> Result<Self, FileError> {
        let Ok(footer) = root_as_footer(bytes) else { return damaged("its footer is invalid") };
        if !(MetadataVersion::V4..=MetadataVersion::V5).contains(&footer.version()) {
            return contents("it has an unknown version of Arrow's format: write it again");
        }
        let Some(schema) = footer.schema() else { return damaged("its footer has no schema") };
        if schema.endianness() != Endianness::Little {
            return contents("its numbers are big-endian: write it on a little-endian machine");
        }
        let mut walk = Walk::new(footer.version());
        for field in schema.fields().iter().flatten() {
            walk.column(field).map_err(FileError::Contents)?;
        }
        let mut blocks = Vec::new();
        let mut end = HEADER_BYTES;
        for block in footer.recordBatches().iter().flatten() {
            let place = |number: i64| u64::try_from(number).ok();
            let numbers = (
                place(block.offset()),
                place(block.metaDataLength().into()),
                place(block.bodyLength()),
            );
            let (Some(offset), Some(metadata_bytes), Some(body_bytes)) = numbers else {
                return damaged("the place of a batch is invalid");
            };
            let fits = (offset.checked_add(metadata_bytes))
                .and_then(|body| body.checked_add(body_bytes))
                .is_some_and(|end| end <= footer_at);
            if !fits || offset < end {
                return damaged("its batches overlap, are out of order, or reach into the footer");
            }
            let block = Block { offset, metadata_bytes, body_bytes };
            end = block.end();
            blocks.push(block);
        }
        Ok(Self { schema: walk.schema, columns: walk.columns, others: walk.others, blocks })
    }
}

/// The place of a column in a batch: file offsets, 0 for missing buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// A bit for each row, if values are missing.
    pub(crate) valid: u64,
    /// Numbers, or the offsets of texts.
    pub(crate) values: u64,
    pub(crate) texts: u64,
    pub(crate) texts_bytes: u64,
}

/// Reads the places of the columns of a batch, and calls `on_place` with each; returns its number
/// of rows.
pub(crate) fn read_batch(
    file: &File,
    block: &Block,
    columns: &[&ColumnBuffers],
    bytes: &mut Vec<u8>,
    on_place: &mut dyn FnMut(Place),
) -> Result<u64, FileError> {
    if block.metadata_bytes > METADATA_MAX_BYTES {
        return damaged("the metadata of a batch is too long");
    }
    bytes.resize(block.metadata_bytes as usize, 0);
    file.read_exact_at(bytes, block.offset)?;
    let (head, message) = bytes.split_at(bytes.len().min(4));
    let message = if head == CONTINUES { message.get(4..).unwrap_or_default() } else { message };
    let Ok(message) = root_as_message(message) else {
        return damaged("the metadata of a batch is invalid");
    };
    let batch = match (message.header_type(), message.header_as_record_batch()) {
        (MessageHeader::RecordBatch, Some(batch)) => batch,
        _ => return damaged("a message in the place of a batch is not a record batch"),
    };
    if let Some(compression) = batch.compression() {
        let codec = match compression.codec() {
            CompressionType::LZ4_FRAME => "LZ4",
            _ => "ZSTD",
        };
        return contents(format!(
            "it is compressed by {codec}, but stages read columns as stored on the device: write it with \
             compression=\"uncompressed\""
        ));
    }
    // Each row has at least a bit in some buffer, and columns without buffers cannot be queried.
    let rows = u64::try_from(batch.length()).ok().filter(|rows| rows / 8 <= block.body_bytes);
    let Some(rows) = rows else { return damaged("a batch has more rows than fit into it") };
    if rows > 0 {
        for column in columns {
            match place(&batch, block, rows, column) {
                Some(place) => on_place(place),
                None => return damaged("a column lies outside its batch"),
            }
        }
    }
    Ok(rows)
}

/// The place of a column, if it lies within the batch.
fn place(
    batch: &RecordBatch<'_>,
    block: &Block,
    rows: u64,
    column: &ColumnBuffers,
) -> Option<Place> {
    let mut first = column.buffer as usize;
    if column.views_before > 0 {
        let counts = batch.variadicBufferCounts()?;
        for view in 0..column.views_before as usize {
            let count = (view < counts.len()).then(|| counts.get(view))?;
            first = first.checked_add(usize::try_from(count).ok()?)?;
        }
    }
    let nodes = batch.nodes()?;
    let node = column.node as usize;
    let node = (node < nodes.len()).then(|| nodes.get(node))?;
    if u64::try_from(node.length()) != Ok(rows) {
        return None;
    }
    let buffers = batch.buffers()?;
    // File offset and size.
    let buffer = |at: usize| {
        let buffer = (at < buffers.len()).then(|| buffers.get(at))?;
        let offset = u64::try_from(buffer.offset()).ok()?;
        let bytes = u64::try_from(buffer.length()).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= block.body_bytes).then_some((block.body_at() + offset, bytes))
    };
    let (bits, bits_bytes) = buffer(first)?;
    let valid = match node.null_count() {
        0 => 0,
        _ if bits_bytes >= rows.div_ceil(8) => bits,
        _ => return None,
    };
    let (values, values_bytes) = buffer(first.checked_add(1)?)?;
    let (texts, texts_bytes) = match column.data_type {
        DataType::Utf8 | DataType::LargeUtf8 => buffer(first.checked_add(2)?)?,
        _ => (0, 0),
    };
    let needed = match column.data_type {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8 => rows.checked_add(1)?.checked_mul(4)?,
        DataType::LargeUtf8 => rows.checked_add(1)?.checked_mul(8)?,
        ref other => rows.checked_mul(other.primitive_width()? as u64)?,
    };
    (needed <= values_bytes).then_some(Place { valid, values, texts, texts_bytes })
}
