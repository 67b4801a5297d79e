//! Answers as Arrow.

use super::error::OutputError;
use crate::plan::{AnswerKind, Kind, Table, Value};
use arrow_array::builder::{BooleanBuilder, GenericStringBuilder, PrimitiveBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use std::io::Write;
use std::sync::Arc;

/// Decimal digits of sums that do not fit into 64 bits.
const SUM_DIGITS: u8 = 38;
/// The largest number with this many digits.
const SUM_MAX: u128 = 99_999_999_999_999_999_999_999_999_999_999_999_999;

/// Maximum bytes of text in an Arrow utf8 column: offsets have 31 bits.
const TEXTS_MAX_BYTES: usize = i32::MAX as usize;
/// Maximum bytes of text in a batch of a file: much less, because a batch is in memory twice.
const BATCH_TEXTS_BYTES: usize = 256 << 20;

/// Maximum bytes of a streamed answer that are kept in memory to find out whether its integers fit into 64 bits.
const KEPT_MAX_BYTES: usize = 64 << 20;

/// The Arrow types of an answer. Sums of integers have 64 bits if all in `table` fit, else 38 decimal digits.
pub fn schema(names: &[&str], table: &Table) -> Schema {
    schema_of(names, table, &[])
}

/// The same for a streamed answer, of which only a part is known: columns in `wide` may have integers that do not fit.
fn schema_of(names: &[&str], table: &Table, wide: &[bool]) -> Schema {
    let fields = names.iter().zip(&table.kinds).enumerate().map(|(at, (name, kind))| {
        let data_type = match kind {
            AnswerKind::Same(kind) => data_type(*kind),
            AnswerKind::Arrow(data_type) => data_type.clone(),
            AnswerKind::Count => DataType::Int64,
            AnswerKind::Float => DataType::Float64,
            AnswerKind::Sum => {
                let fits = |row: &Vec<Value>| match row[at] {
                    Value::Int(value) => i64::try_from(value).is_ok(),
                    _ => true,
                };
                let is_wide = wide.get(at).is_some_and(|wide| *wide);
                match !is_wide && table.rows.iter().all(fits) {
                    true => DataType::Int64,
                    false => DataType::Decimal128(SUM_DIGITS, 0),
                }
            }
        };
        Field::new(*name, data_type, true)
    });
    Schema::new(fields.collect::<Vec<_>>())
}

fn data_type(kind: Kind) -> DataType {
    match kind {
        Kind::I8 => DataType::Int8,
        Kind::I16 => DataType::Int16,
        Kind::I32 => DataType::Int32,
        Kind::I64 => DataType::Int64,
        Kind::U8 => DataType::UInt8,
        Kind::U16 => DataType::UInt16,
        Kind::U32 => DataType::UInt32,
        Kind::U64 => DataType::UInt64,
        Kind::F32 => DataType::Float32,
        Kind::F64 => DataType::Float64,
        Kind::Utf8 => DataType::Utf8,
    }
}

/// Converts the rows of a table to a batch.
///
/// # Errors
/// A value does not fit into the type of its column, or the texts of a column do not fit together.
pub fn batch(schema: &Arc<Schema>, table: &Table) -> Result<RecordBatch, OutputError> {
    batch_of(schema, &table.rows)
}

fn batch_of(schema: &Arc<Schema>, rows: &[Vec<Value>]) -> Result<RecordBatch, OutputError> {
    let column = |(at, field): (usize, &Arc<Field>)| column(field, at, rows);
    let arrays = schema.fields().iter().enumerate().map(column).collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), arrays)?)
}

fn column(field: &Field, at: usize, rows: &[Vec<Value>]) -> Result<ArrayRef, OutputError> {
    match field.data_type() {
        DataType::Int8 => integers::<Int8Type>(field, at, rows),
        DataType::Int16 => integers::<Int16Type>(field, at, rows),
        DataType::Int32 => integers::<Int32Type>(field, at, rows),
        DataType::Int64 => integers::<Int64Type>(field, at, rows),
        DataType::UInt8 => integers::<UInt8Type>(field, at, rows),
        DataType::UInt16 => integers::<UInt16Type>(field, at, rows),
        DataType::UInt32 => integers::<UInt32Type>(field, at, rows),
        DataType::UInt64 => integers::<UInt64Type>(field, at, rows),
        DataType::Decimal128(..) => {
            let fits = |value: i128| (value.unsigned_abs() <= SUM_MAX).then_some(value);
            let sums = numbers::<Decimal128Type>(field, at, rows, &|value| match value {
                Value::Int(value) => fits(*value),
                _ => None,
            })?;
            Ok(sums)
        }
        DataType::Float32 => numbers::<Float32Type>(field, at, rows, &|value| {
            value.as_float().map(|value| value as f32)
        }),
        DataType::Float64 => numbers::<Float64Type>(field, at, rows, &Value::as_float),
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            rows.iter().for_each(|row| match row[at] {
                Value::Int(value) => builder.append_value(value != 0),
                _ => builder.append_null(),
            });
            Ok(Arc::new(builder.finish()))
        }
        DataType::LargeUtf8 => Ok(texts::<i64>(at, rows)),
        DataType::Utf8 => {
            check_texts(field, at, rows, TEXTS_MAX_BYTES)?;
            Ok(texts::<i32>(at, rows))
        }
        _ => times(field, at, rows),
    }
}

fn times(field: &Field, at: usize, rows: &[Vec<Value>]) -> Result<ArrayRef, OutputError> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    match field.data_type() {
        DataType::Date32 => integers::<Date32Type>(field, at, rows),
        DataType::Date64 => integers::<Date64Type>(field, at, rows),
        DataType::Time32(Second) => integers::<Time32SecondType>(field, at, rows),
        DataType::Time32(_) => integers::<Time32MillisecondType>(field, at, rows),
        DataType::Time64(Microsecond) => integers::<Time64MicrosecondType>(field, at, rows),
        DataType::Time64(_) => integers::<Time64NanosecondType>(field, at, rows),
        DataType::Timestamp(Second, _) => integers::<TimestampSecondType>(field, at, rows),
        DataType::Timestamp(Millisecond, _) => {
            integers::<TimestampMillisecondType>(field, at, rows)
        }
        DataType::Timestamp(Microsecond, _) => {
            integers::<TimestampMicrosecondType>(field, at, rows)
        }
        DataType::Timestamp(Nanosecond, _) => integers::<TimestampNanosecondType>(field, at, rows),
        DataType::Duration(Second) => integers::<DurationSecondType>(field, at, rows),
        DataType::Duration(Millisecond) => integers::<DurationMillisecondType>(field, at, rows),
        DataType::Duration(Microsecond) => integers::<DurationMicrosecondType>(field, at, rows),
        DataType::Duration(Nanosecond) => integers::<DurationNanosecondType>(field, at, rows),
        other => Err(ArrowError::NotYetImplemented(other.to_string()).into()),
    }
}

fn text_bytes(value: &Value) -> usize {
    if let Value::Text(text) = value { text.len() } else { 0 }
}

/// Checks that the texts of a column fit into one batch.
pub(super) fn check_texts(
    field: &Field,
    at: usize,
    rows: &[Vec<Value>],
    most: usize,
) -> Result<(), OutputError> {
    let bytes = rows.iter().map(|row| text_bytes(&row[at])).sum();
    if bytes > most {
        return Err(OutputError::TooMuchText { column: field.name().clone(), bytes, most });
    }
    Ok(())
}

/// Cuts rows into pieces whose texts have at most `most` bytes, or of one row.
fn pieces(mut rows: &[Vec<Value>], most: usize) -> impl Iterator<Item = &[Vec<Value>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0_usize;
        let mut fits = |row: &Vec<Value>| {
            bytes = bytes.saturating_add(row.iter().map(text_bytes).sum());
            bytes <= most
        };
        let fitting = rows.iter().take_while(|row| fits(row)).count();
        let (piece, rest) = rows.split_at(fitting.max(1).min(rows.len()));
        rows = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

fn texts<O: OffsetSizeTrait>(at: usize, rows: &[Vec<Value>]) -> ArrayRef {
    let mut builder = GenericStringBuilder::<O>::new();
    for row in rows {
        match &row[at] {
            Value::Text(text) => builder.append_value(text),
            _ => builder.append_null(),
        }
    }
    Arc::new(builder.finish())
}

fn integers<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(
    field: &Field,
    at: usize,
    rows: &[Vec<Value>],
) -> Result<ArrayRef, OutputError> {
    numbers::<T>(field, at, rows, &|value| match value {
        Value::Int(value) => T::Native::try_from(*value).ok(),
        _ => None,
    })
}

fn numbers<T: ArrowPrimitiveType>(
    field: &Field,
    at: usize,
    rows: &[Vec<Value>],
    convert: &dyn Fn(&Value) -> Option<T::Native>,
) -> Result<ArrayRef, OutputError> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(rows.len());
    builder = builder.with_data_type(field.data_type().clone());
    for row in rows {
        match (&row[at], convert(&row[at])) {
            (Value::Null, _) => builder.append_null(),
            (_, Some(value)) => builder.append_value(value),
            (Value::Int(value), None) => {
                let (column, kind) = (field.name().clone(), field.data_type().to_string());
                return Err(OutputError::TooLarge { column, value: *value, kind });
            }
            (other, None) => {
                let what = format!("{} is {other:?}, and no number", field.name());
                return Err(ArrowError::ComputeError(what).into());
            }
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// Writes an Arrow file; its columns are those of the first table.
pub(super) struct Arrow<W: Write> {
    names: Vec<String>,
    state: State<W>,
    /// Maximum bytes of text in a batch.
    texts_max_bytes: usize,
    /// Columns that may have integers beyond 64 bits in later rows.
    wide: Vec<bool>,
    /// The rows so far, while it is not known whether they do, and their size in memory.
    kept: Option<Table>,
    kept_bytes: usize,
    kept_max_bytes: usize,
}

enum State<W: Write> {
    Waiting(Option<W>),
    Open(Box<FileWriter<W>>, Arc<Schema>),
}

impl<W: Write> Arrow<W> {
    pub(super) fn new(names: Vec<String>, out: W) -> Self {
        Self::with(names, out, BATCH_TEXTS_BYTES)
    }

    /// Writes batches with at most this many bytes of text.
    pub(super) fn with(names: Vec<String>, out: W, texts_max_bytes: usize) -> Self {
        let state = State::Waiting(Some(out));
        let (wide, kept, kept_bytes, kept_max_bytes) = (Vec::new(), None, 0, KEPT_MAX_BYTES);
        Self { names, state, texts_max_bytes, wide, kept, kept_bytes, kept_max_bytes }
    }

    /// The answer is streamed, and these columns may have integers beyond 64 bits. If there are such columns, rows of
    /// up to this many bytes are kept before any are written.
    pub(super) fn stream(self, wide: Vec<bool>, kept_max_bytes: Option<usize>) -> Self {
        let kept_max_bytes = kept_max_bytes.unwrap_or(self.kept_max_bytes);
        Self { wide, kept_max_bytes, ..self }
    }

    pub(super) fn write(&mut self, table: &Table) -> Result<(), OutputError> {
        if matches!(self.state, State::Open(..)) {
            return self.append(&table.rows);
        }
        let columns = table.kinds.iter().zip(&self.wide);
        if !columns.into_iter().any(|(kind, wide)| *kind == AnswerKind::Sum && *wide) {
            self.open(table, &[])?;
            return self.append(&table.rows);
        }
        self.kept_bytes += table.rows.iter().map(|row| row_bytes(row)).sum::<usize>();
        let none = || Table { kinds: table.kinds.clone(), rows: Vec::new() };
        let kept = self.kept.get_or_insert_with(none);
        kept.rows.extend_from_slice(&table.rows);
        if self.kept_bytes > self.kept_max_bytes {
            let wide = std::mem::take(&mut self.wide);
            self.write_kept(&wide)?;
        }
        Ok(())
    }

    fn write_kept(&mut self, wide: &[bool]) -> Result<(), OutputError> {
        let Some(table) = self.kept.take() else { return Ok(()) };
        self.open(&table, wide)?;
        self.append(&table.rows)
    }

    fn open(&mut self, table: &Table, wide: &[bool]) -> Result<(), OutputError> {
        if let State::Waiting(out) = &mut self.state
            && let Some(out) = out.take()
        {
            let names: Vec<&str> = self.names.iter().map(|name| &**name).collect();
            let schema = Arc::new(schema_of(&names, table, wide));
            self.state = State::Open(Box::new(FileWriter::try_new(out, &schema)?), schema);
        }
        Ok(())
    }

    fn append(&mut self, rows: &[Vec<Value>]) -> Result<(), OutputError> {
        if let State::Open(writer, schema) = &mut self.state {
            for rows in pieces(rows, self.texts_max_bytes) {
                writer.write(&batch_of(schema, rows)?)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        self.write_kept(&[])?;
        if let State::Open(mut writer, _) = self.state {
            writer.finish()?;
            (*writer).into_inner()?.flush()?;
        }
        Ok(())
    }
}

/// Size of a row in memory.
fn row_bytes(row: &[Value]) -> usize {
    size_of_val(row) + row.iter().map(text_bytes).sum::<usize>()
}
