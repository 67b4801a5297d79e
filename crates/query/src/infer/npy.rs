//! Headers of NumPy's `.npy` files (NEP 1, versions 1.0 to 3.0).

use super::beginning::Beginning;
use super::records::{Layout, check_size};
use crate::plan::{Format, Kind, Schema};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum nesting of literals in a header.
const DEPTH_MAX: u32 = 8;

/// A Python literal; a dictionary is a list of pairs.
#[derive(Debug, PartialEq)]
enum Literal {
    Text(String),
    Int(u64),
    Bool(bool),
    List(Vec<Literal>),
}

pub(super) fn parse(beginning: &Beginning<'_>) -> Result<(Schema, Format), String> {
    let damaged = || "it has no header of a .npy file".to_owned();
    let (header, header_bytes) = header(beginning.bytes).ok_or_else(damaged)?;
    let mut reader = Reader { rest: header };
    let Literal::List(pairs) = reader.literal(DEPTH_MAX).ok_or_else(damaged)? else {
        return Err(damaged());
    };
    let value = |key: &str| {
        pairs
            .chunks_exact(2)
            .find(|pair| pair[0] == Literal::Text(key.to_owned()))
            .map(|pair| &pair[1])
    };
    let (Some(descr), Some(Literal::List(shape))) = (value("descr"), value("shape")) else {
        return Err(damaged());
    };
    let mut sizes = Vec::new();
    for size in shape {
        let Literal::Int(size) = size else { return Err(damaged()) };
        sizes.push(*size);
    }
    let mut layout = Layout::default();
    match (descr, &sizes[..]) {
        (Literal::Text(kind), [_]) => add(&mut layout, "value", kind)?,
        (Literal::Text(kind), [_, width])
            if value("fortran_order") == Some(&Literal::Bool(false)) =>
        {
            let width = u32::try_from(*width).unwrap_or(u32::MAX);
            (0..width).try_for_each(|at| add(&mut layout, &format!("c{at}"), kind))?;
        }
        (Literal::List(fields), [_]) => {
            for field in fields {
                add_field(&mut layout, field)?;
            }
        }
        _ => {
            let axes = sizes.len();
            return Err(format!(
                "an array with {axes} axes; save an array with one axis, or with two in C order (by rows)"
            ));
        }
    }
    let (schema, format) = layout.finish(header_bytes)?;
    check_size(beginning.file_bytes, &format, "it is incomplete")?;
    let Format::Fixed { record_bytes, .. } = format else { return Err(damaged()) };
    let records = (beginning.file_bytes - header_bytes) / u64::from(record_bytes);
    match sizes.first() {
        Some(&told) if told == records => Ok((schema, format)),
        _ => Err(format!("it has {records} rows, but its header has another number")),
    }
}

/// The text of the header, and the offset of the data.
fn header(bytes: &[u8]) -> Option<(&str, u64)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_at_checked(2)?;
    let (length, text) = if version[0] == 1 {
        let (length, text) = rest.split_first_chunk::<2>()?;
        (usize::from(u16::from_le_bytes(*length)), text)
    } else {
        let (length, text) = rest.split_first_chunk::<4>()?;
        (usize::try_from(u32::from_le_bytes(*length)).ok()?, text)
    };
    let at = bytes.len() - text.len();
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    Some((text, (at + length) as u64))
}

fn add_field(layout: &mut Layout, field: &Literal) -> Result<(), String> {
    match field {
        Literal::List(parts) => match &parts[..] {
            [Literal::Text(name), Literal::Text(kind)] => add(layout, name, kind),
            [Literal::Text(name), ..] => {
                Err(format!("the field {name} is an array or struct; save its elements as fields"))
            }
            _ => Err("a field has a title; save it with a name only".to_owned()),
        },
        _ => Err("its header has an invalid field".to_owned()),
    }
}

fn add(layout: &mut Layout, name: &str, descr: &str) -> Result<(), String> {
    let wrong = |why: &str| format!("{name} is {descr}: {why}");
    let unknown = || wrong("only integers, f4, f8, and bytes (S) are supported; convert it");
    let order = descr.chars().next().filter(|order| "<>|=".contains(*order)).ok_or_else(unknown)?;
    let mut rest = descr[1..].chars();
    let kind = rest.next().ok_or_else(unknown)?;
    let bytes: u32 = rest.as_str().parse().map_err(|_| unknown())?;
    if order == '>' && bytes > 1 {
        return Err(wrong("big-endian; save it little-endian, for example by astype('<' + …)"));
    }
    let kind = match (kind, bytes) {
        ('V', _) if name.is_empty() => None,
        ('i', 1) => Some(Kind::I8),
        ('i', 2) => Some(Kind::I16),
        ('i', 4) => Some(Kind::I32),
        ('i', 8) => Some(Kind::I64),
        ('u' | 'b', 1) => Some(Kind::U8),
        ('u', 2) => Some(Kind::U16),
        ('u', 4) => Some(Kind::U32),
        ('u', 8) => Some(Kind::U64),
        ('f', 4) => Some(Kind::F32),
        ('f', 8) => Some(Kind::F64),
        ('S', 1..) => Some(Kind::Utf8),
        _ => return Err(unknown()),
    };
    layout.add(name, kind, bytes)
}

/// Parses Python literals: strings, integers, booleans, tuples, lists and dictionaries, as `repr`
/// writes them.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, part: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(part);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes the characters that meet a condition.
    fn take(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|each| !is(each)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn literal(&mut self, left: u32) -> Option<Literal> {
        let left = left.checked_sub(1)?;
        for (begin, end) in [("{", "}"), ("[", "]"), ("(", ")")] {
            if self.skip(begin) {
                let mut list = Vec::new();
                while !self.skip(end) {
                    list.push(self.literal(left)?);
                    // Separators between pairs, and within them.
                    let _ = self.skip(",") || self.skip(":");
                }
                return Some(Literal::List(list));
            }
        }
        for quote in ["'", "\""] {
            if self.skip(quote) {
                let text = self.take(|each| !quote.contains(each) && each != '\\');
                return self.skip(quote).then(|| Literal::Text(text.to_owned()));
            }
        }
        let word = self.take(|each| each.is_ascii_alphanumeric());
        match word {
            "True" => Some(Literal::Bool(true)),
            "False" => Some(Literal::Bool(false)),
            _ => word.parse().ok().map(Literal::Int),
        }
    }
}
