//! The header line and the first rows of CSV, by pyarrow's rules.

use super::beginning::{Beginning, FIRST_BLOCK_BYTES};
use super::records::COLUMNS_MAX;
use crate::names::{listed, shortened};
use crate::plan::{CSV_NULLS, Column, Format, Kind, Schema};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Maximum length of a number's text that stages read.
const NUMBER_MAX_BYTES: usize = 128;
/// An error in a line.
pub(crate) const OPEN_QUOTE: &str = "a quote that is not closed in its line and field; fields with line breaks are \
     not supported";

/// Maximum total size of the beginnings of files that are parsed to find the types of columns: of the first file, and
/// of others if that has no value in some columns.
const GONE_THROUGH_MAX_BYTES: usize = 16 << 20;

/// The columns of files, as far as their rows determine them.
pub(super) struct Columns {
    guesses: Vec<(String, Guess)>,
    /// Columns whose types the next file may determine.
    open: Vec<usize>,
    /// Bytes that may still be parsed.
    left_bytes: usize,
    /// Whether some rows have not been parsed.
    is_cut: bool,
    /// The defect of a row of the first file.
    pub(super) bad_row: Option<String>,
}

/// Finds columns and their kinds: 64-bit integers if all values are, else floating point numbers if all are, else text.
/// Texts that stand for missing numbers are valid in all numeric columns.
pub(super) fn parse(
    beginning: &Beginning<'_>,
    delimiter: u8,
    no_header: bool,
) -> Result<(Columns, Format), String> {
    let names = names(beginning, delimiter, no_header)?;
    let open = (0..names.len()).collect();
    let guesses = names.into_iter().map(|name| (name, Guess::Nothing)).collect();
    let left_bytes = GONE_THROUGH_MAX_BYTES;
    let mut columns = Columns { guesses, open, left_bytes, is_cut: false, bad_row: None };
    columns.bad_row = columns.go_through(beginning, delimiter, no_header);
    columns.open = columns.without_value();
    let header_bytes = header_bytes(beginning, no_header);
    let nulls = CSV_NULLS.map(str::to_owned).to_vec();
    Ok((columns, Format::Csv { delimiter, header_bytes, nulls }))
}

impl Columns {
    /// Parses the rows of another file, if some columns have no value so far.
    pub(super) fn add(&mut self, beginning: &Beginning<'_>, delimiter: u8, no_header: bool) {
        if self.open.is_empty() {
            return;
        }
        if self.left_bytes < beginning.bytes.len() {
            self.is_cut = true;
            return;
        }
        // Bad rows of further files are reported by the stages.
        let _ = self.go_through(beginning, delimiter, no_header);
    }

    fn without_value(&self) -> Vec<usize> {
        let guesses = self.guesses.iter().enumerate();
        guesses.filter(|(_, (_, guess))| *guess == Guess::Nothing).map(|(at, _)| at).collect()
    }

    /// Updates the open columns from the beginning of a file. Returns the defect of the first row that does not match
    /// the header.
    fn go_through(
        &mut self,
        beginning: &Beginning<'_>,
        delimiter: u8,
        no_header: bool,
    ) -> Option<String> {
        self.left_bytes = self.left_bytes.saturating_sub(beginning.bytes.len());
        self.is_cut |= (beginning.bytes.len() as u64) < beginning.file_bytes;
        let header_bytes = header_bytes(beginning, no_header);
        let mut at = usize::try_from(header_bytes).unwrap_or(usize::MAX).min(beginning.bytes.len());
        let (mut bad_row, wanted) = (None, self.guesses.len());
        for line in whole_lines(beginning, at) {
            if !line.trim_ascii_end().is_empty() || wanted > 1 && line.contains(&delimiter) {
                let what = match fields(line, delimiter) {
                    Some(fields) if fields.len() == wanted => {
                        for column in &self.open {
                            let guess = &mut self.guesses[*column].1;
                            *guess = guess.with(&fields[*column]);
                        }
                        None
                    }
                    Some(fields) => Some(format!("{} fields instead of {wanted}", fields.len())),
                    None => Some(OPEN_QUOTE.to_owned()),
                };
                let told = |what| format!("the row at byte {at} has {what}");
                bad_row = bad_row.or(what.map(told));
            }
            at += line.len();
        }
        bad_row
    }

    pub(super) fn schema(&self) -> Schema {
        let column = |(name, guess): &(String, Guess)| {
            let kind = match guess {
                Guess::Integer => Kind::I64,
                Guess::Float => Kind::F64,
                Guess::Nothing | Guess::Text => Kind::Utf8,
            };
            Column { name: name.clone(), kind, nullable: kind != Kind::Utf8 }
        };
        Schema { columns: self.guesses.iter().map(column).collect() }
    }

    /// Columns without a value, if there may be values in rows that have not been parsed.
    pub(super) fn unknown(&self) -> Vec<usize> {
        if self.is_cut { self.without_value() } else { Vec::new() }
    }
}

/// Checks that a file has the same columns as the first one, by the names in its header.
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
    Err(format!("its columns are {names}, but the first file has {known}; query them separately"))
}

/// Size of the part before the first row.
pub(super) fn header_bytes(beginning: &Beginning<'_>, no_header: bool) -> u64 {
    let (mark, rest) = without_mark(beginning.bytes);
    let header = if no_header { 0 } else { first_line(rest).len() };
    (mark + header) as u64
}

/// The same format for a file with this delimiter and a header of this size.
pub(super) fn with_header(format: &Format, delimiter: u8, header_bytes: u64) -> Format {
    match format.clone() {
        Format::Csv { nulls, .. } => Format::Csv { delimiter, header_bytes, nulls },
        other => other,
    }
}

fn without_mark(bytes: &[u8]) -> (usize, &[u8]) {
    match bytes.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => (BYTE_ORDER_MARK.len(), rest),
        None => (0, bytes),
    }
}

/// The first line, including its end.
fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// The complete lines from a byte on.
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
            "its first line contains a carriage return: if lines end in carriage returns only, convert them to \
             line feeds, for example by tr '\\r' '\\n'"
                .to_owned(),
        );
    }
    if !line.ends_with(b"\n") && rest.len() >= FIRST_BLOCK_BYTES - BYTE_ORDER_MARK.len() {
        return Err("its first line is longer than 1 MiB; is it CSV?".to_owned());
    }
    let fields =
        fields(line, delimiter).ok_or_else(|| format!("its first line has {OPEN_QUOTE}"))?;
    if fields.len() > COLUMNS_MAX {
        return Err(format!("it has {} columns; the limit is {COLUMNS_MAX}", fields.len()));
    }
    if no_header {
        return Ok((0..fields.len()).map(|at| format!("f{at}")).collect());
    }
    let mut names: Vec<String> = Vec::with_capacity(fields.len());
    for field in fields {
        let name = String::from_utf8(field)
            .map_err(|_| "its header line is not UTF-8; convert it with iconv".to_owned())?;
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

/// Whether a carriage return occurs outside of quotes before the end of a line.
fn has_return(line: &[u8]) -> bool {
    let outside = without_end(line).split(|byte| *byte == b'"').step_by(2);
    outside.into_iter().any(|part| part.contains(&b'\r'))
}

/// Fields of a line, without their quotes; None if the line ends within quotes.
pub(crate) fn fields(line: &[u8], delimiter: u8) -> Option<Vec<Vec<u8>>> {
    let line = without_end(line);
    let (mut fields, mut field) = (Vec::new(), Vec::new());
    let (mut bytes, mut is_quoted) = (line.iter().copied().peekable(), false);
    let mut begins = true;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if is_quoted => {
                // A doubled quote is a quote within the value.
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
    (!is_quoted).then_some(fields)
}

/// The type of a column's values so far.
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

/// Whether it is a number as `bpfof_parse_double` reads it.
fn is_finite(text: &str) -> bool {
    let begins = |text: &str| text.starts_with(|each: char| each.is_ascii_digit() || each == '.');
    text.len() <= NUMBER_MAX_BYTES
        && begins(text.strip_prefix(['-', '+']).unwrap_or(text))
        && text.parse().is_ok_and(f64::is_finite)
}

/// Whether it is an infinity as stages read it: `inf` and `infinity` in upper or lower case, with an optional sign.
fn is_infinity(text: &str) -> bool {
    let name = text.strip_prefix(['-', '+']).unwrap_or(text);
    ["inf", "infinity"].iter().any(|known| name.eq_ignore_ascii_case(known))
}
