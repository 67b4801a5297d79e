//! Reduces rows from elsewhere on the host: rows that another program's filter has let pass.

use crate::eval::Overflow;
use crate::partial::{Partial, Reducer};
use crate::plan::{AnswerKind, Plan, Value};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, OffsetSizeTrait, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, DataType, TimeUnit};

/// The reason why rows cannot be reduced.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The bytes are not an Arrow stream.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// A column is not in the plan's schema, or has another type.
    #[error("column {name} of type {kind} is not a column of the plan")]
    Column {
        /// Its name.
        name: String,
        /// Its type.
        kind: DataType,
    },
    /// A number does not fit.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl Partial {
    /// Reduces the rows of an Arrow IPC stream, whose columns are matched with the plan's schema by name. All rows
    /// count: the plan's filter is not applied.
    ///
    /// # Errors
    /// [`RowsError`].
    pub fn of_rows(plan: &Plan, stream: &[u8]) -> Result<Self, RowsError> {
        let (mut partial, reducer) = (Self::empty(plan), Reducer::new(plan));
        for batch in StreamReader::try_new(stream, None)? {
            let batch = batch?;
            let columns = columns(plan, &batch)?;
            let mut row = vec![Value::Null; plan.schema.columns.len()];
            for at in 0..batch.num_rows() {
                for (index, value) in &columns {
                    row[*index] = value(at);
                }
                reducer.add(&mut partial, &row)?;
            }
        }
        reducer.settle(&mut partial);
        Ok(partial)
    }
}

/// Returns the value of a row.
type Values<'a> = Box<dyn Fn(usize) -> Value + 'a>;

/// For each column of the batch, its index in the schema and its values.
fn columns<'a>(plan: &Plan, batch: &'a RecordBatch) -> Result<Vec<(usize, Values<'a>)>, RowsError> {
    let schema = batch.schema_ref();
    let column = |(field, array): (&std::sync::Arc<arrow_schema::Field>, &'a dyn Array)| {
        let other =
            || RowsError::Column { name: field.name().clone(), kind: field.data_type().clone() };
        let index = plan.schema.columns.iter().position(|column| column.name == *field.name());
        let index = index.ok_or_else(other)?;
        let is_float = plan.schema.columns[index].kind.is_float();
        let is_text = !is_float && !plan.schema.columns[index].kind.is_integer();
        // Times must have the same unit as in the plan.
        let known = plan.format.column_kind(&plan.schema, index);
        let is_alike =
            |kind: &DataType| kind.is_integer() || known == AnswerKind::Arrow(kind.clone());
        let values = match field.data_type() {
            DataType::Float32 if is_float => floats::<Float32Type>(array),
            DataType::Float64 if is_float => floats::<Float64Type>(array),
            DataType::Utf8 if is_text => texts::<i32>(array),
            DataType::LargeUtf8 if is_text => texts::<i64>(array),
            kind if !is_float && !is_text && is_alike(kind) => {
                integers_of(kind, array).ok_or_else(other)?
            }
            _ => return Err(other()),
        };
        Ok((index, values))
    };
    let arrays = batch.columns().iter().map(|array| &**array);
    schema.fields().iter().zip(arrays).map(column).collect()
}

fn integers_of<'a>(kind: &DataType, array: &'a dyn Array) -> Option<Values<'a>> {
    Some(match kind {
        DataType::Int8 => integers::<Int8Type>(array),
        DataType::Int16 => integers::<Int16Type>(array),
        DataType::Int32 => integers::<Int32Type>(array),
        DataType::Int64 => integers::<Int64Type>(array),
        DataType::UInt8 => integers::<UInt8Type>(array),
        DataType::UInt16 => integers::<UInt16Type>(array),
        DataType::UInt32 => integers::<UInt32Type>(array),
        DataType::UInt64 => integers::<UInt64Type>(array),
        DataType::Boolean => booleans(array),
        DataType::Date32 => integers::<Date32Type>(array),
        DataType::Date64 => integers::<Date64Type>(array),
        DataType::Time32(TimeUnit::Second) => integers::<Time32SecondType>(array),
        DataType::Time32(TimeUnit::Millisecond) => integers::<Time32MillisecondType>(array),
        DataType::Time64(TimeUnit::Microsecond) => integers::<Time64MicrosecondType>(array),
        DataType::Time64(TimeUnit::Nanosecond) => integers::<Time64NanosecondType>(array),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => integers::<TimestampSecondType>(array),
            TimeUnit::Millisecond => integers::<TimestampMillisecondType>(array),
            TimeUnit::Microsecond => integers::<TimestampMicrosecondType>(array),
            TimeUnit::Nanosecond => integers::<TimestampNanosecondType>(array),
        },
        DataType::Duration(unit) => match unit {
            TimeUnit::Second => integers::<DurationSecondType>(array),
            TimeUnit::Millisecond => integers::<DurationMillisecondType>(array),
            TimeUnit::Microsecond => integers::<DurationMicrosecondType>(array),
            TimeUnit::Nanosecond => integers::<DurationNanosecondType>(array),
        },
        _ => return None,
    })
}

fn booleans<'a>(array: &'a dyn Array) -> Values<'a> {
    let booleans = array.as_boolean();
    Box::new(move |at| match booleans.is_valid(at) {
        true => Value::Int(booleans.value(at).into()),
        false => Value::Null,
    })
}

fn texts<'a, O: OffsetSizeTrait>(array: &'a dyn Array) -> Values<'a> {
    let texts = array.as_string::<O>();
    Box::new(move |at| match texts.is_valid(at) {
        true => Value::Text(texts.value(at).to_owned()),
        false => Value::Null,
    })
}

fn integers<'a, T: ArrowPrimitiveType<Native: Into<i128>>>(array: &'a dyn Array) -> Values<'a> {
    let numbers = array.as_primitive::<T>();
    Box::new(move |at| match numbers.is_valid(at) {
        true => Value::Int(numbers.value(at).into()),
        false => Value::Null,
    })
}

fn floats<'a, T: ArrowPrimitiveType<Native: Into<f64>>>(array: &'a dyn Array) -> Values<'a> {
    let numbers = array.as_primitive::<T>();
    Box::new(move |at| match numbers.is_valid(at) {
        true => Value::Float(numbers.value(at).into()),
        false => Value::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OwnStages;
    use crate::plan::{
        Aggregate, Column, ColumnBuffers, Format, Kind, Measure, Predicate, Reduction, Scalar,
        Schema,
    };
    use arrow_array::{
        ArrayRef, BooleanArray, Date32Array, DurationSecondArray, Float64Array, LargeStringArray,
        StringArray, Time64MicrosecondArray, TimestampMillisecondArray,
    };
    use arrow_ipc::writer::StreamWriter;
    use std::sync::Arc;

    fn stream(batch: &RecordBatch) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), batch.schema_ref()).expect("a stream");
        writer.write(batch).expect("written");
        writer.into_inner().expect("whole")
    }

    fn plan() -> Plan {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind, nullable: true };
        let schema = Schema {
            columns: vec![column("x", Kind::F64), column("t", Kind::Utf8), column("n", Kind::I64)],
        };
        let sum = Aggregate { measure: Measure::Sum, of: Scalar::Column(0) };
        Plan {
            schema,
            format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
            filter: Predicate::Constant(false),
            reduction: Reduction::Groups { keys: vec![Scalar::Column(1)], aggregates: vec![sum] },
            own: OwnStages::default(),
        }
    }

    #[test]
    fn rows_of_arrow_are_reduced() {
        let texts = StringArray::from(vec![Some("a"), None, Some("a")]);
        let numbers = Float64Array::from(vec![Some(0.1), Some(2.0), Some(0.2)]);
        let columns: [(&str, Arc<dyn Array>); 2] =
            [("t", Arc::new(texts)), ("x", Arc::new(numbers))];
        let bytes = stream(&RecordBatch::try_from_iter(columns).expect("a batch"));
        let table = Partial::of_rows(&plan(), &bytes).expect("rows").finish(&plan()).expect("it");
        let of =
            |key: Value| table.rows.iter().find(|row| row[0] == key).expect("a group")[1].clone();
        assert_eq!(of(Value::Text("a".to_owned())), Value::Float(0.1 + 0.2));
        assert_eq!(of(Value::Null), Value::Float(2.0));
        for cut in 0..bytes.len() {
            let _ = Partial::of_rows(&plan(), &bytes[..cut]);
        }
    }

    /// Minimum and maximum of one column, of rows with two values and a missing one.
    fn range(kind: Kind, data_type: &DataType, array: ArrayRef) -> Result<Vec<Value>, String> {
        let aggregate = |measure| Aggregate { measure, of: Scalar::Column(0) };
        let buffers = ColumnBuffers {
            name: "x".to_owned(),
            data_type: data_type.clone(),
            node: 0,
            buffer: 0,
            views_before: 0,
        };
        let plan = Plan {
            schema: Schema { columns: vec![Column { name: "x".to_owned(), kind, nullable: true }] },
            format: Format::Columns { columns: vec![buffers], others: Vec::new() },
            reduction: Reduction::Groups {
                keys: Vec::new(),
                aggregates: [Measure::Min, Measure::Max, Measure::Count].map(aggregate).to_vec(),
            },
            ..plan()
        };
        let batch = RecordBatch::try_from_iter([("x", array)]).expect("a batch");
        let partial =
            Partial::of_rows(&plan, &stream(&batch)).map_err(|error| error.to_string())?;
        Ok(partial.finish(&plan).expect("of this plan").rows.remove(0))
    }

    #[test]
    fn columns_of_all_types_are_reduced() {
        let ints = [Value::Int(0), Value::Int(1), Value::Int(2)].to_vec();
        let zone = TimestampMillisecondArray::from(vec![Some(1), Some(0), None]);
        let arrays: [(Kind, ArrayRef); 5] = [
            (Kind::U8, Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
            (Kind::I32, Arc::new(Date32Array::from(vec![Some(0), Some(1), None]))),
            (Kind::I64, Arc::new(Time64MicrosecondArray::from(vec![Some(0), None, Some(1)]))),
            (Kind::I64, Arc::new(zone.with_timezone("Europe/Berlin"))),
            (Kind::I64, Arc::new(DurationSecondArray::from(vec![None, Some(0), Some(1)]))),
        ];
        for (kind, array) in arrays {
            let data_type = array.data_type().clone();
            assert_eq!(range(kind, &data_type, array).as_ref(), Ok(&ints), "{data_type}");
        }
        let texts: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("b"), None, Some("a")]));
        let text = |text: &str| Value::Text(text.to_owned());
        let expected = [text("a"), text("b"), Value::Int(2)].to_vec();
        assert_eq!(range(Kind::Utf8, &DataType::LargeUtf8, texts), Ok(expected));
        // A date in another unit.
        let days: ArrayRef = Arc::new(Date32Array::from(vec![1]));
        let error = range(Kind::I64, &DataType::Date64, days).expect_err("another type");
        assert!(error.contains("Date32"), "{error}");
    }

    #[test]
    fn other_columns_are_refused() {
        for name in ["n", "y"] {
            let numbers: Arc<dyn Array> = Arc::new(Float64Array::from(vec![1.0]));
            let batch = RecordBatch::try_from_iter([(name, numbers)]).expect("a batch");
            let error = Partial::of_rows(&plan(), &stream(&batch)).expect_err("no such column");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
