//! What a controller asks of its paths, where it has several: [`paths`](crate::paths) does it.

use crate::installed::Installed;
use crate::paths::PathInfo;
use crate::{Error, FileMapObject, Lane, MapChange, NamespaceInfo};
use bpfof_nvme::{Cqe, Installation, Sqe};
use std::fmt::Debug;
use std::sync::Arc;

/// The paths of a controller, which end when this is dropped. Functions are called by their ids.
pub(crate) trait Several: Debug + Send + Sync {
    /// What the program is told of them.
    fn info(&self) -> Vec<PathInfo>;

    /// Carries out an admin command by the best path; again by another if that is lost and the command
    /// changes nothing.
    fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error>;

    /// Most data of one command in bytes, by any path.
    fn max_transfer_bytes(&self) -> u32;

    /// Opens a lane that goes on by another path.
    fn open_lane(&self, namespaces: &Arc<[NamespaceInfo]>) -> Result<Lane, Error>;

    /// Loads a function on all associations.
    fn load(&self, object: &[u8], entry: u32) -> Result<u32, Error>;

    /// Installs a function at all targets.
    fn install(&self, object: &[u8], installation: Installation) -> Result<u32, Error>;

    /// From now on requests may use the installed function of this id, which is this one at the target of each
    /// path.
    fn require(&self, function: u32, installed: &Installed) -> Result<(), Error>;

    /// Unloads a function everywhere.
    fn unload(&self, function: u32) -> Result<(), Error>;

    /// Sets the map of a file on all associations.
    fn set_file_map(&self, map: &FileMapObject) -> Result<(), Error>;

    /// Changes an entry of a function map on all associations. False as for
    /// [`Controller::map_change`](crate::Controller::map_change).
    fn change_map(
        &self,
        name: &str,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error>;

    /// Shuts all controllers down in order.
    fn shut_down(&self) -> Result<(), Error>;
}
