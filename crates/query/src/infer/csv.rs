//! The header line and the first rows of CSV, by pyarrow's rules.

use super::beginning::{Beginning, FIRST_BLOCK_BYTES};
use super::records::COLUMNS_MAX;
use crate::names::{listed, shortened};
use crate::plan::{CSV_NULLS, Column, Format, Kind, Schema};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Longest text of a number that stages read.
const NUMBER_MAX_BYTES: usize = 128;

/// Finds columns and their kinds: integers of 64 bits if all values are, else floating point numbers if all
/// are, else text. What stands for missing numbers fits each kind of number.
pub(super) fn parse(
    beginning: &Beginning<'_>,
    delimiter: u8,
    no_header: bool,
) -> Result<(Schema, Format), String> {
    let names = names(beginning, delimiter, no_header)?;
    let header_bytes = header_bytes(beginning, no_header);
    let mut guesses = vec![Guess::Nothing; names.len()];
    let mut at = usize::try_from(header_bytes).unwrap_or(usize::MAX).min(beginning.bytes.len());
    for line in whole_lines(beginning, at) {
        if !line.trim_ascii_end().is_empty() || names.len() > 1 && line.contains(&delimiter) {
            let fields = fields(line, delimiter);
            if fields.len() != names.len() {
                let (found, wanted) = (fields.len(), names.len());
                return Err(format!(
                    "the row at byte {at} has {found} fields in place of {wanted}"
                ));
            }
            for (guess, field) in guesses.iter_mut().zip(&fields) {
                *guess = guess.with(field);
            }
        }
        at += line.len();
    }
    let column = |(name, guess): (String, Guess)| match guess {
        Guess::Integer => Column { name, kind: Kind::I64, nullable: true },
        Guess::Float => Column { name, kind: Kind::F64, nullable: true },
        Guess::Nothing | Guess::Text => Column { name, kind: Kind::Utf8, nullable: false },
    };
    let columns = names.into_iter().zip(guesses).map(column).collect();
    let nulls = CSV_NULLS.map(str::to_owned).to_vec();
    Ok((Schema { columns }, Format::Csv { delimiter, header_bytes, nulls }))
}

/// Whether a file has the columns of the first one, by their names in its header.
pub(super) fn check_alike(
    beginning: &Beginning<'_>,
    delimiter: u8,
    no_header: bool,
    schema: &Schema,
) -> Result<(), String> {
    let names = names(beginning, delimiter, no_header)?;
    let known: Vec<&str> = schema.columns.iter().map(|column| &*column.name).collect();
    if names == known {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let (names, known) = (listed(&names), listed(&known));
    Err(format!("its columns are {names}, those of the first file {known}; ask them apart"))
}

/// How long the part before the first row is.
pub(super) fn header_bytes(beginning: &Beginning<'_>, no_header: bool) -> u64 {
    let (mark, rest) = without_mark(beginning.bytes);
    let header = if no_header { 0 } else { first_line(rest).len() };
    (mark + header) as u64
}

/// The same format of files with a header of another length.
pub(super) fn with_header(format: &Format, header_bytes: u64) -> Format {
    match format.clone() {
        Format::Csv { delimiter, nulls, .. } => Format::Csv { delimiter, header_bytes, nulls },
        other => other,
    }
}

fn without_mark(bytes: &[u8]) -> (usize, &[u8]) {
    match bytes.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => (BYTE_ORDER_MARK.len(), rest),
        None => (0, bytes),
    }
}

/// With its end.
fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// Lines that are there from end to end, from a byte on.
fn whole_lines<'a>(beginning: &Beginning<'a>, at: usize) -> impl Iterator<Item = &'a [u8]> {
    let is_whole = beginning.bytes.len() as u64 == beginning.file_bytes;
    let lines =
        beginning.bytes.get(at..).unwrap_or_default().split_inclusive(|byte| *byte == b'\n');
    lines.take_while(move |line| is_whole || line.ends_with(b"\n"))
}

fn names(beginning: &Beginning<'_>, delimiter: u8, no_header: bool) -> Result<Vec<String>, String> {
    let (_, rest) = without_mark(beginning.bytes);
    let line = first_line(rest);
    if line.trim_ascii().is_empty() {
        return Err("it has no header line".to_owned());
    }
    if has_return(line) {
        return Err(
            "its first line has a carriage return within: if lines end in these alone, write line feeds, as by \
             tr '\\r' '\\n'"
                .to_owned(),
        );
    }
    if !line.ends_with(b"\n") && rest.len() >= FIRST_BLOCK_BYTES - BYTE_ORDER_MARK.len() {
        return Err("its first line has more than 1 MiB; is it CSV?".to_owned());
    }
    let fields = fields(line, delimiter);
    if fields.len() > COLUMNS_MAX {
        return Err(format!("it has {} columns; at most {COLUMNS_MAX} are read", fields.len()));
    }
    if no_header {
        return Ok((0..fields.len()).map(|at| format!("f{at}")).collect());
    }
    let mut names: Vec<String> = Vec::with_capacity(fields.len());
    for field in fields {
        let name = String::from_utf8(field)
            .map_err(|_| "its header line is not UTF-8; convert it, as by iconv".to_owned())?;
        if names.contains(&name) {
            return Err(format!(
                "its header names {} twice; give each column a name of its own",
                shortened(&name)
            ));
        }
        names.push(name);
    }
    Ok(names)
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether there is a carriage return before the end of a line, outside of quotes.
fn has_return(line: &[u8]) -> bool {
    let outside = without_end(line).split(|byte| *byte == b'"').step_by(2);
    outside.into_iter().any(|part| part.contains(&b'\r'))
}

/// Fields of a line, without their quotes.
fn fields(line: &[u8], delimiter: u8) -> Vec<Vec<u8>> {
    let line = without_end(line);
    let (mut fields, mut field) = (Vec::new(), Vec::new());
    let (mut bytes, mut is_quoted) = (line.iter().copied().peekable(), false);
    let mut begins = true;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if is_quoted => {
                // Two of them are one that belongs to the value.
                if bytes.next_if_eq(&b'"').is_some() {
                    field.push(b'"');
                } else {
                    is_quoted = false;
                }
            }
            b'"' if begins => is_quoted = true,
            byte if byte == delimiter && !is_quoted => {
                fields.push(std::mem::take(&mut field));
                begins = true;
                continue;
            }
            byte => field.push(byte),
        }
        begins = false;
    }
    fields.push(field);
    fields
}

/// What the values of a column have been so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guess {
    Nothing,
    Integer,
    Float,
    Text,
}

impl Guess {
    fn with(self, field: &[u8]) -> Self {
        if self == Self::Text {
            return self;
        }
        let Ok(text) = std::str::from_utf8(field) else { return Self::Text };
        let text = text.trim_matches([' ', '\t']);
        if CSV_NULLS.contains(&text) {
            return self;
        }
        let is_number = is_finite(text) || is_infinity(text);
        match self {
            _ if !is_number => Self::Text,
            Self::Nothing | Self::Integer if text.parse::<i64>().is_ok() => Self::Integer,
            _ => Self::Float,
        }
    }
}

/// A number as `bpfof_parse_double` reads it.
fn is_finite(text: &str) -> bool {
    let begins = |text: &str| text.starts_with(|each: char| each.is_ascii_digit() || each == '.');
    text.len() <= NUMBER_MAX_BYTES
        && begins(text.strip_prefix('-').unwrap_or(text))
        && text.parse().is_ok_and(f64::is_finite)
}

/// As stages read it: `inf` and `infinity` in either case, with a sign.
fn is_infinity(text: &str) -> bool {
    let name = text.strip_prefix(['-', '+']).unwrap_or(text);
    ["inf", "infinity"].iter().any(|known| name.eq_ignore_ascii_case(known))
}
