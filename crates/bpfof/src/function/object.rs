//! Object files that the user names.

use bpfof_function::{Object, Program};
use std::path::Path;

/// A function of an object file.
pub(super) struct Chosen {
    /// The file.
    pub(super) bytes: Vec<u8>,
    object: Object,
    index: usize,
}

impl Chosen {
    /// The entry point with this name, or the only one, of the file at `path`.
    ///
    /// # Errors
    /// A message with the problem of the file, or with the names of its entry points.
    pub(super) fn read(path: &Path, wanted: Option<&str>) -> Result<Chosen, String> {
        let (bytes, object) = read_object(path)?;
        let index = choose(&object, wanted)?;
        Ok(Chosen { bytes, object, index })
    }

    /// Which of the object's entry points it is, in the order of the file.
    pub(super) fn index(&self) -> u32 {
        self.index as u32
    }

    /// Its name: the section's after `bpfof/`.
    pub(super) fn name(&self) -> &str {
        &self.object.entries()[self.index].name
    }

    /// Its program.
    pub(super) fn program(&self) -> &Program {
        &self.object.entries()[self.index].program
    }
}

/// Reads an object file, and parses it. Its source lines include the calls that were inlined.
pub(super) fn read_object(path: &Path) -> Result<(Vec<u8>, Object), String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if is_source(path, &bytes) {
        return Err(how_to_compile(path));
    }
    let mut object = Object::parse(&bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    let folder = std::env::current_dir().unwrap_or_default();
    bpfof_debug_info::add_call_sites(&bytes, &mut object, &folder);
    Ok((bytes, object))
}

/// Whether a file is C source by its name, and is not an object with such a name.
fn is_source(path: &Path, bytes: &[u8]) -> bool {
    let is_c = path.extension().is_some_and(|extension| extension == "c" || extension == "h");
    is_c && !bytes.starts_with(b"\x7fELF")
}

fn how_to_compile(source: &Path) -> String {
    let (shown, object) = (source.display(), source.with_extension("o"));
    format!(
        "{shown} is C source, and an object file is needed. Compile it:\n  clang -O2 -g -target bpf \
         -mcpu=v3 -I\"$FUNCTIONS/include\" -c {shown} -o {}\nwhere FUNCTIONS is the folder functions \
         of a checkout, or $(pkg-config --variable=functiondir bpfof)",
        object.display()
    )
}

/// The entry point with this name, or the only one.
pub(super) fn choose(object: &Object, wanted: Option<&str>) -> Result<usize, String> {
    let names: Vec<&str> = object.entries().iter().map(|entry| entry.name.as_str()).collect();
    match wanted {
        None if names.len() == 1 => Ok(0),
        None => Err(format!("name one with --entry: {}", names.join(", "))),
        Some(wanted) => names
            .iter()
            .position(|name| *name == wanted)
            .ok_or(format!("no entry {wanted:?}; the object has: {}", names.join(", "))),
    }
}
