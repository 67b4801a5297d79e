//! Parses the answers of chains.

use super::{FOLD_LIMBS, GROUP_LIMBS, MEASURES_MAX, Program, Told, Words};
use crate::error::RunError;
use crate::measures::Summary;
use crate::order_form;
use crate::partial::{Group, Key, Partial, State, add_group};
use crate::parts::Range;
use crate::plan::{Kind, Value};
use crate::wire::{Damaged, Reader};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops;

/// An answer of a chain.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) next: u64,
    pub(crate) status: Status,
    pub(crate) rows: u64,
    pub(crate) passed: u64,
    /// Number of rows, groups or entries.
    pub(crate) count: u32,
    body: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    End,
    More,
    /// The row at `next` is bad; in this column, by its index in the schema.
    Bad(BadRow, Option<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRow {
    Number,
    Short,
    Long,
    Quotes,
    Text,
    /// It has this many fields.
    Fields(u32),
}

/// A text of a row that is not UTF-8, as in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawText<'a> {
    /// Index in the schema.
    pub(crate) column: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Answer<'a> {
    /// The answer for one row that was read here.
    pub(crate) const fn of_row(next: u64, body: &'a [u8]) -> Self {
        Self { next, status: Status::More, rows: 1, passed: 1, count: 1, body }
    }
}

impl Answer<'_> {
    /// Whether it can belong to this range, each row of which has at least one byte: rows that it has not processed do
    /// not count, because further chains answer them.
    pub(crate) fn is_of(&self, range: &Range) -> bool {
        self.next >= range.start
            && self.passed <= self.rows
            && self.rows <= self.next.min(range.end).saturating_sub(range.start)
    }
}

impl Program {
    /// Parses the answer of a chain.
    pub(crate) fn answer<'a>(&self, bytes: &'a [u8]) -> Result<Answer<'a>, Damaged> {
        let mut from = Reader(bytes);
        let (next, status, count) = (from.u64()?, from.u32()?, from.u32()?);
        let column = self.columns.get(count as usize).copied();
        let status = match status {
            0 => Status::End,
            1 => Status::More,
            2 => Status::Bad(BadRow::Number, column),
            3 => Status::Bad(BadRow::Short, column),
            4 => Status::Bad(BadRow::Long, None),
            5 => Status::Bad(BadRow::Quotes, None),
            6 => Status::Bad(BadRow::Text, column),
            7 => Status::Bad(BadRow::Fields(count), None),
            _ => return Err(Damaged),
        };
        Ok(Answer { next, status, count, rows: from.u64()?, passed: from.u64()?, body: from.0 })
    }

    /// Checks that an answer of the user's own reduction has the rows that it declares.
    pub(crate) fn check_own(&self, answer: &Answer<'_>) -> Result<(), RunError> {
        let (Told::Own { answered, .. }, Some(own)) = (&self.told, &self.own_reduction) else {
            return Ok(());
        };
        let (bytes, row_bytes) = (answer.body.len(), answered.len() * 8);
        if (answer.count as usize).checked_mul(row_bytes) == Some(bytes) {
            return Ok(());
        }
        Err(RunError::OwnAnswer { name: own.name.clone(), bytes, rows: answer.count, row_bytes })
    }

    fn each_own_row(
        &self,
        answer: &Answer<'_>,
        answered: &ops::Range<usize>,
        on_row: &mut dyn FnMut(&[Value], &[RawText<'_>]),
    ) -> Result<(), Damaged> {
        let mut from = Reader(answer.body);
        let mut row = vec![Value::Null; answered.end];
        for _ in 0..answer.count {
            for column in answered.clone() {
                let word = from.u64()?;
                row[column] = match self.schema.columns[column].kind {
                    Kind::F64 => Value::Float(f64::from_bits(word)),
                    Kind::I64 => Value::Int(word.cast_signed().into()),
                    _ => Value::Int(word.into()),
                };
            }
            on_row(&row, &[]);
        }
        Ok(())
    }

    /// Calls `on_row` with the rows, in the schema's width, of an answer of the rows stage, or of the user's own
    /// reduction. Each comes with its texts that are not UTF-8.
    pub(crate) fn each_row(
        &self,
        answer: &Answer<'_>,
        columns: usize,
        on_row: &mut dyn FnMut(&[Value], &[RawText<'_>]),
    ) -> Result<(), Damaged> {
        let answered = match &self.told {
            Told::Rows { answered, .. } => answered,
            Told::Own { answered, .. } => return self.each_own_row(answer, answered, on_row),
            _ => return Err(Damaged),
        };
        let mut from = Reader(answer.body);
        from.skip(8)?;
        let mut row = vec![Value::Null; columns];
        let mut raw = Vec::new();
        for _ in 0..answer.count {
            raw.clear();
            for place in answered {
                let (kind, nullable) = (&self.kinds[*place], self.nullable[*place]);
                row[self.columns[*place]] = match (nullable && from.u8()? == 0, kind) {
                    (true, _) => Value::Null,
                    (false, Kind::Utf8) => {
                        let length = from.u16()?;
                        let bytes = from.take(usize::from(length))?;
                        let shown = String::from_utf8_lossy(bytes);
                        if matches!(shown, Cow::Owned(_)) {
                            raw.push(RawText { column: self.columns[*place], bytes });
                        }
                        Value::Text(shown.into_owned())
                    }
                    (false, kind) => order_form::to_value(*kind, from.u64()?),
                };
            }
            on_row(&row, &raw);
        }
        Ok(())
    }

    /// Keys and file offsets of a top's rows, which must begin in the answer's range.
    pub(crate) fn top(
        &self,
        answer: &Answer<'_>,
        range: &Range,
    ) -> Result<Vec<(Value, u64)>, Damaged> {
        let Told::Top { by, descending, .. } = self.told else { return Err(Damaged) };
        let kind = self.kinds[self.place(by)];
        let mut from = Reader(answer.body);
        from.skip(8)?;
        within(answer.count.into(), answer.passed)?;
        let mut rows = Vec::new();
        for _ in 0..answer.count {
            let (key, offset) = (from.u64()?, from.u64()?);
            if !(range.start..range.end).contains(&offset) {
                return Err(Damaged);
            }
            rows.push((order_form::to_value(kind, if descending { !key } else { key }), offset));
        }
        Ok(rows)
    }

    /// The groups or the histogram in an answer.
    pub(crate) fn partial(&self, answer: &Answer<'_>) -> Result<Partial, Damaged> {
        let mut from = Reader(answer.body);
        match &self.told {
            Told::Fold { words, .. } => {
                let summaries = self.summaries(words, answer.body, answer.passed, &[])?;
                let group = Group { rows: answer.passed, summaries };
                let groups = if answer.passed == 0 { None } else { Some((Vec::new(), group)) };
                Ok(Partial(State::Groups(groups.into_iter().collect())))
            }
            Told::Group { keys, words, entry_bytes } => {
                // Each group has at least a row.
                within(answer.count.into(), answer.passed)?;
                from.skip(4)?;
                let texts_at = from.u32()? as usize;
                let mut bases = [0; MEASURES_MAX];
                for base in &mut bases {
                    *base = from.u16()?;
                }
                let entries = from.take(*entry_bytes * answer.count as usize)?;
                let texts = (texts_at, from.0);
                let mut groups = HashMap::new();
                for entry in entries.chunks_exact(*entry_bytes) {
                    let (keys, rows) = self.keys(keys, entry, texts)?;
                    let rows = within(rows, answer.passed)?;
                    let summaries = self.summaries(words, entry, rows, &bases)?;
                    // Texts that the stage distinguishes by their bytes may be equal here. Only a malicious target can
                    // make the sums of one answer overflow.
                    add_group(&mut groups, keys, Group { rows, summaries }).map_err(|_| Damaged)?;
                }
                Ok(Partial(State::Groups(groups)))
            }
            Told::Histogram { edges, .. } => {
                let counts = (1..edges.len()).map(|_| within(from.u64()?, answer.passed));
                let counts = counts.collect::<Result<_, _>>()?;
                Ok(Partial(State::Histogram(counts)))
            }
            Told::Rows { .. } | Told::Top { .. } | Told::Own { .. } => Err(Damaged),
        }
    }

    /// The keys of a group's entry, and its number of rows.
    fn keys(
        &self,
        keys: &[usize],
        entry: &[u8],
        (texts_at, texts): (usize, &[u8]),
    ) -> Result<(Vec<Key>, u64), Damaged> {
        let mut from = Reader(entry);
        let missing = from.u64()?;
        let mut values = Vec::with_capacity(keys.len());
        for (bit, key) in keys.iter().enumerate() {
            let word = from.u64()?;
            let kind = self.kinds[self.place(*key)];
            let value = match kind {
                _ if missing >> bit & 1 == 1 => Value::Null,
                Kind::Utf8 if word >> 32 == 0 => Value::Text(String::new()),
                Kind::Utf8 => {
                    let at = (word as u32 as usize).checked_sub(texts_at).ok_or(Damaged)?;
                    text(
                        texts
                            .get(at..)
                            .and_then(|from| from.get(..(word >> 32) as usize))
                            .ok_or(Damaged)?,
                    )
                }
                kind => order_form::to_value(kind, word),
            };
            values.push(Key::of(value));
        }
        Ok((values, from.u64()?))
    }

    /// The summaries of each distinct scalar in an entry. Without `bases` it is a fold's entry.
    fn summaries(
        &self,
        words: &[Words],
        entry: &[u8],
        rows: u64,
        bases: &[u16],
    ) -> Result<Vec<Summary>, Damaged> {
        let at = |offset: u16| entry.get(usize::from(offset)..).map(Reader).ok_or(Damaged);
        let one = |(index, words): (usize, &Words)| {
            let kind = self.schema.columns[words.column].kind;
            let count =
                if words.count == 0 { rows } else { within(at(words.count)?.u64()?, rows)? };
            let mut summary = Summary { count, ..Summary::default() };
            if words.range != 0 {
                let mut from = at(words.range)?;
                let (least, greatest) = (from.u64()?, from.u64()?);
                // Otherwise all values are NaN.
                if count > 0 && least <= greatest {
                    let of = |order| order_form::to_value(kind, order);
                    summary.range = Some((of(least), of(greatest)));
                }
            }
            if words.sum != 0 && kind.is_float() {
                let mut from = at(words.sum)?;
                let special = from.u64()?;
                let limbs = if bases.is_empty() { FOLD_LIMBS } else { GROUP_LIMBS };
                let limbs = (0..limbs).map(|_| from.u64()).collect::<Result<Vec<_>, _>>()?;
                let base = bases.get(index).map_or(1, |base| u32::from(*base).max(1));
                summary.float_sum.get_or_insert_default().add_limbs(base, special, &limbs);
            } else if words.sum != 0 {
                let sum = at(words.sum)?.u128()? as i128;
                let signs = if order_form::is_signed(kind) { i128::from(count) << 63 } else { 0 };
                summary.sum = sum.checked_sub(signs).ok_or(Damaged)?;
            }
            if words.squares != 0 {
                summary.squares = at(words.squares)?.u128()? as i128;
            }
            Ok(summary)
        };
        words.iter().enumerate().map(one).collect()
    }
}

/// A count in an answer, which must not exceed the number of rows.
fn within(count: u64, rows: u64) -> Result<u64, Damaged> {
    if count <= rows { Ok(count) } else { Err(Damaged) }
}

/// Text as in a file. Invalid UTF-8 is replaced, so different bytes may become the same text.
fn text(bytes: &[u8]) -> Value {
    Value::Text(String::from_utf8_lossy(bytes).into_owned())
}
