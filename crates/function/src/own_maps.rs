//! The maps of a function with nothing else installed.

use crate::environment::Environment;
use crate::map::Map;
use crate::program::Program;

/// The environment of a function with its maps, initially empty, and nothing else installed.
#[derive(Debug, Default)]
pub struct OwnMaps(Vec<Map>);

impl OwnMaps {
    /// Makes the maps of a program.
    #[must_use]
    pub fn new(program: &Program) -> OwnMaps {
        OwnMaps(program.maps().iter().cloned().map(Map::new).collect())
    }

    /// The maps, in the order of [`Program::maps`].
    #[must_use]
    pub fn maps(&self) -> &[Map] {
        &self.0
    }
}

impl Environment for OwnMaps {
    fn tail_call(&mut self, _function: u32) -> bool {
        false
    }

    fn trace(&mut self, _text: &[u8], _value: u64) {}

    fn map(&self, index: usize) -> Option<&Map> {
        self.0.get(index)
    }
}
