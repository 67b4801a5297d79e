//! What a query asks: a source, a filter, and a reduction of the rows that pass.

use arrow_schema::DataType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the values of a column are.
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
    /// Text. In fixed records: so many bytes, padded with NUL.
    Utf8,
}

impl Kind {
    /// Bytes of a value in fixed records; None for text, whose field says it.
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

    /// Least and greatest value of an integer kind; None for others.
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
    /// What its values are.
    pub kind: Kind,
    /// Whether some may be missing. Fixed records have no missing values.
    pub nullable: bool,
}

/// All columns of the files, in their order there. A column is named by its index in this list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The columns.
    pub columns: Vec<Column>,
}

/// Where a column is in a fixed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// From the beginning of the record, in bytes.
    pub offset_bytes: u32,
    /// Bytes of the value.
    pub width_bytes: u32,
}

/// How files hold rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Records of one size, little-endian: also `.npy` of one dimension, and of structured arrays.
    Fixed {
        /// Bytes before the first record.
        header_bytes: u64,
        /// Size of a record in bytes. A file is a header and whole records.
        record_bytes: u32,
        /// Of each column of the schema.
        fields: Vec<Field>,
    },
    /// Text, a row a line (LF or CR LF). Fields may be quoted by `"`, which is doubled inside; a
    /// line ends in quotes as well.
    Csv {
        /// Between fields, for example `,`.
        delimiter: u8,
        /// Bytes of each file before the first row: its header line.
        header_bytes: u64,
        /// What stands for a missing number, each at most 8 bytes. Text is never missing.
        nulls: Vec<String>,
    },
    /// Arrow IPC files (Feather version 2), uncompressed: each column of a batch in buffers of its own.
    Columns {
        /// Of each column of the schema.
        columns: Vec<ColumnBuffers>,
        /// Those that the files have besides.
        others: Vec<OtherColumn>,
    },
}

impl Format {
    /// Whether values of this column may be missing.
    pub(crate) const fn may_be_missing(&self, column: &Column) -> bool {
        match self {
            Self::Fixed { .. } => false,
            // Empty text is text.
            Self::Csv { .. } => column.nullable && !matches!(column.kind, Kind::Utf8),
            Self::Columns { .. } => column.nullable,
        }
    }

    /// What an answer says a column of the files is.
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

/// A column of an Arrow file: what its values are there, and which of a batch's buffers it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnBuffers {
    /// The type in Arrow. In the [`Schema`] a timestamp, for example, is an integer.
    pub data_type: DataType,
    /// Which of a batch's nodes.
    pub node: u32,
    /// The first of its buffers, if columns of views before it have two each.
    pub buffer: u32,
    /// How many columns of views there are before it: these may have more.
    pub views_before: u32,
}

/// Whether its type says more than its kind.
fn says_more(column: &ColumnBuffers) -> bool {
    let is_plain = column.data_type.is_integer() || column.data_type.is_floating();
    !is_plain && column.data_type != DataType::Utf8
}

/// A column that cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherColumn {
    /// Its name.
    pub name: String,
    /// Why not, and what to do.
    pub why: String,
}

/// What pyarrow takes for a missing number in CSV.
pub const CSV_NULLS: [&str; 17] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null",
];

/// A value of a row, or of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Missing.
    Null,
    /// An integer; those of columns have 64 bits, sums up to 128.
    Int(i128),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
}

/// How two values compare. Missing ones give "unknown"; NaN is different from all, and neither less
/// nor greater.
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

/// An operation of arithmetic. Of two integers the result is an integer, but of a division.
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

/// What is made of a value. What is missing stays missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Conversion {
    /// A floating point number: the nearest one.
    Double,
    /// An integer of 64 bits. Numbers that are none are an error.
    Integer,
    /// A part of a time that counts units of so many nanoseconds, since 1970 or of the day.
    Part(TimePart, i64),
    /// The beginning of the part that such a time is in, in the same units.
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
    /// Only as a beginning: Monday.
    Week,
    /// Of the month, 1 to 31.
    Day,
    /// 0 to 23.
    Hour,
    /// 0 to 59.
    Minute,
    /// 0 to 59.
    Second,
}

/// What a row gives a value for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scalar {
    /// The column with this index in the schema.
    Column(usize),
    /// The same for all rows.
    Literal(Value),
    /// Arithmetic of numbers. A missing operand makes the result missing.
    Arithmetic(Arithmetic, Box<Scalar>, Box<Scalar>),
    /// A cast, or a part of a time.
    Convert(Conversion, Box<Scalar>),
}

/// What a row meets, does not meet, or nobody knows (SQL's three-valued logic).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Predicate {
    /// Met by each row, or by none.
    Constant(bool),
    /// A comparison.
    Compare(Compare, Scalar, Scalar),
    /// The value is one of these, of which none is missing.
    In(Scalar, Vec<Value>),
    /// The text begins with this.
    StartsWith(Scalar, String),
    /// The value is missing. Never unknown.
    IsNull(Scalar),
    /// The number is NaN; unknown if it is missing.
    IsNan(Scalar),
    /// All are met.
    And(Vec<Predicate>),
    /// One of them is met.
    Or(Vec<Predicate>),
    /// It is not met; unknown stays unknown.
    Not(Box<Predicate>),
}

/// What is made of the values of a group. All but [`Measure::CountAll`] leave out missing values.
/// NaN makes a sum, a mean and a variance NaN; minimum and maximum leave it out, unless there is
/// nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// How many rows there are. What it is of does not matter.
    CountAll,
    /// How many values there are.
    Count,
    /// Their sum: of integers exact; of floating point numbers exact and rounded once.
    Sum,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum by the count.
    Mean,
    /// The squared differences from the mean, by the count less `ddof`.
    Variance {
        /// Delta degrees of freedom: 0 of all that there is, 1 of a sample.
        ddof: u8,
    },
    /// The root of the variance.
    Deviation {
        /// As of [`Measure::Variance`].
        ddof: u8,
    },
}

/// A measure of something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// What is computed.
    pub measure: Measure,
    /// Of what.
    pub of: Scalar,
}

/// What becomes of the rows that pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reduction {
    /// The rows themselves, in the order of the files.
    Rows {
        /// What is answered of each.
        columns: Vec<Scalar>,
        /// So many at the most, the first ones.
        limit: Option<u64>,
    },
    /// One row for each different combination of keys, with keys and aggregates; without keys one
    /// row, also if no row passes. 0.0 and −0.0 are one key, and so are all NaN; missing is a key.
    Groups {
        /// What rows of a group have in common.
        keys: Vec<Scalar>,
        /// What is computed of each group.
        aggregates: Vec<Aggregate>,
    },
    /// The rows with the least or the greatest values, in this order, among equal ones those that
    /// come first in the files. NaN comes behind all numbers, and missing values last.
    Top {
        /// What is compared.
        by: Scalar,
        /// Whether the greatest come first.
        descending: bool,
        /// How many rows.
        count: u32,
        /// What is answered of each.
        columns: Vec<Scalar>,
    },
    /// How many values of a number lie in each of so many intervals of equal width, half-open but the
    /// last one. Values outside, NaN and missing ones are left out. Answers rows of: lower end, upper
    /// end, count.
    Histogram {
        /// The number.
        of: Scalar,
        /// Lower end of the first interval.
        low: f64,
        /// Upper end of the last.
        high: f64,
        /// How many intervals.
        bins: u32,
    },
}

/// A stage of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnStage {
    /// The file that it is from, for people.
    pub name: String,
    /// The ELF object.
    pub object: Vec<u8>,
    /// The columns of the schema that it looks at, in its order.
    pub columns: Vec<usize>,
}

/// The user's own stages of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnStages {
    /// Selects rows among those that meet the plan's filter.
    pub filter: Option<OwnStage>,
    /// Takes the place of all other reductions at the target. What it answers are rows, and the plan's reduction is
    /// of these: their columns are the last ones of the schema.
    pub reduction: Option<OwnReduction>,
}

/// A reduction of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnReduction {
    /// The stage.
    pub stage: OwnStage,
    /// How many columns the rows have that it answers.
    pub answers: usize,
}

/// A query over files that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Their columns.
    pub schema: Schema,
    /// How they hold rows.
    pub format: Format,
    /// Which rows count.
    pub filter: Predicate,
    /// What becomes of them.
    pub reduction: Reduction,
    /// Stages of the user's own.
    pub own: OwnStages,
}

/// The kind of a column of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerKind {
    /// As in the files.
    Same(Kind),
    /// As in Arrow files, of a type that [`Kind`] does not tell: times, dates, booleans, large text.
    Arrow(DataType),
    /// An integer of 64 bits, or of 128 if it does not fit: the sum of integers.
    Sum,
    /// A count.
    Count,
    /// A floating point number.
    Float,
}

/// An answer: columns without names, which whoever made the plan knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What each column is.
    pub kinds: Vec<AnswerKind>,
    /// The rows. Groups come in no order.
    pub rows: Vec<Vec<Value>>,
}
