//! File maps of an association.

use crate::{Controller, Error, FileMapObject};
use bpfof_nvme::AdminCommand;

impl Controller {
    /// Sets or replaces the map of a file (protocol.md, File Map Set). With several portals it does not wait for any
    /// path.
    ///
    /// # Errors
    /// [`Error::NoPath`]; [`Error::ObjectTooLarge`] for more extents than the target takes; otherwise as the target
    /// answered, in particular Invalid Field in Command for a map that breaks a rule or names
    /// blocks outside the namespace.
    pub fn set_file_map(&mut self, map: &FileMapObject) -> Result<(), Error> {
        self.set_file_map_while(map, &mut || {})
    }

    /// The same; `meanwhile` is called every few ms until the target has the map, or each target of several portals.
    pub(crate) fn set_file_map_while(
        &mut self,
        map: &FileMapObject,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        if let Some(paths) = &self.paths {
            return paths.set_file_map(map, meanwhile);
        }
        let extents = u64::from(self.pushdown_limits()?.extents);
        let max_bytes =
            FileMapObject::HEADER_BYTES as u64 + extents * FileMapObject::EXTENT_BYTES as u64;
        let mut object = Vec::with_capacity(
            FileMapObject::HEADER_BYTES + map.extents.len() * FileMapObject::EXTENT_BYTES,
        );
        map.encode_into(&mut object);
        self.upload(&object, max_bytes, AdminCommand::file_map_set, meanwhile).map(|_| ())
    }

    /// Removes the map of file `file`; chains that read it end with Unknown File. With several portals, none of them
    /// connected, nothing is left to do: paths that connect later do not get the map.
    ///
    /// # Errors
    /// As the target answered.
    pub fn remove_file_map(&mut self, nsid: u32, file: u32) -> Result<(), Error> {
        self.set_file_map(&FileMapObject::removal(nsid, file))
    }
}
