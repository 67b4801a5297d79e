//! The source lines of instructions, from the BTF that clang -g writes (the line information of the sections `.BTF` and
//! `.BTF.ext`, Linux: Documentation/bpf/btf.rst).
//!
//! BTF rather than DWARF: it needs no relocation, has fixed-size records, and carries the text of the lines, whose
//! files the target does not have. It is used in messages only: its contents cannot change what a program does, and
//! damaged parts are ignored.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Longest file name or source text kept, in bytes.
const MAX_TEXT_BYTES: usize = 200;
/// Maximum number of different file names and texts kept of one program; all others are empty.
const MAX_TEXTS: usize = 8192;

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file as named to the compiler.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// The line itself without leading blanks, empty if the object does not have it.
    pub text: String,
    /// The calls through which the instruction was inlined, the innermost first. BTF does not have them;
    /// `bpfof-debug-info` adds them.
    pub inlined_at: Vec<CallSite>,
}

/// The place of an inlined call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// The file as named to the compiler.
    pub file: String,
    /// From 1.
    pub line: u32,
}

impl SourceLine {
    /// Place and text, as the beginning of a message.
    pub(crate) fn quoted(&self) -> String {
        if self.text.is_empty() {
            format!("{self}: ")
        } else {
            format!("{self}: `{}`: ", self.text)
        }
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.inlined_at.iter().try_for_each(|call| write!(f, ", inlined at {call}"))
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The place of an instruction in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of the ELF section.
    pub section: usize,
    /// Offset in the section, in bytes.
    pub offset_bytes: u64,
}

/// The source lines of a program, by instruction. It has only a few allocations, even for many lines: the thread that
/// drops it may be a reactor, which must not spend time on that.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    /// Ascending by first instruction.
    lines: Vec<Line>,
    /// The calls of all lines.
    calls: Vec<Place>,
    /// All texts, concatenated.
    texts: String,
    /// First instruction of each function, ascending, and its place in the object.
    functions: Vec<(u32, Origin)>,
}

#[derive(Clone, Debug)]
struct Line {
    /// Its first instruction.
    start: u32,
    place: Place,
    text: Text,
    /// A range of `calls`.
    inlined_at: Range<u32>,
}

#[derive(Clone, Debug)]
struct Place {
    file: Text,
    line: u32,
}

/// A range of `texts`.
type Text = Range<u32>;

impl SourceMap {
    /// The line that instruction `pc` comes from.
    pub fn find(&self, pc: u32) -> Option<SourceLine> {
        let after = self.lines.partition_point(|line| line.start <= pc);
        let Line { start, place, text, inlined_at } = &self.lines[after.checked_sub(1)?];
        // A line of the previous function does not apply to this one.
        let next = self.functions.partition_point(|(start, _)| *start <= pc);
        if next.checked_sub(1).is_some_and(|function| *start < self.functions[function].0) {
            return None;
        }
        let text_of = |text: &Text| self.texts[text.start as usize..text.end as usize].to_owned();
        let calls = &self.calls[inlined_at.start as usize..inlined_at.end as usize];
        let call = |Place { file, line }: &Place| CallSite { file: text_of(file), line: *line };
        Some(SourceLine {
            file: text_of(&place.file),
            line: place.line,
            text: text_of(text),
            inlined_at: calls.iter().map(call).collect(),
        })
    }

    /// The place of instruction `pc` in its object; None if the program comes from no object.
    pub fn origin(&self, pc: u32) -> Option<Origin> {
        let after = self.functions.partition_point(|(start, _)| *start <= pc);
        let (start, Origin { section, offset_bytes }) = self.functions[after.checked_sub(1)?];
        Some(Origin { section, offset_bytes: offset_bytes + 8 * u64::from(pc - start) })
    }

    /// A copy for a program of `instructions` slots, in which `refine` makes each line from the place of the
    /// instruction and the known line.
    #[must_use]
    pub fn refined(
        &self,
        instructions: u32,
        mut refine: impl FnMut(Origin, &SourceLine) -> SourceLine,
    ) -> SourceMap {
        let mut refined = SourceMap { functions: self.functions.clone(), ..SourceMap::default() };
        let (mut known_texts, mut last) = (HashMap::new(), None);
        let mut text_of = |texts: &mut String, text: String| -> Text {
            known_texts.entry(text).or_insert_with_key(|text| append(texts, text)).clone()
        };
        for pc in 0..instructions {
            let (Some(origin), Some(known)) = (self.origin(pc), self.find(pc)) else { continue };
            let line = refine(origin, &known);
            if last.as_ref() == Some(&line) {
                continue;
            }
            last = Some(line.clone());
            let first_call = refined.calls.len() as u32;
            for CallSite { file, line } in line.inlined_at {
                let file = text_of(&mut refined.texts, file);
                refined.calls.push(Place { file, line });
            }
            let file = text_of(&mut refined.texts, line.file);
            refined.lines.push(Line {
                start: pc,
                place: Place { file, line: line.line },
                text: text_of(&mut refined.texts, line.text),
                inlined_at: first_call..refined.calls.len() as u32,
            });
        }
        refined
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
            + self.calls.capacity() * size_of::<Place>()
            + self.texts.capacity()
            + self.functions.capacity() * size_of::<(u32, Origin)>()
    }
}

/// Appends a text.
fn append(texts: &mut String, text: &str) -> Text {
    let start = texts.len() as u32;
    texts.push_str(text);
    start..texts.len() as u32
}

/// Makes the [`SourceMap`] of a program, function by function.
pub(crate) struct SourceMapBuilder<'a, 'e> {
    debug: &'a DebugInfo<'e>,
    /// Texts that have been appended, by their offsets in the object's strings.
    known: HashMap<u32, Text>,
    map: SourceMap,
}

impl<'a, 'e> SourceMapBuilder<'a, 'e> {
    pub(crate) fn new(debug: &'a DebugInfo<'e>) -> SourceMapBuilder<'a, 'e> {
        SourceMapBuilder { debug, known: HashMap::new(), map: SourceMap::default() }
    }

    /// Adds the lines of a function: the slots `slots` of this section, which are the program's instructions from
    /// `base` on. Functions must be added in order.
    pub(crate) fn add(&mut self, base: usize, section: usize, name: &str, slots: Range<usize>) {
        let origin = Origin { section, offset_bytes: 8 * slots.start as u64 };
        self.map.functions.push((base as u32, origin));
        let mut next = slots.start;
        for record in self.debug.of(name, slots.start) {
            let Some([offset, file, text, place]) = words::<4>(record) else { return };
            let slot = (offset / 8) as usize;
            // At most one record for each instruction, in order.
            if !(next..slots.end).contains(&slot) {
                return;
            }
            next = slot + 1;
            // The lower 10 bits are the column. Line 0 stands for code of the compiler: it belongs to the line before.
            let line = place >> 10;
            if line == 0 {
                continue;
            }
            let place = Place { file: self.text(file), line };
            let start = (base + slot - slots.start) as u32;
            let text = self.text(text);
            self.map.lines.push(Line { start, place, text, inlined_at: 0..0 });
        }
    }

    /// The line of an instruction among those added so far.
    pub(crate) fn find(&self, pc: u32) -> Option<SourceLine> {
        self.map.find(pc)
    }

    pub(crate) fn finish(self) -> SourceMap {
        let mut map = self.map;
        map.lines.shrink_to_fit();
        map.texts.shrink_to_fit();
        map
    }

    /// The string at an offset.
    fn text(&mut self, offset: u32) -> Text {
        if let Some(known) = self.known.get(&offset) {
            return known.clone();
        }
        if self.known.len() >= MAX_TEXTS {
            return 0..0;
        }
        let text = String::from_utf8_lossy(string(self.debug.strings, offset));
        let text = append(&mut self.map.texts, &text.trim().replace(char::is_control, " "));
        self.known.insert(offset, text.clone());
        text
    }
}

/// The line information of the two sections.
#[derive(Debug, Default)]
pub(crate) struct DebugInfo<'a> {
    strings: &'a [u8],
    /// Size of a record in bytes.
    record_bytes: usize,
    /// The records of each section, by its name.
    records: HashMap<&'a [u8], &'a [u8]>,
}

impl<'a> DebugInfo<'a> {
    /// Parses the contents of `.BTF` and `.BTF.ext`. Ignores a damaged part and everything behind it.
    pub(crate) fn parse(btf: &'a [u8], extension: &'a [u8]) -> DebugInfo<'a> {
        let (strings, line_info) = (header_part(btf, 16), header_part(extension, 16));
        let mut info = DebugInfo { strings: strings.unwrap_or_default(), ..DebugInfo::default() };
        // The size of a record; then, for each section, its name, a count and the records.
        let Some([record_bytes]) = line_info.and_then(words::<1>) else { return info };
        info.record_bytes = record_bytes as usize;
        if info.record_bytes < 16 {
            return info;
        }
        let mut rest = line_info.and_then(|all| all.get(4..)).unwrap_or_default();
        while let Some((name, records, behind)) = info.section(rest) {
            info.records.entry(name).or_insert(records);
            rest = behind;
        }
        info
    }

    /// The name and records of the section at the start of `rest`, and the bytes behind it.
    fn section(&self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
        let [name, count] = words::<2>(rest)?;
        let length = (count as usize).checked_mul(self.record_bytes)?;
        let (records, behind) = rest.get(8..)?.split_at_checked(length)?;
        Some((string(self.strings, name), records, behind))
    }

    /// The records of a section, from `slot` on. They are in order.
    fn of(&self, section: &str, slot: usize) -> impl Iterator<Item = &'a [u8]> {
        let records = self.records.get(section.as_bytes()).copied().unwrap_or_default();
        let record_bytes = self.record_bytes.max(1);
        let is_before = |index: usize| {
            let offset = words::<1>(&records[index * record_bytes..]);
            offset.is_some_and(|[offset]| ((offset / 8) as usize) < slot)
        };
        let (mut low, mut high) = (0, records.len() / record_bytes);
        while low < high {
            let middle = low.midpoint(high);
            if is_before(middle) { low = middle + 1 } else { high = middle }
        }
        records[low * record_bytes..].chunks_exact(record_bytes)
    }
}

/// The part of the section `.BTF` or `.BTF.ext` whose offset and length are at `offset_at` in its header. Both headers
/// are: magic, version and flags, then the header's length; offsets count from the header's end.
pub(crate) fn header_part(section: &[u8], offset_at: usize) -> Option<&[u8]> {
    let [magic, header, ..] = words::<2>(section)?;
    let [offset, length] = words::<2>(section.get(offset_at..)?)?;
    (magic & 0x00ff_ffff == 0x0001_eb9f).then_some(())?;
    let start = (header as usize).checked_add(offset as usize)?;
    section.get(start..start.checked_add(length as usize)?)
}

/// The first N little-endian words of `bytes`.
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (words, _) = bytes.get(..4 * N)?.as_chunks::<4>();
    let mut all = [0; N];
    for (word, bytes) in all.iter_mut().zip(words) {
        *word = u32::from_le_bytes(*bytes);
    }
    Some(all)
}

/// The string at an offset, up to its NUL and at most [`MAX_TEXT_BYTES`].
pub(crate) fn string(strings: &[u8], offset: u32) -> &[u8] {
    let rest = strings.get(offset as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(MAX_TEXT_BYTES)];
    rest.split(|&byte| byte == 0).next().unwrap_or_default()
}
