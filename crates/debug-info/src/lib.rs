//! The inlined calls through which an instruction of a storage function came: for the function's author.
//!
//! An object that clang has compiled with `-g` has its source lines in BTF, which [`bpfof_function::Object`] reads, and
//! also in DWARF, with the functions that were inlined. [`add_call_sites`] reads the latter, so that a message names
//! the line of a header and the place where the header was used: `blocks.h:39, inlined at oob.bpf.c:5`.
//!
//! # What this crate does not do
//!
//! Targets do not use it: DWARF is a large format, and objects on a target come from strangers. It is for the machine
//! of the function's author. It ignores data that it cannot read; nothing depends on it.

mod sections;

use addr2line::Context;
use bpfof_function::{CallSite, Object, Origin, SourceLine};
use gimli::{EndianRcSlice, LittleEndian};
use std::path::Path;

type Lines = Context<EndianRcSlice<LittleEndian>>;

/// Adds to the source lines of `parsed`, which was read from the file `object`, the inlined calls through which each
/// came. Names of files below `folder`, an absolute path, are shortened.
pub fn add_call_sites(object: &[u8], parsed: &mut Object, folder: &Path) {
    let lines = sections::read(object).and_then(|dwarf| Lines::from_dwarf(dwarf).ok());
    for entry in parsed.entries_mut() {
        let program = &mut entry.program;
        let slots = program.instructions().len() as u32;
        let sources = program.sources().refined(slots, |origin, known| {
            let line = lines.as_ref().and_then(|lines| inlined(lines, origin, known));
            shortened(line.unwrap_or_else(|| known.clone()), folder)
        });
        program.set_sources(sources);
    }
}

/// The line with its calls. None if DWARF has another line, or none.
fn inlined(lines: &Lines, origin: Origin, known: &SourceLine) -> Option<SourceLine> {
    let mut frames = lines.find_frames(sections::address(origin)).skip_all_loads().ok()?;
    let mut places = Vec::new();
    while let Some(frame) = frames.next().ok()? {
        let location = frame.location?;
        places.push(CallSite { file: location.file?.into(), line: location.line? });
    }
    // BTF has the text; and to code of the compiler it gives the line before.
    let (first, inlined_at) = places.split_first()?;
    let same = first.line == known.line;
    same.then(|| SourceLine { inlined_at: inlined_at.to_vec(), ..known.clone() })
}

fn shortened(line: SourceLine, folder: &Path) -> SourceLine {
    let short = |file: &str| {
        // Without components that are ".".
        let path: std::path::PathBuf = Path::new(file).components().collect();
        path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into()
    };
    let calls = line.inlined_at.iter();
    let inlined_at = calls.map(|call| CallSite { file: short(&call.file), ..*call }).collect();
    SourceLine { file: short(&line.file), inlined_at, ..line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfkv::RANGE_OBJECT;
    use proptest::prelude::*;

    /// The lines of all instructions.
    fn lines(object: &Object) -> Vec<SourceLine> {
        let program = &object.entries()[0].program;
        let slots = 0..program.instructions().len() as u32;
        slots.filter_map(|pc| program.sources().find(pc)).collect()
    }

    fn with_calls(bytes: &[u8], object: &[u8]) -> Vec<SourceLine> {
        let mut parsed = Object::parse(object).expect("an object");
        add_call_sites(bytes, &mut parsed, Path::new("/nowhere"));
        lines(&parsed)
    }

    #[test]
    fn calls_come_on_top_of_what_is_known() {
        let known = lines(&Object::parse(RANGE_OBJECT).expect("an object"));
        let found = with_calls(RANGE_OBJECT, RANGE_OBJECT);
        assert_eq!(found.len(), known.len());
        for (found, known) in found.iter().zip(&known) {
            assert_eq!((found.line, &found.text), (known.line, &known.text));
        }
        assert!(found.iter().any(|line| !line.inlined_at.is_empty()), "nothing is inlined");
        assert!(found.iter().any(|line| line.inlined_at.is_empty()), "all is inlined");
    }

    #[test]
    fn names_below_the_folder_are_short() {
        let call = |file: &str| CallSite { file: file.into(), line: 2 };
        let line = SourceLine {
            file: "/home/me/./list/list.h".into(),
            line: 7,
            text: "".into(),
            inlined_at: vec![call("/home/me/get.c"), call("/usr/include/x.h"), call("a.c")],
        };
        let shown = shortened(line, Path::new("/home/me")).to_string();
        let calls = "inlined at get.c:2, inlined at /usr/include/x.h:2, inlined at a.c:2";
        assert_eq!(shown, format!("list/list.h:7, {calls}"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn damaged_objects_only_lose_calls(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            length in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
        ) {
            let mut bytes = RANGE_OBJECT.to_vec();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if is_cut {
                bytes.truncate(length.index(bytes.len()));
            }
            let known = lines(&Object::parse(RANGE_OBJECT).expect("an object"));
            prop_assert_eq!(with_calls(&bytes, RANGE_OBJECT).len(), known.len());
        }
    }
}
