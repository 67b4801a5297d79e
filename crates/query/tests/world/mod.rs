//! Random files and plans, and the expected answers, computed from the values in the simplest way.
#![allow(dead_code)] // Each test uses a part.

mod arrow;

use bpfof_query::{
    Aggregate, Arithmetic, CSV_NULLS, Column, Compare, Field, Format, Kind, Measure, OwnStages,
    Plan, Predicate, Reduction, RunError, Runner, Scalar, Schema, Settings, SourceFile, Stages,
    Stats, Table, Value, parts,
};
use std::cmp::Ordering;
use std::path::Path;

/// Pseudo-random numbers from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

const KINDS: [Kind; 13] = [
    Kind::I8,
    Kind::I16,
    Kind::I32,
    Kind::I64,
    Kind::U8,
    Kind::U16,
    Kind::U32,
    Kind::U64,
    Kind::F32,
    Kind::F64,
    // With several columns of text, texts share a block.
    Kind::Utf8,
    Kind::Utf8,
    Kind::Utf8,
];

/// A file's rows, and a plan over them.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Vec<Value>>,
    pub(crate) bytes: Vec<u8>,
}

impl World {
    pub(crate) fn new(seed: u64, rows: usize) -> World {
        let mut dice = Dice::new(seed);
        let (is_csv, is_arrow) = [(true, false), (false, false), (false, true)][dice.below(3)];
        let columns = 1 + dice.below(5);
        let column = |index: usize, dice: &mut Dice| {
            let kind = match dice.pick(&KINDS) {
                Kind::F32 if is_csv => Kind::F64,
                kind => kind,
            };
            // Arrow files may have missing values, whatever they declare.
            let nullable = is_csv && kind != Kind::Utf8 && dice.one_in(2) || is_arrow;
            Column { name: format!("c{index}"), kind, nullable }
        };
        let columns: Vec<_> = (0..columns).map(|index| column(index, &mut dice)).collect();
        let mut palette: Vec<Vec<Value>> = Vec::new();
        for column in &columns {
            let size = if dice.one_in(2) { 4 } else { 40 };
            palette.push((0..size).map(|_| value(column, is_csv, &mut dice)).collect());
        }
        let row = |dice: &mut Dice| palette.iter().map(|values| dice.pick(values)).collect();
        let mut rows: Vec<Vec<Value>> = (0..rows).map(|_| row(&mut dice)).collect();
        let schema = Schema { columns };
        let (format, bytes) = if is_csv {
            csv(&schema, &rows, &mut dice)
        } else if is_arrow {
            arrow::file(&schema, &mut rows, &mut dice)
        } else {
            fixed(&schema, &mut rows, &mut dice)
        };
        let filter = match dice.below(4) {
            0 => Predicate::Constant(true),
            _ => predicate(&schema, &palette, 0, &mut dice),
        };
        let reduction = reduction(&schema, &palette, &mut dice);
        World {
            plan: Plan { schema, format, filter, reduction, own: OwnStages::default() },
            rows,
            bytes,
        }
    }

    /// The expected answer.
    pub(crate) fn expected(&self) -> Vec<Vec<Value>> {
        let holds = |row: &&Vec<Value>| self.plan.filter.holds(row).expect("small") == Some(true);
        let rows: Vec<_> = self.rows.iter().filter(holds).collect();
        let values = |of: &[Scalar], row: &[Value]| -> Vec<Value> {
            of.iter().map(|of| of.value(row).expect("small")).collect()
        };
        match &self.plan.reduction {
            Reduction::Rows { columns, limit } => {
                let limit = limit.unwrap_or(u64::MAX) as usize;
                rows.iter().take(limit).map(|row| values(columns, row)).collect()
            }
            Reduction::Groups { keys, aggregates } => {
                let mut groups: Vec<(Vec<Value>, Vec<&Vec<Value>>)> = Vec::new();
                if keys.is_empty() {
                    groups.push((Vec::new(), Vec::new()));
                }
                for row in rows {
                    let key: Vec<_> = values(keys, row).into_iter().map(plain_key).collect();
                    match groups.iter_mut().find(|(known, _)| same(known, &key)) {
                        Some((_, members)) => members.push(row),
                        None => groups.push((key, vec![row])),
                    }
                }
                let finish = |(mut key, rows): (Vec<Value>, Vec<&Vec<Value>>)| {
                    key.extend(aggregates.iter().map(|aggregate| measure(aggregate, &rows)));
                    key
                };
                groups.into_iter().map(finish).collect()
            }
            Reduction::Top { by, descending, count, columns } => {
                let mut rows = rows;
                rows.sort_by(|one, other| {
                    let (one, other) =
                        (by.value(one).expect("small"), by.value(other).expect("small"));
                    let rank = |value: &Value| match value {
                        Value::Null => 2,
                        value if value.is_nan() => 1,
                        _ => 0,
                    };
                    // Both zeroes are equal.
                    match (rank(&one), rank(&other)) {
                        (0, 0) if *descending => other.compare(&one).expect("alike"),
                        (0, 0) => one.compare(&other).expect("alike"),
                        (one, other) => one.cmp(&other),
                    }
                });
                rows.iter().take(*count as usize).map(|row| values(columns, row)).collect()
            }
            Reduction::Histogram { of, low, high, bins } => {
                let edge = |index: u32| match index {
                    last if last == *bins => *high,
                    index => low + (high - low) * (f64::from(index) / f64::from(*bins)),
                };
                let within = |value: &Value, index: u32| {
                    let above =
                        value.compare(&Value::Float(edge(index))).is_some_and(Ordering::is_ge);
                    let below = value.compare(&Value::Float(edge(index + 1)));
                    let is_last = index + 1 == *bins;
                    above && below.is_some_and(|o| o.is_lt() || (is_last && o.is_eq()))
                };
                let count = |index: u32| {
                    let of = |row: &&&Vec<Value>| within(&of.value(row).expect("small"), index);
                    let count = rows.iter().filter(of).count();
                    vec![
                        Value::Float(edge(index)),
                        Value::Float(edge(index + 1)),
                        Value::Int(count as i128),
                    ]
                };
                (0..*bins).map(count).collect()
            }
        }
    }

    /// Compares an answer; returns its defect, if any.
    pub(crate) fn check(&self, table: &Table) -> Result<(), String> {
        let (mut expected, mut found) = (self.expected(), table.rows.clone());
        if matches!(self.plan.reduction, Reduction::Groups { .. }) {
            let key = |row: &Vec<Value>| format!("{row:?}");
            expected.sort_by_key(key);
            found.sort_by_key(key);
        }
        let width_is_right = found.iter().all(|row| row.len() == table.kinds.len());
        let alike = |one: &Vec<Value>, other: &Vec<Value>| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| close(one, other))
        };
        let same = expected.len() == found.len()
            && expected.iter().zip(&found).all(|(one, other)| alike(one, other));
        if same && width_is_right {
            return Ok(());
        }
        let differ = expected.iter().zip(&found).filter(|(one, other)| !alike(one, other));
        let differ: Vec<_> = differ.take(3).collect();
        let counts = (expected.len(), found.len());
        Err(format!("{:?}\nrows {counts:?}, expected and found: {differ:#?}", self.plan))
    }

    /// Runs the plan over the file at `path`, in parts.
    pub(crate) fn run(
        &self,
        stages: &Stages<'_>,
        path: &Path,
        settings: Settings,
        part_max_bytes: u64,
    ) -> Result<(Table, Stats), RunError> {
        let files = [SourceFile::at(path, &self.plan.format).expect("the file")];
        let mut runner = Runner::new(stages, &self.plan, settings)?;
        let mut all = bpfof_query::Partial::empty(&self.plan);
        for part in parts(&self.plan, &files, part_max_bytes) {
            let partial = runner.run(&part, &mut |_| true)?;
            all.merge(&self.plan, partial).expect("of this plan");
        }
        Ok((all.finish(&self.plan).expect("of this plan"), runner.stats()))
    }
}

/// Both zeroes are one key.
fn plain_key(value: Value) -> Value {
    if value == Value::Float(0.0) { Value::Float(0.0) } else { value }
}

/// Equal, where NaN equals NaN.
fn same(one: &[Value], other: &[Value]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other || (one.is_nan() && other.is_nan()))
}

fn total(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Float(one), Value::Float(other)) => one.total_cmp(other),
        _ => one.compare(other).expect("alike"),
    }
}

/// Whether two values are equal; floats must have the same bits, and all NaN are equal.
fn close(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Float(one), Value::Float(other)) => {
            one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
        }
        _ => one == other,
    }
}

/// The exact sum, rounded once.
fn fsum(values: &[f64]) -> f64 {
    let special = values.iter().filter(|value| !value.is_finite()).sum::<f64>();
    if values.iter().any(|value| !value.is_finite()) {
        return special;
    }
    let sum = partial_sums(values);
    if sum.is_finite() {
        return sum;
    }
    // A partial sum was beyond the largest number; the total need not be.
    let scale = 2_f64.powi(64);
    let smaller: Vec<_> = values.iter().map(|value| value / scale).collect();
    partial_sums(&smaller) * scale
}

/// As `math.fsum`: by partial sums that do not overlap (Shewchuk).
fn partial_sums(values: &[f64]) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    for value in values {
        let mut x = *value;
        let mut kept = Vec::new();
        for mut y in partials {
            if x.abs() < y.abs() {
                std::mem::swap(&mut x, &mut y);
            }
            let high = x + y;
            let low = y - (high - x);
            if low != 0.0 {
                kept.push(low);
            }
            x = high;
        }
        kept.push(x);
        partials = kept;
    }
    let mut high = partials.pop().unwrap_or(0.0);
    while let Some(y) = partials.pop() {
        let x = high;
        high = x + y;
        let low = y - (high - x);
        if low == 0.0 {
            continue;
        }
        // A half is rounded according to the parts below it.
        let below = partials.last().copied().unwrap_or(0.0);
        let moved = high + 2.0 * low;
        let same_side = below != 0.0 && (low < 0.0) == (below < 0.0);
        if same_side && moved - high == 2.0 * low {
            high = moved;
        }
        break;
    }
    high + 0.0
}

fn measure(aggregate: &Aggregate, rows: &[&Vec<Value>]) -> Value {
    if aggregate.measure == Measure::CountAll {
        return Value::Int(rows.len() as i128);
    }
    let value = |row: &&Vec<Value>| aggregate.of.value(row).expect("small");
    let values: Vec<_> = rows.iter().map(value).filter(|value| *value != Value::Null).collect();
    let count = values.len();
    if aggregate.measure == Measure::Count {
        return Value::Int(count as i128);
    }
    if values.is_empty() {
        return Value::Null;
    }
    let floats: Vec<f64> = values.iter().filter_map(Value::as_float).collect();
    let int = |value: &Value| if let Value::Int(number) = value { Some(*number) } else { None };
    let ints: Option<Vec<i128>> = values.iter().map(int).collect();
    let numbers = || values.iter().filter(|value| !value.is_nan());
    let sum = ints.as_ref().map(|ints| ints.iter().sum::<i128>());
    let nan = Value::Float(f64::NAN);
    match aggregate.measure {
        Measure::CountAll | Measure::Count => Value::Null,
        Measure::Sum => sum.map_or_else(|| Value::Float(fsum(&floats)), Value::Int),
        Measure::Mean => {
            Value::Float(sum.map_or_else(|| fsum(&floats), |sum| sum as f64) / count as f64)
        }
        Measure::Min => numbers().min_by(|a, b| total(a, b)).cloned().unwrap_or(nan),
        Measure::Max => numbers().max_by(|a, b| total(a, b)).cloned().unwrap_or(nan),
        Measure::Variance { ddof } | Measure::Deviation { ddof } => {
            let ints = ints.expect("variances are of integers here");
            if count <= usize::from(ddof) {
                return Value::Null;
            }
            // n Σx² − (Σx)², exactly.
            let (n, sum) = (count as i128, ints.iter().sum::<i128>());
            let squares: i128 = ints.iter().map(|x| x * x).sum();
            let exact = n * squares - sum * sum;
            let (whole, rest) = (exact.div_euclid(n), exact.rem_euclid(n));
            let variance =
                (whole as f64 + rest as f64 / n as f64) / (count - usize::from(ddof)) as f64;
            match aggregate.measure {
                Measure::Variance { .. } => Value::Float(variance),
                _ => Value::Float(variance.sqrt()),
            }
        }
    }
}

const TEXTS: [&str; 12] =
    ["", "a", "ab", "abc", "b", "München", "日本", "x,y", "say \"hi\"", "\"", "zz zz", "-1"];

fn value(column: &Column, is_csv: bool, dice: &mut Dice) -> Value {
    if column.nullable && dice.one_in(4) {
        return Value::Null;
    }
    let small = dice.below(20) as i128 - 5;
    if let Some((least, greatest)) = column.kind.domain() {
        return Value::Int(match dice.below(6) {
            0 => least,
            1 => greatest,
            2 => (dice.next() as i128 + least).clamp(least, greatest),
            _ => small.clamp(least, greatest),
        });
    }
    if column.kind == Kind::Utf8 {
        return Value::Text(dice.pick(&TEXTS).to_owned());
    }
    // CSV cannot represent NaN, which is one of the texts for missing values.
    let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0];
    let number = match dice.below(10) {
        0 if is_csv => dice.pick(&[f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0]),
        0 => dice.pick(&special),
        1 => f64::from_bits(dice.next() >> 12 | dice.next() << 63),
        2 => (dice.next() as f64 - 9e18) * 1e280,
        3 => 1.5e-300 * small as f64,
        4 => 1e16 * small as f64,
        _ => small as f64 * 0.1,
    };
    match column.kind {
        Kind::F32 => Value::Float(f64::from(number as f32)),
        _ => Value::Float(number),
    }
}

fn fixed(schema: &Schema, rows: &mut [Vec<Value>], dice: &mut Dice) -> (Format, Vec<u8>) {
    let mut fields = Vec::new();
    let mut at = dice.below(3) as u32;
    for column in &schema.columns {
        let width = column.kind.width_bytes().unwrap_or(1 + dice.below(9) as u32);
        fields.push(Field { offset_bytes: at, width_bytes: width });
        at += width + dice.below(3) as u32;
    }
    let header_bytes = dice.below(2) as u64 * 7;
    let mut bytes = vec![b'h'; header_bytes as usize];
    for row in rows {
        let mut record = vec![0xee; at as usize];
        for ((value, field), column) in row.iter_mut().zip(&fields).zip(&schema.columns) {
            let width = field.width_bytes as usize;
            let mut encoded = match value {
                Value::Int(number) => number.to_le_bytes()[..width].to_vec(),
                Value::Float(number) if column.kind == Kind::F32 => {
                    (*number as f32).to_le_bytes().to_vec()
                }
                Value::Float(number) => number.to_le_bytes().to_vec(),
                Value::Text(text) => {
                    let end =
                        (0..=width.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
                    text.truncate(end.unwrap_or(0));
                    text.as_bytes().to_vec()
                }
                Value::Null => Vec::new(),
            };
            encoded.resize(width, 0);
            record[field.offset_bytes as usize..][..width].copy_from_slice(&encoded);
        }
        bytes.extend(record);
    }
    (Format::Fixed { header_bytes, record_bytes: at, fields }, bytes)
}

fn csv(schema: &Schema, rows: &[Vec<Value>], dice: &mut Dice) -> (Format, Vec<u8>) {
    let delimiter = dice.pick(b",;\t");
    let end = dice.pick(&["\n", "\r\n"]);
    let mut text = String::new();
    for column in &schema.columns {
        text += &column.name;
        text.push(char::from(delimiter));
    }
    text.pop();
    text += end;
    let header_bytes = text.len() as u64;
    for (index, row) in rows.iter().enumerate() {
        let fields: Vec<_> = row.iter().map(|value| field(value, row.len() == 1, dice)).collect();
        text += &fields.join(&char::from(delimiter).to_string());
        // The last line may lack a line end.
        if index + 1 < rows.len() || dice.one_in(2) {
            text += end;
        }
        if dice.one_in(20) {
            text += end;
        }
    }
    let nulls = CSV_NULLS.map(str::to_owned).to_vec();
    (Format::Csv { delimiter, header_bytes, nulls }, text.into_bytes())
}

/// A value as text; if it is `alone` in its line, it cannot be empty.
fn field(value: &Value, alone: bool, dice: &mut Dice) -> String {
    match value {
        Value::Null => match dice.pick(&["", "NA", "#N/A N/A", "nan", "null", " NULL "]) {
            "" if alone => "NA".to_owned(),
            null => null.to_owned(),
        },
        Value::Int(number) => match dice.below(8) {
            0 => format!(" {number}"),
            1 => format!("\"{number}\""),
            _ => number.to_string(),
        },
        Value::Float(number) if number.is_infinite() => {
            let sign = if *number < 0.0 { "-" } else { "" };
            format!("{sign}{}", dice.pick(&["inf", "Infinity", "INF"]))
        }
        Value::Float(number) => format!("{number:e}"),
        Value::Text(text) => {
            let must = text.contains([',', ';', '\t', '"']) || (alone && text.is_empty());
            if must || dice.one_in(4) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.clone()
            }
        }
    }
}

fn constant(column: usize, palette: &[Vec<Value>], dice: &mut Dice) -> Value {
    let value = dice.pick(&palette[column]);
    match value {
        Value::Int(number) if dice.one_in(3) => Value::Float(number as f64 * 1.5),
        Value::Int(number) if dice.one_in(3) => Value::Int(number + dice.below(3) as i128 - 1),
        Value::Null => Value::Int(0),
        Value::Float(number) if dice.one_in(5) && number.abs() < 1e9 => Value::Int(number as i128),
        other => other,
    }
}

/// Random arithmetic on a column of numbers, within 128 bits.
fn arithmetic(schema: &Schema, column: usize, depth: usize, dice: &mut Dice) -> Scalar {
    let is_number = |column: &usize| schema.columns[*column].kind != Kind::Utf8;
    let numbers: Vec<usize> = (0..schema.columns.len()).filter(is_number).collect();
    let is_wide = |column: usize| schema.columns[column].kind.width_bytes() == Some(8);
    let with = dice.pick(&numbers);
    let literals =
        [Value::Int(2), Value::Int(-7), Value::Float(0.5), Value::Int(0), Value::Float(f64::NAN)];
    let (other, may_multiply) = match dice.below(4) {
        0 | 1 => (Scalar::Column(with), !is_wide(column) && !is_wide(with)),
        2 if depth == 0 => (arithmetic(schema, with, 1, dice), false),
        _ => (Scalar::Literal(dice.pick(&literals)), true),
    };
    let operation = match dice.below(5) {
        0 | 1 if may_multiply => Arithmetic::Multiply,
        0 | 2 => Arithmetic::Add,
        1 | 3 => Arithmetic::Subtract,
        _ => Arithmetic::Divide,
    };
    let (left, right) = (Box::new(Scalar::Column(column)), Box::new(other));
    match dice.one_in(3) {
        true => Scalar::Arithmetic(operation, right, left),
        false => Scalar::Arithmetic(operation, left, right),
    }
}

fn predicate(schema: &Schema, palette: &[Vec<Value>], depth: usize, dice: &mut Dice) -> Predicate {
    let column = dice.below(schema.columns.len());
    let scalar = Scalar::Column(column);
    let compares = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::AtMost,
        Compare::Greater,
        Compare::AtLeast,
    ];
    let is_text = schema.columns[column].kind == Kind::Utf8;
    let parts = |dice: &mut Dice| {
        (0..2 + dice.below(2)).map(|_| predicate(schema, palette, depth + 1, dice)).collect()
    };
    match dice.below(if depth < 3 { 10 } else { 6 }) {
        0 => {
            let values = (0..dice.below(5)).map(|_| constant(column, palette, dice));
            let values = values.filter(|value| matches!(value, Value::Text(_)) == is_text);
            Predicate::In(scalar, values.collect())
        }
        1 if is_text => Predicate::StartsWith(scalar, dice.pick(&TEXTS).to_owned()),
        1 if dice.one_in(2) => Predicate::IsNan(scalar),
        1 => Predicate::IsNull(scalar),
        2 if !is_text && dice.one_in(3) => {
            let value = match dice.below(3) {
                0 => Value::Float(1.25),
                1 => Value::Int(3),
                _ => constant(column, palette, dice),
            };
            let computed = arithmetic(schema, column, 0, dice);
            match dice.one_in(5) {
                true => Predicate::IsNull(computed),
                false => Predicate::Compare(dice.pick(&compares), computed, Scalar::Literal(value)),
            }
        }
        6 => Predicate::Not(Box::new(predicate(schema, palette, depth + 1, dice))),
        7 | 8 => Predicate::And(parts(dice)),
        9 => Predicate::Or(parts(dice)),
        _ => {
            let value = match constant(column, palette, dice) {
                value if matches!(value, Value::Text(_)) == is_text => value,
                _ => Value::Text("ab".to_owned()),
            };
            let (compare, literal) = (dice.pick(&compares), Scalar::Literal(value));
            match dice.one_in(4) {
                true => Predicate::Compare(compare, literal, scalar),
                false => Predicate::Compare(compare, scalar, literal),
            }
        }
    }
}

fn reduction(schema: &Schema, palette: &[Vec<Value>], dice: &mut Dice) -> Reduction {
    let columns = schema.columns.len();
    let some = |dice: &mut Dice| -> Vec<Scalar> {
        (0..1 + dice.below(columns)).map(|_| Scalar::Column(dice.below(columns))).collect()
    };
    let is_number = |column: &usize| schema.columns[*column].kind != Kind::Utf8;
    let numbers: Vec<usize> = (0..columns).filter(is_number).collect();
    let number = |dice: &mut Dice| match (dice.pick(&numbers), dice.one_in(4)) {
        (column, true) => arithmetic(schema, column, 0, dice),
        (column, false) => Scalar::Column(column),
    };
    match dice.below(6) {
        0 => Reduction::Rows { columns: some(dice), limit: None },
        1 => Reduction::Rows { columns: some(dice), limit: Some(dice.below(20) as u64) },
        2 if !numbers.is_empty() => Reduction::Top {
            by: number(dice),
            descending: dice.one_in(2),
            count: 1 + dice.below(12) as u32,
            columns: some(dice),
        },
        3 if !numbers.is_empty() => {
            let of = number(dice);
            let (low, bins) = (dice.below(4) as f64 - 2.0, 1 + dice.below(9) as u32);
            let high = low + 0.5 + dice.below(8) as f64;
            let _ = palette;
            Reduction::Histogram { of, low, high, bins }
        }
        _ => {
            let mut keys = if dice.one_in(3) { Vec::new() } else { some(dice) };
            if !numbers.is_empty() && !keys.is_empty() && dice.one_in(6) {
                keys[0] = number(dice);
            }
            let aggregate = |dice: &mut Dice| {
                let column = dice.below(columns);
                let kind = schema.columns[column].kind;
                let narrow = kind.is_integer() && kind.width_bytes() <= Some(4);
                let measure = match dice.below(7) {
                    0 => Measure::CountAll,
                    1 => Measure::Count,
                    2 => Measure::Min,
                    3 => Measure::Max,
                    4 if narrow => Measure::Variance { ddof: dice.below(2) as u8 },
                    5 if narrow => Measure::Deviation { ddof: dice.below(2) as u8 },
                    4 | 5 if kind != Kind::Utf8 => Measure::Mean,
                    _ if kind == Kind::Utf8 => Measure::CountAll,
                    _ => Measure::Sum,
                };
                let is_variance =
                    matches!(measure, Measure::Variance { .. } | Measure::Deviation { .. });
                let of = match kind != Kind::Utf8 && !is_variance && dice.one_in(3) {
                    true => arithmetic(schema, column, 0, dice),
                    false => Scalar::Column(column),
                };
                Aggregate { measure, of }
            };
            let aggregates = (0..1 + dice.below(5)).map(|_| aggregate(dice)).collect();
            Reduction::Groups { keys, aggregates }
        }
    }
}
