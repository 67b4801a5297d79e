//! Queries: a source, a filter, and a reduction of the rows that pass.

use arrow_schema::DataType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Signed integer of 8 bits.
    I8,
    /// Signed integer of 16 bits.
    I16,
    /// Signed integer of 32 bits.
    I32,
    /// Signed integer of 64 bits.
    I64,
    /// Unsigned integer of 8 bits.
    U8,
    /// Unsigned integer of 16 bits.
    U16,
    /// Unsigned integer of 32 bits.
    U32,
    /// Unsigned integer of 64 bits.
    U64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Text. In fixed records: padded with NUL to the field's width.
    Utf8,
}

impl Kind {
    /// Size of a value in fixed records, in bytes; None for text, whose size is in the field.
    #[must_use]
    pub const fn width_bytes(self) -> Option<u32> {
        match self {
            Self::I8 | Self::U8 => Some(1),
            Self::I16 | Self::U16 => Some(2),
            Self::I32 | Self::U32 | Self::F32 => Some(4),
            Self::I64 | Self::U64 | Self::F64 => Some(8),
            Self::Utf8 => None,
        }
    }

    /// Whether values are integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Utf8)
    }

    /// Whether values are floating point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Smallest and largest value of an integer kind; None for others.
    #[must_use]
    pub const fn domain(self) -> Option<(i128, i128)> {
        match self {
            Self::I8 => Some((i8::MIN as i128, i8::MAX as i128)),
            Self::I16 => Some((i16::MIN as i128, i16::MAX as i128)),
            Self::I32 => Some((i32::MIN as i128, i32::MAX as i128)),
            Self::I64 => Some((i64::MIN as i128, i64::MAX as i128)),
            Self::U8 => Some((0, u8::MAX as i128)),
            Self::U16 => Some((0, u16::MAX as i128)),
            Self::U32 => Some((0, u32::MAX as i128)),
            Self::U64 => Some((0, u64::MAX as i128)),
            Self::F32 | Self::F64 | Self::Utf8 => None,
        }
    }
}

/// Rust's names: `i8` to `u64`, `f32`, `f64`; and `utf8`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Utf8 => "utf8",
        })
    }
}

/// A column of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub kind: Kind,
    /// Whether values may be missing. Fixed records have no missing values.
    pub nullable: bool,
}

/// All columns of the files, in their order there. Columns are identified by their index in this list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The columns.
    pub columns: Vec<Column>,
}

/// The position of a column in a fixed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Offset from the beginning of the record, in bytes.
    pub offset_bytes: u32,
    /// Size of the value in bytes.
    pub width_bytes: u32,
}

/// The format of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Records of one size, little-endian; also one-dimensional `.npy` files, including structured arrays.
    Fixed {
        /// Bytes before the first record.
        header_bytes: u64,
        /// Size of a record in bytes. A file consists of a header and whole records.
        record_bytes: u32,
        /// The field of each column of the schema.
        fields: Vec<Field>,
    },
    /// Text, one row a line (LF or CR LF). Fields may be quoted by `"`, which is doubled inside; a newline within
    /// quotes ends the line as well.
    Csv {
        /// The separator of fields, for example `,`.
        delimiter: u8,
        /// Bytes of each file before the first row: its header line.
        header_bytes: u64,
        /// Texts that stand for a missing number, each at most 8 bytes. Text is never missing.
        nulls: Vec<String>,
    },
    /// Arrow IPC files (Feather version 2), uncompressed: each column of a batch has its own buffers.
    Columns {
        /// The buffers of each column of the schema.
        columns: Vec<ColumnBuffers>,
        /// Other columns of the files.
        others: Vec<OtherColumn>,
    },
}

impl Format {
    /// Whether rows may be appended to a file: what is before its rows does not say how many there are.
    pub(crate) const fn may_grow(&self) -> bool {
        matches!(self, Self::Csv { .. } | Self::Fixed { header_bytes: 0, .. })
    }

    /// Whether values of this column may be missing.
    pub(crate) const fn may_be_missing(&self, column: &Column) -> bool {
        match self {
            Self::Fixed { .. } => false,
            // Empty text is a text.
            Self::Csv { .. } => column.nullable && !matches!(column.kind, Kind::Utf8),
            Self::Columns { .. } => column.nullable,
        }
    }

    /// The kind of a column of the files in an answer.
    pub(crate) fn column_kind(&self, schema: &Schema, index: usize) -> AnswerKind {
        match self {
            Self::Columns { columns, .. } if columns.get(index).is_some_and(says_more) => {
                AnswerKind::Arrow(columns[index].data_type.clone())
            }
            _ => {
                let column = schema.columns.get(index);
                AnswerKind::Same(column.map_or(Kind::Utf8, |column| column.kind))
            }
        }
    }
}

/// A column of an Arrow file: its name and type, and its indices among the buffers of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnBuffers {
    /// The name in the file.
    pub name: String,
    /// The type in Arrow. In the [`Schema`] a timestamp, for example, is an integer.
    pub data_type: DataType,
    /// Index of its node in a batch.
    pub node: u32,
    /// Index of its first buffer, if columns of views before it have two buffers each.
    pub buffer: u32,
    /// Number of columns of views before it, which may have more buffers.
    pub views_before: u32,
}

/// Whether the Arrow type has more information than the kind.
fn says_more(column: &ColumnBuffers) -> bool {
    let is_plain = column.data_type.is_integer() || column.data_type.is_floating();
    !is_plain && column.data_type != DataType::Utf8
}

/// A column that cannot be queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherColumn {
    /// Its name.
    pub name: String,
    /// The reason, with advice.
    pub why: String,
}

/// Texts that pyarrow treats as missing numbers in CSV.
pub const CSV_NULLS: [&str; 17] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null",
];

/// A value of a row, or of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Missing.
    Null,
    /// An integer: of columns 64 bits, of sums up to 128.
    Int(i128),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
}

/// A comparison of two values. With a missing value the result is unknown. NaN is not equal to any value, and neither
/// less nor greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Compare {
    /// =
    Equal,
    /// ≠
    NotEqual,
    /// <
    Less,
    /// ≤
    AtMost,
    /// >
    Greater,
    /// ≥
    AtLeast,
}

/// An arithmetic operation. The result of two integers is an integer, except for a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arithmetic {
    /// +
    Add,
    /// −
    Subtract,
    /// ×
    Multiply,
    /// ÷, always of floating point numbers
    Divide,
}

/// A conversion of a value. A missing value stays missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Conversion {
    /// A floating point number: the nearest one.
    Double,
    /// A 64-bit integer. Numbers that do not fit or have a fraction are an error.
    Integer,
    /// A part of a time, which counts units of this many nanoseconds, since 1970 or since midnight.
    Part(TimePart, i64),
    /// The beginning of the part that contains such a time, in the same units.
    Begin(TimePart, i64),
}

/// A part of a date or of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TimePart {
    /// In the Gregorian calendar.
    Year,
    /// 1 to 4.
    Quarter,
    /// 1 to 12.
    Month,
    /// Only for [`Conversion::Begin`]: weeks begin on Monday.
    Week,
    /// Day of the month, 1 to 31.
    Day,
    /// 0 to 23.
    Hour,
    /// 0 to 59.
    Minute,
    /// 0 to 59.
    Second,
}

/// An expression that has a value for each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scalar {
    /// The column with this index in the schema.
    Column(usize),
    /// The same value for all rows.
    Literal(Value),
    /// Arithmetic of numbers. A missing operand makes the result missing.
    Arithmetic(Arithmetic, Box<Scalar>, Box<Scalar>),
    /// A cast, or a part of a time.
    Convert(Conversion, Box<Scalar>),
}

/// A condition in three-valued logic, as in SQL: a row meets it, does not meet it, or the result is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Predicate {
    /// Met by every row, or by none.
    Constant(bool),
    /// A comparison.
    Compare(Compare, Scalar, Scalar),
    /// The value is one of these; none of these is missing.
    In(Scalar, Vec<Value>),
    /// The text begins with this prefix.
    StartsWith(Scalar, String),
    /// The value is missing. Never unknown.
    IsNull(Scalar),
    /// The number is NaN; unknown if it is missing.
    IsNan(Scalar),
    /// All of them are met.
    And(Vec<Predicate>),
    /// At least one of them is met.
    Or(Vec<Predicate>),
    /// The condition is not met; unknown stays unknown.
    Not(Box<Predicate>),
}

/// A measure of the values of a group. All except [`Measure::CountAll`] ignore missing values. NaN makes a sum, a mean
/// and a variance NaN; minimum and maximum ignore NaN, unless there is no other value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Number of rows. The scalar does not matter.
    CountAll,
    /// Number of values.
    Count,
    /// Their sum: of integers exact; of floating point numbers exact and rounded once.
    Sum,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The sum divided by the count.
    Mean,
    /// The sum of squared differences from the mean, divided by the count less `ddof`.
    Variance {
        /// Delta degrees of freedom: 0 for a population, 1 for a sample.
        ddof: u8,
    },
    /// The square root of the variance.
    Deviation {
        /// As for [`Measure::Variance`].
        ddof: u8,
    },
}

/// A measure of a scalar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The measure.
    pub measure: Measure,
    /// The scalar.
    pub of: Scalar,
}

/// The reduction of the rows that pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reduction {
    /// The rows themselves, in the order of the files.
    Rows {
        /// The answered columns.
        columns: Vec<Scalar>,
        /// Maximum number of rows: the first ones.
        limit: Option<u64>,
    },
    /// One row for each distinct combination of keys, with keys and aggregates; without keys one row, even if no row
    /// passes. 0.0 and −0.0 are one key, and so are all NaN; a missing value is a key.
    Groups {
        /// The keys of a group.
        keys: Vec<Scalar>,
        /// The aggregates of each group.
        aggregates: Vec<Aggregate>,
    },
    /// The rows with the smallest or largest values, in this order; among equal values the rows that come first in the
    /// files. NaN comes behind all numbers, and missing values come last.
    Top {
        /// The value to compare.
        by: Scalar,
        /// Whether the largest values come first.
        descending: bool,
        /// Number of rows.
        count: u32,
        /// The answered columns.
        columns: Vec<Scalar>,
    },
    /// The number of values in each of several intervals of equal width, half-open except for the last one. Ignores
    /// values outside, NaN and missing values. Answers rows of: lower end, upper end, count.
    Histogram {
        /// The values.
        of: Scalar,
        /// Lower end of the first interval.
        low: f64,
        /// Upper end of the last interval.
        high: f64,
        /// Number of intervals.
        bins: u32,
    },
}

/// The user's own stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnStage {
    /// The file that it comes from, for messages.
    pub name: String,
    /// The ELF object.
    pub object: Vec<u8>,
    /// The columns of the schema that it uses, in the stage's order.
    pub columns: Vec<usize>,
}

/// The user's own stages of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnStages {
    /// Selects rows among those that meet the plan's filter.
    pub filter: Option<OwnStage>,
    /// Replaces all other reductions at the target. It answers rows, to which the plan's reduction applies: their
    /// columns are the last ones of the schema.
    pub reduction: Option<OwnReduction>,
}

/// The user's own reduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnReduction {
    /// The stage.
    pub stage: OwnStage,
    /// Number of columns of the rows that it answers.
    pub answers: usize,
}

/// A query over files of the same format and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The columns of the files.
    pub schema: Schema,
    /// The format of the files.
    pub format: Format,
    /// The condition on rows.
    pub filter: Predicate,
    /// The reduction of the rows that pass.
    pub reduction: Reduction,
    /// The user's own stages.
    pub own: OwnStages,
}

/// The kind of a column of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerKind {
    /// The kind of a column of the files.
    Same(Kind),
    /// A type of Arrow files that [`Kind`] cannot express: times, dates, booleans, large text.
    Arrow(DataType),
    /// A 64-bit integer, or a 128-bit one if it does not fit: the sum of integers.
    Sum,
    /// A count.
    Count,
    /// A floating point number.
    Float,
}

/// An answer: columns without names, which the maker of the plan knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The kind of each column.
    pub kinds: Vec<AnswerKind>,
    /// The rows. Groups are not ordered.
    pub rows: Vec<Vec<Value>>,
}
