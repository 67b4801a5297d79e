//! `struct bpfof_function`.

use crate::failure::Failure;
use crate::session::Session;
use bpfof_function::Object;
use bpfof_function::object::Entry;
use bpfof_host::files::StorageFunction;
use std::sync::Arc;

/// A loaded storage function.
#[derive(Debug)]
pub(crate) struct Function {
    session: Arc<Session>,
    pub(crate) loaded: StorageFunction,
}

impl Function {
    /// Loads the entry point called `entry`, or the only one.
    pub(crate) fn load(
        session: &Arc<Session>,
        object: &[u8],
        entry: Option<&str>,
    ) -> Result<Function, Failure> {
        let parsed = Object::parse(object).map_err(|error| {
            Failure::new(libc::ENOEXEC, format!("cannot load the function: {error}"))
        })?;
        let index = choose(parsed.entries(), entry)?;
        let loaded =
            session.maps.load_function(object, index).map_err(|error| Failure::of_error(&error))?;
        Ok(Function { session: Arc::clone(session), loaded })
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Some(id) = self.loaded.id() {
            // An error does not matter: a lost target has dropped the function as well.
            self.session.maps.with_controller(|target| target.unload_function(id));
        }
    }
}

fn choose(entries: &[Entry], wanted: Option<&str>) -> Result<u32, Failure> {
    let names = || entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>().join(", ");
    let index = match wanted {
        None if entries.len() == 1 => Some(0),
        None => return Err(Failure::invalid(format!("entry is NULL; name one of: {}", names()))),
        Some(wanted) => entries.iter().position(|entry| entry.name == wanted),
    };
    index.and_then(|index| u32::try_from(index).ok()).ok_or_else(|| {
        let wanted = wanted.unwrap_or_default();
        Failure::new(libc::ENOENT, format!("no entry {wanted:?}; the object has: {}", names()))
    })
}
