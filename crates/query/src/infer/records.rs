//! Parses the user's description of the fields of records.

use crate::plan::{Column, Field, Format, Kind, Schema};

/// Maximum size of a record, in bytes: a few records must fit into a block.
const RECORD_MAX_BYTES: u32 = 16 << 10;
/// Maximum number of columns.
pub(super) const COLUMNS_MAX: usize = 4096;

const HOW: &str =
    "write NAME KIND, … with the kinds i8 to i64, u8 to u64, f32, f64, char(BYTES) and pad(BYTES)";

/// A field: its name, its kind (None if it is padding), and its width in bytes.
type Named<'a> = (&'a str, Option<Kind>, u32);

fn fields(text: &str) -> Result<Vec<Named<'_>>, String> {
    let parts = text.split(',').map(str::trim);
    parts.map(|part| field(part).ok_or_else(|| format!("{part:?} is not a field: {HOW}"))).collect()
}

fn field(part: &str) -> Option<Named<'_>> {
    let (name, kind) = part.rsplit_once(char::is_whitespace)?;
    let name = name.trim().trim_matches('"');
    let sized = |prefix: &str| {
        let digits = kind.strip_prefix(prefix)?.strip_suffix(')')?;
        digits.parse::<u32>().ok().filter(|bytes| *bytes > 0)
    };
    if let Some(bytes) = sized("char(") {
        return Some((name, Some(Kind::Utf8), bytes));
    }
    if let Some(bytes) = sized("pad(") {
        return Some((name, None, bytes));
    }
    let kind = kind_named(kind)?;
    Some((name, Some(kind), kind.width_bytes().unwrap_or(0)))
}

fn kind_named(name: &str) -> Option<Kind> {
    use Kind::{F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, Utf8};
    let kinds = [I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, Utf8];
    kinds.into_iter().find(|kind| kind.to_string() == name)
}

/// Parses columns of 8-byte numbers.
pub(crate) fn number_fields(text: &str) -> Result<Vec<Column>, String> {
    let column = |(name, kind, bytes): Named<'_>| match kind {
        Some(kind) if bytes == 8 && kind != Kind::Utf8 && !name.is_empty() => {
            Ok(Column { name: name.to_owned(), kind, nullable: false })
        }
        _ => Err(format!("{name}: a reduction answers numbers of the kinds u64, i64 and f64")),
    };
    fields(text)?.into_iter().map(column).collect()
}

/// Parses the fields of a record, which are adjacent.
pub(super) fn parse(text: &str) -> Result<(Schema, Format), String> {
    let mut layout = Layout::default();
    for (name, kind, bytes) in fields(text)? {
        if kind == Some(Kind::Utf8) && bytes == 0 {
            return Err(format!("text in records needs a size, as in {name} char(16)"));
        }
        layout.add(name, kind, bytes)?;
    }
    layout.finish(0)
}

/// Changes the kinds of some columns, and returns their indices.
pub(super) fn override_kinds(text: &str, schema: &mut Schema) -> Result<Vec<usize>, String> {
    let mut told = Vec::new();
    for (name, kind, bytes) in fields(text)? {
        let Some(kind) = kind.filter(|kind| *kind != Kind::Utf8 || bytes == 0) else {
            return Err(format!("{name}: CSV has no padding, and text is utf8"));
        };
        let Some(at) = schema.columns.iter().position(|column| column.name == name) else {
            return Err(format!("there is no column {name} in the header"));
        };
        let column = &mut schema.columns[at];
        (column.kind, column.nullable) = (kind, kind != Kind::Utf8);
        told.push(at);
    }
    Ok(told)
}

/// A record under construction.
#[derive(Default)]
pub(super) struct Layout {
    schema: Schema,
    fields: Vec<Field>,
    record_bytes: u32,
}

impl Layout {
    /// Appends a field; without a kind it is padding.
    pub(super) fn add(&mut self, name: &str, kind: Option<Kind>, bytes: u32) -> Result<(), String> {
        let end = self.record_bytes.checked_add(bytes).filter(|end| *end <= RECORD_MAX_BYTES);
        let Some(end) = end else {
            return Err(format!("a record may have at most {RECORD_MAX_BYTES} bytes"));
        };
        if let Some(kind) = kind {
            let columns = &mut self.schema.columns;
            if name.is_empty() {
                return Err(format!("a field has no name: {HOW}"));
            }
            if columns.iter().any(|column| column.name == name) {
                return Err(format!("there are two fields {name}; give each a name of its own"));
            }
            if columns.len() == COLUMNS_MAX {
                return Err(format!("at most {COLUMNS_MAX} columns"));
            }
            columns.push(Column { name: name.to_owned(), kind, nullable: false });
            self.fields.push(Field { offset_bytes: self.record_bytes, width_bytes: bytes });
        }
        self.record_bytes = end;
        Ok(())
    }

    /// The format of files that begin with a header of this size.
    pub(super) fn finish(self, header_bytes: u64) -> Result<(Schema, Format), String> {
        if self.fields.is_empty() {
            return Err(format!("there are no fields: {HOW}"));
        }
        let (record_bytes, fields) = (self.record_bytes, self.fields);
        Ok((self.schema, Format::Fixed { header_bytes, record_bytes, fields }))
    }
}

/// Checks that a file is a header and whole records.
pub(super) fn check_size(file_bytes: u64, format: &Format, ask: &str) -> Result<(), String> {
    let Format::Fixed { header_bytes, record_bytes, .. } = format else { return Ok(()) };
    let whole = file_bytes
        .checked_sub(*header_bytes)
        .is_some_and(|records| records % u64::from(*record_bytes) == 0);
    if whole {
        return Ok(());
    }
    Err(format!("its {file_bytes} bytes are not whole records of {record_bytes} bytes; {ask}"))
}
