//! The types of Arrow fields, and the indices of their buffers in a batch.

use crate::plan::{Column, ColumnBuffers, Kind, OtherColumn, Schema};
use arrow_ipc::{
    DateUnit, Field, MetadataVersion, Precision, TimeUnit as IpcUnit, Type, UnionMode,
};
use arrow_schema::{DataType, TimeUnit};

/// Maximum number of columns.
const COLUMNS_MAX: usize = 4096;

/// Walks through the fields of a schema, in the order of their buffers in batches.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) schema: Schema,
    pub(super) columns: Vec<ColumnBuffers>,
    pub(super) others: Vec<OtherColumn>,
    nodes: u32,
    /// Number of buffers so far, if columns of views have two each.
    buffers: u32,
    views: u32,
    /// Up to V4 of the format, unions have a bit for each row, too.
    unions_have_bits: bool,
}

impl Walk {
    /// For a file of this version of the format.
    pub(super) fn new(version: MetadataVersion) -> Self {
        Self { unions_have_bits: version < MetadataVersion::V5, ..Self::default() }
    }

    /// Adds a column, as one that can be queried or as another one.
    pub(super) fn column(&mut self, field: Field<'_>) -> Result<(), String> {
        let name = field.name().unwrap_or_default().to_owned();
        if self.columns.len() + self.others.len() == COLUMNS_MAX {
            return Err(format!("at most {COLUMNS_MAX} columns"));
        }
        let known = self.schema.columns.iter().map(|column| &column.name);
        if known.chain(self.others.iter().map(|other| &other.name)).any(|known| *known == name) {
            return Err(format!("there are two columns {name}; give each a name of its own"));
        }
        match column_type(&field) {
            Ok((kind, data_type)) => {
                let (node, buffer, views_before) = (self.nodes, self.buffers, self.views);
                self.columns.push(ColumnBuffers {
                    name: name.clone(),
                    data_type,
                    node,
                    buffer,
                    views_before,
                });
                // The field does not matter: batches tell by their counts whether values are
                // missing.
                self.schema.columns.push(Column { name, kind, nullable: true });
            }
            Err(why) => self.others.push(OtherColumn { name, why }),
        }
        self.skip(&field)
    }

    /// Counts the nodes and buffers of a field and of its nested fields.
    fn skip(&mut self, field: &Field<'_>) -> Result<(), String> {
        let (nodes, buffers) = match field.type_type() {
            _ if field.dictionary().is_some() => (1, 2),
            Type::Null => (1, 0),
            Type::Struct_ | Type::FixedSizeList => (1, 1),
            Type::Utf8 | Type::Binary | Type::LargeUtf8 | Type::LargeBinary => (1, 3),
            Type::ListView | Type::LargeListView => (1, 3),
            Type::RunEndEncoded => (1, 0),
            Type::Union => {
                let bits = u32::from(self.unions_have_bits);
                match field.type_as_union().map(|union| union.mode()) {
                    Some(UnionMode::Dense) => (1, 2 + bits),
                    _ => (1, 1 + bits),
                }
            }
            Type::Utf8View | Type::BinaryView => {
                self.views += 1;
                (1, 2)
            }
            Type::Bool
            | Type::Int
            | Type::FloatingPoint
            | Type::Decimal
            | Type::Date
            | Type::Time
            | Type::Timestamp
            | Type::Interval
            | Type::Duration
            | Type::FixedSizeBinary
            | Type::List
            | Type::LargeList
            | Type::Map => (1, 2),
            _ => return Err("it has a column of an unknown type".to_owned()),
        };
        self.nodes += nodes;
        self.buffers += buffers;
        if field.dictionary().is_none() {
            for child in field.children().iter().flatten() {
                self.skip(&child)?;
            }
        }
        Ok(())
    }
}

const NESTED: &str = "nested values are not supported: write their parts as columns";

/// The kind of a column's values and their Arrow type; or why the column cannot be queried.
fn column_type(field: &Field<'_>) -> Result<(Kind, DataType), String> {
    if field.dictionary().is_some() {
        return refused(
            "dictionaries (categories) are not supported: write its values, for example by \
             cast(pyarrow.string())",
        );
    }
    let unknown = || "its type is invalid".to_owned();
    Ok(match field.type_type() {
        Type::Bool => (Kind::U8, DataType::Boolean),
        Type::Int => {
            let int = field.type_as_int().ok_or_else(unknown)?;
            match (int.is_signed(), int.bitWidth()) {
                (true, 8) => (Kind::I8, DataType::Int8),
                (true, 16) => (Kind::I16, DataType::Int16),
                (true, 32) => (Kind::I32, DataType::Int32),
                (true, 64) => (Kind::I64, DataType::Int64),
                (false, 8) => (Kind::U8, DataType::UInt8),
                (false, 16) => (Kind::U16, DataType::UInt16),
                (false, 32) => (Kind::U32, DataType::UInt32),
                (false, 64) => (Kind::U64, DataType::UInt64),
                _ => return Err(unknown()),
            }
        }
        Type::FloatingPoint => {
            match field.type_as_floating_point().ok_or_else(unknown)?.precision() {
                Precision::SINGLE => (Kind::F32, DataType::Float32),
                Precision::DOUBLE => (Kind::F64, DataType::Float64),
                _ => return refused("16-bit floats are not supported: write float32"),
            }
        }
        Type::Utf8 => (Kind::Utf8, DataType::Utf8),
        Type::LargeUtf8 => (Kind::Utf8, DataType::LargeUtf8),
        Type::Date => match field.type_as_date().ok_or_else(unknown)?.unit() {
            DateUnit::DAY => (Kind::I32, DataType::Date32),
            _ => (Kind::I64, DataType::Date64),
        },
        Type::Time => {
            let time = field.type_as_time().ok_or_else(unknown)?;
            let of = unit(time.unit()).ok_or_else(unknown)?;
            match (time.bitWidth(), of) {
                (32, TimeUnit::Second | TimeUnit::Millisecond) => (Kind::I32, DataType::Time32(of)),
                (64, TimeUnit::Microsecond | TimeUnit::Nanosecond) => {
                    (Kind::I64, DataType::Time64(of))
                }
                _ => return Err(unknown()),
            }
        }
        Type::Timestamp => {
            let timestamp = field.type_as_timestamp().ok_or_else(unknown)?;
            let of = unit(timestamp.unit()).ok_or_else(unknown)?;
            (Kind::I64, DataType::Timestamp(of, timestamp.timezone().map(Into::into)))
        }
        Type::Duration => {
            let of = field.type_as_duration().and_then(|duration| unit(duration.unit()));
            (Kind::I64, DataType::Duration(of.ok_or_else(unknown)?))
        }
        Type::Utf8View | Type::BinaryView => {
            return refused(
                "views are not supported: write strings, in Polars by compat_level=CompatLevel.oldest()",
            );
        }
        Type::Decimal => return refused("decimals are not supported: write float64 or int64"),
        Type::Binary | Type::LargeBinary | Type::FixedSizeBinary => {
            return refused("binary values are not supported: write them as strings");
        }
        Type::Interval => return refused("intervals are not supported: write durations"),
        Type::Null => return refused("it has no values: leave it out"),
        Type::RunEndEncoded => return refused("run-end encoding is not supported: write values"),
        _ => return refused(NESTED),
    })
}

fn refused<T>(why: &str) -> Result<T, String> {
    Err(why.to_owned())
}

fn unit(unit: IpcUnit) -> Option<TimeUnit> {
    match unit {
        IpcUnit::SECOND => Some(TimeUnit::Second),
        IpcUnit::MILLISECOND => Some(TimeUnit::Millisecond),
        IpcUnit::MICROSECOND => Some(TimeUnit::Microsecond),
        IpcUnit::NANOSECOND => Some(TimeUnit::Nanosecond),
        _ => None,
    }
}
