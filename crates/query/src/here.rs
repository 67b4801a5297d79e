//! Rows from elsewhere, reduced here: those that a filter of somebody else's has let pass.

use crate::eval::Overflow;
use crate::partial::{Partial, Reducer};
use crate::plan::{Plan, Value};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, DataType};

/// Why rows cannot be reduced.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// They are no Arrow stream.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// A column is none of the plan's schema, or of another type.
    #[error("column {name} of type {kind} is no column of the plan")]
    Column {
        /// Its name.
        name: String,
        /// Its type.
        kind: DataType,
    },
    /// A number has no room.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl Partial {
    /// What rows come to that an Arrow IPC stream has, with columns of the plan's schema by their names. All
    /// rows count: the plan's filter is not applied.
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

/// The value of a row.
type Values<'a> = Box<dyn Fn(usize) -> Value + 'a>;

/// For each column of the batch, which one of the schema it is.
fn columns<'a>(plan: &Plan, batch: &'a RecordBatch) -> Result<Vec<(usize, Values<'a>)>, RowsError> {
    let schema = batch.schema_ref();
    let column = |(field, array): (&std::sync::Arc<arrow_schema::Field>, &'a dyn Array)| {
        let other =
            || RowsError::Column { name: field.name().clone(), kind: field.data_type().clone() };
        let index = plan.schema.columns.iter().position(|column| column.name == *field.name());
        let index = index.ok_or_else(other)?;
        let is_float = plan.schema.columns[index].kind.is_float();
        let is_text = !is_float && !plan.schema.columns[index].kind.is_integer();
        let values = match field.data_type() {
            DataType::Float32 if is_float => floats::<Float32Type>(array),
            DataType::Float64 if is_float => floats::<Float64Type>(array),
            DataType::Utf8 if is_text => {
                let texts = array.as_string::<i32>();
                Box::new(move |at| match texts.is_valid(at) {
                    true => Value::Text(texts.value(at).to_owned()),
                    false => Value::Null,
                })
            }
            kind if !is_float && !is_text => integers_of(kind, array).ok_or_else(other)?,
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
        _ => return None,
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
    use crate::own::OwnStages;
    use crate::plan::{
        Aggregate, Column, Format, Kind, Measure, Predicate, Reduction, Scalar, Schema,
    };
    use arrow_array::{Float64Array, StringArray};
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
