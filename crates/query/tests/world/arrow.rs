//! Writes the rows as an Arrow file, in batches of any size.

use super::Dice;
use arrow_array::builder::{BooleanBuilder, GenericStringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, DurationNanosecondType, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, OffsetSizeTrait, PrimitiveArray, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema as ArrowSchema, TimeUnit};
use bpfof_query::infer::Source;
use bpfof_query::{Format, Kind, Schema, Value};
use std::sync::Arc;

/// An Arrow type that such a column can have.
fn data_type(kind: Kind, dice: &mut Dice) -> DataType {
    let zone = || Some("Europe/Berlin".into());
    match kind {
        Kind::I8 => DataType::Int8,
        Kind::I16 => DataType::Int16,
        Kind::I32 => dice.pick(&[DataType::Int32, DataType::Date32]),
        Kind::I64 => dice.pick(&[
            DataType::Int64,
            DataType::Timestamp(TimeUnit::Microsecond, None),
            DataType::Timestamp(TimeUnit::Microsecond, zone()),
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Duration(TimeUnit::Nanosecond),
        ]),
        Kind::U8 => dice.pick(&[DataType::UInt8, DataType::Boolean]),
        Kind::U16 => DataType::UInt16,
        Kind::U32 => DataType::UInt32,
        Kind::U64 => DataType::UInt64,
        Kind::F32 => DataType::Float32,
        Kind::F64 => DataType::Float64,
        Kind::Utf8 => dice.pick(&[DataType::Utf8, DataType::LargeUtf8]),
    }
}

fn ints<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(
    data_type: &DataType,
    column: impl Iterator<Item = Value>,
) -> ArrayRef {
    let value = |value| match value {
        Value::Int(number) => T::Native::try_from(number).ok(),
        _ => None,
    };
    let array: PrimitiveArray<T> = column.map(value).collect();
    Arc::new(array.with_data_type(data_type.clone()))
}

fn texts<O: OffsetSizeTrait>(column: impl Iterator<Item = Value>) -> ArrayRef {
    let mut builder = GenericStringBuilder::<O>::new();
    for value in column {
        match value {
            Value::Text(text) => builder.append_value(text),
            _ => builder.append_null(),
        }
    }
    Arc::new(builder.finish())
}

fn array(of: &DataType, column: impl Iterator<Item = Value>) -> ArrayRef {
    let float = |value: Value| value.as_float();
    match of {
        DataType::Int8 => ints::<Int8Type>(of, column),
        DataType::Int16 => ints::<Int16Type>(of, column),
        DataType::Int32 => ints::<Int32Type>(of, column),
        DataType::Int64 => ints::<Int64Type>(of, column),
        DataType::UInt8 => ints::<UInt8Type>(of, column),
        DataType::UInt16 => ints::<UInt16Type>(of, column),
        DataType::UInt32 => ints::<UInt32Type>(of, column),
        DataType::UInt64 => ints::<UInt64Type>(of, column),
        DataType::Date32 => ints::<Date32Type>(of, column),
        DataType::Time64(_) => ints::<Time64MicrosecondType>(of, column),
        DataType::Timestamp(..) => ints::<TimestampMicrosecondType>(of, column),
        DataType::Duration(_) => ints::<DurationNanosecondType>(of, column),
        DataType::Float32 => {
            let array: PrimitiveArray<Float32Type> =
                column.map(|value| float(value).map(|number| number as f32)).collect();
            Arc::new(array)
        }
        DataType::Float64 => {
            let array: PrimitiveArray<Float64Type> = column.map(float).collect();
            Arc::new(array)
        }
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            column.for_each(|value| match value {
                Value::Int(number) => builder.append_value(number != 0),
                _ => builder.append_null(),
            });
            Arc::new(builder.finish())
        }
        DataType::LargeUtf8 => texts::<i64>(column),
        _ => texts::<i32>(column),
    }
}

/// Writes the rows in batches, which are slices of one batch; booleans become 0 and 1.
pub(super) fn file(schema: &Schema, rows: &mut [Vec<Value>], dice: &mut Dice) -> (Format, Vec<u8>) {
    let types: Vec<_> = schema.columns.iter().map(|of| data_type(of.kind, dice)).collect();
    for row in rows.iter_mut() {
        for (value, of) in row.iter_mut().zip(&types) {
            if let (Value::Int(number), DataType::Boolean) = (&*value, of) {
                *value = Value::Int(number & 1);
            }
        }
    }
    let column = |at: usize| array(&types[at], rows.iter().map(|row| row[at].clone()));
    let arrays = (0..types.len()).map(column).collect();
    let fields = schema.columns.iter().zip(&types);
    let fields = fields.map(|(of, data_type)| Field::new(&of.name, data_type.clone(), of.nullable));
    let arrow_schema = Arc::new(ArrowSchema::new(fields.collect::<Vec<_>>()));
    let all = RecordBatch::try_new(Arc::clone(&arrow_schema), arrays).expect("as the schema says");
    let declared = arrow_schema.fields().iter();
    let declared = declared.map(|field| field.as_ref().clone().with_nullable(dice.one_in(2)));
    let declared = ArrowSchema::new(declared.collect::<Vec<_>>());
    let mut writer = FileWriter::try_new(Vec::new(), &declared).expect("memory");
    let most = if dice.one_in(2) { 10 } else { 3000 };
    let mut at = 0;
    while at < rows.len() {
        let size = dice.below(most).min(rows.len() - at);
        writer.write(&all.slice(at, size)).expect("memory");
        at += size;
    }
    let bytes = writer.into_inner().expect("memory");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.arrow");
    std::fs::write(&path, &bytes).expect("room");
    let pattern = path.to_str().expect("UTF-8").to_owned();
    let source = Source::find(&[pattern], &Default::default()).expect("an Arrow file");
    assert_eq!(&source.schema, schema);
    (source.format, bytes)
}
