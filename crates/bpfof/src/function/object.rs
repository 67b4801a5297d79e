//! Object files that the user names.

use bpfof_function::Object;
use std::path::Path;

/// The bytes of an object file, and what they say.
pub(super) fn read_object(path: &Path) -> Result<(Vec<u8>, Object), String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let object = Object::parse(&bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok((bytes, object))
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
